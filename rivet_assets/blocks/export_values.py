"""What single values of an export may be: names, tables, cron lines, durations, type words. Facts and one check each.

Belongs here: a value alone, and the sentence it gets when it is wrong. Not here: rules between keys.
"""

from __future__ import annotations

import math
import re
from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from rivet_assets.blocks.choice import nearest
from rivet_resources.contracts.source import ColumnRule
from rivet_resources.contracts.types import WORDS, SpecialValue, parse_word

DURATION_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

# One identifier: plain, or quoted as one of the engines quotes it (`contract.md`, section 16, row 10).
SEGMENT = r'(?:[^\W\d][\w$]*|"(?:[^"\x00]|"")+"|`(?:[^`\x00]|``)+`|\[(?:[^\]\x00]|\]\])+\])'

# `connectors.md`, section 1.
SOURCE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
PROJECT_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

CRON_WORDS = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")
CRON_FIELD = re.compile(r"[0-9a-zA-Z*/,\-#?]+")


def rule_broken(code: str, message: str) -> PydanticCustomError:
    """Build the exception of a broken rule; `message` is shown as it is, after the key."""
    return PydanticCustomError(code, "{message}", {"message": message})


def export_name(name: str) -> str:
    """Refuse what cannot be the name of a folder and of files (`contract.md`, 1.5)."""
    wrong = re.search(r"[/\\\x00-\x1f]|\.\.|^\.|^\s|\s$", name)
    if not name or wrong:
        raise rule_broken(
            "RIVET_CONFIG_EXPORT_NAME",
            f"{name!r} cannot name files; no '/', '\\', '..', control character, leading dot or outer space is allowed",
        )
    return name


def project_name(name: str) -> str:
    """Refuse what would be hard to tell apart in a store's keys."""
    if not PROJECT_NAME.fullmatch(name):
        raise rule_broken(
            "RIVET_CONFIG_PROJECT", f"{name!r} cannot name a project; use up to 64 letters, digits, '.', '_' and '-'"
        )
    return name


def secret_name(name: str) -> str:
    """Refuse what cannot be the name of a variable."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,127}", name):
        raise rule_broken(
            "RIVET_CONFIG_SECRET", f"{name!r} cannot name a variable; use letters, digits and '_', no digit first"
        )
    return name


def table_name(text: str) -> str:
    """Refuse what is not `name` or `schema.name`, each plain or quoted."""
    if not re.fullmatch(rf"{SEGMENT}(\.{SEGMENT})?", text):
        raise rule_broken(
            "RIVET_CONFIG_TABLE",
            f"{text!r} is not a table; write name or schema.name, in double quotes where SQL needs them "
            f"('public.\"Orders\"'), or use `query:`",
        )
    return text


def parse_duration(text: object) -> object:
    """Turn `90`, `90s`, `10m`, `2h` or `1d` into seconds."""
    match = re.fullmatch(r"\s*(\d+)\s*([smhd]?)\s*", str(text))
    if isinstance(text, bool) or not match:
        raise rule_broken(
            "RIVET_CONFIG_DURATION", "is not a duration; write seconds, or a number with s, m, h or d, such as 26h"
        )
    return int(match[1]) * DURATION_UNITS[match[2]]


def cron(text: str) -> str:
    """Refuse what cannot be a cron line; the fields' ranges are the scheduler's to judge."""
    fields = text.split()
    if text not in CRON_WORDS and not (len(fields) == 5 and all(CRON_FIELD.fullmatch(field) for field in fields)):
        raise rule_broken(
            "RIVET_CONFIG_SCHEDULE",
            f"{text!r} is not a cron line; write minute hour day month weekday, such as '0 3 * * *', "
            f"or {', '.join(CRON_WORDS)}",
        )
    return text


def owner(text: str) -> str:
    """Refuse an owner that Dagster would refuse."""
    if not re.fullmatch(r"[^@\s]+@[^@\s]+|team:\S+", text):
        raise rule_broken("RIVET_CONFIG_OWNER", f"{text!r} is not an owner; write an e-mail address or team:name")
    return text


def once(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a column that is listed twice."""
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise rule_broken("RIVET_CONFIG_COLUMN_TWICE", f"lists {', '.join(twice)} more than once; keep one")
    return columns


def as_text(value: object) -> object:
    """Turn an unquoted number or truth value into the text it was written as, near enough for a parameter."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def type_word(word: str) -> str:
    """Normalise a type word of `columns:`, or refuse it with the list (`types.md`, section 5)."""
    plain = word.replace(" ", "").lower()
    try:
        parse_word(plain)
    except ValueError as error:
        close = nearest(plain, WORDS)
        raise rule_broken(
            "RIVET_CONFIG_COLUMN_TYPE", f"{error}{f'. Did you mean {close}?' if close else ''}"
        ) from error
    return plain


def read_null(value: object) -> object:
    """Read a bare `null` as the word: the key is there, so the word was meant (`types.md`, section 4)."""
    return "null" if value is None else value


def long_form(rule: object) -> object:
    """Bring the short form of a column rule, one type word, to the long one."""
    if isinstance(rule, str):
        return {"type": rule}
    if isinstance(rule, dict) and "on_special_value" in rule:
        return {**rule, "on_special_value": read_null(rule["on_special_value"])}
    return rule


def check_rule(rule: ColumnRule) -> ColumnRule:
    """Check the words of a column rule, and give it back with its type in one spelling."""
    if rule.timezone is not None:
        check_zone(rule.timezone)
    return rule if rule.type is None else rule.model_copy(update={"type": type_word(rule.type)})


def check_zone(name: str) -> str:
    """Refuse a name that the time zone database does not have."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise rule_broken(
            "RIVET_CONFIG_TIMEZONE", f"{name!r} is not an IANA time zone, such as Europe/Prague"
        ) from error
    return name


ExportName = Annotated[str, AfterValidator(export_name)]
TableName = Annotated[str, AfterValidator(table_name)]
Query = Annotated[str, Field(min_length=1)]
Duration = Annotated[int, BeforeValidator(parse_duration, json_schema_input_type=int | str)]
Cron = Annotated[str, AfterValidator(cron)]
Owner = Annotated[str, AfterValidator(owner)]
GroupName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+$")]


def most_errors(given: object) -> object:
    """Refuse what is neither a number of rows nor a share of them.

    Raises:
        ValueError
    """
    text = str(given).replace(" ", "")
    is_number = re.fullmatch(r"\d+", text) is not None
    share = re.fullmatch(r"(\d+(?:\.\d+)?)%", text)
    if isinstance(given, bool) or not (is_number or (share and float(share[1]) <= 100)):
        raise ValueError("is no bound of rows; write a whole number, or a share from 0% to 100%, such as 1%")
    return int(text) if is_number else text


def errors_allowed(limit: int | str | None, *, rows: int) -> float:
    """Return how many of so many rows may be refused; infinity without a limit."""
    if limit is None:
        return math.inf
    return limit if isinstance(limit, int) else float(limit.removesuffix("%")) / 100 * rows


MaxErrors = Annotated[int | str, BeforeValidator(most_errors)]
Ratio = Annotated[float, Field(ge=0, le=1)]
ColumnsOnce = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], AfterValidator(once)]
Text = Annotated[str, BeforeValidator(as_text, json_schema_input_type=str | int | float | bool)]
Texts = dict[str, Text]
ColumnRules = dict[
    str,
    Annotated[
        ColumnRule, BeforeValidator(long_form, json_schema_input_type=str | ColumnRule), AfterValidator(check_rule)
    ],
]
SpelledNull = BeforeValidator(read_null, json_schema_input_type=SpecialValue | None)
