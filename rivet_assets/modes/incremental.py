"""Export what is new since the last run, by a cursor column (`mode: incremental`).

Belongs here: the YAML keys, and the window (committed cursor, frozen horizon]. Not here: how a source
finds the horizon below which no open transaction can still commit (`Session.horizon`).

The upper bound is frozen before a row is read and lies below every transaction that was open then, so the
window is closed: nothing can appear in it later. That is why no boundary rows are remembered and none is
read twice (2026-11: the original's memory of published boundary rows was rejected, it is not needed for a
closed window).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from rivet_assets.export import Export
from rivet_assets.export_values import Duration
from rivet_assets.modes.protocol import Planning, compose, require_bound
from rivet_resources.errors import BoundsUnusable, SourceError
from rivet_resources.extract import CursorMove, Extract, Window
from rivet_resources.manifest import Manifest
from rivet_resources.manifest_entries import ManifestCursor
from rivet_resources.types import Column


class Incremental(Export):
    """Rows whose cursor is above the committed one, up to a frozen bound."""

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

    def extract(self, planning: Planning) -> Extract:
        """Describe the rows above the committed cursor and not above the horizon, in the order of cursor and key.

        Raises:
            UnknownColumn: a cursor column is not there.
            SourceError: the cursor is NULL in some rows and `cursor_nulls: fail`.
        """
        column = require_bound(planning, self.cursor_column, key="cursor_column")
        expression = self._expression(planning)
        after = planning.cursor
        nulls = self._count_nulls(planning, expression)
        horizon = planning.session.horizon(
            planning.relation,
            self.cursor_column if self.cursor_fallback_column is None else expression,
            column,
            after=after,
            lag_seconds=self.cursor_lag,
        )
        where = self._predicate(planning, column, expression, high=horizon.high)
        chunks = planning.session.chunks(
            planning.relation, where=where, order_by=self._order(planning, expression), pieces=1
        )
        move = CursorMove(low=after, high=horizon.high or after, column=self.cursor_column, note=horizon.note)
        reported = (f"{nulls} rows have no {self.cursor_column}; only the first run exports them",) if nulls else ()
        return compose(
            self,
            planning,
            window=window_after(after),
            chunks=chunks,
            cursor=move,
            decisive=tuple(filter(None, (self.cursor_column, self.cursor_fallback_column))),
            notes=(horizon.note, *reported),
        )

    def predicate(self, planning: Planning, manifest: Manifest) -> str:
        """Say which rows a committed window holds: (low, high], and in the first one those without a cursor.

        Raises:
            BoundsUnusable: the manifest's cursor is of another column, or no value of it.
        """
        column, cursor = self._committed(planning, manifest)
        planning = replace(planning, cursor=cursor.low)
        try:
            return self._predicate(planning, column, self._expression(planning), high=cursor.high)
        except SourceError as error:
            raise BoundsUnusable(str(error)) from error

    def again(self, planning: Planning, manifest: Manifest) -> Extract:
        """Describe the rows of a committed window once more, between the same two cursors.

        Raises:
            BoundsUnusable: as `predicate`.
        """
        _, cursor = self._committed(planning, manifest)
        where, expression = self.predicate(planning, manifest), self._expression(planning)
        chunks = planning.session.chunks(
            planning.relation, where=where, order_by=self._order(planning, expression), pieces=1
        )
        return compose(
            self,
            planning,
            window=Window(manifest.window),
            chunks=chunks,
            cursor=CursorMove(low=cursor.low, high=cursor.high, column=self.cursor_column),
            decisive=tuple(filter(None, (self.cursor_column, self.cursor_fallback_column))),
        )

    def _committed(self, planning: Planning, manifest: Manifest) -> tuple[Column, ManifestCursor]:
        """Give the cursor of a committed window.

        Raises:
            BoundsUnusable
        """
        column = require_bound(planning, self.cursor_column, key="cursor_column")
        cursor = manifest.cursor
        if cursor is None or cursor.column != self.cursor_column or window_after(cursor.low).key != manifest.window:
            raise BoundsUnusable(
                f"Window {manifest.window} of export {self.name} was not read by cursor {self.cursor_column} from "
                f"where its name says. Run `rivet state reset`: the next run then replaces all windows."
            )
        return column, cursor

    def _expression(self, planning: Planning) -> str:
        """Render what orders the rows: the quoted column, or a COALESCE in parentheses."""
        quote = planning.source.quote
        if self.cursor_fallback_column is None:
            return quote(self.cursor_column)
        require_bound(planning, self.cursor_fallback_column, key="cursor_fallback_column")
        return f"(COALESCE({quote(self.cursor_column)}, {quote(self.cursor_fallback_column)}))"

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

    def _predicate(self, planning: Planning, column: Column, expression: str, *, high: str | None) -> str:
        """Render (committed cursor, horizon]; the first run is open below and takes rows without a cursor."""
        literal, after = planning.source.literal, planning.cursor
        if high is None or high == after:  # nothing closed is new
            return f"{expression} IS NULL" if after is None else "1 = 0"
        upper = f"{expression} <= {literal(high, column)}"
        if after is None:
            return f"({upper} OR {expression} IS NULL)"
        return f"{expression} > {literal(after, column)} AND {upper}"

    def _order(self, planning: Planning, expression: str) -> tuple[str, ...]:
        """Order by cursor, then key, so that equal cursors come in one order each time."""
        keys = (planning.source.quote(name) for name in planning.relation.key if name != self.cursor_column)
        return (expression, *keys)


def window_after(cursor: str | None) -> Window:
    """Name the window by where it starts; a cursor that reads `start` is quoted: the word means the beginning."""
    if cursor is None:
        return Window("after=start")
    return Window('after="start"' if cursor == "start" else f"after={cursor}")
