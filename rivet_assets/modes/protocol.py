"""What every mode offers. A mode *is* the export's YAML block (`rivet_assets/blocks/export.py`) plus `extract`.

Belongs here: what a mode may ask while it plans, and the part of an Extract that is the same in each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from rivet_assets.modes.block_identity import block_of
from rivet_resources.contracts.extract import CursorMove, Extract, MetaColumns, Window
from rivet_resources.contracts.messages import is_topic
from rivet_resources.contracts.relation import Chunk, Relation
from rivet_resources.contracts.rows.boundary import Boundary
from rivet_resources.contracts.rows.row_folders import RowFolders
from rivet_resources.contracts.rows.row_rules import NO_ROW_RULES, RowRules
from rivet_resources.contracts.settings import pace
from rivet_resources.contracts.source import Session, Source
from rivet_resources.contracts.transform import TransformError, run_clock_columns, shows_clock
from rivet_resources.contracts.types import Column
from rivet_resources.errors import ConfigError, SourceError, UnknownColumn
from rivet_resources.prove.staged_sql import check_sql
from rivet_resources.shape.rowhash.hash import check_columns
from rivet_resources.shape.shape import planned, schema_of
from rivet_resources.shape.transforms.mask import Mask
from rivet_resources.shape.transforms.pipeline import TransformPlan
from rivet_resources.write.row_rules import RowRuleCount, RowsAside

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.commit.manifest import Manifest


@dataclass(frozen=True)
class Planning:
    """What a mode may ask while it plans one window: the source's session, where the cursor stands, the clock."""

    source: Source
    session: Session
    relation: Relation
    window: Window | None  # given for windows of time and of values; others name their own
    cursor: str | None  # committed cursor of the export, canonical text
    run_id: str
    started_at: datetime  # aware UTC
    tasks: int  # how many chunks can run at once; a hint for cutting
    clock: datetime | None = None  # that rows of the window hold already; None: that of this run
    runs: int = 1  # of the export so far, this one among them
    boundary: Boundary | None = None  # rows that have the cursor's value; None: nobody asked, as when a plan is dry
    windows: Mapping[str, Manifest] = field(default_factory=dict)  # current ones, where one of them is read again


class Mode(Protocol):
    """An export of one mode."""

    name: str
    mode: str

    def extract(self, planning: Planning) -> Extract:
        """Describe what to read for one window; no row moved."""


def compose(
    export: Export,
    planning: Planning,
    *,
    window: Window,
    chunks: tuple[Chunk, ...],
    cursor: CursorMove | None = None,
    fingerprint: str = "",
    decisive: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
) -> Extract:
    """Join what a mode decided with what the export's block says for every mode alike.

    Args:
        decisive: columns that decide which rows are read. A value their type cannot hold always fails: the
            policy `null` would lose rows (`types.md`, section 4).

    Raises:
        UnknownColumn: a rule names a column that is not there.
        TransformError: a transform does not fit the columns it gets.
        ConfigError: a masked column decides which rows are read, or shows in another one.
        SourceError: `partition_by` names a column without days.
        UnsupportedColumn: the format cannot hold a column; the message names the override that helps.
    """
    session, clock = planning.session, planning.clock or planning.started_at
    plan = planned(planning.relation, export.steps)
    shaped = plan.schema
    unique, row_rules = _measured(export, shaped)
    # The bounds of a window of time are its own, and no cell's.
    if window.kind != "time":
        _refuse_masked(export, plan, decisive)
    _refuse_leaks(export, plan)
    extract = Extract(
        export=export.name,
        mode=export.mode,
        window=window,
        run_id=planning.run_id,
        relation=replace(
            planning.relation,
            columns=tuple(
                replace(column, policy="fail") if column.name in decisive else column
                for column in planning.relation.columns
            ),
        ),
        chunks=tuple(replace(chunk, abreast=max(1, min(export.parallel, len(chunks)))) for chunk in chunks),
        source=planning.source,
        destination=export.destination,
        format=export.format_settings(),
        pace=pace(planning.source.tuning, export.tuning),
        consistency=session.consistency,
        snapshot=session.snapshot,
        parallel=export.parallel,
        max_file_bytes=export.max_file_size,
        skip_empty=export.skip_empty,
        transforms=export.steps,
        on_error=export.on_error or "stop",
        rate_limit=export.rate_limit,
        meta=MetaColumns(
            exported_at=clock if export.meta_columns.exported_at else None,
            row_hash=_hash_columns(export, shaped),
        ),
        unique_columns=unique,
        row_rules=row_rules,
        profile=export.profile.of(plan) if export.profile is not None else None,
        cursor=cursor,
        message_key=_message_key(export, planning.relation),
        row_folders=_row_folders(export, shaped),
        clock=clock if export.meta_columns.exported_at or shows_clock(export.steps) else None,
        fingerprint=fingerprint,
        block=block_of(export, planning.relation) if export.takes_rows else "",
        notes=tuple(note for note in (session.note, *notes) if note),
    )
    _refuse_lost_key(extract)
    warnings = extract.format.check_schema(schema_of(extract), export=export.name)
    return replace(extract, notes=(*extract.notes, *warnings))


def _message_key(export: Export, relation: Relation) -> tuple[str, ...]:
    """Return the columns of a message's key: as the destination says, else the table's; () where there are none."""
    if not is_topic(export.destination):
        return ()
    given: tuple[str, ...] | None = getattr(export.destination, "key", None)
    return relation.key if given is None else given


