"""What `rivet doctor` asks a Spark cluster: its hosts, and whether each reaches both ends of the exports.

Belongs here: one row per source and destination. Not here: the question itself (`rivet_resources/spark/cluster.py`),
Java on this machine (`machine.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rivet_assets.doctor.row import Row, fault_row
from rivet_resources.contracts.settings import pace
from rivet_resources.errors import RivetError
from rivet_resources.spark.cluster import Ends
from rivet_resources.spark.runtime import SparkRuntime

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig

CLUSTER_SECONDS = 120.0  # a session waits for executors, which may be pods that are not there yet


def cluster_rows(config: RivetConfig, exports: Sequence[Export]) -> list[Row]:
    """Start a session and ask every host, once for each pair of source and destination, and the steps between them."""
    runtime = SparkRuntime(config.spark)
    rows: list[Row] = []
    asked: list[object] = []  # steps may hold what has no hash
    try:
        for export in exports:
            name, source = config.source_of(export)
            uri = export.destination.root(export.name).uri
            if runtime.is_remote or (name, export.destination, export.steps) in asked:
                continue
            asked.append((name, export.destination, export.steps))
            try:
                tempo = pace(source.tuning, export.tuning)
                hosts = runtime.hosts(Ends(source, export.destination, export.name, tempo, export.steps))
            except RivetError as error:
                rows.append(fault_row("cluster", name, error))
                continue
            rows.append(Row(name, "ok", f"{', '.join(hosts)} reach {name} and {uri}", about="cluster"))
    finally:
        runtime.stop()
    return rows
