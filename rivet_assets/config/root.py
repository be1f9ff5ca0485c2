"""The root block: the whole of `rivet.yaml`, and of a component's `attributes:`.

Belongs here: the root's keys, which mode is which block, rules between root and exports, finding an export's
source. Not here: reading a file (`load.py`), keys of one export (`blocks/export.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    model_validator,
)
from pydantic_core import InitErrorDetails

from rivet_assets.blocks.choice import Choice, details, nearest, refusal, refusals
from rivet_assets.blocks.export import AnySource, AnyStep, Export
from rivet_assets.blocks.export_values import SOURCE_NAME, project_name, secret_name
from rivet_assets.blocks.notifications import Notifications
from rivet_assets.blocks.observability import Observability
from rivet_assets.blocks.op import Op
from rivet_assets.blocks.schema_registry import SchemaRegistrySettings
from rivet_assets.blocks.translation import Translation
from rivet_assets.config.cluster import of_one_machine
from rivet_assets.config.references import broken_references, with_references
from rivet_assets.modes.by_shard import source_of_shard
from rivet_assets.modes.cdc import Cdc
from rivet_assets.modes.chunked import Chunked
from rivet_assets.modes.full import Full
from rivet_assets.modes.incremental import Incremental
from rivet_assets.modes.poll import Poll
from rivet_assets.modes.registry import MODES
from rivet_assets.modes.time_window import TimeWindow
from rivet_resources.contracts.messages import is_topic
from rivet_resources.contracts.read_limits import limits_of
from rivet_resources.contracts.secret_reference import SecretReference
from rivet_resources.contracts.settings import Settings, Spark, pace
from rivet_resources.contracts.source import Source
from rivet_resources.errors import ConfigError
from rivet_resources.shape.transforms.mask_tags import MaskRule, Tag

AnyExport = Annotated[
    Full | Incremental | Chunked | TimeWindow | Cdc | Poll,
    Choice("mode", MODES, unknown="RIVET_CONFIG_MODE_UNKNOWN", default="full"),
]


def _spark_block(value: object) -> object:
    return {"engine": value} if isinstance(value, str) else value


class RivetConfig(Settings):
    """Sources, exports, and how they run."""

    source: AnySource | None = Field(None, description="the one source of all exports")
    sources: dict[str, AnySource] = Field(
        default_factory=dict, description="several sources by name, instead of source"
    )
    transforms: dict[str, AnyStep] = Field(
        default_factory=dict, description="steps by name, for the `transforms:` of several exports"
    )
    mask_tags: dict[Tag, MaskRule] | None = Field(
        None,
        description="tag → how each column is masked that has it, of every export without `mask_tags` of its own",
    )
    exports: tuple[AnyExport, ...] = Field((), description="what to read and where to write it; one asset each")
    spark: Annotated[
        Spark, BeforeValidator(_spark_block, json_schema_input_type=Literal["spark", "inline"] | Spark)
    ] = Field(default_factory=Spark, description="where the work runs; inline: in this process, without a JVM")
    state: SecretStr | None = Field(
        None,
        description="SQLAlchemy URL of the state store; RIVET_STATE_URL wins; default: a SQLite file beside the config",
    )
    project: Annotated[str, AfterValidator(project_name)] | None = Field(
        None,
        description="whose state it is in a store that several projects share; default: the name of the config's "
        "folder, or none beside a store in that folder",
    )
    parallel_exports: bool = Field(False, description="of the original; Dagster decides what runs side by side")
    parallel_export_processes: bool = Field(False, description="of the original; Dagster decides")
    notifications: Notifications | None = Field(None, description="who is told what happened")
    translation: Translation = Field(
        default_factory=Translation, description="keys, groups, owners and tags of the assets in Dagster"
    )
    op: Op = Field(default_factory=Op, description="pool, tags and backfill policy of the steps in Dagster")
    observability: Observability | None = Field(None, description="which tools hear of runs: metrics, traces, lineage")
    schema_registry: SchemaRegistrySettings | None = Field(
        None, description="where the schemas of exports with `schema_registry` are registered"
    )
    secrets: dict[Annotated[str, AfterValidator(secret_name)], SecretReference] = Field(
        default_factory=dict,
        description="variables that stand in a store of secrets, not in the environment; every key that takes a "
        "variable takes their names",
    )

    _file: Path | None = PrivateAttr(None)
    _lines: dict[str, int] = PrivateAttr(default_factory=dict)
    _warnings: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="wrap")
    @classmethod
    def _with_rules(cls, block: Any, validate: ValidatorFunctionWrapHandler) -> Self:
        """Apply the rules between root and exports, and tell their faults together with all others."""
        faults = list(_broken_rules(block)) if isinstance(block, Mapping) else []
        try:
            config: Self = validate(block)
        except ValidationError as error:
            raise refusals(cls.__name__, [*details(error), *faults]) from None
        if faults:
            raise refusals(cls.__name__, faults)
        config = config.model_copy(
            update={"exports": tuple(_with_steps(export, config.transforms) for export in config.exports)}
        )
        config = config.model_copy(update={"exports": tuple(_masked_by_tags(config))})
        config = config.model_copy(update={"exports": tuple(with_references(config.exports))})
        faults = [*_check_tuning(config), *_check_modes(config), *_shared_logs(config), *_sparkless(config)]
        faults = faults or [*_shards_have_addresses(config), *_refused_rows_have_a_place(config)]
        faults = faults or [*broken_references(config.exports)]
        faults = faults or [
            *of_one_machine(config.spark, [(each, config.source_of(each)[1]) for each in config.exports])
        ]
        faults = faults or [*_limits_can_be_kept(config), *_schemas_have_a_registry(config), *_tags_are_known(config)]
        if faults:
            raise refusals(cls.__name__, faults)
        return config.model_copy(update={"spark": _spark_settings(config)})

    @property
    def file(self) -> Path | None:
        """Return the file it was read from; None when it was built in Python."""
        return self._file

    @property
    def folder(self) -> Path:
        """Return the folder of the file, else the working one."""
        return self._file.parent if self._file else Path.cwd()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what is accepted but should be looked at, one line each: `file:line: what`."""
        return self._warnings

    @property
    def state_url(self) -> str | None:
        """Return the state store's URL as configured; it may hold a password, so it is never logged."""
        return self.state.get_secret_value() if self.state else None

    def placed(self, *, file: Path, lines: Mapping[str, int], warnings: tuple[str, ...]) -> Self:
        """Return a copy that knows where it was read from."""
        copy = self.model_copy()
        copy._file, copy._lines, copy._warnings = file.absolute(), dict(lines), warnings
        return copy

    def line_of(self, export: str) -> int | None:
        """Find the line of the file on which an export begins."""
        return self._lines.get(export)

    def export(self, name: str) -> Export:
        """Find an export.

        Raises:
            ConfigError: there is none of that name; the message lists those that exist.
        """
        for export in self.exports:
            if export.name == name:
                return export
        known = [export.name for export in self.exports]
        close = nearest(name, known)
        raise ConfigError(
            f"There is no export {name!r}; there are {', '.join(known)}.{f' Did you mean {close}?' if close else ''}",
            codes=("RIVET_CONFIG_EXPORT_UNKNOWN",),
        )

    def source_of(self, export: Export) -> tuple[str, Source]:
        """Find an export's source and its name; a source without a name is called by its type.

        Of one shard alone it is the shard's.
        """
        return source_of_shard(export.whole, self._named_source(export), export.of_shard)

    def _named_source(self, export: Export) -> tuple[str, Source]:
        if export.source is not None and not isinstance(export.source, str):
            return export.source.type, export.source
        if export.source is not None:
            return export.source, self.sources[export.source]
        if self.source is not None:
            return self.source.type, self.source
        ((name, source),) = self.sources.items()
        return name, source

    def subject_of(self, export: Export) -> str:
        """Return the subject under which the schema of an export is registered."""
        given = export.schema_registry.subject if export.schema_registry is not None else None
        if is_topic(export.destination):  # as Confluent's serializers name it
            return given or f"{cast(Any, export.destination).topic_of(export.name)}-value"
        return given or ".".join(filter(None, (self.project, f"{export.name}-value")))


