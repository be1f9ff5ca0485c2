"""What Dagster shows of an export before it ever ran: its asset, its checks, the source tables upstream.

Belongs here: everything known from the configuration alone; no connection, no JVM. Not here: facts of a run
(`metadata.py`).
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._core.definitions.metadata.metadata_value import ObjectMetadataValue  # not exported

from rivet_assets.blocks.export import NOT_OF_THE_ROWS
from rivet_assets.dagster.automation import condition_of, freshness_of
from rivet_assets.dagster.checks.check_events import BY_HAND, COLUMNS
from rivet_assets.dagster.pages.lineage import key_part, upstream_keys
from rivet_assets.modes.partitions import partitions_of
from rivet_assets.run.judge.contract_rules import describe_columns, has_column_rules, rules_of_export
from rivet_assets.run.judge.quality import CONTRACT_COLUMNS, ROW_ERRORS, ROW_ERRORS_DESCRIPTION
from rivet_resources.dagster.io_manager import LAKE, SHARDS

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_resources.contracts.source import Source

# What we use of Dagster that it calls beta or preview is chosen on purpose (dagster.md, section 4), so it stays quiet.
for category in (dg.BetaWarning, dg.PreviewWarning):
    warnings.filterwarnings("ignore", category=category, module="rivet_assets")

# Metadata: where committed parts lie, for the IO manager; pages show its type.
DESTINATION = "rivet/destination"
EXPORT = "rivet/export"
QUERY = "rivet/query"
OF_A_COMPONENT = ("dagster/component_origin", "dagster/code_references")


class SourceTable(dg.AssetSpec):
    """A table of a source, which many components of a project may define: Dagster takes it twice where it is equal.

    So it keeps off what Dagster notes of the component that it came from.
    """

    @staticmethod
    def dagster_internal_init(**attributes: Any) -> SourceTable:
        """Return such a spec again, for copies; Dagster's own would return a plain one."""
        metadata = {name: value for name, value in attributes["metadata"].items() if name not in OF_A_COMPONENT}
        return SourceTable(**{**attributes, "metadata": metadata})


def asset_spec(export: Export, *, config: RivetConfig) -> dg.AssetSpec:
    """Describe the asset of an export, as its page, its lineage and its automation need it."""
    source_name, source = config.source_of(export)
    return dg.AssetSpec(
        key=asset_key(export, config=config),
        deps=upstream_keys(export, source_name=source_name, source=source),
        description=_description(export, source_name=source_name, source=source),
        metadata={**config.translation.metadata, **_metadata(export, config)},
        group_name=export.group or config.translation.group_name or _word(source_name),
        code_version=_code_version(export, config),
        automation_condition=condition_of(export),
        freshness_policy=freshness_of(export),
        owners=list(export.owners or config.translation.owners),
        tags={**config.translation.tags, **export.tags, "mode": export.mode},
        kinds={export.format, *(("spark",) if uses_spark(export, config) else ())},
        partitions_def=partitions_of(export),
        skippable=True,
    )


def asset_key(export: Export, *, config: RivetConfig) -> dg.AssetKey:
    """Name the asset as `translation:` says; without it [source name, export name]."""
    source_name, _ = config.source_of(export)
    # <export>/<table> of several tables.
    name = [key_part(part) for part in export.name.split("/")]
    return dg.AssetKey(config.translation.key_parts(source=source_name, export=name))


def check_specs(export: Export, key: dg.AssetKey) -> list[dg.AssetCheckSpec]:
    """Describe one blocking check per rule, and the one that only warns; partitioned as the asset is.

    Partitioned checks are a preview in Dagster 1.13, but without them a green window hides an earlier red one.
    """
    described = {rule.name: (rule.description, rule.blocking) for rule in rules_of_export(export)}
    if export.takes_rows:
        described[ROW_ERRORS] = (ROW_ERRORS_DESCRIPTION, True)
    if export.contract is not None and has_column_rules(export.contract):
        described[CONTRACT_COLUMNS] = describe_columns(export.contract)
    described[COLUMNS] = (columns_description(export), False)
    partitions = partitions_of(export)
    return [
        dg.AssetCheckSpec(
            name,
            asset=key,
            description=text,
            blocking=blocking,
            partitions_def=partitions,
            automation_condition=BY_HAND,
        )
        for name, (text, blocking) in described.items()
    ]


