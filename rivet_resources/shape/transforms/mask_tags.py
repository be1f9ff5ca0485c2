"""Masks that follow the tags of columns (`mask_tags:`): of the database's comments, or of the contract.

Belongs here: what a tag is, which rule a column gets, and the step that masks before any other step sees a row. Not
here: the methods (`mask.py`), what is remembered of masked columns (`rivet_assets/run/masked_columns.py`).

Which columns are masked is decided from a relation, so the step that an export has cannot be planned before it was
resolved for one (`shape.planned`): whoever forgets that gets an error, and no plain row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pyarrow as pa
from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.settings import Settings
from rivet_resources.contracts.transform import StepPlan, Transform, TransformError
from rivet_resources.contracts.types import Column
from rivet_resources.shape.transforms.fields import check_unique, itself, missing
from rivet_resources.shape.transforms.mask import Mask, Method, bare_null, misfit
from rivet_resources.shape.transforms.pipeline import plan

WORD = r"\w(?:[\w.-]*\w)?"
UNRESOLVED = "mask_tags: columns are masked by tags that nobody looked up here. This is a bug of Rivet."
TAG = re.compile(rf"({WORD})(?:\s*:\s*({WORD}))?")


class ColumnTagRefused(TransformError):
    """A column's tags cannot be read, no rule of `mask_tags` names one of them, or two rules do."""

    code = "RIVET_COLUMN_TAG_REFUSED"


def tag_word(text: str) -> str:
    """Return a tag in its one spelling, `pii` or `pii: email`.

    Raises:
        ValueError: it is no tag.
    """
    found = TAG.fullmatch(text.strip().casefold())
    if found is None:
        raise ValueError(f"{text!r} is no tag; write a word, or two as in 'pii: email'")
    return _joined(found[1], found[2])


Tag = Annotated[str, AfterValidator(tag_word)]


def _joined(family: str, value: str | None) -> str:
    return f"{family}: {value}" if value else family


def family_of(tag: str) -> str:
    """Return the part of a tag before its colon."""
    return tag.partition(":")[0]


class MaskRule(Settings):
    """How columns with a tag are masked: the keys of a step of `type: mask`."""

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

    @field_validator("method", mode="before")
    @classmethod
    def _bare_null(cls, given: object) -> object:
        return bare_null(given)

    @model_validator(mode="after")
    def _options_fit_method(self) -> MaskRule:
        if why := misfit(self):
            raise ValueError(why)
        return self

    def mask(self, *columns: str) -> Mask:
        """Return the step that masks these columns so."""
        keys = {name: getattr(self, name) for name in type(self).model_fields}
        return Mask.model_construct(type="mask", fields=columns, **keys)


@dataclass(frozen=True)
class TaggedColumn:
    """A column that is masked, and the tag and rule that say so."""

    name: str
    tag: str
    rule: str  # the key of `mask_tags`


