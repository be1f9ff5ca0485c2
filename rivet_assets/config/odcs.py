"""Data contracts of the Open Data Contract Standard, version 3, as blocks of `contract:`.

Belongs here: which of the standard's keys are which rules, and naming those that are none. Not here: reading a file
(`contract_file.py`), writing one (`scaffold/odcs.py`).

A subset: what a table's columns and rows must be. Whatever else demands something of the data is named in
`not_checked`, which every command shows as a warning; what describes people, places and prices is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from rivet_assets.blocks.choice import Loc
from rivet_assets.blocks.contract import LogicalType
from rivet_assets.config.yaml_document import Document

VERSIONS = ("v3.0", "v3.1", "v3.2")
# Keys of a property that demand nothing of its cells. Source: odcs-json-schema v3.2.0, SchemaBaseProperty.
DESCRIPTIVE = frozenset(
    {"id", "name", "physicalName", "description", "businessName", "deprecated", "synonyms", "authoritativeDefinitions",
     "tags", "customProperties", "primaryKeyPosition", "semanticType", "partitioned", "partitionKeyPosition",
     "classification", "encryptedName", "transformSourceObjects", "transformLogic", "transformDescription", "examples",
     "criticalDataElement"}
)  # fmt: skip
CHECKED = frozenset({"logicalType", "physicalType", "required", "unique", "primaryKey", "quality", "enum",
                     "logicalTypeOptions"})  # fmt: skip
OPTIONS = {"minimum": "min", "maximum": "max", "pattern": "matches"}
OLD_METRICS = {"nullCheck": "nullValues", "duplicateCount": "duplicateValues", "validValues": "invalidValues"}
UNITS = {"s": "s", "m": "m", "min": "m", "h": "h", "hour": "h", "hours": "h", "d": "d", "day": "d", "days": "d"}


class OdcsFault(Exception):
    """A data contract that cannot be used; the message reads on from the file's name."""


@dataclass
class _Table:
    """One table of a contract on its way to a block."""

    block: dict[str, Any] = field(default_factory=dict)
    origins: dict[Loc, Loc] = field(default_factory=dict)
    not_checked: list[str] = field(default_factory=list)


def is_odcs(value: Mapping[str, Any]) -> bool:
    """Return whether a file says that it is a data contract of the standard."""
    return "apiVersion" in value or value.get("kind") == "DataContract"


def read_odcs(document: Document, tables: Sequence[str], *, wanted: str) -> tuple[dict[str, Any], dict[Loc, Loc]]:
    """Return the block that a data contract stands for, and where its keys are written.

    Args:
        tables: names that the export's table may have in the contract.
        wanted: the table that is named behind `#`, '' for none.

    Raises:
        OdcsFault: another version, no such table, or two properties of one name.
    """
    value = document.value
    version = str(value.get("apiVersion"))
    if value.get("kind") != "DataContract" or not version.startswith(VERSIONS):
        raise OdcsFault(
            f"is of kind {value.get('kind')} and apiVersion {version}; Rivet reads kind DataContract of the versions "
            f"{', '.join(VERSIONS)}"
        )
    place, schema = _choose(value.get("schema"), tables, wanted)
    made = _Table()
    _properties(made, schema, ("schema", place))
    for index, rule in enumerate(_list(schema.get("quality"))):
        _table_rule(made, rule, ("schema", place, "quality", index))
    if schema.get("relationships"):
        made.not_checked.append("relationships")
    for index, promise in enumerate(_list(value.get("slaProperties"))):
        _promise(made, promise, ("slaProperties", index))
    if made.not_checked:
        made.block["not_checked"] = made.not_checked
    return made.block, made.origins


def _choose(schemas: Any, tables: Sequence[str], wanted: str) -> tuple[int, Mapping[str, Any]]:
    """Find the table that is meant.

    Raises:
        OdcsFault
    """
    found = [(place, each) for place, each in enumerate(_list(schemas)) if isinstance(each, Mapping)]
    names = [{each.get("name"), each.get("physicalName")} - {None} for _, each in found]
    asked = [wanted] if wanted else list(tables)
    for one, known in zip(found, names, strict=True):
        if known & set(asked):
            return one
    if len(found) == 1 and not wanted:
        return found[0]
    there = ", ".join(str(each.get("name")) for _, each in found) or "none"
    raise OdcsFault(
        f"has no table {' or '.join(map(repr, asked))}; it has {there}. Name one: contract: file.yaml#table"
    )


def _properties(made: _Table, schema: Mapping[str, Any], loc: Loc) -> None:
    columns: dict[str, Any] = {}
    for index, each in enumerate(_list(schema.get("properties"))):
        if not isinstance(each, Mapping) or not each.get("name"):
            raise OdcsFault(f"has a property without a name: {_words(loc)}.properties[{index}]; write `name:`")
        name = str(each.get("physicalName") or each["name"])
        if name in columns:
            raise OdcsFault(f"has two properties of the name {name!r}; keep one")
        columns[name] = _column(made, each, name)
        made.origins["columns", name] = (*loc, "properties", index)
    made.block["columns"] = columns


