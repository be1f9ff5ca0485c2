"""Cells whose plain value must not leave (`type: mask`): marks, fixed text, keyed hash, first and last, NULL, absence.

Belongs here: the methods of `connectors.md`, section 4, and their result types, which never depend on a row. Not here:
SHA-256 (`hashing.py`). A column is masked by its distinct cells where they are few.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, SecretStr, field_validator, model_validator

from rivet_resources.contracts.settings import Settings
from rivet_resources.contracts.transform import StepPlan, TransformError
from rivet_resources.secrets import resolve_secret
from rivet_resources.shape.transforms import hashing
from rivet_resources.shape.transforms.cell_text import spell
from rivet_resources.shape.transforms.conditions import When
from rivet_resources.shape.transforms.fields import (
    derived,
    is_text,
    matching,
    storage,
    whole,
    with_columns,
    with_fields,
)

Method = Literal["asterisk", "fixed", "redact", "hash", "partial", "null", "remove"]
REDACTED = "[REDACTED]"
NO_TEXT = "****"  # what a cell that is no text becomes; its length would tell its size


class Mask(Settings):
    """Fields whose plain value is replaced; NULL stays NULL in every method but `fixed`."""

    type: Literal["mask", "field-mask", "mask_field"]
    fields: tuple[str, ...] = Field(min_length=1, description="names or globs of columns")
    method: Method = Field("asterisk", description="asterisk, fixed, redact, hash, partial, null or remove")
    char: str = Field("*", min_length=1, max_length=1, description="asterisk, partial: the mark")
    max_len: int = Field(20, ge=1, le=1000, description="asterisk: at most so many marks")
    value: str | None = Field(None, description="fixed: the text; redact: default [REDACTED]")
    key: SecretStr | None = Field(None, description="hash: the key; better: key_env")
    key_env: str | None = Field(None, description="hash: environment variable with the key, read in the task")
    unkeyed: bool = Field(False, description="hash: plain SHA-256, which can be guessed from a list of values")
    length: int = Field(64, ge=8, le=64, description="hash: hexadecimal digits kept")
    first: int = Field(0, ge=0, description="partial: characters kept at the start")
    last: int = Field(0, ge=0, description="partial: characters kept at the end")
    reveals: tuple[str, ...] = Field(
        (), description="columns made of these before the mask that may stay, such as the domain of an address"
    )
    ignore_missing: bool = Field(False, description="pass over names that do not exist, globs that choose nothing")
    when: When = None

    @field_validator("method", mode="before")
    @classmethod
    def _bare_null(cls, given: Any) -> Any:
        return bare_null(given)

    @model_validator(mode="after")
    def _options_fit_method(self) -> Mask:
        if why := misfit(self):
            raise ValueError(why)
        if self.method == "remove" and self.when is not None:
            raise ValueError("remove takes no `when`: a column is there for all rows or for none; use method null")
        return self

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Decide the type of masked columns: text, or their own for `null`.

        Raises:
            TransformError: a name does not exist, or a glob chooses nothing.
        """
        names = matching(schema, self.fields, ignore_missing=self.ignore_missing)
        if self.method == "remove":
            left = [name for name in schema.names if name not in names]
            kept = pa.schema([schema.field(name) for name in left], metadata=schema.metadata)
            return StepPlan(kept, {name: frozenset({name}) for name in left}, frozenset(), frozenset(names))
        fields = []
        for name in names:
            before = schema.field(name)
            if self.method == "null":
                fields.append(before.with_nullable(True))
                continue
            nullable = before.nullable and self.method != "fixed"
            fields.append(derived(name, pa.string(), f"mask({name})", of=before, nullable=nullable))
        if self.method == "hash" and any(pa.types.is_null(storage(schema.field(name).type)) for name in names):
            raise TransformError("a column without a type cannot be hashed; cast it first.")
        return with_fields(schema, fields, {}, masked=frozenset(names))

    def apply(self, table: pa.Table) -> pa.Table:
        """Mask the columns of a page.

        Raises:
            ConfigError: the variable of `key_env` is not set where the task runs.
        """
        names = matching(table.schema, self.fields, ignore_missing=True)
        if self.method == "remove":
            return table.select([name for name in table.column_names if name not in names])
        return with_columns(table, {name: self._mask(table.column(name)) for name in names})

    def key_text(self) -> str | None:
        """Read the key of a hash; None without one.

        Raises:
            ConfigError: the variable of `key_env` is not set here.
        """
        return None if self.unkeyed or self.method != "hash" else resolve_secret(self.key, env=self.key_env, key="key")

    def _mask(self, column: pa.ChunkedArray) -> pa.Array:
        if self.method == "null":
            return pa.nulls(len(column), column.type)
        if self.method == "fixed":
            return pa.repeat(pa.scalar(self.value), len(column))
        if self.method == "redact":
            return _constant(column, self.value or REDACTED)
        if self.method == "hash":
            key = self.key_text()
            return hashing.hashed(column, key=None if key is None else key.encode(), length=self.length)
        if self.method == "asterisk" and not is_text(column.type):
            return _constant(column, NO_TEXT)
        return distinct(spell(column), self._put_marks)

    def _put_marks(self, text: pa.Array) -> pa.Array:
        """Put marks in place of characters; cells no longer than what would stay are marked whole."""
        lengths = pc.utf8_length(text)
        if self.method == "asterisk":
            return _marks(self.char, pc.min_element_wise(lengths, self.max_len, skip_nulls=False))
        short = pc.less_equal(lengths, self.first + self.last)
        middle = _marks(self.char, pc.if_else(short, lengths, pc.subtract(lengths, self.first + self.last)))
        pieces = [middle]
        if self.first:
            pieces.insert(0, pc.utf8_slice_codeunits(text, 0, self.first))
        if self.last:
            pieces.append(pc.utf8_slice_codeunits(text, -self.last))
        joined = pc.binary_join_element_wise(*pieces, "")
        return pc.if_else(short, middle, joined) if pc.any(short).as_py() else joined


