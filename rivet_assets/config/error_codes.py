"""The stable code of every rule a configuration can break. `ConfigError.codes` carries them.

Belongs here: the table, and nothing else; a test holds it against the code and against tests/unit/config_errors.
"""

from collections.abc import Mapping

CODES: Mapping[str, str] = {
    # the file
    "RIVET_CONFIG_FILE": "the file is missing, unreadable or not UTF-8",
    "RIVET_CONFIG_YAML": "the text is not YAML, or more than one document",
    "RIVET_CONFIG_DUPLICATE_KEY": "a block holds a key twice",
    "RIVET_CONFIG_VARIABLE_MISSING": "a ${NAME} is in neither --param nor the environment",
    "RIVET_CONFIG_VARIABLE_NUL": "the value of a ${NAME} holds a NUL",
    # any key
    "RIVET_CONFIG_UNKNOWN_KEY": "no block has this key",
    "RIVET_CONFIG_NOT_IN_THIS_VERSION": "the key or word exists elsewhere, or comes later",
    "RIVET_CONFIG_MISSING_KEY": "a required key is not there",
    "RIVET_CONFIG_WRONG_TYPE": "the value is of another kind",
    "RIVET_CONFIG_NOT_ALLOWED": "the word is not one of the allowed ones",
    "RIVET_CONFIG_OUT_OF_RANGE": "the value is below or above its limit, or empty",
    "RIVET_CONFIG_DURATION": "not a duration",
    "RIVET_CONFIG_SIZE": "not a size",
    "RIVET_CONFIG_TIMEZONE": "not an IANA time zone",
    "RIVET_CONFIG_TUNING_PLACE": "a tuning key outside a `tuning:` block",
    "RIVET_CONFIG_BATCH_SIZE": "batch_size and batch_size_memory_mb, source and export merged",
    # sources
    "RIVET_CONFIG_TYPE_UNKNOWN": "no source or destination has this type",
    "RIVET_CONFIG_SOURCE": "not exactly one way to connect, or half of one",
    "RIVET_CONFIG_NO_SOURCE": "neither `source:` nor `sources:`",
    "RIVET_CONFIG_TWO_SOURCE_FORMS": "both `source:` and `sources:`",
    "RIVET_CONFIG_SOURCE_NAME": "a name in `sources:` is not 1 to 64 letters, digits, _ and -",
    "RIVET_CONFIG_PROJECT": "the name in `project:` is not 1 to 64 letters, digits, ., _ and -",
    "RIVET_CONFIG_SOURCE_UNKNOWN": "an export names a source that is not there",
    "RIVET_CONFIG_SOURCE_NOT_NAMED": "there are several sources and an export names none",
    # exports
    "RIVET_CONFIG_NO_EXPORTS": "`exports:` is missing or empty",
    "RIVET_CONFIG_DUPLICATE_EXPORT": "two exports have one name",
    "RIVET_CONFIG_EXPORT_NAME": "the name cannot be part of a file name",
    "RIVET_CONFIG_EXPORT_UNKNOWN": "a command names an export that is not there",
    "RIVET_CONFIG_NO_RELATION": "none of query, query_file, table",
    "RIVET_CONFIG_TWO_RELATIONS": "more than one of query, query_file, table",
    "RIVET_CONFIG_TABLE": "not name or schema.name",
    "RIVET_CONFIG_QUERY_FILE": "the query file is elsewhere, unreadable or empty",
    "RIVET_CONFIG_PARAMS": "params without a query",
    "RIVET_CONFIG_COMPRESSION_LEVEL": "the codec has no such level",
    "RIVET_CONFIG_CSV_PROFILE": "compression_profile on CSV",
    "RIVET_CONFIG_PARQUET": "keys of `parquet:` contradict each other",
    "RIVET_CONFIG_COLUMN_TYPE": "not a type word of `columns:`",
    "RIVET_CONFIG_COLUMN_TWICE": "a list names a column twice",
    "RIVET_CONFIG_ROW_HASH": "meta_columns.row_hash lists no column",
    "RIVET_CONFIG_TRANSFORM_UNKNOWN": "an export names a transform that is not there",
    "RIVET_CONFIG_TRANSFORM": "keys of a transform contradict each other, or its SQL cannot be used",
    "RIVET_CONFIG_QUALITY_BOUNDS": "row_count_min above row_count_max",
    "RIVET_CONFIG_PARTITION_BY": "values that cannot be windows side by side, or a mode without windows or folders",
    "RIVET_CONFIG_SNAPSHOTS": "keys of snapshots without `snapshots`, or beside values of `partition_by`",
    "RIVET_CONFIG_SCHEDULE": "not a cron line",
    "RIVET_CONFIG_FRESHNESS": "warn_after not shorter than fail_after",
    "RIVET_CONFIG_OWNER": "not an owner Dagster takes",
    # modes
    "RIVET_CONFIG_MODE_UNKNOWN": "no such mode",
    "RIVET_CONFIG_SOURCE_MODE_UNSUPPORTED": "the source cannot do this mode",
    "RIVET_CONFIG_KEY_OF_OTHER_MODE": "a key of another mode",
    "RIVET_CONFIG_CURSOR_FALLBACK": "cursor_fallback_column and coalesce, one without the other",
    "RIVET_CONFIG_CHUNK_COUNT_INVALID": "chunk_count below 1",
    "RIVET_CONFIG_CHUNK_BY_DAYS_INVALID": "chunk_by_days below 1",
    "RIVET_CONFIG_CHUNK_CONFLICT": "two ways of cutting",
    "RIVET_CONFIG_CHUNK_SIZE": "two sizes of a chunk, or a memory size without `table:`",
    "RIVET_CONFIG_CHUNK_COLUMN": "no column to cut by",
    "RIVET_CONFIG_TIME_WINDOW_START": "neither start nor days_window",
    "RIVET_CONFIG_TIME_WINDOW_END": "end not after start",
    "RIVET_CONFIG_POLL": "keys of mode poll contradict each other, or mean nothing for it",
    "RIVET_CONFIG_CDC": "keys that mean nothing for a change log",
    "RIVET_CONFIG_CDC_RESOURCE_CONFLICT": "two drains share a slot, a server id or a checkpoint",
    # destinations, notifications
    "RIVET_CONFIG_DESTINATION": "ways to sign in contradict each other, or the endpoint cannot be used",
    "RIVET_CONFIG_DESTINATION_PATH": "the path has '..' or an unknown placeholder",
    "RIVET_CONFIG_STDOUT_SPLIT": "max_file_size on stdout",
    "RIVET_CONFIG_STDOUT_CHUNKED": "several files on stdout",
    "RIVET_CONFIG_SLACK": "two webhooks, or an address that nothing is sent to",
    "RIVET_CONFIG_WEBHOOK": "two addresses, one that nothing is sent to, or a header that is none",
    "RIVET_CONFIG_OBSERVABILITY": "metrics without a place, or an address that is none, or holds a password",
    # in Dagster, on Spark
    "RIVET_CONFIG_TRANSLATION": "not a pattern, or not a prefix, of asset keys",
    "RIVET_CONFIG_SPARK": "settings of our own Spark beside the project's",
    # the rest
    "RIVET_CONFIG_INVALID": "anything else",
    "RIVET_CONFIG_WARNING": "accepted, but look at it",
}
