"""One block of `exports:`: every key that means the same in each mode.

Belongs here: the keys, and what single keys may hold. Not here: rules between keys (`export_rules.py`), keys of
one mode (`modes/`), the union of modes and everything above an export (`config/load.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from rivet_assets.blocks.choice import Choice, NameOr, OneWordOf, details, refusals
from rivet_assets.blocks.contract import Contract, contract_was_read
from rivet_assets.blocks.export_rules import broken_rules
from rivet_assets.blocks.export_values import (
    ColumnRules,
    ColumnsOnce,
    Cron,
    Duration,
    ExportName,
    GroupName,
    MaxErrors,
    Owner,
    Query,
    Ratio,
    SpelledNull,
    TableName,
    Texts,
    rule_broken,
)
from rivet_assets.blocks.partition_by import PartitionBy, column_alone
from rivet_assets.blocks.profile import Profile, profile_alone
from rivet_assets.blocks.schema_registry import SchemaSubject, format_alone
from rivet_assets.blocks.shards import Shards
from rivet_assets.blocks.upkeep import Compact, Keep, compact_alone
from rivet_resources.contracts.destination import Destination
from rivet_resources.contracts.engine_facts import EngineFacts
from rivet_resources.contracts.format import FileFormat, FormatKeys
from rivet_resources.contracts.messages import is_topic
from rivet_resources.contracts.mode_facts import Cautions, ModeFacts
from rivet_resources.contracts.read_limits import RateLimit
from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.rows.row_errors import RowPolicy
from rivet_resources.contracts.rows.row_folders import Granularity, RowFolders
from rivet_resources.contracts.rows.value_windows import SHARD_COLUMN
from rivet_resources.contracts.schema_registry import SchemaFormat
from rivet_resources.contracts.settings import Settings, Size, Tuning
from rivet_resources.contracts.source import Source, TypeRules
from rivet_resources.contracts.transform import Transform
from rivet_resources.contracts.types import SpecialValue
from rivet_resources.registry import DESTINATIONS, ENGINES, FORMATS, STEPS
from rivet_resources.shape.transforms.conditions import policy_of
from rivet_resources.shape.transforms.mask_tags import MaskRule, Tag, TagMasks
from rivet_resources.write.formats.parquet import Codec, ParquetOptions
from rivet_resources.write.formats.text_codec import TextCodec

LATER_SOURCES = {"mongo": "is not in this version; it reads postgres, mysql, mariadb, sqlserver, sqlite, datagen"}

# Keys that change neither rows nor files: who is told, and when it runs.
NOT_OF_THE_ROWS = {
    "schedule", "freshness", "owners", "tags", "group", "description", "preview",
    "wave", "parallel_safe", "source_group", "reconcile_required", "rate_limit", "compact", "keep",
}  # fmt: skip

SOURCES = Choice("type", ENGINES, unknown="RIVET_CONFIG_TYPE_UNKNOWN", later=LATER_SOURCES)
AnySource = Annotated[Source, SOURCES]
AnyDestination = Annotated[Destination, Choice("type", DESTINATIONS, unknown="RIVET_CONFIG_TYPE_UNKNOWN")]
STEP_CHOICE = Choice("type", STEPS, unknown="RIVET_CONFIG_TYPE_UNKNOWN")
AnyStep = Annotated[Transform, STEP_CHOICE]


class Quality(Settings):
    """Rules over a whole window; one that fails keeps the window from being published."""

    row_count_min: int | None = Field(None, ge=0, description="fewest rows, inclusive")
    row_count_max: int | None = Field(None, ge=0, description="most rows, inclusive")
    null_ratio_max: dict[str, Ratio] = Field(
        default_factory=dict, description="column → largest share of NULLs, 0 to 1; fails only when exceeded"
    )
    unique_columns: ColumnsOnce = Field((), description="each alone holds no value twice; NULLs are ignored")


class MetaColumnsBlock(Settings):
    """Columns Rivet appends after the source's own."""

    exported_at: bool = Field(False, description="append _rivet_exported_at, one instant per window")
    row_hash: bool | ColumnsOnce = Field(
        False,
        description="append _rivet_row_hash, 64 bits of XXH3-128 over all columns as published (true), "
        "or over the listed ones in that order",
    )

    @field_validator("row_hash")
    @classmethod
    def some_columns(cls, asked: bool | tuple[str, ...]) -> bool | tuple[str, ...]:
        """Refuse a hash over no column."""
        if asked == ():
            raise rule_broken("RIVET_CONFIG_ROW_HASH", "lists no column; write true for all of them, or name some")
        return asked


