"""Which columns `mask_tags` masks now, beside those that it ever masked: decided before a row is read.

Belongs here: what a tag that went, or came, means for a run. Not here: tags and rules (`transforms/mask_tags.py`),
the table that remembers (`state/masks.py`).

A column that lost its tag stops the run, and is not told and published: a comment is text that anybody with a right on
the table rewrites, and files that left with plain values are not called back (decided 2026-11-26).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from rivet_assets.run.baseline import baseline_of
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.contracts.messages import is_topic
from rivet_resources.errors import DriftRefused
from rivet_resources.shape.shape import planned
from rivet_resources.shape.transforms.mask_tags import TaggedColumn, tagged_columns, unmasked_columns

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.destination import Root
    from rivet_resources.contracts.relation import Relation
    from rivet_resources.state.store import State

NEWLY_MASKED = "masked from this run on:"  # how such notes begin, which a run's summary tells as warnings


def judge_masks(
    export: Export, relation: Relation, *, state: State, root: Root, key: Callable[[], Collection[str]] = tuple
) -> tuple[str, ...]:
    """Refuse columns that lost their tags, remember those that have one; return what the run is to tell.

    Args:
        key: names the columns by which readers tell apart what is published, where they do; asked only if it matters.

    Raises:
        DriftRefused: a column was masked, has no tag any more, and would be published plain; or one of the key, whose
            plain values are published, has a tag now.
        ColumnTagRefused: the tags of a column cannot be read, or no rule is for them.
        ManifestUnreadable: the store knows of no masks, and neither can the last commits be asked.
    """
    found = tagged_columns(export.steps, relation)
    if found is None:
        return ()
    held = state.masked_columns(export.name)
    before = _of_manifests(root) if held is None else held
    if lost := lost_tags(export, relation, before):
        raise DriftRefused(lost_text(export, relation, lost))
    came = _published_plain(export, [each for each in found if each.name not in before], state=state, root=root)
    # Before anything is remembered: the next run has to ask again.
    if came and (parted := [each for each in came if each.name in key()]):
        raise DriftRefused(_key_text(export, relation, parted[0]))
    now = {each.name: each.tag for each in found}
    if held is None or now.items() - held.items():
        state.remember_masks(export.name, {**before, **now})
    return tuple(_news(export, came))


def with_remembered(export: Export, relation: Relation, *, state: State, root: Root) -> Relation:
    """Return the relation of a log with the tags that its columns had which the table has no more.

    Raises:
        ManifestUnreadable: as `judge_masks`.
    """
    if not relation.gone:
        return relation
    held = state.masked_columns(export.name)
    before = _of_manifests(root) if held is None else held
    columns = tuple(
        replace(column, comment=before.get(column.name, "")) if column.name in relation.gone else column
        for column in relation.columns
    )
    return replace(relation, columns=columns)


def lost_tags(export: Export, relation: Relation, before: Mapping[str, str]) -> dict[str, str]:
    """Return {column: tag} of those that were masked by a tag and would be published plain now.

    Raises:
        ColumnTagRefused, TransformError
    """
    if not before:
        return {}
    plan = planned(relation, export.steps)
    plain = frozenset().union(*plan.origins.values()) - plan.masked - unmasked_columns(relation, export.unmasked or ())
    return {name: tag for name, tag in before.items() if name in plain}


def lost_text(export: Export, relation: Relation, lost: Mapping[str, str]) -> str:
    """Return what is wrong, and what to do."""
    named = ", ".join(f"{name!r} (tag {tag!r})" for name, tag in lost.items())
    return (
        f"Export {export.name}: columns of {relation.name} that were masked by their tags have none any more: {named}. "
        f"No row was read. Write the tag again, into the comment of the column or the contract; or, if plain values "
        f"may be published, name the column in `unmasked`."
    )


def _of_manifests(root: Root) -> dict[str, str]:
    """Return what the committed windows say of their masked columns, where the store knows of none."""
    manifests = current_manifests(root).values() if root.keeps_manifests else ()
    in_order = sorted(manifests, key=lambda each: each.finished_at)
    return {name: tag for manifest in in_order for name, tag in (manifest.masked or {}).items()}


def _published_plain(export: Export, came: list[TaggedColumn], *, state: State, root: Root) -> list[TaggedColumn]:
    """Return those of the columns that are masked now for the first time whose plain values are published."""
    published = {name for name, _ in baseline_of(export.name, state=state, root=root) or ()} if came else set()
    return [each for each in came if each.name in published]


def _news(export: Export, came: list[TaggedColumn]) -> list[str]:
    """Return a note of each of the columns that were published plain so far, and whose files stay as they are."""
    again = f"rivet run -e {export.name}"
    if export.answers.keeps_cursor or export.answers.follows_log:
        again = f"rivet state reset -e {_drained_by(export)}"
    return [
        f"{NEWLY_MASKED} column {each.name}, by its tag {each.tag!r}; windows that are not exported anew "
        f"(`{again}`, or a backfill of partitions) keep its plain values"
        for each in came
    ]


def _key_text(export: Export, relation: Relation, each: TaggedColumn) -> str:
    """Return why a column of a key is not masked from one run to the next."""
    elsewhere = "another topic, " if is_topic(export.destination) else ""  # what is in one cannot be replaced
    return (
        f"Export {export.name}: column {each.name!r} of {relation.name} has the tag {each.tag!r} now, and its plain "
        f"values tell the rows apart that are published: masked from now on, no change would find its row. No row was "
        f"published. Begin anew, so that all of it is masked ({elsewhere}`rivet state reset -e {_drained_by(export)}`, "
        f"then the export); or name the column in `unmasked`."
    )


def _drained_by(export: Export) -> str:
    """Name the export as the YAML does; one table of a drain is called `<export>/<table>`."""
    return export.name.partition("/")[0] if export.answers.follows_log else export.name
