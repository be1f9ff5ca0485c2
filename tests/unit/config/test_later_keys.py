"""Keys that came later leave the fingerprints of before as they are: chunks, plans and code versions stay known."""

from __future__ import annotations

import pytest

from rivet_assets.blocks.export import NOT_OF_THE_ROWS, Export, MetaColumnsBlock, Quality
from rivet_assets.modes.cdc import Cdc
from rivet_assets.modes.chunked import Chunked
from rivet_assets.modes.full import Full
from rivet_assets.modes.incremental import Incremental
from rivet_assets.modes.poll import Poll
from rivet_assets.modes.time_window import TimeWindow
from rivet_resources.contracts.settings import Settings, Tuning
from rivet_resources.registry import DESTINATIONS

# Of Rivet of 2026-11-22, whose stores and plans are in the world. Nothing is ever added here.
OF_ALL = """
    columns compression compression_level compression_profile description destination format freshness group
    max_file_size meta_columns mode name on_schema_drift on_special_value on_unsupported owners parallel
    parallel_safe params parquet preview quality query query_file reconcile_required schedule skip_empty
    source source_group table tags transforms tuning wave
"""
OF_MODES: dict[type[Export], str] = {
    Cdc: "apply cdc key tables",
    Chunked: "chunk_by_days chunk_by_key chunk_checkpoint chunk_column chunk_count "
    "chunk_dense chunk_max_attempts chunk_size chunk_size_memory_mb",
    Full: "",
    Incremental: "cursor_column cursor_fallback_column cursor_lag cursor_nulls incremental_cursor_mode",
    Poll: "created_at_column delete_detection lag_window_seconds max_pages "
    "null_policy poll_batch_size primary_key updated_at_column visibility",
    TimeWindow: "days_window end granularity include_open start time_column time_column_type timezone",
}


@pytest.mark.parametrize("mode", OF_MODES)
def test_key_of_a_later_rivet_is_listed_as_such(mode: type[Export]) -> None:
    """Whoever adds a key lists it in `later_keys`, unless it is of no rows at all; such keys are None by default."""
    before = {*OF_ALL.split(), *OF_MODES[mode].split()}

    assert set(mode.model_fields) - before - NOT_OF_THE_ROWS == set(mode.later_keys)
    assert {None} == {mode.model_fields[key].default for key in mode.later_keys}


# What blocks inside an export say of themselves where nothing is written, as of 2026-11-26. Nothing is ever added here.
OF_BLOCKS = {
    "local": ({"path": "lake"}, "type path"),
    "s3": (
        {"bucket": "lake"},
        "type bucket prefix region endpoint access_key_env secret_key_env session_token_env aws_profile "
        "allow_anonymous allow_insecure_endpoint encryption kms_key tags checksum",
    ),
    "gcs": (
        {"bucket": "lake"},
        "type bucket prefix credentials_file endpoint allow_anonymous allow_insecure_endpoint kms_key metadata",
    ),
    "stdout": ({}, "type"),
    Quality: ({}, "row_count_min row_count_max null_ratio_max unique_columns"),
    MetaColumnsBlock: ({}, "exported_at row_hash"),
    Tuning: (
        {},
        "profile batch_size batch_size_memory_mb throttle_ms statement_timeout_s lock_timeout_s max_retries "
        "retry_backoff_ms memory_threshold_mb max_value_mb adaptive min_parallel",
    ),
}


@pytest.mark.parametrize("block", OF_BLOCKS)
def test_key_that_comes_later_says_nothing_until_it_is_written(block: str | type[Settings]) -> None:
    """Whoever adds a key to a block gives it `exclude_if`, as `shared_path` of `type: local` has."""
    needed, before = OF_BLOCKS[block]
    made = DESTINATIONS[block](type=block, **needed) if isinstance(block, str) else block(**needed)

    assert before.split() == list(made.model_dump())