def _refuse_lost_key(extract: Extract) -> None:
    """Refuse a message's key whose columns do not reach it.

    Raises:
        UnknownColumn
    """
    names = schema_of(extract).names if extract.message_key else ()
    for name in extract.message_key:
        if name not in names:
            relation = f"The rows of export {extract.export}"
            raise UnknownColumn(name, relation=relation, known=names, key="destination.key")


def _measured(export: Export, shaped: pa.Schema) -> tuple[tuple[str, ...], RowRules]:
    """Return what is counted for `quality:` and `contract:`: columns whose repetitions are, and rules of rows.

    Raises:
        UnknownColumn: a rule names a column that is not there.
        TransformError: a value of a contract is not of its column's type.
    """
    unique = tuple(export.quality.unique_columns) if export.quality else ()
    for name in unique:
        require_name(shaped, name, key="quality.unique_columns")
    if export.contract is None:
        return unique, NO_ROW_RULES
    counted = export.contract.counted(shaped)
    RowRuleCount(shaped, counted)  # raises, as the next one
    RowsAside(shaped, counted.aside)
    for name, check in export.contract.checks.items():
        if why := check.measure.refuses(shaped):
            text = f"contract.checks.{name}: {check.measure.type} cannot measure these columns: {why}"
            raise TransformError(text)
    check_sql({f"sql__{name}": each.query for name, each in export.contract.sql.items()}, shaped)
    more = (name for name in export.contract.unique_columns if name in shaped.names)
    return tuple(dict.fromkeys((*unique, *more))), counted


def require_column(relation: Relation, name: str, *, key: str) -> Column:
    """Find the column that the export's `key` names.

    Raises:
        UnknownColumn: the relation has no such column; the message lists what it has.
    """
    column = relation.column(name)
    if column is None:
        raise UnknownColumn(name, relation=relation.name, known=[c.name for c in relation.columns], key=key)
    return column


def require_bound(planning: Planning, name: str, *, key: str, is_paged: bool = False) -> Column:
    """Find the column that the export's `key` names, and whose values rows are to be chosen by.

    Raises:
        UnknownColumn: the relation has no such column.
        SourceError: its values cannot be sent back to the server as bounds, so rows would be passed over.
    """
    return bound_column(planning.relation, planning.source, name, key=key, is_paged=is_paged)


def bound_column(relation: Relation, source: Source, name: str, *, key: str, is_paged: bool = False) -> Column:
    """Find a column as `require_bound` does, where nothing is planned.

    Raises:
        UnknownColumn, SourceError
    """
    column = require_column(relation, name, key=key)
    if reason := source.no_bound(column, is_paged=is_paged):
        raise SourceError(
            f"{relation.name}.{name} is {column.native} and cannot be `{key}`: {reason}. Name a column of "
            f"whole numbers, decimals, texts, days or times, or cast it in a `query`."
        )
    return column


def require_name(schema: pa.Schema, name: str, *, key: str) -> None:
    """Check that the columns of the parts have the one that the export's `key` names.

    Raises:
        UnknownColumn: the message lists what there is.
    """
    if name not in schema.names:
        raise UnknownColumn(name, relation="The export", known=schema.names, key=key)


def _row_folders(export: Export, shaped: pa.Schema) -> RowFolders | None:
    """Return by which column's time rows fall into folders; None where they do not.

    Raises:
        UnknownColumn: the parts have no such column.
        SourceError: its cells have no day.
    """
    folders = export.row_folders
    if folders is None:
        return None
    require_name(shaped, folders.column, key="partition_by")
    kind = shaped.field(folders.column).type
    if not folders.fits(kind):
        raise SourceError(
            f"Column {folders.column} of export {export.name} is {kind}, which has no {folders.granularity}. Name a "
            f"date or a timestamp in `partition_by`, or write `values` or a `query` for a window per value."
        )
    return folders


def _hash_columns(export: Export, shaped: pa.Schema) -> tuple[str, ...] | None:
    """Name the columns the row hash covers, in order; None without one.

    Raises:
        UnknownColumn, UnsupportedColumn: a listed one is not there, or cannot be hashed.
    """
    asked = export.meta_columns.row_hash
    if asked is False:
        return None
    clocks = run_clock_columns(shaped)
    covered = tuple(name for name in shaped.names if name not in clocks) if asked is True else asked
    check_columns(shaped, covered)
    return covered


def _refuse_masked(export: Export, plan: TransformPlan, decisive: tuple[str, ...]) -> None:
    """Refuse a mask on a column whose values stand in cursors, bounds and manifests as they are.

    Raises:
        ConfigError
    """
    for name in decisive:
        if name in plan.masked:
            raise ConfigError(
                f"Export {export.name}: column {name!r} is masked, but it decides which rows are read, and its values "
                f"stand in the state store and the manifests. Use another column for mode {export.mode}, or do not "
                f"mask this one."
            )


def _refuse_leaks(export: Export, plan: TransformPlan) -> None:
    """Refuse columns that were made of a masked one before its mask, unless the mask says `reveals`.

    A mask with `when` leaves plain values on purpose.

    Raises:
        ConfigError
    """
    masks = [step for step in export.steps if isinstance(step, Mask)]
    allowed = {name for mask in masks for name in mask.reveals}
    allowed |= {field for mask in masks if mask.when is not None for field in mask.fields}
    for name, plain in plan.leaks.items():
        if not any(fnmatchcase(name, pattern) for pattern in allowed):
            raise ConfigError(
                f"Export {export.name}: column {name!r} is made of {', '.join(sorted(plain))} before that is masked, "
                f"so its plain value would be published. Put the mask before the step that makes it, drop it, or write "
                f"`reveals: [{name}]` in the mask if it may stay."
            )