class Freshness(Settings):
    """How old the last published window may get before Dagster says so."""

    fail_after: Duration = Field(description="seconds, or a number with s, m, h or d, such as 26h")
    warn_after: Duration | None = Field(None, description="earlier, and only a warning")

    @model_validator(mode="after")
    def warn_before_fail(self) -> Self:
        """Refuse a warning that would come after the failure."""
        if self.warn_after is not None and self.warn_after >= self.fail_after:
            raise rule_broken("RIVET_CONFIG_FRESHNESS", "warn_after is not shorter than fail_after; shorten it")
        return self


def _fails_after(value: object) -> object:
    return value if isinstance(value, Mapping | Freshness) else {"fail_after": value}


class Export(Settings):
    """What to read, and what to write where. `modes/` adds when and in which pieces, and answers for the mode."""

    answers: ClassVar[ModeFacts] = ModeFacts("")
    later_keys: ClassVar[tuple[str, ...]] = (
        "partition_by",
        "partition_granularity",
        "shards",
        "on_error",
        "max_errors",
        "contract",
        "text_compression",
        "schema_registry",
        "profile",
        "mask_tags",
        "unmasked",
    )

    _whole: Export | None = PrivateAttr(None)  # of which this is one shard; None: of none
    _shard: str = PrivateAttr("")

    name: ExportName = Field(description="names its asset, folder, files and cursor; unique in the file")
    mode: str = Field("full", description="full, incremental, chunked, time_window, cdc or poll")
    source: Annotated[str | Source | None, NameOr(SOURCES)] = Field(
        None, description="name of one of `sources:`, or a source block of its own; default: the only source"
    )
    query: Query | None = Field(None, description="a SELECT; one of query, query_file and table")
    query_file: str | None = Field(
        None, min_length=1, description="file with a SELECT, in the folder of the config or below"
    )
    table: TableName | None = Field(None, description='name or schema.name; quoted where SQL needs it: public."Orders"')
    params: Texts = Field(default_factory=dict, description="values bound to :name in the query, as text")
    format: Annotated[str, OneWordOf(FORMATS)] = Field(description="how parts are written")
    compression: Codec = Field(
        "zstd", description="codec of Parquet and Avro parts; for CSV and NDJSON see text_compression"
    )
    compression_level: int | None = Field(None, description="zstd 1 to 22, default 3; gzip 0 to 10, default 6")
    compression_profile: Literal["none", "fast", "balanced", "compact"] | None = Field(
        None, description="instead of compression: fast is snappy, balanced zstd 3, compact zstd 9"
    )
    text_compression: TextCodec | None = Field(
        None, description="compresses CSV and NDJSON parts: .csv.gz, .ndjson.zst; default: not compressed"
    )
    parquet: ParquetOptions = Field(
        default_factory=ParquetOptions, description="row groups, encodings, typing of Parquet"
    )
    destination: AnyDestination = Field(description="where parts are published")
    partition_by: (
        Annotated[PartitionBy, BeforeValidator(column_alone, json_schema_input_type=str | PartitionBy)] | None
    ) = Field(None, description="a column: files in folders by its day; with values or a query: a window per value")
    partition_granularity: Granularity | None = Field(
        None, description="what a folder of `partition_by: <column>` covers; default day"
    )
    shards: Shards | None = Field(
        None, description="databases of one shape: name → variable with its URL (SQLite: its path); a window each"
    )
    skip_empty: bool = Field(False, description="zero rows: write nothing and leave what is published")
    max_file_size: Size | None = Field(None, description="split parts at this size: a number with B, KB, MB or GB")
    compact: (
        Annotated[Compact | None, BeforeValidator(compact_alone, json_schema_input_type=bool | Compact | None)] | None
    ) = Field(None, description="small parts and windows are joined by `rivet compact`: true, or a block")
    keep: Keep | None = Field(
        None,
        description="how many windows stay, or how old they may get: 30, or 90d; older ones go with `rivet retain`, "
        "snapshots beyond a number with the next one; default: all",
    )
    parallel: int = Field(1, ge=1, description="tasks that read the source side by side")
    transforms: tuple[Annotated[str | AnyStep, NameOr(STEP_CHOICE)], ...] = Field(
        (), description="what becomes of each row on its way, in this order: steps, or names of root `transforms:`"
    )
    mask_tags: dict[Tag, MaskRule] | None = Field(
        None,
        description="tag → how each column is masked that has it in its comment, or in the contract; default: that of "
        "the root; {}: none",
    )
    unmasked: ColumnsOnce | None = Field(
        None, description="columns that `mask_tags` leaves as they are, by name or as table.column"
    )
    meta_columns: MetaColumnsBlock = Field(default_factory=MetaColumnsBlock, description="columns appended to each row")
    quality: Quality | None = Field(None, description="rules that may stop a window")
    contract: Annotated[Contract, BeforeValidator(contract_was_read, json_schema_input_type=str | Contract)] | None = (
        Field(None, description="what columns and rows are agreed to be; or a file with it, beside the config or below")
    )
    profile: Annotated[Profile | None, BeforeValidator(profile_alone, json_schema_input_type=bool | Profile | None)] = (
        Field(
            None,
            description="what each column is like, counted with each window: true, or some columns; see rivet profile",
        )
    )
    columns: ColumnRules = Field(default_factory=dict, description="type overrides by column, or table.column")
    on_special_value: Annotated[SpecialValue, SpelledNull] = Field(
        "fail", description="what happens to a value its type cannot hold"
    )
    on_error: RowPolicy | None = Field(
        None,
        description="of rows that a type cannot hold or a step refuses: stop (default), skip, or dead_letter: "
        "set aside in `_quarantine/`, committed with their window",
    )
    max_errors: MaxErrors | None = Field(
        None, description="most rows of a window that `on_error` may take: a number, or a share such as 1%"
    )
    on_unsupported: Literal["text", "fail"] = Field(
        "text", description="types without an Arrow home: as text, or refused"
    )
    on_schema_drift: Literal["warn", "continue", "evolve", "fail"] = Field(
        "warn",
        description="columns changed since the last run: tell, stay silent, take added columns and stop at any other "
        "change, or stop; exit code 4",
    )
    schema_registry: (
        Annotated[SchemaSubject, BeforeValidator(format_alone, json_schema_input_type=SchemaFormat | SchemaSubject)]
        | None
    ) = Field(
        None, description="registers the schema, and refuses changes that break readers: avro, json, protobuf, or more"
    )
    tuning: Tuning | None = Field(None, description="overrides the source's tuning field by field")
    rate_limit: RateLimit | None = Field(
        None, description="how fast its rows may be read, over all its tasks and runs; the source's own holds too"
    )
    schedule: Cron | None = Field(None, description="cron expression, five fields")
    freshness: (
        Annotated[Freshness, BeforeValidator(_fails_after, json_schema_input_type=int | str | Freshness)] | None
    ) = Field(None, description="when Dagster calls the asset stale")
    description: str | None = Field(None, description="markdown, shown on the asset's page")
    group: GroupName | None = Field(None, description="Dagster group; default: the source's name")
    owners: tuple[Owner, ...] = Field((), description="e-mail addresses, or team:name")
    tags: Texts = Field(default_factory=dict, description="Dagster tags of the asset")
    preview: int = Field(
        0,
        ge=0,
        le=100,
        description="rows shown on the asset's page, as they are in the file; kept in Dagster's event log",
    )
    wave: int | None = Field(
        None, ge=1, le=4, description="when `rivet apply` runs it, 1 first; default: by its score; see `rivet plan`"
    )
    parallel_safe: bool = Field(True, description="false: `rivet apply` runs nothing beside it")
    source_group: GroupName | None = Field(
        None, description="exports of one group never run side by side in `rivet apply`"
    )
    reconcile_required: bool = Field(
        False,
        description="`rivet run` and `rivet apply` reconcile it with the source each time; `rivet plan` puts it later",
    )

    # Kept apart: a part of a window that is read again is judged by a part of the contract, and masked by all of it.
    _tags_of_contract: dict[str, tuple[str, ...]] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any, /) -> None:
        """Keep what the contract says of tags."""
        if self.contract is not None:
            self._tags_of_contract.update({name: column.tags for name, column in self.contract.columns.items()})

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Put the rules between keys around everything else, so that all that is wrong is told at once."""
        return core_schema.no_info_wrap_validator_function(cls._with_rules, handler(source))

    @classmethod
    def _with_rules(cls, block: Any, validate: core_schema.ValidatorFunctionWrapHandler) -> Self:
        faults = broken_rules(block, cls.answers) if isinstance(block, Mapping) else []
        try:
            export: Self = validate(block)
        except ValidationError as error:
            raise refusals(cls.__name__, [*details(error), *faults]) from None
        if faults:
            raise refusals(cls.__name__, faults)
        return export

    @property
    def not_counted(self) -> str:
        """Return why what it reads can be neither slowed down nor counted for a budget; '': it can."""
        return ""

    @property
    def steps(self) -> tuple[Transform, ...]:
        """Return the masks by tag, and the transforms; names were replaced by what they name when the file was read."""
        steps = tuple(step for step in self.transforms if not isinstance(step, str))
        if not self.mask_tags:
            return steps
        rules, plain, of_log = self.mask_tags, self.unmasked or (), self.answers.follows_log
        return (TagMasks(rules, plain, self._tags_of_contract, steps, of_log=of_log), *steps)

    def format_settings(self) -> FileFormat:
        """Return the format with the keys that say how parts are written."""
        rules = {name.rpartition(".")[2]: rule.encoding for name, rule in self.columns.items()}
        keys = FormatKeys(
            compression=self.compression,
            compression_level=self.compression_level,
            compression_profile=self.compression_profile,
            text_compression=self.text_compression,
            parquet=self.parquet,
            encodings={name: encoding for name, encoding in rules.items() if encoding is not None},
        )
        if is_topic(self.destination):
            from rivet_resources.write.formats.staged_messages import StagedMessages  # start

            return StagedMessages.model_validate(
                {"type": self.format, "key": getattr(self.destination, "key", None) or ()}
            )
        form: FileFormat = FORMATS[self.format].from_keys(keys)
        return form

    def unset_later_keys(self) -> set[str]:
        """Name the keys that a later Rivet brought and the block does not set.

        Fingerprints leave them out: with them a new Rivet would know no chunk, plan or code version of before.
        """
        return {key for key in self.later_keys if getattr(self, key) is None}

    @property
    def row_policies(self) -> frozenset[RowPolicy]:
        """Return what may become of rows that cannot be exported, but for stopping it."""
        policies = {self.on_error or "stop", *(policy_of(step, "stop") for step in self.steps)}
        if self.contract is not None and self.contract.sets_aside:
            policies.add("dead_letter")
        return frozenset(policies - {"stop"})

    @property
    def takes_rows(self) -> bool:
        """Return whether rows that cannot be exported may be left out, or set aside."""
        return bool(self.row_policies)

    @property
    def shares_snapshot(self) -> bool:
        """Return whether one instant is held for all rows of a window, where the source can give it."""
        return True

    @property
    def by_value(self) -> PartitionBy | None:
        """Return the column whose values are windows of their own; None where they are not."""
        return self.partition_by if self.partition_by is not None and self.partition_by.is_by_value else None

    @property
    def row_folders(self) -> RowFolders | None:
        """Return by which column's time the rows of a window fall into folders; None where they lie in one."""
        if self.partition_by is None or self.partition_by.is_by_value:
            return None
        return RowFolders(self.partition_by.column, self.partition_granularity or "day")

    @property
    def has_partitions(self) -> bool:
        """Return whether each window is a partition of its own: of time, a value, a shard, or a day's snapshot."""
        return self.has_days or self.has_values

    @property
    def is_apart(self) -> bool:
        """Return whether each shard has a chain of windows, a cursor and a folder of its own (`alone`)."""
        return self.shards is not None and self.answers.shards_apart

    @property
    def of_shard(self) -> str:
        """Name the shard that this is the export of alone; '' of an export as it is written."""
        return self._shard

    @property
    def whole(self) -> Export:
        """Return the export as it is written."""
        return self._whole or self

    def alone(self, shard: str) -> Self:
        """Return the export of one shard alone, as one without `shards`: what is kept of it has a name of its own."""
        one = self.model_copy(update={"name": f"{self.name}/{SHARD_COLUMN}={shard}", "shards": None})
        one._whole, one._shard = self, shard
        return one

    @property
    def has_values(self) -> bool:
        """Return whether windows are of values, or of shards, alone or beside days."""
        return self.by_value is not None or self.shards is not None

    @property
    def has_two_dimensions(self) -> bool:
        """Return whether each window is of a time, or a day's snapshot, and of a value, or a shard."""
        return self.has_days and self.has_values

    @property
    def has_days(self) -> bool:
        """Return whether partitions follow one another in time."""
        return self.answers.has_windows or self.first_snapshot is not None

    @property
    def first_snapshot(self) -> date | None:
        """Return the first day that there may be a snapshot of; None where the export keeps none."""
        return None

    @property
    def is_first_snapshot_assumed(self) -> bool:
        """Return whether nobody wrote when snapshots begin, so that Dagster shows years of days without any."""
        return False

    @property
    def window_kind(self) -> str:
        """Return of which family its windows are."""
        if self.first_snapshot is not None:
            return "snapshot"
        return "value" if self.has_values and not self.answers.has_windows else self.answers.window

    # --- what a mode may answer in another way -------------------------------------------------------

    @property
    def reads(self) -> str:
        """Return what a run reads, as part of a sentence."""
        return self.answers.reads

    def relations(self) -> list[tuple[Export, str | None]]:
        """Return what is read: (the export of that relation alone, its table; None: a query)."""
        return [(self, self.table)]

    def folders(self) -> list[str]:
        """Return the names that its windows are kept under, which are also folders at the destination."""
        return [self.alone(each).name for each in self.shards or ()] if self.is_apart else [self.name]

    def tables_beside(self) -> list[str]:
        """Return the names of the tables that are kept beside what is read."""
        return []

    def all_folders(self) -> list[str]:
        """Return every name that windows are kept under: of what is read, and of the tables beside it."""
        return [*self.folders(), *self.tables_beside()]

    def within(self, relation: Relation, source: Source, start: datetime, end: datetime) -> str:
        """Return the predicate of the rows of [start, end), '' where windows are not of time.

        Raises:
            UnknownColumn, SourceError: as planning such a window.
        """
        return ""

    def resources(self, engine: EngineFacts) -> dict[str, str]:
        """Return what no two exports may share: {key of the mode's block: its value}."""
        return {}

    def deciding_column(self, key: tuple[str, ...]) -> tuple[str, bool]:
        """Return the column that decides which rows a chunk, window or run reads, '' where all are wanted.

        Args:
            key: of the relation.

        Returns:
            (name, whether what decides is an expression over it and another one, which no index serves)
        """
        return "", False

    def strategy(self, way: str, column: str, *, chunks: int) -> str:
        """Return in one line how it is read, such as `full(blocks, 4 chunks, p=2)`.

        Args:
            way: how one chunk is read.
            column: that decides which rows are.
        """
        return f"{self.mode}({way}{f', {chunks} chunks' if chunks > 1 else ''}{self.abreast})"

    @property
    def abreast(self) -> str:
        """Return how many tasks read side by side, as part of the strategy."""
        return f", p={self.parallel}" if self.parallel > 1 else ""

    def cursor_for_plan(self, committed: str | None, made_up: Callable[[str], str | None]) -> str | None:
        """Return the cursor that a plan without a run begins at; None: as the first run does.

        Args:
            made_up: makes a value of a column where no run has committed one; None where it need not.
        """
        return None

    def without_comparison(self) -> tuple[Export, list[str]]:
        """Return the export without what would read rows while planning, and what is left to the run."""
        return self, []

    @property
    def cursor(self) -> tuple[str, str | None] | None:
        """Return the column that later runs begin at, and the one that stands in for its NULLs; None: no cursor."""
        return None

    def cursor_text(self, cursor: str) -> str:
        """Return what people read of a committed cursor: the value of its column."""
        return cursor

    @property
    def window_column(self) -> str:
        """Return the column whose values are cut into windows of time; '' where none is."""
        return ""

    @property
    def range_width(self) -> int | None:
        """Return how many values of its column one chunk covers; None where widths are not given."""
        return None

    @property
    def cautions(self) -> Cautions:
        """Return what the user did about things that warnings are given of."""
        return Cautions()

    def type_rules(self) -> TypeRules:
        """Join the keys that say what columns become."""
        return TypeRules(
            columns=self.columns,
            on_special_value=self.on_special_value,
            refuses_rows=(self.on_error or "stop") != "stop",
            on_unsupported=self.on_unsupported,
            # Formats of plugins of before do not have the word.
            typing="native" if getattr(FORMATS[self.format], "is_always_native", False) else self.parquet.types,
        )
