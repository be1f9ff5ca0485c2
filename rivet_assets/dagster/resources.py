"""The resources that every asset of ours brings along, and how its step uses them.

Belongs here: these two objects, and the exporter of a step. Not here: what they do (`rivet_resources/dagster/`), the
resource for people's own ops (`rivet_resource.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rivet_resources.dagster.io_manager import LAKE, Lake
from rivet_resources.dagster.resource import RUN, Rivet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rivet_assets.config.load import RivetConfig
    from rivet_resources.read.stage import Exporter
    from rivet_resources.state.store import State

RIVET = Rivet()
RESOURCES: Mapping[str, Any] = {RUN: RIVET, LAKE: Lake(rivet=RIVET)}


def project_keys(config: RivetConfig) -> set[str]:
    """Name the resources of the project that a step needs: its Spark, where `spark: {resource: …}` says so."""
    # Decision: resources are bound to the assets themselves, under keys of our own, and never given to a project's
    # `Definitions`: so any number of components, files and decorators stand beside each other and beside a project's
    # own `rivet` or `lake`.
    return {config.spark.resource} if config.spark.resource else set()


def project_session(context: Any, config: RivetConfig) -> Callable[[], SparkSession] | None:
    """Return what yields the session of the project's own Spark; None where exports have one of ours."""
    if not config.spark.resource:
        return None
    return partial(getattr, getattr(context.resources, config.spark.resource), "spark_session")


def run_resource(context: Any) -> Rivet:
    """Return what the exports of a run share."""
    rivet: Rivet = getattr(context.resources, RUN)
    return rivet


def exporter_of(context: Any, config: RivetConfig, state: State, *, begin: bool = True) -> Exporter:
    """Return the exporter of a step, on the project's own Spark where the configuration names its resource.

    Args:
        begin: start the JVM now, beside the planning.
    """
    own = project_session(context, config)
    return run_resource(context).exporter(spark=config.spark, state=state, begin=begin, session_of=own)