@dataclass(frozen=True)
class TagMasks:
    """The masks of an export before anybody knows the columns.

    `of_contract`: column as it is written → the texts of its tags there, () where the contract names it and no tag.
    `rest`: the steps after this one, by which a written column leads to those of the source.
    `of_log`: rows are those of a log, with columns of then, so `unmasked` may name some that a table does not have.
    """

    rules: Mapping[str, MaskRule]
    unmasked: tuple[str, ...] = ()
    of_contract: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rest: tuple[Transform, ...] = ()
    of_log: bool = False
    type: Literal["mask_tags"] = "mask_tags"

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Refuse: comments are no part of a schema.

        Raises:
            ColumnTagRefused: always.
        """
        raise ColumnTagRefused(UNRESOLVED)

    def apply(self, table: pa.Table) -> pa.Table:
        """Refuse, as `plan`.

        Raises:
            ColumnTagRefused: always.
        """
        raise ColumnTagRefused(UNRESOLVED)

    def of(self, relation: Relation) -> TaggedMasks:
        """Return the step for the columns of a relation.

        Raises:
            ColumnTagRefused: the tags of a column cannot be read, or no rule, or two, are for them.
            TransformError: a step does not fit the columns.
        """
        schema = pa.schema([column.field for column in relation.columns])
        check_unique(schema)
        plain = unmasked_columns(relation, self.unmasked)
        for name in self.unmasked if not self.of_log else ():
            if not unmasked_columns(relation, (name,)):
                raise ColumnTagRefused(f"unmasked: {missing(name, schema.names)}")
        is_told = relation.comments == "all" and not relation.gone
        # Planning the steps costs milliseconds for each SQL text, and comments alone need none of it.
        written = {} if is_told and not self.of_contract else self._written(schema)
        found = []
        for column in relation.columns:
            if column.name in plain:
                continue
            outputs = written.get(column.name, ())
            is_readable = _is_readable(relation, column)
            if not is_readable and not self.of_contract.keys() >= set(outputs):
                raise _unreadable(relation, column.name)
            texts = [text for name in outputs for text in self.of_contract.get(name, ())]
            tags = {tag for text in (*texts, column.comment if is_readable else "") for tag in self.tags_in(text)}
            if (chosen := self._choose(column.name, tags)) is not None:
                found.append(chosen)
        return TaggedMasks(tuple(found), tuple(self.rules[each.rule].mask(each.name) for each in found))

    def tags_in(self, text: str) -> Iterator[str]:
        """Yield the tags that stand in a text: the words of `mask_tags`, with what follows their colon.

        Whoever writes "no pii" gets a mask: a text is searched for words, and not understood.
        """
        families = "|".join(sorted({re.escape(family_of(key)) for key in self.rules}, key=len, reverse=True))
        for match in re.finditer(rf"(?<!\w)({families})(?!\w)(?:\s*:\s*({WORD}))?", text.casefold()):
            yield _joined(match[1], match[2])

    def _written(self, schema: pa.Schema) -> dict[str, tuple[str, ...]]:
        """Return the written columns that each of the source's leads to; one that leads nowhere is not in it."""
        written: dict[str, tuple[str, ...]] = {}
        for name, origins in plan(self.rest, schema).origins.items():
            for origin in origins:
                written[origin] = (*written.get(origin, ()), name)
        return written

    def _choose(self, column: str, tags: set[str]) -> TaggedColumn | None:
        """Return by which tag and rule a column is masked; None where it has no tag that they are about.

        Raises:
            ColumnTagRefused
        """
        found: dict[str, str] = {}  # rule → tag
        for tag in _closest(tags):
            rule = tag if tag in self.rules else family_of(tag)
            if rule not in self.rules:
                raise ColumnTagRefused(
                    f"mask_tags: column {column!r} has the tag {tag!r}, and no rule is for it; there are rules for "
                    f"{', '.join(map(repr, self.rules))}. Add one for {tag!r}"
                    f"{f', or for {rule!r} as a whole' if rule != tag else ''}, or name the column in `unmasked`."
                )
            found.setdefault(rule, tag)
        rules = [self.rules[rule] for rule in found]
        if any(rule != rules[0] for rule in rules):
            raise ColumnTagRefused(
                f"mask_tags: column {column!r} has the tags {', '.join(map(repr, found.values()))}, whose rules "
                f"differ. Leave one tag, or name the column in `unmasked` and mask it in `transforms:`."
            )
        return next((TaggedColumn(column, tag, rule) for rule, tag in found.items()), None)