def bare_null(given: Any) -> Any:
    """Return the word of a method: YAML reads the bare word `null` as nothing."""
    return "null" if given is None else given


def misfit(given: Any) -> str:
    """Return which keys of a mask do not fit its method; '' where all do."""
    keys = (given.key is not None) + (given.key_env is not None) + given.unkeyed
    if given.method == "hash" and keys != 1:
        return "hash needs exactly one of key_env, key, or unkeyed: true"
    if given.method != "hash" and keys:
        return f"key, key_env and unkeyed belong to method hash, not {given.method}"
    if given.method == "fixed" and given.value is None:
        return "fixed needs a value, the text that replaces every cell"
    if given.method == "partial" and not (given.first or given.last):
        return "partial needs first or last, the characters that stay"
    return ""


def _constant(column: pa.ChunkedArray, text: str) -> pa.Array:
    """Return one text in place of every present cell."""
    if not column.null_count:
        return pa.repeat(pa.scalar(text), len(column))
    return pc.if_else(whole(column).is_valid(), pa.scalar(text), pa.scalar(None, pa.string()))


def _marks(char: str, lengths: pa.Array) -> pa.Array:
    """Return so many marks per cell, from a table of all lengths there are; NULL for NULL."""
    longest = pc.max(lengths).as_py() or 0
    # The table has half the square of the greatest length in marks: 8 MB here.
    if longest > 4096:
        return pc.binary_repeat(pa.scalar(char), lengths)
    return pa.array([char * count for count in range(longest + 1)], pa.string()).take(lengths)


SAMPLE = 512  # cells looked at to see whether distinct ones are few


def distinct(array: pa.Array, work: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Do the work once per distinct cell where these are few, else once per cell; NULL stays NULL."""
    sample = array.slice(0, SAMPLE)
    if len(array) <= SAMPLE or pc.count_distinct(sample).as_py() > len(sample) // 2:
        return work(array)
    encoded = array.dictionary_encode()
    return work(encoded.dictionary).take(encoded.indices)
