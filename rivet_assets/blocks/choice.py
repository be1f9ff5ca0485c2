"""A YAML block of which one word decides the shape: `mode:` of an export, `type:` of a source or destination.

Belongs here: choosing the block, the two answers to a wrong word, the JSON schema of a choice. Not here: the
blocks themselves, nor which of them exist (`rivet_assets/config/load.py`).

Pydantic's own tagged union is used for the schema only (2026-11): its errors carry the chosen word inside the
location, a missing word has no default, and its `oneOf` makes `dg check yaml` point at the whole block instead
of the key. With if/then per word the caret stands on the key.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, PydanticKnownError, core_schema

from rivet_resources.registry import Registry

Loc = tuple[str | int, ...]


def refusal(code: str, message: str, *, loc: Loc = ()) -> InitErrorDetails:
    """Describe one broken rule; `message` is shown as it is."""
    # A template is formatted by Pydantic: braces of a message must not be taken for fields.
    return InitErrorDetails(type=PydanticCustomError(code, "{message}", {"message": message}), loc=loc, input=None)


def refusals(title: str, faults: Iterable[InitErrorDetails]) -> ValidationError:
    """Join several broken rules into one exception, which Pydantic merges into the errors around it."""
    return ValidationError.from_exception_data(title, list(faults), hide_input=True)


def details(error: ValidationError) -> list[InitErrorDetails]:
    """Take an exception apart, so that it can be joined with others and raised again."""
    return [_detail(fault) for fault in error.errors(include_url=False)]


def _detail(fault: Any) -> InitErrorDetails:
    context = fault.get("ctx", {})
    if fault["type"].startswith("RIVET_"):
        return refusal(fault["type"], fault["msg"], loc=fault["loc"])
    return InitErrorDetails(type=fault["type"], loc=fault["loc"], input=fault["input"], ctx=context)


def nearest(word: object, known: Iterable[str]) -> str | None:
    """Find the known word that `word` was probably meant to be, or None."""
    return next(iter(difflib.get_close_matches(str(word).lower(), list(known), n=1, cutoff=0.6)), None)


def not_one_of(word: object, known: Iterable[str]) -> str:
    """Return that a word is not among the allowed ones, and which it may have been."""
    allowed = list(known)
    close = nearest(word, allowed)
    return f"'{word}' is not one of {', '.join(allowed)}{f'. Did you mean {close}?' if close else ''}"


NONE_INSTALLED = "`rivet plugins` lists what packages bring"


class Choice:
    """Pydantic metadata: validate a mapping as the block that its `key` names.

    `blocks` is looked into when a block is validated, not before: a list that loads its classes one by one stays
    unloaded, and one that grew meanwhile is taken as it is. `unknown` is the code of a wrong word. `default` is taken
    when the key is absent. `later` answers words that exist elsewhere but not here.
    """

    def __init__(
        self,
        key: str,
        blocks: Mapping[str, type[BaseModel]],
        *,
        unknown: str,
        default: str | None = None,
        later: Mapping[str, str] | None = None,
    ) -> None:
        self.key = key
        self.unknown = unknown
        self.blocks = blocks
        self.default = default
        self.later = later or {}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate by `validate`; a block that is written out again is written as its own class says."""
        return core_schema.no_info_plain_validator_function(self.validate)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describe the choice as: one of these words, then exactly that block's schema."""
        found = self.blocks.usable() if isinstance(self.blocks, Registry) else self.blocks
        if not found:  # of packages only, and none is installed
            return {"type": "object", "properties": {self.key: {"type": "string"}}, "required": [self.key]}
        blocks = {word: block.__pydantic_core_schema__ for word, block in found.items()}
        union = handler(core_schema.tagged_union_schema(choices=dict(blocks), discriminator=self._word_of))
        kinds = list(dict.fromkeys(found.values()))  # a block with aliases stands there once
        branches: list[dict[str, Any]] = []
        for kind, reference in zip(kinds, union.get("oneOf", [union]), strict=True):
            words_of = [word for word, block in found.items() if block is kind]
            condition: dict[str, Any] = {"properties": {self.key: {"enum": words_of}}}
            if self.default not in words_of:  # `properties` alone also holds where the key is absent
                condition["required"] = [self.key]
            branches.append({"if": condition, "then": reference})
        words: dict[str, Any] = {"type": "string", "enum": list(found)}
        described: dict[str, Any] = {"type": "object", "properties": {self.key: words}, "allOf": branches}
        if self.default is None:
            return described | {"required": [self.key]}
        words["default"] = self.default
        return described

    def _word_of(self, value: Any) -> Any:
        word = value.get(self.key) if isinstance(value, Mapping) else getattr(value, self.key, None)
        return self.default if word is None else word

    def validate(self, value: Any) -> Any:
        """Validate as the chosen block; with a wrong word, still report what else is wrong.

        Raises:
            ValidationError: all faults of the block, with locations inside it.
        """
        if isinstance(value, BaseModel) and isinstance(value, self.blocks.get(self._word_of(value)) or ()):
            return value
        if not isinstance(value, Mapping):
            raise refusals(self.key, [refusal("RIVET_CONFIG_WRONG_TYPE", "is not a block; write keys below it")])
        word = self._word_of(value)
        if isinstance(word, str) and word in self.blocks:
            return self.blocks[word].model_validate({**value, self.key: word})
        raise refusals(self.key, [self._refuse(word), *self._other_faults(value, word)])

    def _refuse(self, word: object) -> InitErrorDetails:
        key = self.key
        if word is None:
            known = f"write one of {', '.join(self.blocks)}" if self.blocks else NONE_INSTALLED
            message = f"is missing; {known}"
            return refusal("RIVET_CONFIG_MISSING_KEY", message, loc=(key,))
        if not isinstance(word, str):
            message = f"is not a word; write one of {', '.join(self.blocks)}"
            return refusal("RIVET_CONFIG_WRONG_TYPE", message, loc=(key,))
        if word in self.later:
            return refusal("RIVET_CONFIG_NOT_IN_THIS_VERSION", f"'{word}' {self.later[word]}", loc=(key,))
        if not self.blocks:
            return refusal(self.unknown, f"'{word}' is brought by no installed package; {NONE_INSTALLED}", loc=(key,))
        return refusal(self.unknown, not_one_of(word, self.blocks), loc=(key,))

    def _other_faults(self, value: Mapping[str, Any], word: object) -> list[InitErrorDetails]:
        """Validate as the block that was meant; where that is a guess, its own keys do not count."""
        near = nearest(word, self.blocks) if word is not None else None
        meant = near or self.default
        if meant is None:
            return []
        try:
            self.blocks[meant].model_validate({**value, self.key: meant})
        except ValidationError as error:
            return [fault for fault in details(error) if near or fault["type"] not in ("extra_forbidden", "missing")]
        return []


class NameOr:
    """Pydantic metadata: a text is a name and taken as it is; anything else is validated as the choice."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Take a name first; a block has its own errors then, not those of a union."""
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describe it so that an error in the block is told at its key, not at the block."""
        block = self.choice.__get_pydantic_json_schema__(schema, handler)
        return {"if": {"type": ["string", "null"]}, "then": {}, "else": block}

    def _validate(self, value: Any) -> Any:
        return value if value is None or isinstance(value, str) else self.choice.validate(value)


class OneWordOf:
    """Pydantic metadata: a text that is one of the words of a list, which may grow until it is looked into."""

    def __init__(self, words: Mapping[str, Any]) -> None:
        self.words = words

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate by `_validate`."""
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describe it as one of today's words."""
        return {"enum": list(self.words), "type": "string"}

    def _validate(self, value: Any) -> Any:
        if not isinstance(value, str) or value not in self.words:
            allowed = [f"'{word}'" for word in self.words]
            expected = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
            raise PydanticKnownError("literal_error", {"expected": expected})
        return value
