"""Rules between keys of one export. They read the raw block, so they speak up even where single keys are wrong too.

Belongs here: one function per rule, and their list. Not here: what a single key may hold (`export_values.py`),
rules of one mode (`modes/`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic_core import InitErrorDetails

from rivet_assets.blocks.choice import refusal
from rivet_resources.contracts.addressing import LAST_PARTITION, PARTITION
from rivet_resources.contracts.messages import is_topic
from rivet_resources.contracts.mode_facts import ModeFacts
from rivet_resources.contracts.settings import parse_size
from rivet_resources.registry import DESTINATIONS, FORMATS
from rivet_resources.write.formats.parquet import LEVELS

Block = Mapping[str, Any]
Rule = Callable[[Block, ModeFacts], Iterator[InitErrorDetails]]

NAMED = re.compile(r"\{(export|table)\}.")  # in a place, with something behind it
# Formats of messages → the language of their schemas.
MESSAGE_FORMATS: Mapping[str, str] = {"avro": "avro", "ndjson": "json", "protobuf": "protobuf"}
RELATIONS = ("query", "query_file", "table")


def keys_with_value(block: Block, *keys: str) -> list[str]:
    """List which of the keys are there with a value."""
    return [key for key in keys if block.get(key) is not None]


def inner(block: Block, key: str, name: str) -> Any:
    """Read a key of an inner block, whether it is still raw or validated already; None where it is not there."""
    value = block.get(key)
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def one_relation(block: Block, mode: ModeFacts) -> Iterator[InitErrorDetails]:
    """Ask for exactly one of query, query_file and table."""
    if mode.follows_log:
        yield from _tables_of_a_log(block)
        return
    relations = keys_with_value(block, *RELATIONS)
    if not relations:
        yield refusal("RIVET_CONFIG_NO_RELATION", "says not what to read; write one of query, query_file or table")
    for extra in relations[1:]:
        yield refusal(
            "RIVET_CONFIG_TWO_RELATIONS",
            f"stands beside {relations[0]}; keep one of {', '.join(relations)}",
            loc=(extra,),
        )


def _tables_of_a_log(block: Block) -> Iterator[InitErrorDetails]:
    """Ask for `table` or `tables`: a log holds changes of tables, and no query can be asked of it."""
    for extra in keys_with_value(block, "query", "query_file"):
        message = "cannot be asked of a change log; write `table`, or `tables`"
        yield refusal("RIVET_CONFIG_CDC", message, loc=(extra,))
    relations = [key for key in ("table", "tables") if block.get(key)]
    if not relations and not keys_with_value(block, "query", "query_file"):
        yield refusal("RIVET_CONFIG_NO_RELATION", "says not what to follow; write `table`, or `tables` for several")
    if len(relations) > 1:
        yield refusal("RIVET_CONFIG_TWO_RELATIONS", "stands beside table; keep one of table, tables", loc=("tables",))


def params_have_a_query(block: Block, mode: ModeFacts) -> Iterator[InitErrorDetails]:
    """Refuse bound values that nothing binds."""
    if block.get("params") and not keys_with_value(block, "query", "query_file") and keys_with_value(block, "table"):
        yield refusal(
            "RIVET_CONFIG_PARAMS",
            "are bound to :name in a query, but this export reads a table; remove them",
            loc=("params",),
        )


def level_fits_codec(block: Block, mode: ModeFacts) -> Iterator[InitErrorDetails]:
    """Refuse a level its codec does not have (`contract.md`, 1.5)."""
    level, codec = block.get("compression_level"), str(block.get("compression") or "zstd")
    if level is None or _is_plain(block):  # accepted and warned about
        return
    code, loc = "RIVET_CONFIG_COMPRESSION_LEVEL", ("compression_level",)
    if keys_with_value(block, "compression_profile"):
        yield refusal(code, "stands beside compression_profile, which decides the level; keep one of them", loc=loc)
    elif codec in ("snappy", "lz4", "none"):
        yield refusal(code, f"has no meaning for {codec}; only zstd and gzip have levels; remove it", loc=loc)
    elif codec in LEVELS and _as_int(level) is not None:
        low, high, default = LEVELS[codec]
        if not low <= (_as_int(level) or 0) <= high:
            yield refusal(code, f"{level} is outside {low} to {high} of {codec}; leave it out for {default}", loc=loc)


def csv_has_no_profile(block: Block, mode: ModeFacts) -> Iterator[InitErrorDetails]:
    """Refuse a profile on CSV: unlike `compression`, no old configuration carries it."""
    if _is_plain(block) and block.get("compression_profile") not in (None, "none"):
        yield refusal(
            "RIVET_CONFIG_CSV_PROFILE",
            f"is for Parquet; remove it, or write text_compression for {str(block['format']).upper()}",
            loc=("compression_profile",),
        )


def parquet_has_its_own_codec(block: Block, mode: ModeFacts) -> Iterator[InitErrorDetails]:
    """Refuse compressed text where parts are no text."""
    form = str(block.get("format"))
    if block.get("text_compression") is not None and form in FORMATS and FORMATS[form].has_codecs:
        yield refusal(
            "RIVET_CONFIG_TEXT_COMPRESSION",
            f"is for CSV and NDJSON, and {form} has its own; write compression",
            loc=("text_compression",),
        )


def avro_has_the_codec(block: Block, mode: ModeFacts) -> Iterator[InitErrorDetails]:
    """Refuse a codec that the specification of Avro has no name for."""
    form, codec = str(block.get("format")), block.get("compression")
    refused: frozenset[str] = getattr(FORMATS[form], "refused_codecs", frozenset()) if form in FORMATS else frozenset()
    if codec in refused:
        message = f"is {codec}, which {form.capitalize()} does not have; "
        message += "choose zstd, snappy, gzip (written as deflate) or none"
        yield refusal("RIVET_CONFIG_AVRO_CODEC", message, loc=("compression",))


def stdout_is_one_stream(block: Block, mode: ModeFacts) -> Iterator[InitErrorDetails]:
    """Refuse what would write several files into one stream."""
    kind = str(inner(block, "destination", "type"))
    if kind not in DESTINATIONS or not DESTINATIONS[kind].is_stream:
        return
    if block.get("max_file_size") is not None:
        message = "splits files, and stdout is one stream; remove it, or choose another destination"
        yield refusal("RIVET_CONFIG_STDOUT_SPLIT", message, loc=("max_file_size",))
    if mode.by_ranges:
        message = "chunked writes several files, and stdout is one stream; use full, or another destination"
        yield refusal("RIVET_CONFIG_STDOUT_CHUNKED", message, loc=("mode",))
    elif (_as_int(block.get("parallel")) or 1) > 1:
        yield refusal(
            "RIVET_CONFIG_STDOUT_CHUNKED",
            "above 1 writes several files, and stdout is one stream; remove it",
            loc=("parallel",),
        )


def quality_is_possible(block: Block, mode: ModeFacts) -> Iterator[InitErrorDetails]:
    """Refuse bounds that no count of rows can satisfy."""
    low, high = (_as_int(inner(block, "quality", key)) for key in ("row_count_min", "row_count_max"))
    if low is not None and high is not None and low > high:
        yield refusal(
            "RIVET_CONFIG_QUALITY_BOUNDS",
            f"{low} is above row_count_max {high}; no window could pass",
            loc=("quality", "row_count_min"),
        )


def contract_is_of_rows(block: Block, mode: ModeFacts) -> Iterator[InitErrorDetails]:
    """Refuse a contract on changes, and a rule that `quality` has too: one check cannot have two thresholds."""
    if block.get("contract") is None:
        return
    code = "RIVET_CONFIG_CONTRACT"
    if mode.holds_changes:
        message = f"judges rows, and mode {mode.name} keeps changes; give an export of the table in another mode one"
        yield refusal(code, message, loc=("contract",))
    for key in ("sql", "checks"):
        if inner(block, "contract", key) and not _has_local_parquet(block):
            message = (
                "reads Parquet parts from a local disk; write format: parquet to a local destination, or remove it"
            )
            yield refusal(code, message, loc=("contract", key))
    for key in ("row_count_min", "row_count_max"):
        bound = inner({"of": inner(block, "contract", "row_count")}, "of", key.removeprefix("row_count_"))
        if inner(block, "quality", key) is not None and bound is not None:
            message = f"stands beside row_count of `contract`, and both are the check {key}; keep one"
            yield refusal(code, message, loc=("quality", key))
    columns = inner(block, "contract", "columns")
    for name, column in columns.items() if isinstance(columns, Mapping) else ():
        ratios, unique = inner(block, "quality", "null_ratio_max"), inner(block, "quality", "unique_columns")
        told = {"of": column}
        if isinstance(ratios, Mapping) and name in ratios and inner(told, "of", "null_ratio_max") is not None:
            yield refusal(code, _said_twice(name, "null_ratio_max"), loc=("quality", "null_ratio_max"))
        is_unique = inner(told, "of", "unique") or inner(told, "of", "key")
        if isinstance(unique, list | tuple) and name in unique and is_unique:
            yield refusal(code, _said_twice(name, "unique"), loc=("quality", "unique_columns"))


def schema_is_of_rows(block: Block, mode: ModeFacts) -> Iterator[InitErrorDetails]:
    """Refuse registered schemas of changes: their columns follow the log, in the middle of a window too."""
    if block.get("schema_registry") is not None and mode.holds_changes and not _is_topic(block):
        message = f"is for rows, and mode {mode.name} keeps changes; give an export of the table in another mode one"
        yield refusal("RIVET_CONFIG_SCHEMA_REGISTRY", message, loc=("schema_registry",))


def profile_is_of_rows(block: Block, mode: ModeFacts) -> Iterator[InitErrorDetails]:
    """Refuse a profile of changes, and one that nothing keeps."""
    if not block.get("profile"):
        return
    kind = str(inner(block, "destination", "type"))
    if mode.holds_changes or mode.follows_log:
        message = f"describes rows, and mode {mode.name} keeps changes; give an export of the table in another mode one"
        yield refusal("RIVET_CONFIG_PROFILE", message, loc=("profile",))
    elif kind in DESTINATIONS and DESTINATIONS[kind].is_stream:
        message = "is kept in the manifest, and stdout keeps none; remove it, or choose another destination"
        yield refusal("RIVET_CONFIG_PROFILE", message, loc=("profile",))


def topics_take_messages(block: Block, mode: ModeFacts) -> Iterator[InitErrorDetails]:
    """Refuse what is about files, and messages whose schema nobody could look up."""
    code, form = "RIVET_CONFIG_KAFKA", str(block.get("format"))
    if not _is_topic(block):
        if form == "protobuf":
            message = "protobuf is of messages (`destination: {type: kafka}`); files are parquet, csv, ndjson or avro"
            yield refusal(code, message, loc=("format",))
        return
    if form in FORMATS and form not in MESSAGE_FORMATS:
        message = f"{form} is of files; messages are {', '.join(MESSAGE_FORMATS)} (ndjson: one JSON object each)"
        yield refusal(code, message, loc=("format",))
    registry = block.get("schema_registry")
    given = registry if isinstance(registry, str) else inner(block, "schema_registry", "format") or "avro"
    wanted = MESSAGE_FORMATS.get(form)
    if registry is None and wanted not in (None, "json"):
        message = (
            f"{form} messages name their schema by its id; write `schema_registry: {wanted}`, and the registry at "
        )
        yield refusal(code, message + "the top", loc=("format",))
    elif registry is not None and wanted not in (None, given):
        message = f"is {given}, and messages are {form}; write {wanted}"
        yield refusal(code, message, loc=("schema_registry",))
    if block.get("max_file_size") is not None:
        yield refusal(code, "splits files, and a topic has none; remove it", loc=("max_file_size",))
    if block.get("partition_by") is not None and not any(
        inner(block, "partition_by", key) is not None for key in ("values", "query")
    ):
        yield refusal(code, "makes folders, and a topic has none; remove it", loc=("partition_by",))
    if block.get("preview"):
        yield refusal(code, "shows rows of published files, and a topic has none; remove it", loc=("preview",))
    if block.get("keep") is not None:
        yield refusal(code, "removes old snapshots, and messages stay; remove it", loc=("keep",))
    if inner(block, "cdc", "before"):
        message = "is for files; a message is the row after, and a delete a tombstone; remove it"
        yield refusal(code, message, loc=("cdc", "before"))
    if mode.follows_log and inner(block, "destination", "key") in ([], ()):
        message = "is empty, and changes without a key are of no row; leave it out for the table's own"
        yield refusal(code, message, loc=("destination", "key"))
    if len(block.get("tables") or ()) > 1 and inner(block, "destination", "key"):
        message = "names columns of one table; give this table an export of its own"
        yield refusal(code, message, loc=("destination", "key"))


def _is_topic(block: Block) -> bool:
    kind = str(inner(block, "destination", "type"))
    return kind in DESTINATIONS and is_topic(DESTINATIONS[kind])


def _has_local_parquet(block: Block) -> bool:
    form = str(block.get("format"))
    return form in FORMATS and FORMATS[form].is_parquet and inner(block, "destination", "type") == "local"


def _said_twice(column: str, rule: str) -> str:
    return f"names {column}, of which `contract` says {rule} too; keep one"


def partitions_fit(block: Block, mode: ModeFacts) -> Iterator[InitErrorDetails]:
    """Refuse windows of values where windows are of something else, and folders where there is none."""
    code, loc = "RIVET_CONFIG_PARTITION_BY", ("partition_by",)
    is_there = block.get("partition_by") is not None
    by_value = any(inner(block, "partition_by", key) is not None for key in ("values", "query"))
    kind = str(inner(block, "destination", "type"))
    if by_value and (mode.has_windows or block.get("snapshots") is not None):
        if inner(block, "partition_by", "others") == "own_window":
            times = f"mode {mode.name}" if mode.has_windows else "snapshots"
            # A value that comes later would find its rows of passed times in the windows of all others there.
            message = f"with {times} cannot have others: own_window, which would hold passed rows of values that come "
            yield refusal(code, message + "later; name the values, or write others: ignore", loc=loc)
    elif by_value and not mode.cuts:
        message = f"makes a window per value, and mode {mode.name} has windows of its own; use full, chunked or "
        yield refusal(code, message + "time_window", loc=loc)
    elif is_there and (mode.follows_log or mode.holds_changes):
        yield refusal(code, f"is for rows, and mode {mode.name} keeps changes in their order; remove it", loc=loc)
    elif is_there and kind in DESTINATIONS and DESTINATIONS[kind].is_stream:
        yield refusal(code, "makes folders, and stdout is one stream; remove it", loc=loc)
    if block.get("partition_granularity") is not None and (by_value or not is_there):
        message = "belongs to `partition_by: <column>`, whose days, months or years are folders; remove it"
        yield refusal(code, message, loc=("partition_granularity",))
    has_folders = is_there or mode.has_windows or block.get("shards") is not None
    for key in ("path", "prefix"):
        if PARTITION in str(inner(block, "destination", key)) and not has_folders:
            message = f"has {PARTITION}, and the export has no partition_by; add that, or remove the placeholder"
            yield refusal(code, message, loc=("destination", key))


def shards_fit(block: Block, mode: ModeFacts) -> Iterator[InitErrorDetails]:
    """Refuse databases of one shape where windows are of something else."""
    code, loc = "RIVET_CONFIG_SHARDS", ("shards",)
    if block.get("shards") is None:
        return
    kind = str(inner(block, "destination", "type"))
    if not mode.cuts and not mode.has_windows and not mode.shards_apart:
        message = f"makes a window per database, and mode {mode.name} goes on from one place, which several databases "
        message += "do not have; use full, chunked, time_window or incremental, or give each database an export of its "
        message += "own, with its own `source`"
        yield refusal(code, message, loc=loc)
    elif any(inner(block, "partition_by", key) is not None for key in ("values", "query")):
        yield refusal(code, "stands beside values of partition_by, and both make windows; keep one", loc=loc)
    elif kind in DESTINATIONS and DESTINATIONS[kind].is_stream:
        yield refusal(code, "makes folders, and stdout is one stream; remove it", loc=loc)
    elif mode.shards_apart:
        yield from _apart_at_the_destination(block, mode)


def _apart_at_the_destination(block: Block, mode: ModeFacts) -> Iterator[InitErrorDetails]:
    """Refuse places where the folders of shards would not lie side by side below the export's."""
    code = "RIVET_CONFIG_SHARDS"
    if _is_topic(block):
        message = f"with mode {mode.name} keeps each database's windows in a folder, and a topic has none; give each "
        yield refusal(code, message + "database an export of its own, with its own `source`", loc=("shards",))
    for key in ("path", "prefix"):
        place = LAST_PARTITION.sub("", str(inner(block, "destination", key) or "")).rstrip("/\\")
        if NAMED.search(place):
            message = "must end in {export} or {table} where `shards` have folders below it; remove what follows"
            yield refusal(code, message, loc=("destination", key))