def _broken_rules(block: Mapping[str, Any]) -> Iterator[InitErrorDetails]:
    """Apply the rules between root and exports to a raw block."""
    exports = block.get("exports") or ()
    if not exports:
        yield refusal(
            "RIVET_CONFIG_NO_EXPORTS", "there is nothing to export; write at least one block under `exports:`"
        )
    if not isinstance(exports, list | tuple):
        return
    yield from _sources_once(block)
    yield from _check_names(exports)
    for index, export in enumerate(exports):
        yield from _source_exists(block, _value(export, "source"), ("exports", index))
        yield from _steps_exist(block, _value(export, "transforms"), ("exports", index, "transforms"))


def _sources_once(block: Mapping[str, Any]) -> Iterator[InitErrorDetails]:
    sources = block.get("sources")
    if block.get("source") is not None and sources:
        yield refusal(
            "RIVET_CONFIG_TWO_SOURCE_FORMS",
            "stands beside source; keep one: move the block of source into sources",
            loc=("sources",),
        )
    for name in sources if isinstance(sources, Mapping) else ():
        if not SOURCE_NAME.fullmatch(str(name)):
            message = f"{name!r} cannot name a source; use up to 64 letters, digits, '_' and '-'"
            yield refusal("RIVET_CONFIG_SOURCE_NAME", message, loc=("sources", str(name)))


