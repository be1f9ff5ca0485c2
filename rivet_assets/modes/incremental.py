"""Export what is new since the last run, by a cursor column (`mode: incremental`).

Belongs here: the YAML keys, and the window from the committed cursor to the frozen horizon. Not here: rows that share
a value with one of its ends (`incremental_boundary.py`), how a source finds the horizon below which no open
transaction can still commit (`Session.horizon`).

The upper bound is frozen before a row is read and lies below every transaction that was open then, so the
window is closed for values that grow: late commits are above it. Values that come again, as batch numbers and days
do, are the bound's own: rows that have it are remembered, and the next window reads `cursor >= last` without them
(`incremental_boundary.py`). Rows that come later with a value *below* the last one are not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from rivet_assets.blocks.export import Export
from rivet_assets.blocks.export_values import Duration
from rivet_assets.modes.incremental_again import ends_again, find_shared, newer_rows
from rivet_assets.modes.incremental_boundary import CursorColumns, chunks_of, ends_of, in_turn, note_before, pieces
from rivet_assets.modes.protocol import Planning, compose, require_bound
from rivet_resources.commit.manifest import Manifest
from rivet_resources.commit.manifest_entries import ManifestCursor
from rivet_resources.contracts.extract import CursorMove, Extract, Window
from rivet_resources.contracts.mode_facts import Cautions, ModeFacts
from rivet_resources.contracts.rows.boundary import Boundary
from rivet_resources.errors import BoundsUnusable, SourceError


class Incremental(Export):
    """Rows whose cursor is above the committed one, or came to that later, up to a frozen bound."""

    answers: ClassVar[ModeFacts] = ModeFacts(
        name="incremental",
        reads="what came after the last run",
        window="after",
        keeps_cursor=True,
        keeps_boundary=True,
        shards_apart=True,
        more_because="rows were committed late, or without a cursor",
        fewer_because="rows were deleted, or were changed and moved on to a later window",
    )

    mode: Literal["incremental"]
    cursor_column: str = Field(description="grows with every insert, or with every change, of a row")
    incremental_cursor_mode: Literal["single_column", "coalesce"] = Field(
        "single_column", description="coalesce: the fallback column stands in where the cursor is NULL"
    )
    cursor_fallback_column: str | None = Field(None, description="only with incremental_cursor_mode: coalesce")
    cursor_nulls: Literal["first_run", "fail"] = Field(
        "first_run", description="rows without a cursor: exported by the first run only and counted, or refused"
    )
    cursor_lag: Duration = Field(
        0, description="stay so far behind now, for stamps of application clocks; 10m, 2h; timestamps only"
    )

    @model_validator(mode="after")
    def fallback_goes_with_coalesce(self) -> Incremental:
        """Refuse half of the pair: each of the two keys is meaningless without the other."""
        if (self.incremental_cursor_mode == "coalesce") != (self.cursor_fallback_column is not None):
            raise PydanticCustomError(
                "RIVET_CONFIG_CURSOR_FALLBACK",
                "cursor_fallback_column and incremental_cursor_mode: coalesce go together; set both or neither",
            )
        return self

    def deciding_column(self, key: tuple[str, ...]) -> tuple[str, bool]:
        """Return the cursor."""
        return self.cursor_column, self.cursor_fallback_column is not None

    def strategy(self, way: str, column: str, *, chunks: int) -> str:
        """Return how it is read, such as `incremental(id, cursor)`."""
        return f"{self.mode}({column}, {way})"

    def cursor_for_plan(self, committed: str | None, made_up: Callable[[str], str | None]) -> str | None:
        """Return the committed cursor, else one that is made up where only a later run's statement tells anything."""
        return committed if committed is not None else made_up(self.cursor_column)

    @property
    def cursor(self) -> tuple[str, str | None] | None:
        """Return the cursor, and what stands in for its NULLs."""
        return self.cursor_column, self.cursor_fallback_column

    @property
    def cautions(self) -> Cautions:
        """Return what was done about NULLs of the cursor."""
        return Cautions(
            has_fallback=self.cursor_fallback_column is not None, fails_on_nulls=self.cursor_nulls == "fail"
        )

    def extract(self, planning: Planning) -> Extract:
        """Describe what is new from the committed cursor to the horizon, in the order of cursor and key.

        Raises:
            UnknownColumn: a cursor column is not there.
            SourceError: the cursor is NULL in some rows and `cursor_nulls: fail`; or rows came to a value that has too
                many to be remembered.
        """
        cursor = self._cursor(planning)
        column, expression = cursor.columns[0], cursor.expression
        after = planning.cursor
        nulls = self._count_nulls(planning, expression)
        horizon = planning.session.horizon(
            planning.relation,
            self.cursor_column if self.cursor_fallback_column is None else expression,
            column,
            after=after,
            lag_seconds=self.cursor_lag,
        )
        # Nothing closed is new: the window ends where it begins.
        high = horizon.high or after
        ends = ends_of(planning, cursor, high=high, is_public=not self.steps)
        read = pieces(planning, cursor, ends, high=high)
        move = CursorMove(low=after, high=high, column=self.cursor_column, note=horizon.note, ends=ends)
        reported = (f"{nulls} rows have no {self.cursor_column}; only the first run exports them",) if nulls else ()
        extract = compose(
            self,
            planning,
            window=Window.after(after, ends.before.visit),
            chunks=chunks_of(planning, read, self._order(planning, expression)),
            cursor=move,
            decisive=cursor.names,
            notes=(horizon.note, *reported, note_before(planning, cursor, ends)),
        )
        return extract if len(read) == 1 else in_turn(extract)

    def predicate(self, planning: Planning, manifest: Manifest) -> str:
        """Return which rows a committed window answers for: (low, high], and in the first one those without a cursor.

        Rows of a value that other windows have too are told by `shares`.

        Raises:
            BoundsUnusable: the manifest's cursor is of another column, or no value of it.
        """
        cursor, committed = self._committed_cursor(planning, manifest)
        planning = replace(planning, cursor=committed.low)
        try:
            ((_, where),) = pieces(planning, cursor, None, high=committed.high)
        except SourceError as error:
            raise BoundsUnusable(str(error)) from error
        return where

    def shares(self, planning: Planning, manifest: Manifest) -> tuple[int, int]:
        """Count what a committed window has beyond its predicate's rows, or lacks; and the rows of the next run.

        A row of a value that several windows have is counted once, for the window that has it.

        Raises:
            BoundsUnusable: as `predicate`.
            ManifestUnreadable: the windows form no chain.
        """
        cursor, committed = self._committed_cursor(planning, manifest)
        shared = find_shared(manifest, committed, planning.windows)
        newer = newer_rows(planning, cursor, committed.high, shared)
        return shared.low.rows - shared.later.rows - newer, newer

    def again(self, planning: Planning, manifest: Manifest) -> Extract:
        """Describe the rows of a committed window once more, between the same two cursors.

        Raises:
            BoundsUnusable: as `predicate`.
            EndsUnknown: other windows have rows of the same values, and nothing says which.
            ManifestUnreadable: the windows form no chain.
        """
        # For what it raises: a window that was not read by this cursor is refused before anything is asked.
        self.predicate(planning, manifest)
        cursor, committed = self._committed_cursor(planning, manifest)
        planning = replace(planning, cursor=committed.low, boundary=Boundary(committed.visit))
        shared = find_shared(manifest, committed, planning.windows)
        ends = ends_again(planning, cursor, committed, shared, is_public=not self.steps)
        read = pieces(planning, cursor, ends, high=committed.high)
        extract = compose(
            self,
            planning,
            window=Window(manifest.window),
            chunks=chunks_of(planning, read, self._order(planning, cursor.expression)),
            cursor=CursorMove(low=committed.low, high=committed.high, column=self.cursor_column, ends=ends),
            decisive=cursor.names,
        )
        return extract if len(read) == 1 else in_turn(extract)

    def _committed_cursor(self, planning: Planning, manifest: Manifest) -> tuple[CursorColumns, ManifestCursor]:
        """Return the cursor of a committed window.

        Raises:
            BoundsUnusable
        """
        cursor, committed = self._cursor(planning), manifest.cursor
        if (
            committed is None
            or committed.column != self.cursor_column
            or Window.after(committed.low, committed.visit).key != manifest.window
        ):
            raise BoundsUnusable(
                f"Window {manifest.window} of export {self.name} was not read by cursor {self.cursor_column} from "
                f"where its name says. Run `rivet state reset`: the next run then replaces all windows."
            )
        return cursor, committed

    def _cursor(self, planning: Planning) -> CursorColumns:
        """Find what orders the rows: the quoted column, or a COALESCE in parentheses.

        Raises:
            UnknownColumn, SourceError: as `require_bound`.
        """
        quote = planning.source.quote
        column = require_bound(planning, self.cursor_column, key="cursor_column")
        if self.cursor_fallback_column is None:
            return CursorColumns((column,), quote(column.name))
        fallback = require_bound(planning, self.cursor_fallback_column, key="cursor_fallback_column")
        return CursorColumns((column, fallback), f"(COALESCE({quote(column.name)}, {quote(fallback.name)}))")

    def _count_nulls(self, planning: Planning, expression: str) -> int:
        """Count rows without a cursor; they are reported in every run.

        Raises:
            SourceError: there are some, and the policy is to refuse.
        """
        column = planning.relation.column(self.cursor_column)
        if column is not None and not column.nullable:
            return 0
        nulls = planning.session.count(planning.relation, where=f"{expression} IS NULL")
        if nulls and self.cursor_nulls == "fail":
            raise SourceError(
                f"{planning.relation.name}.{self.cursor_column} is NULL in {nulls} rows, and `cursor_nulls: fail` "
                f"refuses them. Fill the column, name a `cursor_fallback_column`, or set `cursor_nulls: first_run`."
            )
        return nulls

    def _order(self, planning: Planning, expression: str) -> tuple[str, ...]:
        """Order by cursor, then key, so that equal cursors come in one order each time."""
        keys = (planning.source.quote(name) for name in planning.relation.key if name != self.cursor_column)
        return (expression, *keys)