def compaction_fits(block: Block, mode: ModeFacts) -> Iterator[InitErrorDetails]:
    """Refuse joining parts that cannot be joined exactly, and a target that parts may not have."""
    if not block.get("compact"):
        return
    code, loc = "RIVET_CONFIG_COMPACT", ("compact",)
    form, kind = str(block.get("format")), str(inner(block, "destination", "type"))
    if form in FORMATS and not (FORMATS[form].keeps_types or getattr(FORMATS[form], "is_text", False)):
        message = f"joins parts whose cells, or whose lines, can be copied exactly, and those of {form} cannot; remove "
        yield refusal(code, f"{message}it, or write parquet, avro, ndjson or csv", loc=loc)
    if kind in DESTINATIONS and DESTINATIONS[kind].is_stream:
        yield refusal(code, "joins parts that lie somewhere, and stdout keeps none; remove it", loc=loc)
    target = _as_size(inner(block, "compact", "target")) or 256 * 1024**2
    limit = _as_size(block.get("max_file_size"))
    if limit is not None and limit < target:
        message = f"has a target of {target} bytes, and max_file_size splits parts at {limit}; write at most that"
        yield refusal(code, message, loc=loc)
    for key in ("target_row_group_mb", "max_row_group_mb"):
        group = (_as_int(inner(block, "parquet", key)) or 0) * 1024**2
        if group > target:
            message = (
                f"has a target of {target} bytes, less than one row group ({key} of `parquet`); write a larger one"
            )
            yield refusal(code, message, loc=loc)