def _check_names(exports: list[Any] | tuple[Any, ...]) -> Iterator[InitErrorDetails]:
    first: set[str] = set()
    for index, export in enumerate(exports):
        name = _value(export, "name")
        if isinstance(name, str) and name in first:
            message = "has the name of an earlier export; names are the keys of state, give each its own"
            yield refusal("RIVET_CONFIG_DUPLICATE_EXPORT", message, loc=("exports", index, "name"))
        first.add(str(name))


def _source_exists(block: Mapping[str, Any], source: Any, loc: tuple[str | int, ...]) -> Iterator[InitErrorDetails]:
    sources = block.get("sources")
    known = [str(name) for name in sources] if isinstance(sources, Mapping) else []
    if isinstance(source, str) and source not in known:
        close = nearest(source, known)
        there = f"there are {', '.join(known)}." if known else "the file has no `sources:`; add it, or remove this key"
        message = f"'{source}' is not a source; {there}{f' Did you mean {close}?' if close else ''}"
        yield refusal("RIVET_CONFIG_SOURCE_UNKNOWN", message, loc=(*loc, "source"))
    if source is None and block.get("source") is None and not known:
        yield refusal(
            "RIVET_CONFIG_NO_SOURCE", "has no source; write `source:` (or `sources:`) at the top of the file", loc=loc
        )
    if source is None and len(known) > 1:
        message = f"names no source; add `source:` with one of {', '.join(known)}"
        yield refusal("RIVET_CONFIG_SOURCE_NOT_NAMED", message, loc=loc)


def _steps_exist(block: Mapping[str, Any], steps: Any, loc: tuple[str | int, ...]) -> Iterator[InitErrorDetails]:
    named = block.get("transforms")
    known = [str(name) for name in named] if isinstance(named, Mapping) else []
    for index, step in enumerate(steps if isinstance(steps, list | tuple) else ()):
        if isinstance(step, str) and step not in known:
            close = nearest(step, known)
            there = f"there are {', '.join(known)}." if known else "the file has no `transforms:`; write a step here"
            message = f"'{step}' is not a transform; {there}{f' Did you mean {close}?' if close else ''}"
            yield refusal("RIVET_CONFIG_TRANSFORM_UNKNOWN", message, loc=(*loc, index))


def _with_steps(export: AnyExport, named: Mapping[str, AnyStep]) -> AnyExport:
    """Put the steps themselves where an export names them."""
    if not any(isinstance(step, str) for step in export.transforms):
        return export
    steps = tuple(named[step] if isinstance(step, str) else step for step in export.transforms)
    return export.model_copy(update={"transforms": steps})


def _masked_by_tags(config: RivetConfig) -> Iterator[AnyExport]:
    """Yield the exports, each with its own masks by tag, or those of the root."""
    for export in config.exports:
        is_asked = config.mask_tags and export.mask_tags is None
        yield export.model_copy(update={"mask_tags": config.mask_tags}) if is_asked else export


def _tags_are_known(config: RivetConfig) -> Iterator[InitErrorDetails]:
    """Refuse exceptions from masks by tag where there are none."""
    code = "RIVET_CONFIG_MASK_TAGS"
    for index, export in enumerate(config.exports):
        if export.unmasked and not export.mask_tags:
            message = "excepts columns from `mask_tags`, and there is none; remove it"
            yield refusal(code, message, loc=("exports", index, "unmasked"))


def _check_modes(config: RivetConfig) -> Iterator[InitErrorDetails]:
    """Ask each export's source whether it can do the mode: at night would be too late."""
    for index, export in enumerate(config.exports):
        refused = config.source_of(export)[1].refuses(export.answers, "table" if export.table else "query")
        if refused:
            yield refusal("RIVET_CONFIG_SOURCE_MODE_UNSUPPORTED", refused, loc=("exports", index, "mode"))


def _shards_have_addresses(config: RivetConfig) -> Iterator[InitErrorDetails]:
    """Refuse shards of a source that is nowhere."""
    for index, export in enumerate(config.exports):
        try:
            for shard in export.shards or ():
                source_of_shard(export, config.source_of(export), shard)
        except ConfigError as error:
            yield refusal("RIVET_CONFIG_SHARDS", str(error), loc=("exports", index, "shards"))