def columns_description(export: Export) -> str:
    """Return what the check `columns` of an export says."""
    values = "No value was replaced because its type cannot hold it"
    return f"{values}." if export.on_schema_drift == "continue" else f"{values}; the columns are those of before."


def source_specs(exports: Iterable[Export], *, config: RivetConfig) -> list[dg.AssetSpec]:
    """Describe the source tables that the exports read, as external assets, each once."""
    specs: dict[dg.AssetKey, dg.AssetSpec] = {}
    for export in exports:
        source_name, source = config.source_of(export)
        for key in upstream_keys(export, source_name=source_name, source=source):
            name = ".".join(key.path[1:])
            where = source_name if source_name == source.type else f"{source_name} ({source.type})"
            specs[key] = SourceTable(
                key,
                description=f"Table {name} of the source {where}, as Rivet's exports read it.",
                kinds={source.type, "table"},
                # With its source: Dagster takes assets of one table name for one table, and links them.
                metadata={"dagster/table_name": ".".join(key.path)},
                # In lists and the graph they are apart from their exports.
                group_name=f"{_word(source_name)}_tables",
            )
    return list(specs.values())


def _metadata(export: Export, config: RivetConfig) -> dict[str, Any]:
    facts: dict[str, Any] = {
        EXPORT: export.name,
        # As JSON it would lie on every page.
        DESTINATION: ObjectMetadataValue(export.destination),
        "dagster/uri": export.destination.root(export.name).uri,
        "dagster/io_manager_key": LAKE,
    }
    if export.is_apart:
        facts[SHARDS] = list(export.shards or ())
    # In the description it would stand in lists, as raw markdown.
    if export.query is not None:
        facts[QUERY] = dg.MarkdownMetadataValue(f"```sql\n{export.query.strip()}\n```")
    if config.file is not None:
        line = config.line_of(export.name)
        reference = dg.LocalFileCodeReference(
            file_path=str(config.file.absolute()), line_number=line, label=config.file.name
        )
        facts["dagster/code_references"] = dg.CodeReferencesMetadataValue(code_references=[reference])
    return facts


def _description(export: Export, *, source_name: str, source: Source) -> str:
    """Return plain text, since lists of assets show the beginning of it as it is."""
    if export.table:
        relation = f"table {export.table}"
    else:
        keys = upstream_keys(export, source_name=source_name, source=source)
        tables = ", ".join(".".join(key.path[1:]) for key in keys)
        relation = f"a query over {tables}" if tables else "a query"
    where = f" Of each database: {', '.join(export.shards)}." if export.shards else ""
    what = f"Reads {relation}: {export.reads}.{where}"
    return f"{export.description}\n\n{what}" if export.description else what


def uses_spark(export: Export, config: RivetConfig) -> bool:
    """Return whether Spark runs the export: not a drain, which needs no JVM, nor where `spark: inline` says so."""
    return not export.answers.follows_log and config.spark.engine != "inline"


def _code_version(export: Export, config: RivetConfig) -> str:
    """Hash what decides the content: the resolved export and its source's type; no secret is in either dump."""
    _, source = config.source_of(export)
    resolved = export.model_dump_json(exclude=NOT_OF_THE_ROWS | export.unset_later_keys())
    return hashlib.sha256(f"{source.type}\n{resolved}".encode()).hexdigest()[:12]


def _word(name: str) -> str:
    """Spell a name with the characters that Dagster's groups may have."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)