def retention_fits(block: Block, mode: ModeFacts) -> Iterator[InitErrorDetails]:
    """Refuse dropping windows where there is one, or where a run reads what was published."""
    if block.get("keep") is None:
        return
    code, loc = "RIVET_CONFIG_KEEP", ("keep",)
    kind = str(inner(block, "destination", "type"))
    if kind in DESTINATIONS and DESTINATIONS[kind].is_stream:
        yield refusal(code, "drops windows that lie somewhere, and stdout keeps none; remove it", loc=loc)
    elif mode.by_ranges:
        message = f"drops old windows, and each run of mode {mode.name} replaces the one there is; remove it"
        yield refusal(code, message, loc=loc)
    elif inner(block, "delete_detection", "type") == "full_diff":
        message = "drops what was published, and full_diff would export it again as new; remove one of them"
        yield refusal(code, message, loc=loc)


def _as_size(value: Any) -> int | None:
    try:
        return int(str(parse_size(value)))
    except ValueError:
        return None


def _is_plain(block: Block) -> bool:
    """Return whether parts of the format that is written there are never compressed."""
    form = str(block.get("format"))
    return form in FORMATS and not FORMATS[form].has_codecs


def _as_int(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


RULES: tuple[Rule, ...] = (
    one_relation,
    params_have_a_query,
    level_fits_codec,
    csv_has_no_profile,
    parquet_has_its_own_codec,
    avro_has_the_codec,
    stdout_is_one_stream,
    quality_is_possible,
    contract_is_of_rows,
    schema_is_of_rows,
    profile_is_of_rows,
    topics_take_messages,
    partitions_fit,
    shards_fit,
    compaction_fits,
    retention_fits,
)


def broken_rules(block: Block, mode: ModeFacts) -> list[InitErrorDetails]:
    """Apply every rule to one raw block of a mode; no order among the answers."""
    return [fault for rule in RULES for fault in rule(block, mode)]
