"""Follow a database's change log (`mode: cdc`): a drain per run, one asset per table.

Belongs here: the YAML keys, what a drain asks of the log, the first copy of a table. Not here: the drain itself
(`rivet_resources/drain/drain.py`), logs of one engine (`rivet_resources/engines/*/log/`), current-state and history
tables (`rivet_resources/tables/`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from rivet_assets.blocks.export import Export
from rivet_assets.blocks.export_values import ColumnsOnce, Duration, TableName, rule_broken
from rivet_assets.modes.protocol import Planning, compose
from rivet_resources.contracts.change_log import Capture, Untold
from rivet_resources.contracts.engine_facts import EngineFacts
from rivet_resources.contracts.extract import CursorMove, Extract, Window
from rivet_resources.contracts.messages import is_topic
from rivet_resources.contracts.mode_facts import ModeFacts
from rivet_resources.contracts.settings import Settings, Size
from rivet_resources.drain.window_size import WINDOW_BYTES
from rivet_resources.engines.shared.names import split_name
from rivet_resources.registry import FORMATS
from rivet_resources.shape.transforms.filter import Filter
from rivet_resources.shape.transforms.rename import Rename

START = "after=start"  # the window of the first copy, or of nothing: where the chain of windows begins
SNAPSHOT_FOLDER = "snapshot"
FOLDER_SIGNS = re.compile(r"[^A-Za-z0-9_.-]")  # in a table's name: not in a folder's


def _as_list(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class CdcBlock(Settings):
    """How the log is read and where the place in it is kept."""

    checkpoint: str | None = Field(
        None, min_length=1, description="file that keeps the position, beside the config; default: the state store"
    )
    until_current: bool = Field(
        True, description="end where the log ended when the run began; false: go on until max_events or a signal"
    )
    max_events: int | None = Field(None, ge=1, description="end with the first commit at or past so many changes")
    rollover: int = Field(100_000, ge=1, description="changes per part, all tables together")
    rollover_memory_mb: int = Field(64, ge=1, description="megabytes of changes per part, all tables together")
    window_bytes: Size = Field(
        WINDOW_BYTES,
        ge=1 << 20,
        description="changes of the two windows that are under way, about: 256MB; each is committed as a whole, and a "
        "transaction is never parted",
    )
    commit_every: Duration | None = Field(
        None,
        ge=1,
        description="seconds, or a number with s, m, h or d, that a window takes, about: large ones are made smaller, "
        "and with until_current: false none follows sooner. Default: windows as large as they may be, a second apart",
    )
    initial: Literal["snapshot"] | None = Field(
        None, description="snapshot: first a consistent copy of each table, then its changes"
    )
    before: bool = Field(False, description="also a __before column, the row as it was, where the log has it")
    slot: str = Field(
        "rivet_slot", pattern=r"^[a-z0-9_]{1,63}$", description="PostgreSQL: logical slot; one drain per slot"
    )
    publication: str | None = Field(
        None, min_length=1, max_length=63, description="PostgreSQL: made if it is missing; default: the slot's name"
    )
    server_id: int | None = Field(
        None,
        ge=1,
        le=4294967295,
        description="MySQL: replica id of this drain; default: made of state store and source",
    )
    accept_untold: Annotated[
        tuple[Untold, ...], BeforeValidator(_as_list, json_schema_input_type=Untold | list[Untold])
    ] = Field(
        (),
        description="changes of rows that the log does not tell, taken as they are and not refused: columns (added "
        "with a default, renamed), partitions (attached, detached, truncated by themselves), cascades (of foreign "
        "keys, MySQL)",
    )
    capture_instance: Annotated[tuple[str, ...], BeforeValidator(_as_list, json_schema_input_type=str | list[str])] = (
        Field((), description="SQL Server: capture instance, or one per table in their order; default: looked up")
    )


class Cdc(Export):
    """Every insert, update and delete, in the order of their commits."""

    answers: ClassVar[ModeFacts] = ModeFacts(
        name="cdc",
        reads="the changes in its log",
        window="changes",
        follows_log=True,
        holds_changes=True,
        no_sample="a log is read once, and goes on from there; `cdc: {max_events: N}` ends a drain after N changes",
        no_repair="windows of mode cdc hold changes, which a log gives once. Run `rivet state reset -e {name}`, then "
        "the export: it begins with a new snapshot, and its mirror is made anew from the changes",
    )

    mode: Literal["cdc"]
    tables: tuple[TableName, ...] = Field((), description="several tables: one drain, a folder and an asset each")
    cdc: CdcBlock = Field(default_factory=CdcBlock, description="how the log is read")
    apply: Annotated[
        tuple[Literal["mirror", "history"], ...],
        BeforeValidator(_as_list, json_schema_input_type=str | list[str]),
    ] = Field((), description="tables kept beside the changes: mirror is the current state, history every version")
    key: ColumnsOnce = Field((), description="columns that identify a row for `apply`; default: the table's key")

    @model_validator(mode="after")
    def fits_a_log(self) -> Cdc:
        """Refuse what has no meaning for changes."""
        for code, message in self._misfits():
            raise rule_broken(code, message)
        return self

    def _misfits(self) -> Iterator[tuple[str, str]]:
        code = "RIVET_CONFIG_CDC"
        folders = [self.folder_of(table) for table in self.tables]
        if len(set(folders)) < len(folders):
            yield (
                code,
                "two of `tables` would share a folder: their names differ only in schema or signs. "
                "Give one an export of its own",
            )
        if self.apply and not FORMATS[self.format].is_parquet:
            yield code, f"`apply` reads changes from Parquet, not from {self.format}; write format: parquet"
        if self.cdc.before and not FORMATS[self.format].holds_lists:
            yield code, "`before` is a whole row in one column, which CSV cannot hold; write format: parquet or ndjson"
        if self.key and not self.apply:
            yield code, "`key` identifies rows for `apply`; add `apply: mirror`, or remove it"
        if self.key and len(self.captured) > 1:
            yield code, "`key` names columns of one table; give this table an export of its own"
        if self.quality is not None and "mirror" not in self.apply:
            yield code, "`quality` judges whole tables, and changes are not one; add `apply: mirror`, or remove it"
        if any(isinstance(step, Filter) for step in self.transforms):
            yield code, "a filter would take changes out of the middle of a row's history; filter the mirror instead"
        if self.meta_columns.row_hash is not False:
            yield code, "`meta_columns.row_hash` is for whole rows, and deletes may carry a key alone; remove it"
        if self.destination.is_stream and (not FORMATS[self.format].is_one_line_a_row or self.apply):
            yield code, "on stdout, changes are one NDJSON line each; write format: ndjson, without `apply`"
        instances = len(self.cdc.capture_instance)
        if instances not in (0, len(self.captured)):
            yield code, f"capture_instance lists {instances}, and there are {len(self.captured)} tables; one for each"

    @property
    def not_counted(self) -> str:
        """Return why its reading cannot be counted; see Export."""
        return "mode cdc reads the log, which the server keeps until it is read; slower reading would fill its disk"

    @property
    def captured(self) -> tuple[str, ...]:
        """Name the tables of the drain, as configured."""
        return self.tables or ((self.table,) if self.table else ())

    def folder_of(self, table: str) -> str:
        """Name what a table's windows are kept as: the export, or `<export>/<table>` where there are several."""
        return f"{self.name}/{FOLDER_SIGNS.sub('_', split_name(table)[1])}" if self.tables else self.name

    def of_table(self, table: str) -> Cdc:
        """Return the export of one table: its name, which is also its folder, and its relation."""
        return self.model_copy(update={"name": self.folder_of(table), "table": table, "tables": ()})

    def relations(self) -> list[tuple[Export, str | None]]:
        """Return the export of each table, and the table."""
        return [(self.of_table(table), table) for table in self.captured]

    def folders(self) -> list[str]:
        """Return one name per table."""
        return [self.folder_of(table) for table in self.captured]

    def table_beside(self, table: str, kind: str) -> str:
        """Name the mirror or history of a table, which is also its folder: `<export>_mirror`."""
        return f"{self.folder_of(table)}_{kind}"

    def export_beside(self, table: str, kind: str) -> Cdc:
        """Return the export of a mirror or history, as its asset is described."""
        return self.of_table(table).model_copy(update={"name": self.table_beside(table, kind), "schedule": None})

    def tables_beside(self) -> list[str]:
        """Return the mirrors and histories."""
        return [self.table_beside(table, kind) for table in self.captured for kind in self.apply]

    def strategy(self, way: str, column: str, *, chunks: int) -> str:
        """Return how the first copy is read, such as `cdc(initial=snapshot, blocks)`."""
        return f"cdc(initial={self.cdc.initial or 'none'}, {way}{self.abreast})"

    def capture(self, *, deployment: str) -> Capture:
        """Describe what the drain asks of the log."""
        block = self.cdc
        return Capture(
            export=self.name,
            tables=self.captured,
            rules=self.type_rules(),
            slot=block.slot,
            publication=block.publication or block.slot,
            server_id=block.server_id,
            capture_instances=block.capture_instance,
            deployment=deployment,
            before=block.before,
            memory_bytes=block.rollover_memory_mb << 20,
            max_events=block.max_events,
            accepts=frozenset(block.accept_untold),
            copies=block.initial == "snapshot",
            is_keyed=bool(self.apply) or is_topic(self.destination),
            key=self._key_at_source(),
            is_applied=bool(self.apply),
        )

    def _key_at_source(self) -> tuple[str, ...]:
        """Return the columns of the key as the log calls them: before a step gave them other names."""
        names = tuple(getattr(self.destination, "key", None) or self.key)
        for step in reversed(self.steps):
            if isinstance(step, Rename):
                olds = {new: old for old, new in step.columns.items()}
                names = tuple(olds.get(name, name) for name in names)
        return names

    def resources(self, engine: EngineFacts) -> dict[str, str]:
        """Name what no two drains may share: {key of `cdc:`: its value}."""
        block = self.cdc
        held = {
            "slot": block.slot if engine.has_slots else None,
            "server_id": block.server_id,
            "checkpoint": block.checkpoint,
            "capture_instance": ", ".join(block.capture_instance) or None,
        }
        return {key: str(value) for key, value in held.items() if value is not None}

    def extract(self, planning: Planning) -> Extract:
        """Describe the first copy of one table; its rows become inserts at the position `planning.cursor`."""
        chunks = planning.session.chunks(planning.relation, pieces=self.parallel)
        extract = compose(
            self,
            planning,
            window=Window(START, folder=SNAPSHOT_FOLDER),
            chunks=chunks,
            cursor=CursorMove(low=None, high=planning.cursor, column="__pos"),
        )
        return replace(extract, meta=replace(extract.meta, inserted_at=planning.cursor))


def drain_of(export: Export) -> Cdc | None:
    """Return an export as the drain that it is; None: it follows no log."""
    return export if isinstance(export, Cdc) else None
