"""`rivet doctor`: ask everything that exports need, side by side, and say what to do about what does not answer.

Belongs here: who is asked, and in which order the rows come back. Not here: what each is asked (`machine.py`,
`cluster.py`, `source.py`, `destination.py`, `change_log.py`, `schema_registry.py`, `provenance.py`), printing and exit
codes (`report.py`).

No row of a table is read, and nothing is changed: a destination gets a probe that is removed again, and a state store
that does not exist yet is created, as a run would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rivet_assets.config.by_source import by_source
from rivet_assets.config.extras import extras_of
from rivet_assets.doctor.change_log import log_rows
from rivet_assets.doctor.cluster import CLUSTER_SECONDS, cluster_rows
from rivet_assets.doctor.destination import destination_rows
from rivet_assets.doctor.machine import machine_rows, open_store, spark_rows
from rivet_assets.doctor.provenance import provenance_rows
from rivet_assets.doctor.row import Row, fault_row
from rivet_assets.doctor.schema_registry import schema_registry_rows
from rivet_assets.doctor.source import source_rows
from rivet_assets.modes.cdc import drain_of
from rivet_assets.run.admit.provenance import ForeseenRead
from rivet_resources.contracts.messages import is_topic
from rivet_resources.fan_out import side_by_side

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig

EACH_SECONDS = 30.0


def examine(config: RivetConfig, names: Sequence[str] = ()) -> list[Row]:
    """Ask for all exports, or these; rows in the order spark, machine, state, sources, destinations, logs, provenance.

    Raises:
        ConfigError: an export is not known.
    """
    wanted = {config.export(name).name for name in names}
    exports = [export for export in config.exports if not names or export.name in wanted]
    state, rows = open_store(config, seconds=EACH_SECONDS)
    sources = by_source(config, exports)
    needed = [extra for export in exports for extra in extras_of(config, export)]
    needed += config.observability.extras if config.observability is not None else ()
    read: dict[str, Mapping[str, ForeseenRead]] = {}

    def tell(export: Export, of_it: Mapping[str, ForeseenRead]) -> None:
        name = export.whole.name
        read[name] = {**read.get(name, {}), **of_it}  # of each shard

    asks: dict[str, Callable[[], list[Row]]] = {
        "spark": partial(spark_rows, config.spark),
        "machine": partial(machine_rows, needed),
    }
    for name, (source, of_source) in sources.items():
        asks[f"source {name}"] = partial(source_rows, name, source, of_source, warnings=config.warnings, tell=tell)
    for destination, export in _places(exports).values():
        asks[f"destination {destination.root(export.name).uri}"] = partial(destination_rows, destination, export)
    for export in exports:
        drain = drain_of(export)
        if drain is not None and state is not None:
            name, source = config.source_of(export)
            asks[f"export {export.name}"] = partial(log_rows, drain, name, source, state, config, tell)
    if config.schema_registry is not None and state is not None:
        asks["schema registry"] = partial(schema_registry_rows, config, exports, state)
    answers = side_by_side(asks, seconds=EACH_SECONDS)
    if config.spark.is_cluster:
        answers |= side_by_side({"cluster": partial(cluster_rows, config, exports)}, seconds=CLUSTER_SECONDS)
    whose = provenance_rows(exports, dict(read), state)
    if state is not None:
        state.close()
    spark, machine, *others = (_rows(about, answer) for about, answer in answers.items())
    return [*spark, *machine, *rows, *(row for each in others for row in each), *whose]


def _places(exports: Sequence[Export]) -> dict[object, tuple[Any, Export]]:
    """Return each destination once, with an export that goes there; of a block of topics each export's own."""
    return {
        (export.destination, export.name if is_topic(export.destination) else ""): (export.destination, export)
        # The last one of a key stays in a dict: so it is the first export that goes there.
        for export in reversed(exports)
    }


def _rows(about: str, answer: list[Row] | Exception) -> list[Row]:
    return [fault_row(about, "answer", answer)] if isinstance(answer, Exception) else answer