@dataclass(frozen=True)
class TaggedMasks:
    """The masks of an export for the columns of one relation: one step, whatever the number of its rules."""

    columns: tuple[TaggedColumn, ...]
    masks: tuple[Mask, ...]
    type: Literal["mask_tags"] = "mask_tags"

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Plan all masks as one step.

        Raises:
            TransformError: a column has no type, and is to be hashed.
        """
        changed: frozenset[str] = frozenset()
        masked: frozenset[str] = frozenset()
        for mask in self.masks:
            planned = mask.plan(schema)
            schema, changed, masked = planned.schema, changed | planned.changed, masked | planned.masked
        return StepPlan(schema, itself(schema), changed, masked)

    def apply(self, table: pa.Table) -> pa.Table:
        """Mask a page.

        Raises:
            ConfigError: the variable of `key_env` is not set where the task runs.
        """
        for mask in self.masks:
            table = mask.apply(table)
        return table

    def after(self, earlier: TaggedMasks) -> TaggedMasks:
        """Return these masks with the columns of both, as one window of a log may have had them."""
        columns = {each.name: each for each in (*earlier.columns, *self.columns)}
        return TaggedMasks(tuple(columns.values()), self.masks)


NO_TAGS = TaggedMasks((), ())


def unmasked_columns(relation: Relation, unmasked: Iterable[str]) -> frozenset[str]:
    """Return the columns of a relation that `unmasked` names, as `column` or `table.column`."""
    label, names = relation.name, frozenset(unmasked)
    return frozenset(
        column.name
        for column in relation.columns
        if not names.isdisjoint((column.name, f"{label}.{column.name}", f"{label.rpartition('.')[2]}.{column.name}"))
    )


def resolved(steps: Sequence[Transform], relation: Relation) -> tuple[Transform, ...]:
    """Return the steps with the masks by tag as they are for a relation.

    Raises:
        ColumnTagRefused, TransformError
    """
    return tuple(step.of(relation) if isinstance(step, TagMasks) else step for step in steps)


def tagged_columns(steps: Sequence[Transform], relation: Relation) -> tuple[TaggedColumn, ...] | None:
    """Return which columns of a relation are masked by their tags; None where no step asks for it.

    Raises:
        ColumnTagRefused, TransformError
    """
    found = next((step for step in steps if isinstance(step, TagMasks | TaggedMasks)), None)
    # A window of a log has them settled, as its batches had them.
    settled = found.of(relation) if isinstance(found, TagMasks) else found
    return None if settled is None else settled.columns


def masks_by_tag(steps: Sequence[Transform]) -> TaggedMasks:
    """Return the masks by tag among steps that were resolved already."""
    return next((step for step in steps if isinstance(step, TaggedMasks)), NO_TAGS)


def _closest(tags: set[str]) -> list[str]:
    """Return tags without those that say less than another: `pii` beside `pii: email`."""
    return sorted(tag for tag in tags if not any(other != tag == family_of(other) for other in tags))


def _is_readable(relation: Relation, column: Column) -> bool:
    """Return whether the comment of a column is its own, so that an empty one says that there is no tag."""
    # What is remembered of a column that is gone stands in the comment's place.
    if column.name in relation.gone or relation.comments == "own":
        return column.comment != ""
    return relation.comments == "all"


def _unreadable(relation: Relation, column: str) -> ColumnTagRefused:
    if column in relation.gone:
        return ColumnTagRefused(
            f"mask_tags: the log has changes of {relation.name} with a column {column!r}, which the table has no more, "
            f"and whether it had a tag is not known. Name {relation.name.rpartition('.')[2]}.{column} in `unmasked`, "
            f"which publishes its values as they are; or begin anew: run `rivet state reset`, then the export."
        )
    if not relation.is_table:
        why = "of a query it is not known which column of a table that is"
    elif relation.comments == "own":
        why = f"{relation.name} is a view, or a part of a table, whose columns do not have that one's comments"
    else:
        why = "this database keeps no comments of columns"
    return ColumnTagRefused(
        f"mask_tags: whether column {column!r} of {relation.name} has a tag cannot be read: {why}. Name the column in "
        f"`contract: {{columns: …}}`, with its `tags` or without any, or in `unmasked`."
    )