def _refused_rows_have_a_place(config: RivetConfig) -> Iterator[InitErrorDetails]:
    """Refuse to take rows out where changes must follow one another, and to set them aside where nothing is kept."""
    names = {export.name for export in config.exports}
    for index, export in enumerate(config.exports):
        told, policies = "", export.row_policies
        mode, key = export.answers, "on_error"
        if not policies and export.max_errors is not None:
            key = "max_errors"
            told = "bounds the rows that `on_error: skip` or `dead_letter` may take; write one of them"
        elif policies and (mode.follows_log or mode.holds_changes):
            told = f"takes rows out, and mode {mode.name} must keep every change in its place; use stop, or "
            told += "`on_special_value` and CASE WHEN for values that do not fit"
        elif "dead_letter" in policies and (export.destination.is_stream or is_topic(export.destination)):
            kept = "a topic" if is_topic(export.destination) else "stdout"
            told = f"keeps rows in files beside the export, and {kept} keeps none; use stop or skip"
            key = "contract" if export.contract is not None and export.contract.sets_aside else key
        elif "dead_letter" in policies and f"{export.name}_quarantine" in names:
            told = f"makes an asset {export.name}_quarantine, and an export has that name; give it another"
        if told:
            yield refusal("RIVET_CONFIG_ON_ERROR", told, loc=("exports", index, key))


def _limits_can_be_kept(config: RivetConfig) -> Iterator[InitErrorDetails]:
    """Refuse a rate or a budget on what is read beside the tasks: it would hold for some rows only."""
    for index, export in enumerate(config.exports):
        why, limits = export.not_counted, limits_of(config.source_of(export)[1])
        if why and export.rate_limit is not None:
            message = f"cannot be kept: {why}; remove it"
            yield refusal("RIVET_CONFIG_READ_LIMIT", message, loc=("exports", index, "rate_limit"))
        elif why and limits.is_counted:
            key = "rate_limit" if limits.rate is not None else "budget"
            message = f"cannot keep to `{key}` of its source: {why}; give it a source block without one"
            yield refusal("RIVET_CONFIG_READ_LIMIT", message, loc=("exports", index, "mode"))


def _schemas_have_a_registry(config: RivetConfig) -> Iterator[InitErrorDetails]:
    """Refuse schemas that are registered nowhere, and two exports that would add versions to one subject."""
    code, first = "RIVET_CONFIG_SCHEMA_REGISTRY", dict[str, str]()
    for index, export in enumerate(config.exports):
        if export.schema_registry is None:
            continue
        loc, subject = ("exports", index, "schema_registry"), config.subject_of(export)
        owner = first.setdefault(subject, export.name)
        if config.schema_registry is None:
            message = "needs a registry; write `schema_registry: {embedded: true}`, or with a url, at the top"
            yield refusal(code, message, loc=loc)
        elif owner != export.name:
            yield refusal(code, f"has subject {subject} of export {owner}; give each its own", loc=loc)


def _shared_logs(config: RivetConfig) -> Iterator[InitErrorDetails]:
    """Refuse two drains that would take changes from each other: a log's reader is one."""
    first: dict[tuple[str, ...], str] = {}
    for index, export in enumerate(config.exports):
        name, source = config.source_of(export)
        for key, resource in export.resources(source.facts).items():
            # A checkpoint is a file of this machine; the rest belongs to one source.
            owner = first.setdefault((key, resource, "" if key == "checkpoint" else name), export.name)
            if owner != export.name:
                yield refusal(
                    "RIVET_CONFIG_CDC_RESOURCE_CONFLICT",
                    f"{resource} is the {key} of export {owner} too, and the two would lose changes to each other; "
                    f"give each its own, or join them with `tables:`",
                    loc=("exports", index, "cdc", key),
                )


def _sparkless(config: RivetConfig) -> Iterator[InitErrorDetails]:
    """Refuse tables that Spark makes where Spark is switched off."""
    for index, export in enumerate(config.exports):
        if export.tables_beside() and config.spark.engine == "inline":
            message = "is made by a Spark job, and `spark: inline` leaves Spark out; remove one of the two"
            yield refusal("RIVET_CONFIG_CDC", message, loc=("exports", index, "apply"))


def _spark_settings(config: RivetConfig) -> Spark:
    """Return Spark's settings: rows of `apply` do enter the JVM, so it gets its full JIT and a larger heap then."""
    applied = any(export.tables_beside() for export in config.exports)
    wanted = {"jit": "full", "driver_memory": "2g"} if applied else {}
    return config.spark.model_copy(update={k: v for k, v in wanted.items() if k not in config.spark.model_fields_set})


def _check_tuning(config: RivetConfig) -> Iterator[InitErrorDetails]:
    """Check tuning as it will be used: the export's block over its source's (`contract.md`, 1.4)."""
    for index, export in enumerate(config.exports):
        try:
            pace(config.source_of(export)[1].tuning, export.tuning)
        except ConfigError as error:
            yield refusal("RIVET_CONFIG_BATCH_SIZE", str(error), loc=("exports", index))


def _value(block: Any, key: str) -> Any:
    return block.get(key) if isinstance(block, Mapping) else getattr(block, key, None)
