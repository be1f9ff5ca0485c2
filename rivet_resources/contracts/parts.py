"""What a chunk leaves behind: finished files, and what was counted while its rows passed.

All frozen, all plain data: they are pickled by reference to this installed package, never as closures.
Belongs here: shapes and their sums. Not here: how they are written (`write/`) and published (`commit/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rivet_resources.contracts.rows.boundary import Edge


@dataclass(frozen=True)
class PieceSums:
    """The checksums of the pieces that a file was sent in, hexadecimal; all but the last are of `piece_bytes`."""

    algorithm: Literal["md5", "sha256"]
    piece_bytes: int
    pieces: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """One finished file. `path` is relative to the export's folder; `staged` is where it lies until published.

    `staged` is the destination's own plain data (JSON-able): a path, or a multipart upload with its checksums.
    """

    path: str
    rows: int
    size_bytes: int
    fingerprint: str  # "xxh3:" + 16 hex over the file's bytes
    md5: str  # base64
    staged: dict[str, Any] = field(default_factory=dict)
    chunk: int = 0
    schema: str = ""  # base64 of its IPC-serialised schema, where that is not its window's
    partition: str = ""  # its folder below its window's, by a column's day, month or year

    @property
    def sums(self) -> PieceSums | None:
        """Return the checksums of the pieces it was sent in; None where it was sent whole, or by an older Rivet."""
        told = self.staged.get("sums")
        return PieceSums(told["algorithm"], told["piece_bytes"], tuple(told["pieces"])) if told else None


@dataclass(frozen=True)
class Measures:
    """What was counted while rows passed; adding two gives the measures of both together.

    `unique` lists sidecar files of cell hashes per `unique_columns` member: {column: [file, …]}.
    """

    rows: int = 0
    rows_read: int = 0  # before filters
    nulls: dict[str, int] = field(default_factory=dict)
    special_values: dict[str, dict[str, int]] = field(default_factory=dict)  # column → kind → replaced
    unique: dict[str, list[str]] = field(default_factory=dict)
    checksums: dict[str, int] = field(default_factory=dict)  # column → sum over its cells; absent: none
    broken: dict[str, int] = field(default_factory=dict)  # check of a contract → rows that break it
    newest: dict[str, int] = field(default_factory=dict)  # column → its newest time, microseconds since 1970
    profile: list[str] = field(default_factory=list)  # files with what chunks counted for a profile
    pages: int = 0
    arrow_bytes: int = 0
    retries: int = 0
    longest_statement_ms: float = 0.0
    throttled_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_mb: float = 0.0
    governed_seconds: float = 0.0  # paused because the source suffered, beyond the throttle
    # Rows that could not be exported, by reason: left out, and set aside as dead letters.
    skipped: dict[str, int] = field(default_factory=dict)
    dead: dict[str, int] = field(default_factory=dict)
    # What the reading cost the server, as it counts; None: no reader could tell.
    rows_scanned: int | None = None
    temp_bytes: int | None = None
    longest_transaction_ms: float = 0.0
    connections: int = 0
    # Of an incremental window: the rows at its two ends that are its own, as in `Edge`.
    low_rows: int = 0
    low_ids: str | None = ""
    high_rows: int = 0
    high_ids: str | None = ""

    @property
    def refused_rows(self) -> int:
        """Return how many rows could not be exported, and are not among `rows`."""
        return sum(self.skipped.values()) + sum(self.dead.values())

    @property
    def low_edge(self) -> Edge:
        """Return the window's rows that have the cursor value it starts at."""
        return Edge(self.low_rows, self.low_ids)

    @property
    def high_edge(self) -> Edge:
        """Return the window's rows that have the cursor value it ends at."""
        return Edge(self.high_rows, self.high_ids)

    def __add__(self, other: Measures) -> Measures:
        """Join two disjoint sets of rows: counts add, peaks take the larger."""
        special = {column: dict(kinds) for column, kinds in self.special_values.items()}
        for column, kinds in other.special_values.items():
            mine = special.setdefault(column, {})
            for kind, count in kinds.items():
                mine[kind] = mine.get(kind, 0) + count
        low, high = self.low_edge + other.low_edge, self.high_edge + other.high_edge
        return Measures(
            rows=self.rows + other.rows,
            rows_read=self.rows_read + other.rows_read,
            nulls=join_counts(self.nulls, other.nulls),
            special_values=special,
            unique={c: self.unique.get(c, []) + other.unique.get(c, []) for c in {**self.unique, **other.unique}},
            profile=self.profile + other.profile,
            pages=self.pages + other.pages,
            arrow_bytes=self.arrow_bytes + other.arrow_bytes,
            retries=self.retries + other.retries,
            longest_statement_ms=max(self.longest_statement_ms, other.longest_statement_ms),
            throttled_seconds=self.throttled_seconds + other.throttled_seconds,
            cpu_seconds=self.cpu_seconds + other.cpu_seconds,
            peak_mb=max(self.peak_mb, other.peak_mb),
            governed_seconds=self.governed_seconds + other.governed_seconds,
            rows_scanned=known_sum(self.rows_scanned, other.rows_scanned),
            temp_bytes=known_sum(self.temp_bytes, other.temp_bytes),
            longest_transaction_ms=max(self.longest_transaction_ms, other.longest_transaction_ms),
            connections=self.connections + other.connections,
            skipped=join_counts(self.skipped, other.skipped),
            dead=join_counts(self.dead, other.dead),
            checksums=_join_sums(self, other),
            broken={c: self.broken.get(c, 0) + other.broken.get(c, 0) for c in {**self.broken, **other.broken}},
            newest=_join_newest(self, other),
            low_rows=low.rows,
            low_ids=low.ids,
            high_rows=high.rows,
            high_ids=high.ids,
        )


