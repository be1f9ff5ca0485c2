"""What the processes of tests have imported before they begin (`processes.py`): commands, Dagster, Spark, drivers."""

import gc
import importlib
import pkgutil

import adbc_driver_postgresql.dbapi  # noqa: F401
import azure.storage.blob  # noqa: F401
import boto3  # noqa: F401
import duckdb  # noqa: F401
import google.cloud.storage  # noqa: F401
import pandas  # noqa: F401
import psycopg  # noqa: F401
import pyarrow.dataset  # noqa: F401
import pymysql  # noqa: F401
import pyspark.sql.connect  # noqa: F401

import rivet_assets
import rivet_resources
from tests import revisions

revisions.read_now()
for package in (rivet_assets, rivet_resources):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)

gc.freeze()  # else the first collection of each process copies every page they share