def _column(made: _Table, each: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the rules of one property; what is not checked goes to `made`."""
    column: dict[str, Any] = {}
    for key, told in (("required", "required"), ("unique", "unique"), ("primaryKey", "key")):
        if each.get(key):
            column[told] = each[key]
    if (logical := each.get("logicalType")) is not None:
        if logical in get_args(LogicalType):
            column["logical_type"] = logical
        else:
            made.not_checked.append(f"{name}.logicalType {logical}")
    if each.get("physicalType"):
        column["physical_type"] = each["physicalType"]
    if each.get("enum"):
        column["accepted_values"] = [value.get("value") if isinstance(value, Mapping) else value
                                     for value in _list(each["enum"])]  # fmt: skip
    texts = [text for text in (*_list(each.get("tags")), each.get("classification")) if isinstance(text, str) and text]
    if texts:
        column["tags"] = texts
    for option, value in (each.get("logicalTypeOptions") or {}).items():
        if option in OPTIONS:
            column[OPTIONS[option]] = value
        else:
            made.not_checked.append(f"{name}.logicalTypeOptions.{option}")
    for rule in _list(each.get("quality")):
        meant = _column_rule(rule)
        if meant is None or meant.keys() & column.keys() - {"required", "unique"}:
            made.not_checked.append(f"{name}.quality {_named(rule)}")
        else:
            column |= meant
            made.not_checked += _severity(rule, name)
    made.not_checked += [f"{name}.{key}" for key in each if key not in DESCRIPTIVE | CHECKED]
    return column


def _column_rule(rule: Any) -> dict[str, Any] | None:
    """Return what a rule of a property is in Rivet's words; None where it has none."""
    metric, arguments = _metric(rule)
    none = rule.get("mustBe") == 0 if metric else False
    values = arguments.get("validValues", rule.get("validValues")) if metric else None
    match metric:
        case "nullValues" if none:
            return {"required": True}
        case "nullValues" if rule.get("unit") == "percent" and "mustBeLessOrEqualTo" in rule:
            return {"null_ratio_max": rule["mustBeLessOrEqualTo"] / 100}
        case "missingValues" if none and set(arguments.get("missingValues") or (None,)) == {None}:
            return {"required": True}
        case "duplicateValues" if none:
            return {"unique": True}
        case "invalidValues" if (none or "validValues" in rule) and set(arguments) <= {"validValues"} and values:
            return {"accepted_values": list(values)}
        case "invalidValues" if none and set(arguments) == {"pattern"}:
            return {"matches": arguments["pattern"]}
    return None


def _table_rule(made: _Table, rule: Any, loc: Loc) -> None:
    metric, arguments = _metric(rule)
    bounds = _row_bounds(rule) if metric == "rowCount" else {}
    names = _list(arguments.get("properties"))
    if bounds and "row_count" not in made.block:
        made.block["row_count"] = bounds
        made.origins["row_count",] = loc
    elif metric == "duplicateValues" and rule.get("mustBe") == 0 and len(names) == 1 and names[0] in _columns(made):
        _columns(made)[names[0]]["unique"] = True
    else:
        made.not_checked.append(f"quality {_named(rule)}")
        return
    made.not_checked += _severity(rule, "")


def _row_bounds(rule: Mapping[str, Any]) -> dict[str, int]:
    """Return the bounds of a number of rows; {} for an operator that is none."""
    if str(rule.get("unit", "rows")) != "rows":
        return {}
    match next(((key, value) for key, value in rule.items() if key.startswith("must")), None):
        case ("mustBe", value):
            return {"min": value, "max": value}
        case ("mustBeGreaterThan", value):
            return {"min": value + 1}
        case ("mustBeGreaterOrEqualTo", value):
            return {"min": value}
        case ("mustBeLessThan", value):
            return {"max": value - 1}
        case ("mustBeLessOrEqualTo", value):
            return {"max": value}
        case ("mustBeBetween", [low, high]):
            return {"min": low, "max": high}
    return {}


def _promise(made: _Table, promise: Any, loc: Loc) -> None:
    """Take a promise of freshness on a column of the table; name any other."""
    told = promise if isinstance(promise, Mapping) else {}
    column = str(told.get("element") or "").rpartition(".")[2]
    unit = UNITS.get(str(told.get("unit") or ""))
    if told.get("property") in ("freshness", "latency") and column in _columns(made) and unit:
        made.block["freshness"] = {"column": column, "max_age": f"{told.get('value')}{unit}"}
        made.origins["freshness",] = loc
    else:
        made.not_checked.append(f"slaProperties {told.get('property')}")


def _columns(made: _Table) -> dict[str, Any]:
    columns: dict[str, Any] = made.block["columns"]
    return columns


def _metric(rule: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the library metric of a rule, by its name of 3.1, and its arguments; '' for text, SQL and others."""
    if not isinstance(rule, Mapping) or rule.get("type", "library") != "library":
        return "", {}
    name = str(rule.get("metric") or rule.get("rule") or "")
    arguments = rule.get("arguments")
    return OLD_METRICS.get(name, name), arguments if isinstance(arguments, Mapping) else {}


def _severity(rule: Mapping[str, Any], name: str) -> Iterator[str]:
    """Name a severity that is not taken: Rivet's are stop and warn, of the contract or of a column."""
    if rule.get("severity"):
        where = f"{name}.quality" if name else "quality"
        yield f"{where} {_named(rule)}: severity {rule['severity']} (it is taken as stop)"


def _named(rule: Any) -> str:
    if not isinstance(rule, Mapping):
        return "that is not a block"
    return str(rule.get("name") or rule.get("id") or rule.get("metric") or rule.get("rule") or rule.get("type"))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _words(loc: Loc) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in loc).lstrip(".")
