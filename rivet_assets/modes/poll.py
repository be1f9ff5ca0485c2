"""Follow a table by the stamps its rows carry (`mode: poll`), where there is no change log to read.

Belongs here: the YAML keys, and the window (last delivered row, end of the closed rows]. Not here: what a table needs
to be polled (`poll_preconditions.py`), places in it (`rivet_resources/poll/places.py`), what rows become
(`shape/poll_envelope.py`), full diffs (`poll/full_diff.py`), how a source finds the bound below which no open
transaction can still commit (`Session.horizon`).

The watermark is the place of the last delivered row, stamp and key, and never the bound. The window's end is found
first, then read: so the window is closed, a run that dies is replaced by the next, and `max_pages` may end in a tie.
Rows that come later with the last stamp itself stand before that place, and are looked for (`poll/ties.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from rivet_assets.blocks.export import Export
from rivet_assets.blocks.export_values import ColumnsOnce, Ratio, rule_broken
from rivet_assets.modes.poll_preconditions import (
    key_columns,
    refuse_clock,
    refuse_hidden_keys,
    refuse_nulls,
    refuse_two_clocks,
    stamp_column,
)
from rivet_assets.modes.protocol import Planning, compose
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.contracts.extract import CursorMove, Extract, Window
from rivet_resources.contracts.mode_facts import ModeFacts
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.rows.poll import PollShape
from rivet_resources.contracts.settings import Settings, pace
from rivet_resources.contracts.source import Horizon
from rivet_resources.engines.shared.statements import conjunction
from rivet_resources.errors import SourcePermission
from rivet_resources.poll.diff_pages import WithFound
from rivet_resources.poll.full_diff import Diff, DiffRows
from rivet_resources.poll.places import Order, last_place, strict
from rivet_resources.poll.ties import LateRows, find_late, list_keys, tie_of
from rivet_resources.poll.watermark import Place, Tie, Watermark, check_fits, parse
from rivet_resources.registry import FORMATS
from rivet_resources.shape.poll_envelope import diffed, position_of
from rivet_resources.shape.transforms.filter import Filter

CODE = "RIVET_CONFIG_POLL"
LONG_HELD_SECONDS = 600


class DeleteDetection(Settings):
    """How deletions are noticed."""

    type: Literal["disabled", "soft_delete", "full_diff"] = Field(
        "disabled", description="soft_delete: a mark in `column`; full_diff: keys against what is published"
    )
    column: str | None = Field(None, description="soft_delete: timestamp that marks a row as deleted, NULL otherwise")
    max_delete_ratio: Ratio = Field(0.05, description="full_diff: stop when more of the published rows are gone")
    every: int = Field(1, ge=1, description="full_diff: compare in every n-th run")

    @model_validator(mode="after")
    def keys_fit_type(self) -> DeleteDetection:
        """Refuse keys of another type, and a mark without a column."""
        if (self.type == "soft_delete") != (self.column is not None):
            raise rule_broken(CODE, "soft_delete and `column` go together; set both or neither")
        diff_only = sorted(self.model_fields_set & {"max_delete_ratio", "every"})
        if self.type != "full_diff" and diff_only:
            raise rule_broken(CODE, f"{', '.join(diff_only)} is only for type: full_diff; remove it")
        return self


class Poll(Export):
    """Rows changed since the last run, as inserts, updates and deletes."""

    answers: ClassVar[ModeFacts] = ModeFacts(
        name="poll",
        reads="rows that are new or changed, by their stamp",
        window="changes",
        keeps_cursor=True,
        counts_runs=True,
        holds_changes=True,
        refuses_nulls=True,
        no_repair="windows of mode poll hold what had changed by then, which the table no longer tells. Run the export "
        "with `delete_detection: {{type: full_diff}}`, or `rivet state reset -e {name}` to begin anew",
    )

    mode: Literal["poll"]
    updated_at_column: str = Field(description="timestamp that every insert and update of a row moves forward")
    created_at_column: str | None = Field(
        None, description="where it equals updated_at a row is told as an insert, a guess"
    )
    primary_key: ColumnsOnce = Field((), description="columns no two rows share; default: the table's key")
    poll_batch_size: int = Field(10_000, ge=1, le=1_000_000, description="rows per page, at most")
    max_pages: int | None = Field(None, ge=1, description="end the run after so many pages; the next one goes on")
    delete_detection: DeleteDetection = Field(
        default_factory=DeleteDetection, description="how deletions are noticed; default: not at all"
    )
    visibility: Literal["auto", "cap", "lag_window"] = Field(
        "auto", description="stay below the oldest open transaction, or behind now; auto: cap where it can be seen"
    )
    lag_window_seconds: int = Field(
        60, ge=0, description="how far behind now; at least 60 where open transactions cannot be seen"
    )
    null_policy: Literal["fail", "coalesce"] = Field(
        "fail", description="rows without updated_at: refused, or placed by created_at"
    )

    @model_validator(mode="after")
    def keys_go_together(self) -> Poll:
        """Refuse keys that mean nothing together."""
        for message in self._misfits():
            raise rule_broken(CODE, message)
        return self

    @property
    def not_counted(self) -> str:
        """Return why its reading cannot be counted; see Export."""
        if self.delete_detection.type != "full_diff":
            return ""
        return "`delete_detection: {type: full_diff}` reads all keys of the table beside the tasks that are counted"

    def _misfits(self) -> Iterator[str]:
        is_diff = self.delete_detection.type == "full_diff"
        if self.table is None:
            yield "a poll follows the rows of a table; write `table` instead of a query"
        if self.null_policy == "coalesce" and self.created_at_column is None:
            yield "null_policy: coalesce places rows by created_at; name the created_at_column"
        if self.visibility == "cap" and "lag_window_seconds" in self.model_fields_set:
            yield "lag_window_seconds has no meaning under visibility: cap; remove it"
        if any(isinstance(step, Filter) for step in self.transforms):
            yield "a filter would take changes out of the middle of a row's history; filter downstream instead"
        if self.meta_columns.row_hash is not False:
            yield "meta_columns.row_hash is for whole rows, and deletes may carry a key alone; remove it"
        if is_diff and (not FORMATS[self.format].is_parquet or self.destination.is_stream):
            yield "full_diff reads what was published; write parquet to a destination that keeps manifests"
        stamps = [self.updated_at_column, self.delete_detection.column]
        if len(set(stamps)) < len(stamps) or (is_diff and self.updated_at_column in self.primary_key):
            yield f"{self.updated_at_column} cannot be updated_at_column and mark or key at once; name another column"

    def cursor_text(self, cursor: str) -> str:
        """Return the stamp of the last row that was delivered; its key and ties are for the next run."""
        place = parse(cursor, export=self.name).updated
        return place[0].value if place else cursor

    def deciding_column(self, key: tuple[str, ...]) -> tuple[str, bool]:
        """Return the stamp of the last change."""
        return self.updated_at_column, self.null_policy == "coalesce"

    def strategy(self, way: str, column: str, *, chunks: int) -> str:
        """Return how it is read, such as `poll(updated_at, cursor)`."""
        return f"{self.mode}({column}, {way})"

    def cursor_for_plan(self, committed: str | None, made_up: Callable[[str], str | None]) -> str | None:
        """Return the committed cursor; None for a full diff, which would read every key."""
        return None if self.delete_detection.type == "full_diff" else committed

    def without_comparison(self) -> tuple[Export, list[str]]:
        """Return the export without its full diff."""
        if self.delete_detection.type != "full_diff":
            return self, []
        plain = self.model_copy(update={"delete_detection": DeleteDetection()})
        return plain, ["deletions are found by the run, by a full diff"]

    @property
    def cursor(self) -> tuple[str, str | None] | None:
        """Return the stamp of the last change."""
        return self.updated_at_column, None

    # --- planning --------------------------------------------------------------------------------

    def extract(self, planning: Planning) -> Extract:
        """Describe the rows behind the watermark that no open transaction can still get below.

        Raises:
            UnknownColumn: a column that the export names is not there.
            SourceError: the table cannot be polled, or its clock moved back; each says why.
            DiffStopped: a full diff would delete too much.
        """
        orders = self.orders(planning)
        held = parse(planning.cursor, export=self.name)
        passes = [_Pass(order, low) for order, low in zip(orders, (held.updated, held.deleted), strict=False)]
        for each in passes:
            check_fits(each.low, each.order.columns, export=self.name)
            refuse_clock(planning, each.low)
        refuse_nulls(planning, orders[0])
        # First how far rows are final, then the last row below that: what commits in between is above both.
        passes = [replace(each, horizon=self._horizon(planning, each)) for each in passes]
        passes = [replace(each, high=self._end(planning, each)) for each in passes]
        found = self._diff(planning, passes[0])
        ties = (held.updated_tie, held.deleted_tie)
        passes = [self._with_ties(planning, each, tie) for each, tie in zip(passes, ties, strict=False)]
        return self._compose(planning, held, passes, found)

    def orders(self, planning: Planning) -> list[Order]:
        """Return the order rows are read in, and with soft deletes that of marked ones.

        Raises:
            UnknownColumn, SourceError, ConfigError
        """
        relation = planning.relation
        updated = stamp_column(planning, self.updated_at_column, key="updated_at_column")
        if self.created_at_column is not None:
            created = stamp_column(planning, self.created_at_column, key="created_at_column")
            refuse_two_clocks(planning, updated, created)
        keys = [column for column in key_columns(planning, self.primary_key) if column.name != updated.name]
        columns, fallback = (updated, *keys), ""
        if self.null_policy == "coalesce":
            fallback = self.created_at_column or ""
        order = Order(planning.source, relation, tuple(map(strict, columns)), fallback)
        mark = self.delete_detection.column
        if mark is None:
            return [order]
        marked = stamp_column(planning, mark, key="delete_detection.column")
        refuse_two_clocks(planning, updated, marked)
        quoted = planning.source.quote(mark)
        marks = Order(planning.source, relation, tuple(map(strict, (marked, *keys))), where=f"{quoted} IS NOT NULL")
        return [replace(order, where=f"{quoted} IS NULL"), marks]

    def _horizon(self, planning: Planning, each: _Pass) -> Horizon:
        """Find how far rows are final.

        Raises:
            SourcePermission: open transactions cannot be seen, under `visibility: cap`.
        """
        order, after = each.order, each.low[0].value if each.low else None

        def below(lag: int) -> Horizon:
            return planning.session.horizon(
                planning.relation, order.expression, order.columns[0], after=after, lag_seconds=lag
            )

        if self.visibility == "lag_window":
            return below(self.lag_window_seconds)
        found = below(0)
        if found.doubt and self.visibility == "cap":
            raise SourcePermission(
                f"visibility: cap needs to see the open transactions of {planning.source.type}, but {found.doubt}. "
                f"Allow it, or set `visibility: lag_window`, which may miss rows that commit late."
            )
        return below(self.lag_window_seconds) if found.doubt else found

    def _end(self, planning: Planning, each: _Pass) -> Place | None:
        """Find the last row of the window: the last one there is, or that of the last page."""
        high = each.horizon.high
        if high is None:
            return each.low
        place = last_place(
            each.order,
            after=each.low,
            high=high,
            rows=self.max_pages * self.poll_batch_size if self.max_pages else None,
            session=planning.session,
            application=f"rivet:{self.name}",
            pace=pace(planning.source.tuning, self.tuning),
        )
        return place or each.low

    def _with_ties(self, planning: Planning, each: _Pass, remembered: Tie | None) -> _Pass:
        """Find the rows that came later with the last stamp, and who has the stamp at which this window ends.

        A full diff compares the rows of lower stamps only.
        """

        def keys_at(place: Place) -> list[tuple[str, ...]] | None:
            return list_keys(
                each.order,
                place,
                session=planning.session,
                application=f"rivet:{self.name}",
                pace=pace(planning.source.tuning, self.tuning),
            )

        if each.high is None:
            return each
        before = None if each.low is None else keys_at(each.low)
        late = NO_LATE_ROWS if each.low is None else find_late(each.order, each.low, remembered, before)
        if each.high != each.low:
            return replace(each, late=late, tie=tie_of(keys_at(each.high)))
        is_known = remembered is not None and not late.where  # a key that left is no news
        return replace(each, late=late, tie=remembered if is_known else tie_of(before))

    # --- deletions -------------------------------------------------------------------------------

    def _diff(self, planning: Planning, each: _Pass) -> DiffRows | None:
        """Compare the table with what is published, if it is time to; never in the first run."""
        detection = self.delete_detection
        if detection.type != "full_diff" or each.low is None or planning.runs % detection.every:
            return None
        refuse_hidden_keys(planning, each.order, steps=self.steps, export=self.name)
        root = self.destination.root(self.name)
        # A window that begins where this one does is what this run replaces: its rows do not count as published.
        replaced = Window.after(planning.cursor).key
        manifests = [manifest for window, manifest in current_manifests(root).items() if window != replaced]
        return self.diff_of(planning, each.order, each.low).run(planning.session, root=root, manifests=manifests)

    def diff_of(self, planning: Planning, order: Order, low: Place) -> Diff:
        """Return the comparison of the table with what is published, up to a watermark."""
        return Diff(
            order,
            self._shape(),
            low,
            application=f"rivet:{self.name}",
            pace=pace(planning.source.tuning, self.tuning),
            max_delete_ratio=self.delete_detection.max_delete_ratio,
        )

    # --- the extract -----------------------------------------------------------------------------

    def _shape(self) -> PollShape:
        created = self.created_at_column or ""
        return PollShape(
            updated_at=self.updated_at_column,
            created_at=created,
            deleted_at=self.delete_detection.column or "",
            fallback=created if self.null_policy == "coalesce" else "",
        )

    def _compose(self, planning: Planning, held: Watermark, passes: list[_Pass], found: DiffRows | None) -> Extract:
        has_found = found is not None and found.rows.num_rows > 0
        is_new = has_found or any(each.high != each.low or each.late.where for each in passes)
        window = held.windows if planning.cursor is not None else 0
        reached = Watermark(
            updated=passes[0].high,
            deleted=passes[1].high if len(passes) > 1 else held.deleted,
            diffs=held.diffs + int(has_found),
            windows=max(1, window + int(is_new)),
            updated_tie=passes[0].tie,
            deleted_tie=passes[1].tie if len(passes) > 1 else held.deleted_tie,
        )
        move = CursorMove(
            low=planning.cursor, high=reached.text or planning.cursor, column=self.updated_at_column,
            note=passes[0].horizon.note,
        )  # fmt: skip
        chunks = [chunk for each in passes for chunk in self._chunks(planning, each)] or [_nothing(planning)]
        if has_found:
            # The place of the rows that the full diff found: `WithFound`, below, answers for this chunk.
            chunks.append(_nothing(planning))
        shape = replace(self._shape(), window=window)
        extract = compose(
            self,
            planning,
            window=Window.after(planning.cursor),
            chunks=tuple(replace(chunk, index=index, identity="") for index, chunk in enumerate(chunks)),
            cursor=move,
            decisive=tuple(dict.fromkeys(filter(None, (shape.updated_at, shape.deleted_at, shape.fallback,
                                                       *(c.name for c in passes[0].order.columns[1:]))))),
            notes=tuple(self._notes(planning, passes, found)),
        )  # fmt: skip
        rows = self.poll_batch_size
        if extract.pace.batch_size_is_explicit:
            rows = min(rows, extract.pace.batch_size)
        extract = replace(
            extract,
            poll=shape,
            pace=extract.pace.model_copy(update={"batch_size": rows, "batch_size_is_explicit": True}),
            consistency=extract.consistency if len(chunks) == 1 or extract.snapshot else "per_query",
        )
        if found is None or not has_found:
            return extract
        position = position_of((passes[0].horizon.high or _stamp_of(passes[0])).removesuffix("Z"))
        rows_found = diffed(found.rows, position=position)
        return replace(extract, source=WithFound(planning.source, rows_found, chunk=len(chunks) - 1))

    def _chunks(self, planning: Planning, each: _Pass) -> tuple[Chunk, ...]:
        """Cut the rows of one pass; none where nothing is new."""
        if each.high is None or (each.high == each.low and not each.late.where):
            return ()
        late = f"({conjunction([each.order.where, each.late.where])})" if each.late.where else ""
        later = f"({each.order.within(each.low, each.high)})" if each.high != each.low else ""
        return planning.session.chunks(
            planning.relation,
            where=f"({later} OR {late})" if later and late else later or late,
            order_by=(each.order.stamp, *each.order.spelled[1:]),
            pieces=1,
        )

    def _notes(self, planning: Planning, passes: list[_Pass], found: DiffRows | None) -> Iterator[str]:
        """Yield what the reader of a run would not expect."""
        for each in passes:
            horizon, column = each.horizon, each.order.columns[0]
            yield horizon.note
            yield each.late.note
            if self.visibility == "lag_window" or horizon.doubt:
                why = horizon.doubt or f"visibility is lag_window, {self.lag_window_seconds} s"
                yield f"may miss rows that commit late ({why}); a full diff finds them"
            if horizon.held_seconds > LONG_HELD_SECONDS:
                yield (
                    f"a transaction open for {horizon.held_seconds:.0f} s holds the poll back; nothing newer is read "
                    f"until it ends"
                )
            if column.name not in planning.relation.indexed and not each.order.fallback:
                listed = ", ".join(planning.source.quote(c.name) for c in each.order.columns)
                made = f"CREATE INDEX … ON {planning.relation.sql} ({listed})"
                yield f"no index begins with {column.name}, so each run reads the whole table; {made} would help"
        if found is not None:
            yield found.note


UNKNOWN, NO_LATE_ROWS = Horizon(None), LateRows()


@dataclass(frozen=True)
class _Pass:
    """One walk through the table: from the last delivered row to the last one that is final."""

    order: Order
    low: Place | None
    horizon: Horizon = UNKNOWN
    high: Place | None = None
    late: LateRows = NO_LATE_ROWS  # that came with the stamp of `low` since it was polled
    tie: Tie | None = None  # who has the stamp of `high`


def _stamp_of(each: _Pass) -> str:
    return each.low[0].value if each.low else ""


def _nothing(planning: Planning) -> Chunk:
    return Chunk(index=0, reader="cursor", relation=planning.relation.sql, where="1 = 0")
