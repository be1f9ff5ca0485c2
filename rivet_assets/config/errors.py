"""What is wrong with a configuration, as one line per fault: `file:line: exports.orders: what, allowed, what to do`.

Belongs here: turning the errors of the models into sentences with a place and a stable code. Not here: the rules
(beside the keys), keys that belong elsewhere (`unknown_keys.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rivet_assets.blocks.choice import Loc, not_one_of
from rivet_assets.config.json_schema_lookup import describe
from rivet_assets.config.unknown_keys import unknown_key
from rivet_assets.config.yaml_document import Document
from rivet_resources.errors import ConfigError


@dataclass(frozen=True)
class ConfigFault:
    """One fault, or one warning, with its place."""

    loc: Loc
    code: str
    message: str  # without file, line and owner
    line: int


# Pydantic's error type → code and sentence about the value. Source: Pydantic documentation, "Validation Errors".
WRONG_TYPES: tuple[tuple[str, str], ...] = (
    ("int_", "is not a whole number"),
    ("float_", "is not a number"),
    ("finite_number", "is not a number"),
    ("bool_", "is neither true nor false"),
    ("string_type", "is not a text; put it in quotes"),
    ("tuple_type", "is not a list; write [a, b] or lines that begin with '-'"),
    ("list_type", "is not a list; write [a, b] or lines that begin with '-'"),
    ("dict_type", "is not a block; write keys below it"),
    ("model_", "is not a block; write keys below it"),
    ("mapping_type", "is not a block; write keys below it"),
    ("date_", "is not a day; write YYYY-MM-DD"),
    ("path_type", "is not a path"),
)

# Pydantic's error type → sentence with the limit from its context.
LIMITS: Mapping[str, str] = {
    "greater_than_equal": "is too small; write at least {ge}",
    "greater_than": "is too small; write more than {gt}",
    "less_than_equal": "is too large; write at most {le}",
    "less_than": "is too large; write less than {lt}",
    "string_too_short": "is empty",
    "too_short": "is empty",
    "string_pattern_mismatch": "does not match {pattern}",
}

# Rules beside other blocks raise a plain ValueError; the block gives the code. The last key that is listed counts.
CODES_OF_BLOCKS: Mapping[str, str] = {
    "source": "RIVET_CONFIG_SOURCE",
    "sources": "RIVET_CONFIG_SOURCE",
    "destination": "RIVET_CONFIG_DESTINATION",
    "path": "RIVET_CONFIG_DESTINATION_PATH",
    "prefix": "RIVET_CONFIG_DESTINATION_PATH",
    "parquet": "RIVET_CONFIG_PARQUET",
    "transforms": "RIVET_CONFIG_TRANSFORM",
    "max_file_size": "RIVET_CONFIG_SIZE",
    "cursor_lag": "RIVET_CONFIG_DURATION",
}

# A message that begins so is about the key, and reads on from its name.
VERBS = re.compile(
    r"(is|are|has|have|holds|lists|sets|says|stands|ends|splits|lacks|needs|cannot|above|chunked|names) |'|does "
)


def findings(error: ValidationError, block: Any, document: Document) -> list[ConfigFault]:
    """Turn every error into a finding; `block` is the raw root after substitution."""
    found = []
    for fault in error.errors(include_url=False):
        loc = tuple(step for step in fault["loc"] if step != "[key]")
        code, sentence = _judge(fault, loc, block)
        sentence = _without_resolved(sentence, block, document)
        place = _existing(loc, block)
        written = None if fault["type"] == "extra_forbidden" else _spelling(place, block, document)
        message = _about(place, sentence, written, owned=len(owner_of(loc, block)[1]))
        found.append(ConfigFault(loc, code, message, document.line(loc)))
    return found


def lines(found: Iterable[ConfigFault], block: Any, *, file: str) -> list[str]:
    """Write findings down, by line; equal ones once."""
    ordered = sorted(found, key=lambda finding: finding.line)
    return list(dict.fromkeys(_line(finding, block, file) for finding in ordered))


def config_error(found: Iterable[ConfigFault], block: Any, *, file: str) -> ConfigError:
    """Join all findings into the one error that is raised."""
    ordered = sorted(found, key=lambda finding: finding.line)
    return ConfigError("\n".join(lines(ordered, block, file=file)), codes=tuple(dict.fromkeys(f.code for f in ordered)))


def _line(finding: ConfigFault, block: Any, file: str) -> str:
    owner, _ = owner_of(finding.loc, block)
    return f"{file}:{finding.line}: {owner + ': ' if owner else ''}{finding.message}"


def owner_of(loc: Loc, block: Any) -> tuple[str, Loc]:
    """Name the block a location belongs to (exports.orders, sources.shop), and give the steps that lead there."""
    if len(loc) > 1 and loc[0] == "exports":
        name = at(block, (*loc[:2], "name"))
        return (f"exports.{name}" if isinstance(name, str) and name else f"exports[{loc[1]}]"), loc[:2]
    if len(loc) > 1 and loc[0] == "sources":
        return f"sources.{loc[1]}", loc[:2]
    blocks = ("source", "spark", "notifications")
    return (str(loc[0]), loc[:1]) if loc and loc[0] in blocks else ("", ())


def at(block: Any, loc: Loc) -> Any:
    """Read a raw value by its location; None where there is none."""
    for step in loc:
        if isinstance(block, Mapping):
            block = block.get(step)
        elif isinstance(block, list | tuple) and isinstance(step, int) and step < len(block):
            block = block[step]
        else:
            return None
    return block


def _existing(loc: Loc, block: Any) -> Loc:
    """Cut off what only a long form has: the value stands where the short form was written."""
    while loc and not isinstance(at(block, loc[:-1]), Mapping | list | tuple):
        loc = loc[:-1]
    return loc


def key_path(loc: Loc) -> str:
    """Write a location as people do: destination.path, owners[0]."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in loc).lstrip(".")


