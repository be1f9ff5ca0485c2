"""Text columns: case, blanks, replaced and cut pieces, one column from several and several from one."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from rivet_resources.contracts.settings import Settings
from rivet_resources.contracts.transform import StepPlan, TransformError
from rivet_resources.shape.transforms.cell_text import spell
from rivet_resources.shape.transforms.conditions import When
from rivet_resources.shape.transforms.fields import (
    check_new,
    derived,
    is_text,
    matching,
    plain,
    present,
    with_columns,
    with_fields,
)


def _in_place(schema: pa.Schema, columns: tuple[str, ...], *, ignore_missing: bool) -> StepPlan:
    """Plan a step that keeps names and types of text columns."""
    names = matching(schema, columns, ignore_missing=ignore_missing, suits=is_text)
    return with_fields(schema, [schema.field(name) for name in names], {})


def _each(table: pa.Table, columns: tuple[str, ...], work: Callable[[pa.Array], pa.Array]) -> pa.Table:
    """Do the work on the text columns of a page."""
    names = matching(table.schema, columns, ignore_missing=True, suits=is_text)
    return with_columns(table, {name: work(plain(table.column(name))) for name in names})


class Case(Settings):
    """Letters in lower or upper case, by Unicode's simple mapping (one letter stays one letter)."""

    type: Literal["lower", "upper"]
    columns: tuple[str, ...] = Field(min_length=1, description="names or globs of text columns")
    ignore_missing: bool = Field(False, description="pass over names that do not exist")
    when: When = None

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Keep names and types.

        Raises:
            TransformError: a column is missing or no text.
        """
        return _in_place(schema, self.columns, ignore_missing=self.ignore_missing)

    def apply(self, table: pa.Table) -> pa.Table:
        """Change the case of a page's cells."""
        return _each(table, self.columns, pc.utf8_lower if self.type == "lower" else pc.utf8_upper)


class Trim(Settings):
    """Blanks, or the given characters, cut from the ends."""

    type: Literal["trim"]
    columns: tuple[str, ...] = Field(min_length=1, description="names or globs of text columns")
    side: Literal["both", "left", "right"] = Field("both", description="which end")
    characters: str | None = Field(None, description="characters to cut; default: all Unicode white space")
    ignore_missing: bool = Field(False, description="pass over names that do not exist")
    when: When = None

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Keep names and types.

        Raises:
            TransformError: a column is missing or no text.
        """
        return _in_place(schema, self.columns, ignore_missing=self.ignore_missing)

    def apply(self, table: pa.Table) -> pa.Table:
        """Trim a page's cells."""
        if self.characters is None:
            cut = {"both": pc.utf8_trim_whitespace, "left": pc.utf8_ltrim_whitespace, "right": pc.utf8_rtrim_whitespace}
            return _each(table, self.columns, cut[self.side])
        trim = {"both": pc.utf8_trim, "left": pc.utf8_ltrim, "right": pc.utf8_rtrim}[self.side]
        return _each(table, self.columns, lambda array: trim(array, self.characters))


class Replace(Settings):
    """Every occurrence of a text, or of a pattern, replaced by another text."""

    type: Literal["replace"]
    columns: tuple[str, ...] = Field(min_length=1, description="names or globs of text columns")
    find: str = Field(min_length=1, description="text to find, or with `regex: true` a pattern (RE2)")
    with_: str = Field("", alias="with", description=r"what stands there instead; with a pattern \1 is its first group")
    regex: bool = Field(False, description="read `find` as a pattern")
    ignore_missing: bool = Field(False, description="pass over names that do not exist")
    when: When = None

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Keep names and types.

        Raises:
            TransformError: a column is missing or no text, or the pattern is none.
        """
        fault = ""
        try:
            self._work(pa.array([""]))
        except pa.ArrowInvalid as error:
            fault = str(error).split("\n")[0]
        if fault:
            raise TransformError(f"`find` is no regular expression (RE2 syntax), or `with` does not fit it: {fault}")
        return _in_place(schema, self.columns, ignore_missing=self.ignore_missing)

    def _work(self, array: pa.Array) -> pa.Array:
        work = pc.replace_substring_regex if self.regex else pc.replace_substring
        return work(array, self.find, self.with_)

    def apply(self, table: pa.Table) -> pa.Table:
        """Replace in a page's cells."""
        return _each(table, self.columns, self._work)


class Substring(Settings):
    """A piece of each text, counted in characters."""

    type: Literal["substring"]
    columns: tuple[str, ...] = Field(min_length=1, description="names or globs of text columns")
    start: int = Field(0, description="first character, from 0; negative: from the end")
    length: int | None = Field(None, ge=0, description="characters; default: to the end")
    ignore_missing: bool = Field(False, description="pass over names that do not exist")
    when: When = None

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Keep names and types.

        Raises:
            TransformError: a column is missing or no text.
        """
        return _in_place(schema, self.columns, ignore_missing=self.ignore_missing)

    def apply(self, table: pa.Table) -> pa.Table:
        """Cut a page's cells."""
        stop = None if self.length is None else self.start + self.length
        if stop is not None and self.start < 0 <= stop:
            stop = None  # from the end, and at least to it
        return _each(table, self.columns, lambda array: pc.utf8_slice_codeunits(array, self.start, stop))


