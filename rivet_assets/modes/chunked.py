"""Export a whole table in pieces by key (`mode: chunked`): in parallel, each piece recoverable on its own.

Belongs here: the YAML keys, which way of cutting they choose, the guards. Not here: arithmetic of ranges
(`key_ranges.py`), how a source finds bounds (`Session.bounds`, `quantiles`, `keyset_bounds`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from rivet_assets.blocks.export import Export
from rivet_assets.modes.block_identity import NOT_OF_A_CHUNK, columns_of, identity, mask_keys
from rivet_assets.modes.by_value import WindowRows, predicate_of, window_rows
from rivet_assets.modes.chunk_predicates import halves, is_whole, key_ranges, page_key, within, within_window
from rivet_assets.modes.key_ranges import Range, between_inner_bounds, by_days, equal_width
from rivet_assets.modes.protocol import Planning, compose, require_bound
from rivet_resources.commit.manifest import Manifest
from rivet_resources.contracts.extract import Extract
from rivet_resources.contracts.mode_facts import Cautions, ModeFacts
from rivet_resources.contracts.relation import Chunk, KeyRange, Reader
from rivet_resources.contracts.source import Source
from rivet_resources.contracts.types import Column
from rivet_resources.errors import ConfigError, SourceError

Cutting = Literal["range", "statistics", "days", "dense", "keyset"]

DEFAULT_CHUNK_ROWS = 100_000
MANY_CHUNKS = 1_000  # of days, where more than four for each row are too many


class Chunked(Export):
    """Every row, cut by a key into chunks that tasks read side by side."""

    answers: ClassVar[ModeFacts] = ModeFacts(
        name="chunked",
        reads="all rows, in chunks, each time anew",
        cuts=True,
        by_ranges=True,
        refuses_nulls=True,
        more_because="rows came into its key ranges",
        fewer_because="rows were deleted",
    )

    later_keys: ClassVar[tuple[str, ...]] = (*Export.later_keys, "consistency")
    mode: Literal["chunked"]
    chunk_column: str | None = Field(None, description="whole numbers, or dates with chunk_by_days; default: the key")
    chunk_size: int | None = Field(None, ge=1, description="width of a chunk in key values; default 100000")
    chunk_size_memory_mb: int | None = Field(None, ge=1, description="derive chunk_size from row width; table only")
    chunk_count: int | None = Field(None, description="so many chunks of equal width")
    chunk_by_days: int | None = Field(None, description="chunks of N days of a date or timestamp chunk_column")
    chunk_dense: bool = Field(False, description="chunks of chunk_size rows each, for sparse keys")
    chunk_by_key: str | None = Field(
        None,
        description="page along this NOT NULL column, then along the rest of the key. Where nothing is named, chunks "
        "are cut by the first column of the table's key",
    )
    chunk_checkpoint: bool | None = Field(
        None,
        description="keep finished chunks of a run that dies; the next run resumes, and publishes them as they were "
        "then. Default: true with consistency: per_chunk, else false",
    )
    consistency: Literal["snapshot", "per_chunk"] | None = Field(
        None,
        description="snapshot: all chunks of one instant, where the source can give it. per_chunk: each of its own, "
        "so that none is held longer than a chunk takes. Default: snapshot",
    )
    chunk_max_attempts: int | None = Field(None, ge=1, description="tries per chunk; default max_retries + 1")

    @model_validator(mode="after")
    def one_way_of_cutting(self) -> Chunked:
        """Refuse keys that contradict each other, each rule with its own code."""
        for value, code, name in (
            (self.chunk_count, "RIVET_CONFIG_CHUNK_COUNT_INVALID", "chunk_count"),
            (self.chunk_by_days, "RIVET_CONFIG_CHUNK_BY_DAYS_INVALID", "chunk_by_days"),
        ):
            if value is not None and value < 1:
                raise PydanticCustomError(code, "{name} is {value}; write at least 1", {"name": name, "value": value})
        ways = [name for name in ("chunk_count", "chunk_by_days", "chunk_by_key") if getattr(self, name) is not None]
        ways += ["chunk_dense"] if self.chunk_dense else []
        if len(ways) > 1:
            raise PydanticCustomError(
                "RIVET_CONFIG_CHUNK_CONFLICT", "{ways} each choose how to cut; keep one", {"ways": " and ".join(ways)}
            )
        if self.chunk_size is not None and self.chunk_size_memory_mb is not None:
            raise PydanticCustomError(
                "RIVET_CONFIG_CHUNK_SIZE", "chunk_size and chunk_size_memory_mb both set the size; keep one"
            )
        if self.chunk_by_days is not None and self.chunk_column is None:
            raise PydanticCustomError(
                "RIVET_CONFIG_CHUNK_COLUMN", "chunk_by_days needs chunk_column, a date or timestamp"
            )
        if self.table is None and self.chunk_column is None and self.chunk_by_key is None:
            raise PydanticCustomError(
                "RIVET_CONFIG_CHUNK_COLUMN",
                "mode chunked over a query needs chunk_column or chunk_by_key; with `table:` the key is found",
            )
        if self.table is None and self.chunk_size_memory_mb is not None:
            raise PydanticCustomError("RIVET_CONFIG_CHUNK_SIZE", "chunk_size_memory_mb needs `table:`")
        return self

    def deciding_column(self, key: tuple[str, ...]) -> tuple[str, bool]:
        """Return the column whose ranges are chunks: the one that is named, else the first of the key."""
        return self.chunk_by_key or self.chunk_column or next(iter(key), ""), False

    def strategy(self, way: str, column: str, *, chunks: int) -> str:
        """Return how it is cut, such as `chunked-parallel(id, size=50000, p=4)`."""
        kind = "chunked-parallel" if self.parallel > 1 else "chunked-sequential"
        return f"{kind}({column}, {self._cut(chunks)}{self.abreast})"

    def _cut(self, chunks: int) -> str:
        if self.chunk_by_key:
            return "by key"
        if self.chunk_by_days:
            return f"days={self.chunk_by_days}"
        if self.chunk_count:
            return f"count={self.chunk_count}"
        size = f"dense, size={self.chunk_size or 100_000}" if self.chunk_dense else f"size={self.chunk_size}"
        return size if self.chunk_dense or self.chunk_size else f"{chunks or 'some'} chunks"

    @property
    def shares_snapshot(self) -> bool:
        """Return whether one instant is held for all chunks, where the source can."""
        return self.consistency != "per_chunk"

    @property
    def range_width(self) -> int | None:
        """Return `chunk_size`."""
        return self.chunk_size

    @property
    def cautions(self) -> Cautions:
        """Return what was done about sparse keys."""
        return Cautions(is_dense=self.chunk_dense)

    def extract(self, planning: Planning) -> Extract:
        """Describe every row, cut by key; an empty table has no chunks.

        Raises:
            UnknownColumn, SourceError: no usable key, NULL keys, or a key too sparse for ranges.
        """
        self._refuse_instants(planning.source)
        column = self._key(planning)
        cutting = self._cutting(planning, column)
        rows = window_rows(self, planning)
        ranges, notes = self._ranges(planning, column, cutting, rows)
        chunks = tuple(
            within_window(self._chunk(planning, column, piece, keys, index=index, cutting=cutting), rows)
            for index, (piece, keys) in enumerate(zip(ranges, key_ranges(planning, column, ranges), strict=True))
        )
        if self.chunk_column is None and self.chunk_by_key is None:
            part = "the key" if len(planning.relation.key) == 1 else "the first column of the key"
            notes = (f"chunked by {column.name}, {part} of {planning.relation.name}", *notes)
        fingerprint = self._fingerprint(planning, column, cutting, rows) if self._keeps_chunks else ""
        extract = compose(
            self,
            planning,
            window=rows.window,
            chunks=chunks,
            fingerprint=fingerprint,
            decisive=(column.name, *rows.decisive),
            notes=(f"cut by {cutting}", *notes),
        )
        if not self.shares_snapshot:  # whatever the session could give
            extract = replace(extract, consistency="per_query")
        if self.chunk_max_attempts is None:
            return extract
        return replace(extract, pace=extract.pace.model_copy(update={"max_retries": self.chunk_max_attempts - 1}))

    def predicate(self, planning: Planning, manifest: Manifest) -> str:
        """Return which rows the window holds: all, whose chunks are compared one by one (`reread.py`); or a value's."""
        return predicate_of(self, planning, manifest)

    def shares(self, planning: Planning, manifest: Manifest) -> tuple[int, int]:
        """Return (0, 0): the predicate finds the window's rows, no more and no less."""
        return 0, 0

    def again(self, planning: Planning, manifest: Manifest) -> Extract:
        """Describe all rows once more, cut anew."""
        return replace(self.extract(planning), fingerprint="")

    def _refuse_instants(self, source: Source) -> None:
        """Refuse instants by chunk where a source cannot give them.

        Raises:
            ConfigError
        """
        if not self.shares_snapshot and not source.facts.has_chunk_instants:
            raise ConfigError(
                f"Export {self.name}: {source.type} reads each page of a chunk at an instant of its own, so "
                f"`consistency: per_chunk` would promise too much. Leave it out: no snapshot is held here anyway."
            )

    @property
    def _keeps_chunks(self) -> bool:
        """Return whether chunks outlive a run that dies: as is said, else where each may be of an instant of its own.

        Not wherever a source shares no snapshot: a run publishes rows of its own time, and none of a dead one's of
        yesterday, unless somebody asked for that (found by random workloads, 2026-11).
        """
        return not self.shares_snapshot if self.chunk_checkpoint is None else self.chunk_checkpoint

    def _key(self, planning: Planning) -> Column:
        """Find the column to cut by: the configured one, else the first of the table's key, which its index leads."""
        name = self.chunk_by_key or self.chunk_column
        key = "chunk_by_key" if self.chunk_by_key else "chunk_column"
        if name is not None:
            return require_bound(planning, name, key=key, is_paged=self.chunk_by_key is not None)
        if planning.relation.key:
            return require_bound(planning, planning.relation.key[0], key=key, is_paged=True)
        raise SourceError(
            f"{planning.relation.name} has no key, or none whose columns run in one direction, so mode chunked cannot "
            f"choose one. "
            f"Set `chunk_column` (whole numbers), `chunk_by_key` (NOT NULL), or use `mode: full`."
        )

    def _cutting(self, planning: Planning, column: Column) -> Cutting:
        """Choose how: what the keys ask for; otherwise statistics, and equal widths for whole numbers without any."""
        if self.chunk_by_key is not None:
            return "keyset"
        if self.chunk_by_days is not None:
            return "days"
        if self.chunk_dense:
            return "dense"
        whole = is_whole(column)
        if whole and (self.chunk_count is not None or self.chunk_size is not None):
            return "range"
        return "statistics" if planning.relation.is_table or not whole else "range"

    def _ranges(
        self, planning: Planning, column: Column, cutting: Cutting, rows_of: WindowRows
    ) -> tuple[tuple[Range, ...], tuple[str, ...]]:
        """Cut the column's values into disjoint ranges that hold every row of the window."""
        quoted = planning.source.quote(column.name)
        # Inner bounds from statistics or an index are of the whole table, so its ends must be too.
        where = rows_of.where if cutting in ("range", "days") else ""
        bounds = planning.session.bounds(planning.relation, column.name, where=where)
        if bounds.nulls:
            self._refuse_nulls(planning, column, quoted)
        if bounds.low is None or bounds.high is None:
            return (), ()
        if cutting == "range":
            return self._equal_widths(planning, column, int(bounds.low), int(bounds.high)), ()
        if cutting == "days":
            return self._runs_of_days(planning, column, bounds.low, bounds.high), ()
        rows = planning.session.count(planning.relation) if cutting == "dense" else planning.relation.rows_estimate
        pieces = self.chunk_count or max(1, -(-(rows or 0) // self._chunk_rows(planning)))
        if cutting == "statistics":
            inner = planning.session.quantiles(planning.relation, column, max(pieces, self.parallel))
            if not inner and is_whole(column) and pieces > 1:
                return self._equal_widths(planning, column, int(bounds.low), int(bounds.high)), (
                    f"{planning.relation.name} has no statistics on {column.name}; cut by equal widths (run ANALYZE)",
                )
        else:
            # A key is paged along in any case: pieces are for tasks side by side, and for what a dead run had finished.
            pieces = pieces if cutting == "dense" else max(1, self.parallel, pieces if self.chunk_checkpoint else 1)
            inner = planning.session.keyset_bounds(planning.relation, (column.name,), pieces)
        return between_inner_bounds(bounds.low, inner, bounds.high), ()

    def _equal_widths(self, planning: Planning, column: Column, low: int, high: int) -> tuple[Range, ...]:
        """Cut into equal widths, unless the key is so sparse that most chunks would be empty."""
        size = -(-(high - low + 1) // self.chunk_count) if self.chunk_count else self._chunk_rows(planning)
        ranges = (high - low) // size + 1
        if ranges > 50_000_000:
            raise SourceError(
                f"chunk_size {size} would cut {planning.relation.name}.{column.name} into {ranges} chunks; at most "
                f"50000000 are allowed. Set a larger `chunk_size`, a `chunk_count`, or use `mode: full`."
            )
        estimate = planning.relation.rows_estimate
        if (
            self.chunk_count is None
            and estimate is not None
            and ranges >= 64
            and ranges >= 4 * max(1, -(-estimate // size))
        ):
            raise SourceError(
                f"{planning.relation.name}.{column.name} is sparse: about {estimate} rows would make {ranges} chunks "
                f"of width {size}. Set `chunk_dense: true`, a larger `chunk_size`, or `chunk_by_key: {column.name}`."
            )
        return equal_width(low, high, size=size)

    def _runs_of_days(self, planning: Planning, column: Column, low: str, high: str) -> tuple[Range, ...]:
        """Cut into runs of days, unless most would be empty: each is a statement."""
        ranges = by_days(low, high, days=self.chunk_by_days or 1, column=column)
        if len(ranges) < MANY_CHUNKS:
            return ranges
        rows = planning.relation.rows_estimate
        rows = planning.session.count(planning.relation) if rows is None else rows
        if len(ranges) >= 4 * max(1, rows):
            raise SourceError(
                f"{planning.relation.name}.{column.name} is sparse: about {rows} rows would make {len(ranges)} "
                f"chunks of {self.chunk_by_days} days. Is its least or greatest day a stand-in such as 9999-12-31? Set "
                f"a larger `chunk_by_days`, or `chunk_by_key: {column.name}`."
            )
        return ranges

    def _chunk_rows(self, planning: Planning) -> int:
        """Return the size of a chunk in key values; from the table's bytes per row where memory was configured."""
        relation = planning.relation
        if self.chunk_size_memory_mb is None:
            return self.chunk_size or DEFAULT_CHUNK_ROWS
        width = (relation.bytes_estimate or 0) / (relation.rows_estimate or 1) or 256
        return int(min(max(self.chunk_size_memory_mb * 1024**2 / width, 10_000), 5_000_000))

    def _refuse_nulls(self, planning: Planning, column: Column, quoted: str) -> None:
        """Refuse a key with NULLs: no range would hold those rows."""
        raise SourceError(
            f"{planning.relation.name}.{column.name} is NULL in some rows, and no chunk would hold them. "
            f"Chunk by a column that is NOT NULL, or filter them in a `query` with WHERE {quoted} IS NOT NULL."
        )

    def _chunk(
        self, planning: Planning, column: Column, piece: Range, keys: KeyRange, *, index: int, cutting: Cutting
    ) -> Chunk:
        """Render one range as a predicate; its identity outlives the run."""
        return Chunk(
            index=index,
            reader=self._reader(planning, cutting),
            relation=planning.relation.sql,
            where=within(keys, column, planning.source),
            key=page_key(planning.relation, column),
            one_instant=not self.shares_snapshot,
            identity=f"{column.name}{piece}",
            range=keys,
            halves=halves(piece, column, planning.source) if keys.low or keys.high else (),
        )

    def _reader(self, planning: Planning, cutting: Cutting) -> Reader:
        """Page by key only along a proven unique key: ties of any other column would be lost at a page's edge.

        A chunk of one instant needs no pages where a cursor rests at no cost.
        """
        rests = not self.shares_snapshot and planning.source.facts.pages_cursors
        wanted = cutting == "keyset" or (planning.session.snapshot is None and not rests)
        return "keyset" if wanted and planning.relation.key else "cursor"

    def _fingerprint(self, planning: Planning, column: Column, cutting: Cutting, rows: WindowRows) -> str:
        """Hash what decides the meaning of a chunk; length-prefixed, so no two plans meet (`contract.md`, 2.4).

        The whole block counts, but for what only says when and how gently it is read: a finished chunk of another
        block lacks a mask, a filter, a column or what a rule measures, and would be published beside those with it.
        """
        parts = (
            planning.relation.sql, *filter(None, [rows.where]), column.name, cutting, str(self._chunk_rows(planning)),
            self.model_dump_json(exclude=NOT_OF_A_CHUNK | self.unset_later_keys()),
            *mask_keys(self.steps),
            *columns_of(self, planning.relation),
        )  # fmt: skip
        return identity(*parts)
