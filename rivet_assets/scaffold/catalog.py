"""Proposals as a catalogue: entries for programs (`connectors.md`, section 3), rows for people.

Belongs here: what `rivet discover` prints. Not here: what is proposed (`propose.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rivet_assets.scaffold.cursors import GOOD
from rivet_assets.scaffold.names import escape_unseen
from rivet_assets.scaffold.propose import Proposal
from rivet_assets.scaffold.yaml import name_proposals
from rivet_resources.contracts.evidence import ColumnFacts
from rivet_resources.contracts.types import Family

# What a column is in JSON Schema; a family that is not here is any value.
JSON_TYPES: Mapping[Family, Mapping[str, str]] = {
    "bool": {"type": "boolean"},
    "integer": {"type": "integer"},
    "float": {"type": "number"},
    "numeric": {"type": "string", "format": "decimal"},
    "text": {"type": "string"},
    "binary": {"type": "string", "contentEncoding": "base64"},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "timestamp": {"type": "string", "format": "local-date-time"},
    "timestamptz": {"type": "string", "format": "date-time"},
    "uuid": {"type": "string", "format": "uuid"},
    "bit": {"type": "string"},
    "list": {"type": "array"},
    "geometry": {"type": "string", "contentEncoding": "base64"},
    "other": {"type": "string"},
}


def entries(proposals: Sequence[Proposal]) -> list[dict[str, Any]]:
    """Describe each table for a program: schema, sync modes, cursors with their scores, keys, estimates."""
    return [_entry(name, proposal) for name, proposal in name_proposals(proposals)]


def _entry(name: str, proposal: Proposal) -> dict[str, Any]:
    facts = proposal.facts
    modes = [] if proposal.refused else ["full_refresh", "incremental"] if proposal.cursors else ["full_refresh"]
    return {
        "namespace": facts.schema,
        "name": facts.name,
        "json_schema": {"type": "object", "properties": {c.name: _property(c) for c in facts.columns}},
        "supported_sync_modes": modes,
        "default_cursor_field": _default_cursor(proposal),
        "source_defined_primary_key": list(facts.key),
        "metadata": {
            "kind": facts.kind,
            "rows_estimate": proposal.rows,
            "bytes_estimate": facts.bytes_estimate,
            "comment": facts.comment,
            "export": None if proposal.refused else {"name": name, "mode": proposal.mode, **proposal.keys},
            "reasons": list(proposal.reasons),
            "caveats": [caveat.replace("<name>", name) for caveat in proposal.caveats]
            + ([proposal.refused] if proposal.refused else []),
            "cursor_candidates": [
                {"column": c.column, "score": c.score, "role": c.role, "safe": c.is_safe, "reasons": list(c.reasons)}
                for c in proposal.cursors
            ],
            "chunk_key_candidates": [
                {"column": key.column, "way": key.way, "reason": key.reason} for key in proposal.chunk_keys
            ],
            "indexes": [
                {"name": i.name, "columns": list(i.columns), "unique": i.is_unique, "primary": i.is_primary}
                for i in facts.indexes
            ],
            "columns": [_column(c) for c in facts.columns],
            "facts": dict(facts.facts),
        },
    }


def _default_cursor(proposal: Proposal) -> str | None:
    """Name the cursor of the proposed export, else the best stamp of changes, else the best of all that are safe."""
    good = [cursor for cursor in proposal.cursors if cursor.is_safe and cursor.score >= GOOD]
    best = next((cursor for cursor in good if cursor.role == "updated"), good[0] if good else None)
    chosen: str | None = proposal.keys.get("cursor_column", best.column if best else None)
    return chosen


def _property(column: ColumnFacts) -> dict[str, Any]:
    known = dict[str, Any](JSON_TYPES.get(column.family, {}))
    if column.nullable and "type" in known:
        known["type"] = [known["type"], "null"]
    return known


def _column(column: ColumnFacts) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": column.native,
        "nullable": column.nullable,
        "distinct": column.distinct,
        "null_share": column.null_share,
        "average_bytes": column.average_bytes,
        "note": column.note,
    }


def rows(proposals: Sequence[Proposal]) -> list[dict[str, Any]]:
    """Return one row per table, for people."""
    return [_row(proposal) for proposal in proposals]


def _row(proposal: Proposal) -> dict[str, Any]:
    facts = proposal.facts
    name = _default_cursor(proposal)
    best = next((cursor for cursor in proposal.cursors if cursor.column == name), None)
    return {
        "table": escape_unseen(f"{facts.schema}.{facts.name}"),
        "kind": facts.kind.replace("_", " "),
        "rows": None if proposal.rows is None else f"{proposal.rows:,}",
        "MB": None if facts.bytes_estimate is None else f"{facts.bytes_estimate / 2**20:,.1f}",
        "columns": len(facts.columns),
        "key": escape_unseen(", ".join(facts.key)) or None,
        "cursor": escape_unseen(f"{best.column} ({best.score})") if best else None,
        "mode": "–" if proposal.refused else proposal.mode,
    }