def _about(loc: Loc, sentence: str, written: str | None, *, owned: int) -> str:
    """Put the key, and its value where the sentence is about the value, before the sentence."""
    key = key_path(loc[owned:])
    if not key or sentence.startswith((key, str(loc[-1]) + " ")):
        return sentence
    if written is not None and re.match(r"(is (not|too|below|neither|outside)|does not|has the placeholder)", sentence):
        return f"{key} '{written}' {sentence}"
    return f"{key} {sentence}" if VERBS.match(sentence) else f"{key}: {sentence}"


def _spelling(loc: Loc, block: Any, document: Document) -> str | None:
    """Return the scalar as the file spells it, unless it is a secret."""
    if describe(block, loc).is_secret:
        return None
    written = document.written(loc)
    if document.root is not None or written is not None:
        return written
    value = at(block, loc)
    return str(value) if isinstance(value, str | int | float) else None


def _without_resolved(sentence: str, block: Any, document: Document) -> str:
    """Show references instead of what they resolved to: values from outside may be secret (`contract.md`, 1.1)."""
    for loc, value in scalars(block):
        if len(value) > 2 and value in sentence:
            written = document.written(loc)
            if written is not None and "${" in written:
                sentence = sentence.replace(value, written)
    return sentence


def scalars(block: Any, loc: Loc = ()) -> Iterator[tuple[Loc, str]]:
    """Walk over every text of a raw block, with its location."""
    if isinstance(block, Mapping):
        for key, value in block.items():
            yield from scalars(value, (*loc, key))
    elif isinstance(block, list | tuple):
        for index, value in enumerate(block):
            yield from scalars(value, (*loc, index))
    elif isinstance(block, str):
        yield loc, block


def _judge(fault: Any, loc: Loc, block: Any) -> tuple[str, str]:
    """Choose the code and the sentence for one error of the models."""
    kind: str = fault["type"]
    if kind.startswith("RIVET_"):
        return kind, fault["msg"]
    if kind == "value_error":
        return _code_of_block(loc), str(fault["ctx"]["error"])
    if kind in LIMITS:
        return "RIVET_CONFIG_OUT_OF_RANGE", LIMITS[kind].format(**fault.get("ctx", {}))
    for start, sentence in WRONG_TYPES:
        if kind.startswith(start):
            return "RIVET_CONFIG_WRONG_TYPE", sentence
    judge = JUDGES.get(kind)
    return judge(fault, loc, block) if judge else ("RIVET_CONFIG_INVALID", str(fault["msg"]))


def _missing(fault: Any, loc: Loc, block: Any) -> tuple[str, str]:
    about = describe(block, loc)
    words = f"; write one of {', '.join(about.words)}" if about.words else ""
    return "RIVET_CONFIG_MISSING_KEY", f"is missing{words or (f' ({about.text})' if about.text else '')}"


def _word(fault: Any, loc: Loc, block: Any) -> tuple[str, str]:
    allowed = re.findall(r"'([^']*)'", str(fault["ctx"]["expected"]))
    if not isinstance(fault["input"], str | int | float):
        return "RIVET_CONFIG_WRONG_TYPE", f"is not a word; write one of {', '.join(allowed)}"
    return "RIVET_CONFIG_NOT_ALLOWED", not_one_of(fault["input"], allowed)


def _unknown(fault: Any, loc: Loc, block: Any) -> tuple[str, str]:
    known = describe(block, loc[:-1]).keys
    return unknown_key(loc, known, block)


JUDGES: Mapping[str, Callable[[Any, Loc, Any], tuple[str, str]]] = {
    "missing": _missing,
    "literal_error": _word,
    "extra_forbidden": _unknown,
}


def _code_of_block(loc: Loc) -> str:
    codes = [CODES_OF_BLOCKS[step] for step in loc if isinstance(step, str) and step in CODES_OF_BLOCKS]
    return codes[-1] if codes else "RIVET_CONFIG_INVALID"
