"""Masks by tag over a log (`mask_tags`): comments are of now, and the changes that they decide of are of then.

Belongs here: when comments are read, and which steps the changes of a table go through. Not here: what a tag is
(`shape/transforms/mask_tags.py`), what one that went or came means (`rivet_assets/run/masked_columns.py`).

Comments are read behind each look at the log's end, and again at each change of a table's columns in the log. So no
change is newer than the tags that it is masked by: a column cannot come in the middle of a window and be published
before anybody knew its tag. A comment that changes alone is in no log, so a tag holds from the next look on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rivet_resources.contracts.change_log import Log
from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.transform import Transform
from rivet_resources.contracts.types import Column
from rivet_resources.drain.plan import JudgeTags
from rivet_resources.shape.transforms.mask_tags import TaggedMasks, TagMasks, resolved

Columns = tuple[Column, ...]
Steps = tuple[Transform, ...]


@dataclass
class TagLookup:
    """The steps of each table's changes, with the masks that its tags ask for."""

    steps: Steps
    log: Log
    judge: JudgeTags
    _known: dict[str, tuple[Columns, Steps]] = field(default_factory=dict)

    def look_again(self) -> None:
        """Forget what comments said: the log's end was looked at, and changes up to there may have later ones."""
        self._known.clear()

    def steps_of(self, table: str, columns: Columns) -> Steps:
        """Return what the next changes of a table go through.

        Args:
            columns: as the log has them in these changes.

        Raises:
            DriftRefused, ColumnTagRefused: nothing of these changes may be published.
            SourceError and its kin: the comments cannot be read.
        """
        if not is_by_tags(self.steps):
            return self.steps
        known = self._known.get(table)
        if known is None or known[0] != columns:
            known = self._known[table] = columns, self._resolve(table, columns)
        return known[1]

    def _resolve(self, table: str, columns: Columns) -> Steps:
        # A statement that emptied a table which is gone since: no cell, and nothing to mask.
        if not columns:
            return self.steps[1:]
        comments = self.log.comments(table)
        relation = Relation(
            name=table,
            sql=table,
            columns=tuple(replace(column, comment=comments.texts.get(column.name, "")) for column in columns),
            is_table=True,
            comments=comments.kind,
            gone=frozenset(column.name for column in columns) - comments.texts.keys(),
        )
        steps = resolved(self.steps, self.judge(table, relation))
        # Without a mask the step would cost each batch its time.
        return tuple(step for step in steps if not isinstance(step, TaggedMasks) or step.masks)


def is_by_tags(steps: Steps) -> bool:
    """Return whether steps begin with masks by tag, which are always the first."""
    return bool(steps) and isinstance(steps[0], TagMasks)