class Split(Settings):
    """Pieces of a text between separators, as new columns; a piece that is not there is NULL."""

    type: Literal["split"]
    column: str = Field(description="the text column")
    separator: str = Field(min_length=1, description="text between the pieces")
    into: tuple[str, ...] = Field(min_length=1, description="names of the new columns; the last takes all that is left")
    when: When = None

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Append the columns.

        Raises:
            TransformError: the column is missing or no text, or a new name exists or is there twice.
        """
        matching(schema, [self.column], ignore_missing=False, suits=is_text)
        check_new(schema, self.into, do="choose other names in `into`.")
        if len(set(self.into)) != len(self.into):
            raise TransformError("`into` has a name twice; give every piece its own.")
        fields = [derived(name, pa.string(), f"split({self.column})") for name in self.into]
        return with_fields(schema, fields, {name: frozenset({self.column}) for name in self.into})

    def apply(self, table: pa.Table) -> pa.Table:
        """Split a page's cells."""
        text = plain(table.column(self.column)).cast(pa.string())
        pieces = pc.split_pattern(text, self.separator, max_splits=len(self.into) - 1)
        counts = pc.list_value_length(pieces)
        starts = pieces.offsets.slice(0, len(text)).cast(pa.int64())
        columns = {}
        for place, name in enumerate(self.into):
            present_ = pc.fill_null(pc.greater(counts, place), False)
            places = pc.if_else(present_, pc.add(starts, place), pa.scalar(None, pa.int64()))
            columns[name] = pieces.values.take(places)
        return with_columns(table, columns)


class Concat(Settings):
    """Several columns and texts as one; numbers, times and so on by their canonical text."""

    type: Literal["concat"]
    columns: tuple[str, ...] = Field(min_length=1, description="columns in order; 'in quotes' is a text of its own")
    into: str = Field(description="name of the new column, or of one of them")
    separator: str = Field("", description="text between the pieces")
    nulls: Literal["skip", "null"] = Field("skip", description="skip: leave NULLs out; null: one NULL makes all NULL")
    when: When = None

    @model_validator(mode="before")
    @classmethod
    def _bare_null(cls, given: Any) -> Any:
        # YAML reads the bare word `null` as nothing.
        return {**given, "nulls": "null"} if isinstance(given, dict) and given.get("nulls", "") is None else given

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if not _is_quoted(name))

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Append the text column, or put it in place of one of the pieces.

        Raises:
            TransformError: a column is missing, or `into` is a column that is not a piece.
        """
        names = present(schema, self._names, ignore_missing=False)
        if not names:
            raise TransformError("there are only quoted texts; name a column, or use `add`.")
        if self.into not in names:
            check_new(schema, [self.into], do="choose another `into`.")
        held = all if self.nulls == "skip" else any
        nullable = held(schema.field(name).nullable for name in names)
        field = derived(self.into, pa.string(), f"concat({', '.join(names)})", nullable=nullable)
        return with_fields(schema, [field], {self.into: frozenset(names)})

    def apply(self, table: pa.Table) -> pa.Table:
        """Join a page's cells; a row all of whose columns are NULL is NULL."""
        pieces = [name[1:-1] if _is_quoted(name) else spell(table.column(name)) for name in self.columns]
        if self.nulls == "null":
            joined = pc.binary_join_element_wise(*pieces, self.separator, null_handling="emit_null")
        else:
            joined = _join_pieces(pieces, self.separator)
        columns = [table.column(name) for name in self._names]
        if self.nulls == "skip" and all(column.null_count for column in columns):
            gone = reduce(pc.and_, [plain(column).is_null() for column in columns])
            joined = pc.if_else(gone, pa.scalar(None, pa.string()), joined)
        return with_columns(table, {self.into: joined})


def _is_quoted(name: str) -> bool:
    return len(name) >= 2 and name[0] == name[-1] == "'"


def _join_pieces(pieces: list[Any], separator: str) -> pa.Array:
    """Join what is there. Arrow's own `null_handling="skip"` loses rows that are all NULL (pyarrow 26.0.1)."""
    gaps = separator and any(isinstance(piece, pa.Array) and piece.null_count for piece in pieces)
    if gaps:  # each piece brings its separator, and the first one goes
        pieces = [_with_separator(piece, separator) for piece in pieces]
        joined = pc.binary_join_element_wise(*pieces, "", null_handling="replace", null_replacement="")
        return pc.utf8_slice_codeunits(joined, len(separator))
    return pc.binary_join_element_wise(*pieces, separator, null_handling="replace", null_replacement="")


def _with_separator(piece: Any, separator: str) -> Any:
    return separator + piece if isinstance(piece, str) else pc.binary_join_element_wise("", piece, separator)
