"""What `contract:` becomes: rules beside those of `quality:`, and one verdict on the columns.

Belongs here: from the block to rules, and how columns differ from what was agreed. Not here: the arithmetic of rules
(`quality.py`), counting (`rivet_resources/write/row_rules.py`).

Rules about values are a check each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from rivet_assets.blocks.contract import check_word
from rivet_assets.run.judge.quality import CONTRACT_COLUMNS, VOLUME, Kind, QualityRule, Verdict, rules_of
from rivet_resources.contracts.types import parse_word
from rivet_resources.shape.transforms.convert import family

if TYPE_CHECKING:
    from rivet_assets.blocks.contract import Contract, ContractColumn, NumberCheck
    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.relation import Relation

# `logicalType` of the Open Data Contract Standard → families of Arrow types.
FAMILIES = {
    "string": {"text", "uuid", "json"}, "integer": {"integer"}, "number": {"integer", "float", "decimal"},
    "boolean": {"bool"}, "date": {"date"}, "time": {"time"}, "timestamp": {"timestamp", "instant"},
    "array": {"nested", "json"}, "object": {"nested", "json"}, "binary": {"binary"}, "uuid": {"uuid"},
}  # fmt: skip
SENTENCES = {
    "accepted_values": "Each {} is one of the accepted values.",
    "min": "No {} is below the smallest allowed.",
    "max": "No {} is above the largest allowed.",
    "matches": "Each {} matches its regular expression.",
}


def rules_of_export(export: Export) -> tuple[QualityRule, ...]:
    """List every rule of an export that a window is judged by: of `quality:`, then of `contract:`."""
    return (*rules_of(export.quality), *(contract_rules(export.contract) if export.contract else ()))


def contract_rules(contract: Contract) -> tuple[QualityRule, ...]:
    """List the rules of a contract about values; the columns are `columns_verdict`."""
    return (*_table_rules(contract), *_column_rules(contract), *_row_rules(contract))


def describe_columns(contract: Contract) -> tuple[str, bool]:
    """Return what the check of the columns says, and whether it may keep a window back."""
    more = " There is no other column." if contract.additional_columns == "refuse" else ""
    severities = [contract.severity, *(column.severity for column in contract.columns.values())]
    text = "The columns of the contract are there, of the agreed types."
    return text + more, any(contract.is_blocking(each) for each in severities)


def has_column_rules(contract: Contract) -> bool:
    """Return whether the contract speaks of columns at all."""
    return bool(contract.columns) or contract.additional_columns == "refuse"


def _table_rules(contract: Contract) -> Iterator[QualityRule]:
    if contract.row_count is not None:
        blocking = contract.is_blocking(contract.row_count.severity)
        if contract.row_count.min is not None:
            yield QualityRule("row_count_min", "row_count_min", contract.row_count.min, blocking=blocking)
        if contract.row_count.max is not None:
            yield QualityRule("row_count_max", "row_count_max", contract.row_count.max, blocking=blocking)
    if contract.freshness is not None:
        name, limit = contract.freshness.column, contract.freshness.max_age
        blocking = contract.is_blocking(contract.freshness.severity)
        yield QualityRule(f"freshness__{check_word(name)}", "freshness", limit, name, blocking)
    if contract.volume is not None:
        text = f"About as many rows as the last {contract.volume.history} runs had."
        yield QualityRule(VOLUME, "number", 0, "", contract.is_blocking(contract.volume.severity), text)
    numbers: dict[str, tuple[str, NumberCheck]] = {f"sql__{n}": (each.query, each) for n, each in contract.sql.items()}
    numbers |= {f"checks__{name}": (f"The {each.measure.type} {name}", each) for name, each in contract.checks.items()}
    for check, (subject, number) in numbers.items():
        text = f"{subject} is {_within(*number.bounds)}."
        yield QualityRule(check, "number", 0, "", contract.is_blocking(number.severity), text)
    for name, reference in contract.references.items():
        text = f"Each {', '.join(reference.columns)} is a {', '.join(reference.key_columns)} of {reference.export}."
        yield QualityRule(f"references__{name}", "number", 0, "", contract.is_blocking(reference.severity), text)
    if len(contract.key) > 1:
        severities = [contract.columns[name].severity for name in contract.key]
        blocking = any(contract.is_blocking(each) for each in severities)
        yield QualityRule("unique__key", "unique", 0, ", ".join(contract.key), blocking)


def _within(low: float | None, high: float | None) -> str:
    """Return bounds in words: 3, 1 to 5, at most 5, at least 1."""
    if low == high:
        return f"{low:.15g}"
    ends = " to ".join(f"{bound:.15g}" for bound in (low, high) if bound is not None)
    return f"{'at most ' if low is None else 'at least ' if high is None else ''}{ends}"


def _column_rules(contract: Contract) -> Iterator[QualityRule]:
    for name, column in contract.columns.items():
        word, blocking = check_word(name), contract.is_blocking(column.severity)
        aside = column.severity == "dead_letter"
        if aside and (column.required or column.key):
            yield QualityRule(f"required__{word}", "rows_aside", 0, name, False, f"Each row has a {name}.")
        elif column.required or column.key:
            yield QualityRule(f"required__{word}", "null_ratio_max", 0, name, blocking)
        if column.null_ratio_max is not None:
            yield QualityRule(f"null_ratio_max__{word}", "null_ratio_max", column.null_ratio_max, name, blocking)
        if name in contract.unique_columns:
            yield QualityRule(f"unique__{word}", "unique", 0, name, blocking)
        for kind, _ in column.row_rules:
            how: Kind = "rows_aside" if aside else "broken_rows"
            yield QualityRule(f"{kind}__{word}", how, 0, name, blocking and not aside, SENTENCES[kind].format(name))


def _row_rules(contract: Contract) -> Iterator[QualityRule]:
    for name, each in contract.rows.items():
        aside = each.severity == "dead_letter"
        blocking = contract.is_blocking(each.severity) and not aside
        how: Kind = "rows_aside" if aside else "broken_rows"
        yield QualityRule(f"rows__{name}", how, 0, "", blocking, f"In each row: {each.check}")


# --- columns -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Breach:
    """One column that is not what was agreed."""

    column: str
    text: str
    blocking: bool


def columns_verdict(contract: Contract, shaped: pa.Schema, relation: Relation) -> Verdict:
    """Judge the columns that parts will have, before a row is read; names and types only."""
    # Decision: names and types of all columns are one check, `contract_columns`, since they break together, and a check
    # of each column would be a row that Dagster stores with each run.
    breaches = list(_breaches(contract, shaped, relation))
    blocking = any(each.blocking for each in breaches)
    text = "; ".join(each.text for each in breaches)
    facts = {"breaches": ", ".join(each.column for each in breaches)} if breaches else {}
    return Verdict(CONTRACT_COLUMNS, not breaches, blocking, len(breaches), 0, 0, text, facts)


def _breaches(contract: Contract, shaped: pa.Schema, relation: Relation) -> Iterator[Breach]:
    for name, column in contract.columns.items():
        blocking = contract.is_blocking(column.severity)
        if name not in shaped.names:
            by = "is dropped or renamed by `transforms:`" if relation.column(name) else "is not there"
            yield Breach(name, f"{name} {by}", blocking)
        elif text := type_breach(column, shaped.field(name)):
            yield Breach(name, f"{name} {text}", blocking)
    if contract.additional_columns == "refuse":
        for name in shaped.names:
            if name not in contract.columns:
                yield Breach(name, f"{name} is not in the contract", contract.is_blocking(None))


def type_breach(column: ContractColumn, field: pa.Field) -> str:
    """Return how a field is of another type than was agreed; '' where it is of that type."""
    if column.type is not None and (wanted := parse_word(column.type).arrow) != field.type:
        return f"is {field.type}, agreed is {column.type} ({wanted})"
    if column.logical_type is not None and not _is_of(column.logical_type, field.type):
        return f"is {field.type}, agreed is a type of kind {column.logical_type}"
    if column.physical_type is not None:
        native = (field.metadata or {}).get(b"rivet.native_type", b"").decode()
        if not native:
            return f"is made by `transforms:` and has no type of the database, agreed is {column.physical_type}"
        if not is_same_native(column.physical_type, native):
            return f"is {native}, agreed is {column.physical_type}"
    return ""


def _is_of(logical: str, arrow: pa.DataType) -> bool:
    # NUMERIC(20,0) holds whole numbers only, whatever its family is called.
    if logical == "integer" and pa.types.is_decimal(arrow):
        return bool(arrow.scale == 0)
    if logical == "array" and pa.types.is_nested(arrow):
        return bool(pa.types.is_list(arrow) or pa.types.is_large_list(arrow))
    if logical == "object" and pa.types.is_list(arrow):
        return False
    return family(arrow) in FAMILIES[logical]


def is_same_native(agreed: str, native: str) -> bool:
    """Return whether a database's type is the agreed one: spelling apart, and without length, of any length."""
    one, other = _spelled(agreed), _spelled(native)
    # Who agrees on `varchar` takes any length; who agrees on `varchar(20)` wants just that one.
    return one == other or ("(" not in one and one == other.partition("(")[0])


def _spelled(text: str) -> str:
    """Spell a type in one way: small letters, no space beside signs, PostgreSQL's and SQL's names for one type."""
    head, bracket, tail = "".join(text.lower().split(" ")).partition("(")
    return SYNONYMS.get(head, head) + bracket + tail


# Source: PostgreSQL documentation, table "Data Types", column "Aliases"; spaces are left out.
SYNONYMS = {
    "int8": "bigint", "int4": "integer", "int": "integer", "int2": "smallint", "bool": "boolean",
    "charactervarying": "varchar", "character": "char", "bpchar": "char", "float8": "doubleprecision",
    "double": "doubleprecision", "float4": "real", "decimal": "numeric", "timestamptz": "timestampwithtimezone",
    "timestamp": "timestampwithouttimezone",
}  # fmt: skip
