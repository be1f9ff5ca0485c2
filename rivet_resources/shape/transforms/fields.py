"""Schemas between steps: finding columns by name or glob, and the fields of columns a step made.

Belongs here: what every step's `plan` needs. Not here: cells (`cell_text.py`, `convert.py`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import pyarrow as pa

from rivet_resources.contracts.transform import StepPlan, TransformError

DERIVED = b"rivet.derived"  # which step made the column: mask(email)
KEPT = (b"rivet.comment", b"comment")  # what stays true of a column when its cells were replaced


def storage(arrow: pa.DataType) -> pa.DataType:
    """See through an extension type."""
    return arrow.storage_type if isinstance(arrow, pa.BaseExtensionType) else arrow


def is_text(arrow: pa.DataType) -> bool:
    """Return whether cells are plain text; JSON is not, its text has a grammar."""
    return bool(pa.types.is_string(arrow) or pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow))


def whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column of a page as one array; no copy when it is one already."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def plain(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array of its storage type."""
    array = whole(column)
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def missing(name: str, names: Iterable[str]) -> TransformError:
    """Return that a column does not exist, what does, and what was probably meant."""
    known = list(names)
    near = difflib.get_close_matches(name, known, 1, 0.6) or [k for k in known if k.lower() == name.lower()]
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return TransformError(f"no column {name!r} at this step; there are {', '.join(known)}.{hint}")


def check_unique(schema: pa.Schema) -> None:
    """Refuse two columns of one name: no step could tell them apart.

    Raises:
        TransformError
    """
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise TransformError(f"column {', '.join(map(repr, twice))} exists twice; give one an alias in the query.")


def present(schema: pa.Schema, names: Sequence[str], *, ignore_missing: bool) -> tuple[str, ...]:
    """Return the named columns that exist, as listed.

    Raises:
        TransformError: one does not exist, and that is not ignored.
    """
    if not ignore_missing:
        for name in names:
            if name not in schema.names:
                raise missing(name, schema.names)
    return tuple(dict.fromkeys(name for name in names if name in schema.names))


def _is_glob(pattern: str) -> bool:
    return any(mark in pattern for mark in "*?[")


def matching(
    schema: pa.Schema,
    patterns: Sequence[str],
    *,
    ignore_missing: bool,
    suits: Callable[[pa.DataType], bool] | None = None,
) -> tuple[str, ...]:
    """Return the columns that names or globs choose, in schema order; globs pass over types that do not suit.

    Raises:
        TransformError: a name does not exist, a glob chooses nothing (unless ignored), or a name's type does not suit.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        if pattern in schema.names:
            if suits is not None and not suits(schema.field(pattern).type):
                raise TransformError(f"column {pattern!r} is {schema.field(pattern).type}, not text; cast it first.")
            chosen.add(pattern)
            continue
        found = {
            field.name
            for field in schema
            if _is_glob(pattern) and fnmatchcase(field.name, pattern) and (suits is None or suits(field.type))
        }
        if not found and not ignore_missing:
            raise missing(pattern, schema.names)
        chosen |= found
    return tuple(name for name in schema.names if name in chosen)


def derived(name: str, arrow: pa.DataType, by: str, *, of: pa.Field | None = None, nullable: bool = True) -> pa.Field:
    """Describe a column that a step made; a comment of the column it replaces stays, its native type does not."""
    kept = {key: value for key, value in ((of.metadata or {}) if of is not None else {}).items() if key in KEPT}
    metadata = {**kept, b"rivet.native_type": str(arrow).encode(), b"rivet.fidelity": b"exact", DERIVED: by.encode()}
    if isinstance(arrow, pa.BaseExtensionType):
        # Without `arrow.`: uuid, json.
        metadata[b"rivet.native_type"] = metadata[b"rivet.logical_type"] = arrow.extension_name[6:].encode()
    return pa.field(name, arrow, nullable=nullable, metadata=metadata)


def lossy(field: pa.Field) -> pa.Field:
    """Mark a field as one whose cells lost something on purpose."""
    return field.with_metadata({**(field.metadata or {}), b"rivet.fidelity": b"lossy"})


def itself(schema: pa.Schema) -> dict[str, frozenset[str]]:
    """Return the lineage of columns that nothing touched."""
    return {name: frozenset({name}) for name in schema.names}


def with_fields(
    schema: pa.Schema,
    fields: Sequence[pa.Field],
    origins: Mapping[str, frozenset[str]],
    *,
    masked: frozenset[str] = frozenset(),
) -> StepPlan:
    """Plan a step that replaces columns in place and appends new ones."""
    by_name = {field.name: field for field in fields}
    kept = [by_name.pop(field.name, field) for field in schema]
    planned = pa.schema([*kept, *by_name.values()], metadata=schema.metadata)
    changed = frozenset(field.name for field in fields)
    return StepPlan(planned, {**itself(schema), **origins}, changed, masked)


def with_columns(table: pa.Table, columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
    """Replace columns in place and append new ones; all others stay the arrays they are."""
    names = [*table.column_names, *(name for name in columns if name not in table.column_names)]
    arrays = [columns[name] if name in columns else table.column(name) for name in names]
    return pa.table(arrays, names=names)


def check_new(schema: pa.Schema, names: Iterable[str], *, do: str) -> None:
    """Refuse new columns whose name is taken.

    Raises:
        TransformError
    """
    for name in names:
        if name in schema.names:
            raise TransformError(f"column {name!r} exists already; {do}")
