"""What is concluded of one window before it is published: of its columns, of its rows, and what people are told.

Belongs here: which verdicts there are, and their order. Not here: a rule's arithmetic (`quality.py`), what a contract
compiles to (`contract_rules.py`), the columns of before (`attempt.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rivet_assets.blocks.export_values import errors_allowed
from rivet_assets.modes.incremental_boundary import note_after
from rivet_assets.run.drift import Drift
from rivet_assets.run.journal import Journal
from rivet_assets.run.judge.contract_numbers import numbers_of
from rivet_assets.run.judge.contract_rules import columns_verdict, has_column_rules, rules_of_export
from rivet_assets.run.judge.quality import (
    Verdict,
    audit,
    blocks,
    describe_refused,
    refusal,
    row_errors,
    schema_drift,
    special_values,
)
from rivet_assets.run.judge.references import check_references
from rivet_resources.commit.publish import boundary_to_keep
from rivet_resources.contracts.extract import Staged
from rivet_resources.contracts.relation import Relation
from rivet_resources.errors import ContractBroken
from rivet_resources.shape.shape import planned
from rivet_resources.write.measures import count_duplicates

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.destination import Root
    from rivet_resources.state.store import State


def judge_columns(export: Export, relation: Relation, window: str, journal: Journal) -> tuple[Verdict, ...]:
    """Judge the columns by the export's contract, before the first row is read; () without one.

    Raises:
        ContractBroken: a column that must be is not there, or is of another type.
        RivetError: values of `references` cannot be compared with those of the other export.
    """
    if export.contract is None:
        return ()
    shaped = planned(relation, export.steps).schema
    check_references(export.contract, shaped)
    if not has_column_rules(export.contract):
        return ()
    verdict = columns_verdict(export.contract, shaped, relation)
    if blocks([verdict]):
        # Written down here: the run ends before its window is judged, and nobody else would tell why.
        journal.judged((verdict,), Drift((), (), ()))
        raise ContractBroken(refusal(export.name, window, (verdict,)), verdicts=(verdict,))
    return (verdict,)


def judge_window(export: Export, staged: Staged, drift: Drift, *, root: Root, state: State) -> tuple[Verdict, ...]:
    """Judge the rows of a staged window by all rules, and add what only warns.

    Raises:
        PartCorrupt: a file of a unique column's cells is gone.
        RowRefused: an SQL text of the contract fails on the window's rows.
    """
    measures = staged.measures
    # From 0 and not from what was found: a window without rows has no file of hashes, and breaks no rule of this kind.
    duplicates = {column: 0 for column in staged.extract.unique_columns}
    if staged.extract.row_rules.key:
        duplicates[staged.extract.row_rules.key_name] = 0
    hashed = {column: files for column, files in measures.unique.items() if column in duplicates}
    duplicates |= {column: count_duplicates(root, files) for column, files in hashed.items()}
    numbers = numbers_of(export, staged, root=root, state=state)
    allowed = errors_allowed(export.max_errors, rows=measures.rows_read)
    accepted = export.on_schema_drift in ("continue", "evolve")
    return (
        *audit(rules_of_export(export), measures, duplicates, at=_ages_count_from(staged), numbers=numbers),
        *([row_errors(measures, allowed=allowed)] if export.takes_rows else []),
        special_values(measures),
        schema_drift(drift, accepted=accepted, rows=measures.rows),
    )


def _ages_count_from(staged: Staged) -> datetime:
    """Return the end of a window of the past, else now: a day that is exported again was fresh when it ended."""
    now, end = datetime.now(UTC), staged.extract.window.end
    return min(now, end) if end is not None else now


def notes_of(staged: Staged) -> Iterator[str]:
    """Yield what people are told of a staged window beside its verdicts."""
    yield from filter(None, (_describe_kept(staged), _too_large(staged), _taken_out(staged)))


def _describe_kept(staged: Staged) -> str:
    """Return which chunks a dead run had read already: they are of an earlier instant; '' for none."""
    if not staged.kept_chunks:
        return ""
    return (
        f"{staged.kept_chunks} of {len(staged.extract.chunks)} chunks ({staged.kept.rows:,} rows) were kept of a run "
        f"that died, so they are of an earlier instant"
    )


def _too_large(staged: Staged) -> str:
    """Warn that the new cursor value has more rows than are remembered; '' when it has not."""
    boundary, cursor = boundary_to_keep(staged), staged.extract.cursor
    return note_after(boundary, column=cursor.column) if boundary and cursor else ""


def _taken_out(staged: Staged) -> str:
    """Return which rows could not be exported, and how to see them; '' where all could."""
    told = describe_refused(staged.measures)
    seen = f"; `rivet quarantine show {staged.extract.export}` shows them" if staged.measures.dead else ""
    return told + seen
