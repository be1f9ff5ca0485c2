"""What an unknown key probably meant: a misspelling, a key of another block or mode, or of a later version.

Belongs here: the tables of such keys, one sentence each. Not here: keys that exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rivet_assets.blocks.choice import Loc, nearest
from rivet_resources.contracts.settings import Tuning

NOT_YET = "is not in this version"

# Keys the original knows, by the block they stand in (`contract.md`, section 1, marked `later`).
LATER: Mapping[str, Mapping[str, str]] = {
    "": {
        "load": f"{NOT_YET}; load the committed parts with your warehouse's own tool",
    },
    "exports": {
        "load": f"{NOT_YET}; load the committed parts with your warehouse's own tool",
        "keyset_incremental": f"{NOT_YET}; use mode incremental with the key as cursor_column",
        "verify": f"{NOT_YET}; every part is read back and compared by content already; remove it",
        "target": f"{NOT_YET}; it only gave advice; remove it",
        "shape_drift_warn_factor": f"{NOT_YET}; remove it",
    },
    "source": {"mongo": f"{NOT_YET}; it reads postgres, mysql, mariadb, sqlserver, sqlite and datagen"},
    "tls": {
        "accept_invalid_certs": f"{NOT_YET}; use mode: require",
        "accept_invalid_hostnames": f"{NOT_YET}; use mode: verify-ca",
    },
    "tuning": {
        "max_batch_memory_mb": f"{NOT_YET}; set batch_size_memory_mb",
        "on_batch_memory_exceeded": f"{NOT_YET}; set batch_size_memory_mb",
    },
    "quality": {"unique_max_entries": f"{NOT_YET}; unique_columns is exact at any size; remove it"},
}

# Keys of one mode, and that mode. Any of them elsewhere is an error, never ignored (`contract.md`, 1.5).
MODE_KEYS: Mapping[str, str] = {
    key: mode
    for mode, keys in {
        "incremental": "cursor_column incremental_cursor_mode cursor_fallback_column cursor_nulls cursor_lag",
        "chunked": "chunk_column chunk_size chunk_size_memory_mb chunk_count chunk_by_days chunk_dense chunk_by_key "
        "chunk_checkpoint chunk_max_attempts",
        "full": "snapshots keep",
        "cdc": "tables cdc apply key",
        "poll": "updated_at_column created_at_column primary_key poll_batch_size max_pages delete_detection visibility "
        "lag_window_seconds null_policy",
        "time_window": "time_column days_window time_column_type granularity timezone start end include_open",
    }.items()
    for key in keys.split()
}

# Keys of the destinations that can, by which; elsewhere they are refused by name, with what there is instead.
OBJECT_KEYS: Mapping[str, str] = {
    "encryption": "is only for destination s3; the others encrypt as their bucket, account, disk or broker is set up",
    "kms_key": "is only for the destinations s3 and gcs; the others encrypt as their account, disk or broker is set up",
    "tags": "is only for destination s3; gcs has `metadata`, and the others label nothing",
    "metadata": "is only for destination gcs; s3 has `tags`, and the others label nothing",
    "checksum": "is only for destination s3; the others compare by checksums of their own choice",
}


def unknown_key(loc: Loc, known: Sequence[str], block: Any) -> tuple[str, str]:
    """Choose the code and the sentence for a key that its block does not have."""
    key, kind = str(loc[-1]), _kind(loc[:-1])
    if key in LATER.get(kind, {}):
        return "RIVET_CONFIG_NOT_IN_THIS_VERSION", LATER[kind][key]
    if kind in ("source", "exports") and key in Tuning.model_fields:
        return "RIVET_CONFIG_TUNING_PLACE", f"is a tuning key; move it into a `tuning:` block: tuning: {{{key}: …}}"
    if kind == "exports" and key in MODE_KEYS:
        return "RIVET_CONFIG_KEY_OF_OTHER_MODE", f"is only for mode: {MODE_KEYS[key]}; remove it, or set that mode"
    if kind == "destination" and key in OBJECT_KEYS:
        return "RIVET_CONFIG_UNKNOWN_KEY", f"{OBJECT_KEYS[key]}; remove it"
    if kind == "source" and key == "consistency":
        return "RIVET_CONFIG_UNKNOWN_KEY", (
            "is only for mysql and mariadb: PostgreSQL shares a snapshot by itself, and the others have none to align; "
            "remove it"
        )
    close = nearest(key, known)
    hint = f"Did you mean {close}?" if close else f"Known keys: {', '.join(sorted(known))}"
    return "RIVET_CONFIG_UNKNOWN_KEY", f"is not a known key. {hint}"


def _kind(loc: Loc) -> str:
    """Name the block a key stands in: its own key, without list positions and names of sources."""
    words = [step for step in loc if isinstance(step, str)]
    if words[:1] == ["sources"]:
        words = ["source", *words[2:]]
    return words[-1] if words else ""
