"""From a page of the source to rows of a part: the user's transforms, then Rivet's own columns.

Belongs here: the schema of parts, and bringing a page into it. Not here: what a step does (`transforms/`), how a row
is hashed (`rowhash/hash.py`), reading and writing (`read/task.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from rivet_resources.contracts.change_log import ENVELOPE, change_schema
from rivet_resources.contracts.extract import Extract
from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.rows.poll import PollShape
from rivet_resources.contracts.rows.row_errors import Places, RefusedCells, RefusedRows, RowPolicy
from rivet_resources.contracts.transform import Transform, at_clock
from rivet_resources.errors import SourceChanged, UnsupportedColumn
from rivet_resources.shape.change_envelope import as_inserts, flat, flat_schema
from rivet_resources.shape.poll_envelope import enveloped, first_seq, poll_schema
from rivet_resources.shape.rowhash.hash import row_hashes
from rivet_resources.shape.transforms.conditions import policy_of
from rivet_resources.shape.transforms.mask_tags import resolved
from rivet_resources.shape.transforms.pipeline import TransformPlan, plan
from rivet_resources.shape.transforms.separate import places_left, separate, without_cells

EXPORTED_AT = pa.field("_rivet_exported_at", pa.timestamp("us", "UTC"), nullable=False)
ROW_HASH = pa.field("_rivet_row_hash", pa.int64(), nullable=False)


def planned(relation: Relation, transforms: Sequence[Transform]) -> TransformPlan:
    """Plan what the transforms make of a relation, before Rivet's own columns.

    Raises:
        TransformError: a step does not fit the columns it gets.
        ColumnTagRefused: the tags of a column cannot be read, or no rule is for them.
    """
    return plan(resolved(transforms, relation), pa.schema([column.field for column in relation.columns]))


def schema_of(extract: Extract) -> pa.Schema:
    """Return the schema of every part.

    Raises:
        TransformError: a step does not fit the columns it gets.
        UnsupportedColumn: two columns would have one name.
    """
    schema = _unflat(extract)
    refuse_twice(schema.names, where=f"Export {extract.export}")
    return flat_schema(schema, extract.format)


def refuse_twice(names: Sequence[str], *, where: str) -> None:
    """Refuse a column of the source that is called as one that Rivet adds: no reader could tell which is which.

    Raises:
        UnsupportedColumn
    """
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UnsupportedColumn(
            f"{where}: the source has {', '.join(map(repr, twice))}, and Rivet adds a column of that name "
            f"(those of changes, `before`, `meta_columns`). Rename the source's with a step: "
            f"`transforms: [{{type: rename, columns: {{{twice[0]}: …}}}}]`."
        )


def _unflat(extract: Extract) -> pa.Schema:
    """Return the schema that every format but the flat ones has."""
    schema = planned(extract.relation, extract.transforms).schema
    own = [EXPORTED_AT] if extract.meta.exported_at is not None else []
    own += [ROW_HASH] if extract.meta.row_hash is not None else []
    rows = pa.schema([*schema, *own])
    if extract.poll is not None:
        return poll_schema(rows)
    return rows if extract.meta.inserted_at is None else change_schema(rows)


@dataclass(frozen=True)
class BrokenRows:
    """Shaped rows of a page that break a rule of a contract, each for its first rule."""

    check: str
    column: str
    why: str  # without any value
    rows: Places


@dataclass
class Shaping:
    """Brings the pages of one extract into the schema of its parts."""

    extract: Extract
    chunk: int = 0  # its number; polled rows are counted in it
    breaches: Callable[[pa.Table], Sequence[BrokenRows]] | None = (
        None  # of rows that a contract sets aside; None: none are
    )
    schema: pa.Schema = field(init=False)
    _unflat: pa.Schema = field(init=False)
    _types: list[pa.DataType] = field(init=False)  # of the source's columns, as planned
    _plan: TransformPlan = field(init=False)
    _policies: tuple[RowPolicy, ...] = field(init=False)  # one per step
    _shaped: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._unflat = _unflat(self.extract)
        self.schema = flat_schema(self._unflat, self.extract.format)
        self._types = [column.arrow for column in self.extract.relation.columns]
        steps, clock = self.extract.transforms, self.extract.clock
        # Steps that ask for the time get the run's, one for all pages: a window must not tell of several moments.
        self._plan = planned(self.extract.relation, at_clock(steps, clock) if clock is not None else steps)
        self._policies = tuple(policy_of(step, self.extract.on_error) for step in self.extract.transforms)

    def shape(self, table: pa.Table, cells: Sequence[RefusedCells] = ()) -> tuple[pa.Table, list[RefusedRows]]:
        """Shape one page as the source typed it, each once and in their order; filters may leave fewer rows.

        Args:
            cells: that the source could not type; their rows are refused.

        Returns:
            (the rows as parts hold them, the rows that are refused and whose policy does not stop the export)

        Raises:
            SourceChanged: the page is not what was planned.
            RowRefused: cells cannot be transformed.
        """
        self._check_types(table)
        table, refused = without_cells(table, cells, self.extract.on_error)
        # Of the page as it came: a transform may hide a stamp. None may drop a row.
        envelope = () if self.extract.poll is None else self._wrap_envelope(table, self.extract.poll)
        if self.extract.transforms:
            table, by_steps, rows = separate(self._plan, table, self._policies)
            refused += by_steps
        else:
            rows = table
        if self.breaches is not None and (found := self.breaches(table)):
            table, broken = self._set_aside(table, rows, found)
            refused += broken
        columns = list(table.columns)
        if self.extract.meta.exported_at is not None:
            instant = pa.scalar(self.extract.meta.exported_at, EXPORTED_AT.type)
            columns.append(pa.chunked_array([pa.repeat(instant, table.num_rows)]))
        if self.extract.meta.row_hash is not None:
            # Of the table before the instant of the run stands in it: the same row must have the same hash in every
            # run.
            columns.append(pa.chunked_array([row_hashes(table, self.extract.meta.row_hash)]))
        if self.extract.meta.inserted_at is not None:
            rows = pa.Table.from_arrays(columns, schema=pa.schema(list(self._unflat)[len(ENVELOPE) :]))
            return flat(as_inserts(rows, self.extract.meta.inserted_at), self.extract.format), refused
        return flat(pa.Table.from_arrays([*envelope, *columns], schema=self._unflat), self.extract.format), refused

    def _set_aside(
        self, table: pa.Table, rows: pa.Table, found: Sequence[BrokenRows]
    ) -> tuple[pa.Table, list[RefusedRows]]:
        """Take the rows that break a contract out of a shaped page; they are told as the source typed them."""
        places = places_left(self._plan, rows)
        refused = [
            RefusedRows(
                rows.take(pa.array(places[each.rows])), "contract", each.column, each.why, "dead_letter", each.check
            )
            for each in found
        ]
        return table.filter(pa.array(~np.logical_or.reduce([each.rows for each in found]))), refused

    def _wrap_envelope(self, table: pa.Table, shape: PollShape) -> tuple[pa.ChunkedArray | pa.Array, ...]:
        first = first_seq(shape.window, self.chunk) + self._shaped
        # Counted on over the pages of a chunk, so that no two rows of a window share a number.
        self._shaped += table.num_rows
        return enveloped(table, shape, first=first)

    def _check_types(self, table: pa.Table) -> None:
        """Compare a page with the plan: Arrow would cast a difference away in silence.

        Raises:
            SourceChanged: a column has another type than was planned.
        """
        if table.schema.types == self._types:
            return
        planned = self.extract.relation.columns
        found = dict(zip((column.name for column in planned), table.schema.types, strict=False))
        for column in planned:
            if found.get(column.name) != column.arrow or table.num_columns != len(planned):
                raise SourceChanged(
                    f"{self.extract.relation.name}.{column.name} arrived as {found.get(column.name)}, planned was "
                    f"{column.arrow}, in a page of {table.num_columns} columns. Was it altered meanwhile? Run again."
                )
