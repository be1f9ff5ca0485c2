"""Nested columns as flat ones (`type: flatten`): the fields of structs, and chosen paths of JSON texts.

Belongs here: names and types of the flat columns. JSON has no schema, so its paths and their types are declared; they
are never found by looking at rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from rivet_resources.contracts.settings import Settings
from rivet_resources.contracts.transform import StepPlan, TransformError
from rivet_resources.contracts.types import JSON
from rivet_resources.shape.transforms import sql
from rivet_resources.shape.transforms.cast import refusal, type_of
from rivet_resources.shape.transforms.conditions import OnError
from rivet_resources.shape.transforms.convert import check, convert, family
from rivet_resources.shape.transforms.fields import derived, matching, plain


class Flatten(Settings):
    """Each field of a struct, or each declared path of a JSON column, becomes a column in its place."""

    type: Literal["flatten"]
    columns: tuple[str, ...] = Field((), description="names or globs; default: every struct column")
    delimiter: str = Field(".", min_length=1, description="between the names of the levels")
    max_depth: int = Field(0, ge=0, description="levels to lift; what lies deeper stays a struct; 0: all")
    paths: dict[str, str] = Field(
        default_factory=dict, description="JSON columns: path such as address.city: type word of its column"
    )
    keep: bool = Field(False, description="keep the nested column too")
    on_error: OnError = None

    @field_validator("paths")
    @classmethod
    def _known_words(cls, given: dict[str, str]) -> dict[str, str]:
        for word in given.values():
            check(pa.string(), type_of(word))
        return given

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Put the flat columns where the nested one was.

        Raises:
            TransformError: nothing to flatten, a JSON column without `paths`, or two columns of one name.
        """
        chosen = self._choose_columns(schema)
        fields: list[pa.Field] = []
        origins: dict[str, frozenset[str]] = {}
        changed: set[str] = set()
        for field in schema:
            flat = self._fields(field) if field.name in chosen else [field]
            fields += [field, *flat] if field.name in chosen and self.keep else flat
            origins |= {each.name: frozenset({field.name}) for each in (field, *flat)}
            changed |= {each.name for each in flat if field.name in chosen}
        names = [field.name for field in fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise TransformError(f"two columns would be called {twice[0]!r}; choose another delimiter, or rename one.")
        kept = {name: origins[name] for name in names}
        return StepPlan(pa.schema(fields, metadata=schema.metadata), kept, frozenset(changed))

    def _choose_columns(self, schema: pa.Schema) -> tuple[str, ...]:
        if not self.columns:
            found = tuple(field.name for field in schema if pa.types.is_struct(field.type))
            if not found:
                raise TransformError("there is no struct column; name JSON columns in `columns` and their `paths`.")
            return found
        chosen = matching(schema, self.columns, ignore_missing=False)
        for name in chosen:
            kind = schema.field(name).type
            if pa.types.is_struct(kind):
                continue
            if family(kind) not in ("text", "json"):
                raise TransformError(f"column {name!r} is {kind}; flatten takes structs and JSON texts.")
            if not self.paths:
                raise TransformError(f"column {name!r} is JSON text; declare its `paths`, such as address.city: text.")
        return chosen

    def _fields(self, field: pa.Field) -> list[pa.Field]:
        """Return the flat fields of one column."""
        by = f"flatten({field.name})"
        if pa.types.is_struct(field.type):
            leaves = _leaves(field.type, depth=self.max_depth or 1_000)
            return [derived(self.delimiter.join((field.name, *path)), arrow, by) for path, arrow in leaves]
        return [derived(self._flat(field.name, path), type_of(word), by) for path, word in self.paths.items()]

    def _flat(self, name: str, path: str) -> str:
        return self.delimiter.join((name, *path.split(".")))

    def apply(self, table: pa.Table) -> pa.Table:
        """Flatten a page.

        Raises:
            RowRefused: a text is no JSON, or a path's cell is not of its type.
        """
        chosen = self._choose_columns(table.schema)
        columns: dict[str, pa.Array | pa.ChunkedArray] = {}
        for name in table.column_names:
            if name not in chosen or self.keep:
                columns[name] = table.column(name)
            if name in chosen:
                columns |= (
                    self._struct(table, name)
                    if pa.types.is_struct(table.column(name).type)
                    else self._json(table, name)
                )
        return pa.table(columns)

    def _struct(self, table: pa.Table, name: str) -> dict[str, pa.Array]:
        column = plain(table.column(name))
        flat = {}
        for path, _ in _leaves(column.type, depth=self.max_depth or 1_000):
            cells = column
            for step in path:
                # Of a NULL struct every field is NULL; `StructArray.field` would show what lies under it.
                cells = pc.struct_field(cells, [cells.type.get_field_index(step)])
            flat[self.delimiter.join((name, *path))] = cells
        return flat

    def _json(self, table: pa.Table, name: str) -> dict[str, pa.Array]:
        page = pa.table({name: table.column(name)})
        texts = [_extract(name, path, word) for path, word in self.paths.items()]
        found = sql.evaluate(texts, page, [pa.string()] * len(texts))
        flat = {}
        for (path, word), cells in zip(self.paths.items(), found, strict=True):
            target, place = type_of(word), self._flat(name, path)
            if target == JSON:
                flat[place] = pa.ExtensionArray.from_storage(JSON, cells)
                continue
            flat[place], bad = convert(pa.chunked_array([cells]), target)
            if bad is not None:
                raise refusal(place, bad, target)
        return flat


def _leaves(arrow: pa.StructType, *, depth: int) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    """Yield path and type of every field that is no struct, or lies as deep as asked."""
    for field in arrow:
        if pa.types.is_struct(field.type) and depth > 1:
            yield from (((field.name, *path), kind) for path, kind in _leaves(field.type, depth=depth - 1))
        else:
            yield (field.name,), field.type


def _extract(name: str, path: str, word: str) -> str:
    """Write the SQL that takes one path out of a JSON column."""
    quoted = name.replace('"', '""')
    steps = "".join(f'."{re.sub(chr(34), "", step)}"' for step in path.split(".")).replace("'", "''")
    call = "json_extract" if type_of(word) == JSON else "json_extract_string"
    return f"{call}(\"{quoted}\", '${steps}')::VARCHAR"