def join_counts(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Add two sets of counts."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def _join_sums(one: Measures, other: Measures) -> dict[str, int]:
    """Add the checksums of two sets of rows; {} where one has rows that were never summed (an older run's chunk)."""
    # A sum over some of the rows would be compared with one over all of them, and call sound parts damaged.
    if any(each.rows and not each.checksums for each in (one, other)):
        return {}
    names = {**one.checksums, **other.checksums}
    # Modulo 2**64, as the sum of each part is: so it is the same wherever parts and chunks were cut.
    return {name: (one.checksums.get(name, 0) + other.checksums.get(name, 0)) % 2**64 for name in names}


def _join_newest(one: Measures, other: Measures) -> dict[str, int]:
    """Return the newer time of each column."""
    names = {**one.newest, **other.newest}
    return {name: max(each.newest[name] for each in (one, other) if name in each.newest) for name in names}


def known_sum(one: int | None, other: int | None) -> int | None:
    """Add what is known; None when neither is."""
    known = [each for each in (one, other) if each is not None]
    return sum(known) if known else None


@dataclass(frozen=True)
class ChunkResult:
    """What one task returns: the parts it staged and what it measured. JSON-able by `dataclasses.asdict`."""

    chunk: int
    parts: tuple[Part, ...]
    measures: Measures
    dead_letters: tuple[Part, ...] = ()
    clock: str = ""  # the run's time that its rows hold; '' where they hold none

    @property
    def files(self) -> tuple[Part, ...]:
        """Return all that it staged."""
        return (*self.parts, *self.dead_letters)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> ChunkResult:
        """Rebuild what `asdict` took apart; a Rivet of before knew no dead letters.

        Raises:
            KeyError, TypeError: it is none of this version.
        """
        return cls(
            chunk=plain["chunk"],
            parts=tuple(Part(**part) for part in plain["parts"]),
            measures=Measures(**plain["measures"]),
            dead_letters=tuple(Part(**part) for part in plain.get("dead_letters", ())),
            clock=plain.get("clock", ""),
        )
