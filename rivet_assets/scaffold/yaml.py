"""Proposals as a commented YAML: rivet.yaml, or a Dagster component's defs.yaml.

Belongs here: the lines of the file and the hints beside them. Not here: what is proposed (`propose.py`), how names
and values are written (`names.py`), which file (`init.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rivet_assets.run.words import human_bytes
from rivet_assets.scaffold.cursors import snake
from rivet_assets.scaffold.names import comment, export_names, scalar, table_key
from rivet_assets.scaffold.propose import FULL_ROWS, Proposal, about_rows
from rivet_resources.contracts.engine_facts import EngineFacts
from rivet_resources.contracts.evidence import ColumnFacts, TableFacts
from rivet_resources.registry import ENGINES

Form = Literal["parquet", "csv"]

# Words in a column's name, in snake case, that speak of people or keys.
SENSITIVE = frozenset({
    "email", "mail", "phone", "mobile", "fax", "ssn", "passport", "password", "passwd", "pwd", "secret", "token",
    "apikey", "card", "iban", "cvv", "cvc", "pan", "birthdate", "birthday", "dob", "salary",
})  # fmt: skip
SENSITIVE_PAIRS = ("e_mail", "api_key", "social_security", "tax_id", "national_id", "date_of_birth", "birth_date",
                   "first_name", "last_name", "full_name", "ip_address", "credit_card", "account_number")  # fmt: skip
WIDE_FAMILIES = frozenset({"text", "json", "binary", "geometry", "other", "list"})
WIDE_BYTES, WIDE_COLUMNS = 100, 5
UNBOUNDED = re.compile(r"text|json|blob|bytea|clob|xml|max|geometry|geography|image", re.IGNORECASE)
LENGTH = re.compile(r"\((\d+)\)")
DECIMAL = re.compile(r"\(\s*\d+\s*(,\s*\d+\s*)?\)")


@dataclass(frozen=True)
class Scaffold:
    """All that the file says besides its tables; `source` holds references, never a secret."""

    source: Mapping[str, Any]
    notes: Sequence[str]  # about the source, as comments in its block
    destination: Mapping[str, Any]
    form: Form
    default_schema: str  # which a table's name is written without
    quote: Callable[[str], str]  # of the engine, for queries
    head: Sequence[str] = ()


def render(scaffold: Scaffold, proposals: Sequence[Proposal], *, as_component: bool = False) -> str:
    """Write the whole file; tables that cannot be exported stand in it as comments that say why."""
    indent = 2 if as_component else 0
    lines = [line for text in scaffold.head for line in comment(text, indent=0)]
    lines += ["type: rivet_assets.Exports", "", "attributes:"] if as_component else [""]
    lines += [" " * indent + "source:"]
    lines += [f"{' ' * indent}  {key}: {scalar(value)}" for key, value in scaffold.source.items()]
    lines += [line for note in scaffold.notes for line in comment(note, indent=indent + 2)]
    lines += ["", " " * indent + "exports:"]
    for name, proposal in name_proposals(proposals):
        lines += [*_block(scaffold, proposal, name, indent=indent + 2), ""]
    return "\n".join(lines).rstrip() + "\n"


def name_proposals(proposals: Sequence[Proposal]) -> list[tuple[str, Proposal]]:
    """Return each proposal with the name its export has, or would have."""
    names = export_names([(proposal.facts.schema, proposal.facts.name) for proposal in proposals])
    return list(zip(names, proposals, strict=True))


def _block(scaffold: Scaffold, proposal: Proposal, name: str, *, indent: int) -> list[str]:
    facts = proposal.facts
    if proposal.refused:
        return comment(f"{facts.schema}.{facts.name} ({facts.kind}) has no export: {proposal.refused}.", indent=indent)
    lines = comment(_about(proposal), indent=indent)
    for text in (*proposal.reasons, *(f"Mind: {caveat}" for caveat in proposal.caveats)):
        lines += comment(_sentence(text.replace("<name>", name)), indent=indent)
    keys = list(_keys(scaffold, proposal, name).items())
    begin = [" " * indent + "- "] + [" " * (indent + 2)] * (len(keys) - 1)
    lines += [f"{start}{key}: {scalar(value)}" for start, (key, value) in zip(begin, keys, strict=True)]
    for asked, line in _hints(scaffold, facts):
        lines += [*comment(asked, indent=indent + 2), f"{' ' * (indent + 2)}# {line}"]
    return lines


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _about(proposal: Proposal) -> str:
    facts = proposal.facts
    rows = "" if proposal.rows is None else f", {about_rows(proposal.rows)}"
    how = " by its size (no statistics: run ANALYZE)" if proposal.rows not in (None, facts.rows_estimate) else ""
    size = f", {human_bytes(facts.bytes_estimate)}" if facts.bytes_estimate else ""
    key = f", key {', '.join(facts.key)}" if facts.key else ""
    return f"{facts.schema}.{facts.name}: {facts.kind.replace('_', ' ')}{rows}{how}{size}{key}."


def _keys(scaffold: Scaffold, proposal: Proposal, name: str) -> dict[str, Any]:
    """Return the keys of one export, in the order of the file."""
    facts = proposal.facts
    keys: dict[str, Any] = {"name": name, **_relation(scaffold, facts), "mode": proposal.mode, **proposal.keys}
    keys |= {"format": scaffold.form, "destination": scaffold.destination}
    if scaffold.form == "parquet" and len(wide_columns(facts)) >= WIDE_COLUMNS and not _is_small(proposal):
        keys["parquet"] = {"row_group_strategy": "auto", "target_row_group_mb": 64}
    keys["meta_columns"] = {"exported_at": True}
    if proposal.quality:
        keys["quality"] = proposal.quality
    if facts.comment:
        keys["description"] = facts.comment
    return keys


def _is_small(proposal: Proposal) -> bool:
    return proposal.rows is not None and proposal.rows <= FULL_ROWS


def _relation(scaffold: Scaffold, facts: TableFacts) -> dict[str, str]:
    if not facts.facts.get("hidden"):
        return {"table": table_key("" if facts.schema == scaffold.default_schema else facts.schema, facts.name)}
    columns = ", ".join(scaffold.quote(column.name) for column in facts.columns)
    return {"query": f"SELECT {columns} FROM {scaffold.quote(facts.schema)}.{scaffold.quote(facts.name)}"}


# --- hints ---------------------------------------------------------------------------------------


def _hints(scaffold: Scaffold, facts: TableFacts) -> list[tuple[str, str]]:
    """Return what the user may want to add: a sentence, and the line of YAML that works once it is uncommented."""
    hints = []
    if personal := [column.name for column in facts.columns if is_sensitive(column.name)]:
        step = {"type": "mask", "fields": personal, "method": "redact"}
        asked = "Sensitive, by name. To keep plain values out of the files (other methods: hash, partial, null):"
        hints.append((asked, f"transforms: [{scalar(step)}]"))
    engine: EngineFacts = ENGINES[str(scaffold.source.get("type"))].facts
    rules = {column.name: f"decimal{_precision(column)}" for column in unbounded_numbers(facts.columns, engine=engine)}
    if not engine.types_bind:
        rules |= {c.name: "timestamp" for c in facts.columns if c.native.upper().startswith(("DATETIME", "TIMESTAMP"))}
        asked = "SQLite promises neither digits nor times: such columns are text as written. Review the values, then:"
    else:
        asked = "Numbers without a limit are text with every digit. To have decimals, review the values, then:"
    if rules:
        hints.append((asked, f"columns: {scalar(rules)}"))
    return hints


def is_sensitive(name: str) -> bool:
    """Return whether a column's name speaks of a person or of a secret."""
    spelled = snake(name)
    return bool(SENSITIVE & set(spelled.split("_"))) or any(f"_{pair}_" in f"_{spelled}_" for pair in SENSITIVE_PAIRS)


def unbounded_numbers(columns: Sequence[ColumnFacts], *, engine: EngineFacts) -> list[ColumnFacts]:
    """List the exact numbers whose type sets no limit, so that they are exported as text (`types.md`, section 6)."""
    spelled = ("numeric", "decimal")
    numbers = [column for column in columns if column.family == "numeric"]
    return [c for c in numbers if c.native.lower() in spelled or (not engine.types_bind and _says_decimal(c))]


def _says_decimal(column: ColumnFacts) -> bool:
    return column.native.lower().startswith(("numeric", "decimal"))


def _precision(column: ColumnFacts) -> str:
    written = DECIMAL.search(column.native)
    return written[0].replace(" ", "") if written else "(38,18)"


def wide_columns(facts: TableFacts) -> list[str]:
    """List the columns whose cells are long, by statistics where there are any, else by their type."""
    return [column.name for column in facts.columns if _is_wide(column)]


def _is_wide(column: ColumnFacts) -> bool:
    if column.average_bytes is not None:
        return column.average_bytes >= WIDE_BYTES
    length = LENGTH.search(column.native)
    if column.family not in WIDE_FAMILIES:
        return False
    return int(length[1]) >= 256 if length else bool(UNBOUNDED.search(column.native))
