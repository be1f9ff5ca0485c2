"""What an observer hears of a run: when it begins, and how it ended.

Belongs here: those facts, and the moments. Not here: what becomes of them (`observe/`). Names, counts and times only:
no value of a row, no address of a database, and of errors only the texts of ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from rivet_assets.run import interruption
from rivet_resources.contracts.extract import Staged
from rivet_resources.shape.shape import planned

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.source import Source


@dataclass(frozen=True)
class ObservedTable:
    """One table of a run: what it was read from, and what was published of it."""

    source: str  # schema.table, or the name of the export whose query it is
    uri: str
    columns: tuple[tuple[str, str], ...] = ()  # (name, type) as published
    source_columns: tuple[tuple[str, str], ...] = ()
    origins: Mapping[str, frozenset[str]] = field(default_factory=dict)  # published column → those it is made of
    rows: int = 0
    files: int = 0
    size_bytes: int = 0


@dataclass(frozen=True)
class ObservedRun:
    """One run of one window. Facts that only its end tells have defaults."""

    export: str
    mode: str
    window: str
    run_id: str
    source_name: str
    source_type: str
    started_at: datetime
    tables: tuple[ObservedTable, ...] = ()
    status: str = "running"  # then success, skipped, failed or interrupted
    finished_at: datetime | None = None
    error_code: str = ""
    error: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)  # of each step, in their order
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def total_seconds(self) -> float:
        """Return how long it took, so far as it is over."""
        return (self.finished_at - self.started_at).total_seconds() if self.finished_at else 0.0


def begun_run(
    export: Export, source_name: str, source: Source, *,
    run_id: str, window: str, started_at: datetime, tables: tuple[ObservedTable, ...],
) -> ObservedRun:  # fmt: skip
    """Return what is known of a run when it begins."""
    return ObservedRun(
        export=export.name,
        mode=export.mode,
        window=window,
        run_id=run_id,
        source_name=source_name,
        source_type=source.type,
        started_at=started_at,
        tables=tables,
    )


class Observer(Protocol):
    """Hears of runs; neither call raises, and both are bounded in time."""

    def began(self, run: ObservedRun) -> None: ...
    def ended(self, run: ObservedRun) -> None: ...


@contextmanager
def watched(observer: Observer | None, run: ObservedRun) -> Iterator[dict[str, Any]]:
    """Pass to an observer that the block begins, and how it ended, with the facts that the block puts in."""
    facts: dict[str, Any] = {"status": "success"}
    if observer is None:
        yield facts
        return
    observer.began(run)
    try:
        yield facts
    # Whatever ends it: a Ctrl-C and Dagster's own interruptions are no `Exception`, and a run that began must end for
    # who watches.
    except BaseException as error:
        facts["status"] = interruption.status_of(error)
        # The text of a foreign error may hold a value of a row or an address, and it goes to somebody else's server.
        facts["error_code"], facts["error"] = interruption.code_and_text(error)
        raise
    finally:
        observer.ended(replace(run, **facts, finished_at=datetime.now(UTC)))


def table_of(staged: Staged, *, source: str, uri: str) -> ObservedTable:
    """Return what is known of a staged window's table."""
    extract, measures = staged.extract, staged.measures
    schema = pa.ipc.read_schema(pa.BufferReader(staged.schema_ipc))
    return ObservedTable(
        source=source,
        uri=uri,
        columns=tuple((each.name, str(each.type)) for each in schema),
        source_columns=tuple((column.name, column.native) for column in extract.relation.columns),
        origins=planned(extract.relation, extract.transforms).origins,
        rows=measures.rows,
        files=len(staged.parts),
        size_bytes=sum(part.size_bytes for part in staged.parts),
    )


def figures_of(staged: Staged) -> dict[str, float]:
    """Return what a run measured of itself."""
    measures = staged.measures
    return {
        "retries": measures.retries,
        "cpu_seconds": measures.cpu_seconds,
        "peak_mb": measures.peak_mb,
        "throttled_seconds": measures.throttled_seconds,
    }
