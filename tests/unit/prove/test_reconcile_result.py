"""Verdicts, reports and the arithmetic of key ranges, without a database."""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow as pa
import pytest

from rivet_assets.modes.full import Full
from rivet_assets.modes.reread import above, below, gaps
from rivet_assets.prove.reconcile_report import Flagged, exit_code, flagged_in, flagged_of
from rivet_assets.prove.reconcile_result import (
    ChunkVerdict,
    Reconciled,
    WindowVerdict,
    facts_of_reconcile,
    word_verdict,
)
from rivet_assets.prove.reconcile_window import differing
from rivet_resources.commit.manifest_entries import ColumnChecksum, ManifestChunk, ManifestRange
from rivet_resources.contracts.relation import KeyRange
from rivet_resources.contracts.types import Column
from rivet_resources.prove.compare_rows import Example, RowDifferences

WHOLE = Column(name="id", native="bigint", arrow=pa.int64(), select='"id"', nullable=False)
TEXT = Column(name="id", native="text", arrow=pa.string(), select='"id"', nullable=False)


class Cut:
    """A manifest as far as its chunks."""

    def __init__(self, *ranges: tuple[str | None, str | None, str]) -> None:
        self.chunks = [
            ManifestChunk(
                chunk=index,
                range=ManifestRange(
                    column="id", low=low, high=high, low_inclusive=ends[0] == "[", high_inclusive=ends[1] == "]"
                ),
                rows=0,
                source_row_count=0,
            )
            for index, (low, high, ends) in enumerate(ranges)
        ]


GAPS: list[tuple[Column, Cut, list[KeyRange]]] = [
    (WHOLE, Cut(("1", "10", "[]"), ("11", "20", "[]")), []),
    (WHOLE, Cut(("-10", "-1", "[]"), ("0", "9", "[]")), []),
    (WHOLE, Cut(("1", "10", "[]"), ("10", "20", "(]")), []),
    (WHOLE, Cut(("1", "9", "[]"), ("11", "20", "[]")), [KeyRange("id", "9", "11", False, False)]),
    (WHOLE, Cut(("1", "10", "[)"), ("10", "20", "(]")), [KeyRange("id", "10", "10", True, True)]),
    (WHOLE, Cut(("1", "x", "[]"), ("11", "20", "[]")), [KeyRange("id", "x", "11", False, False)]),
    (TEXT, Cut(("1", "10", "[]"), ("11", "20", "[]")), [KeyRange("id", "10", "11", False, False)]),
    (TEXT, Cut(("a", "b", "[]"), ("b", "c", "(]")), []),
    (WHOLE, Cut(("1", None, "[]"), ("11", "20", "[]")), [KeyRange("id", None, "11", False, False)]),
    (WHOLE, Cut(("1", "10", "[]")), []),
]


@pytest.mark.parametrize(("column", "manifest", "expected"), GAPS)
def test_gaps_are_the_keys_that_no_range_holds(column: Column, manifest: Any, expected: list[KeyRange]) -> None:
    """Ranges that meet leave nothing between them; others leave a range with the ends they exclude."""
    assert expected == list(gaps(manifest, column))


def test_keys_outside_begin_where_the_ranges_end() -> None:
    """The outer ranges take exactly the ends that the chunks leave."""
    manifest: Any = Cut(("1", "10", "[]"), ("10", "20", "()"))

    assert below(manifest) == KeyRange("id", None, "1", True, False)
    assert above(manifest) == KeyRange("id", "20", None, True, True)
    open_ended: Any = Cut((None, None, "[]"))
    assert (below(open_ended), above(open_ended)) == (None, None)


def test_sums_differ_by_name_and_nothing_is_as_good_as_zero() -> None:
    """A column without a cell has no sum, or 0; the time of export is no column of the source."""
    held = [ColumnChecksum(name=name, checksum=text) for name, text in (("a", "1"), ("b", "2"), ("gone", "3"))]

    assert differing(held, {"a": 1, "b": 9, "empty": 0, "new": 4, "_rivet_exported_at": 7}) == ("b", "gone", "new")
    assert differing(None, {"empty": 0}) == ()
    assert differing(held, None) == ()


def window(verdict: Any, **more: Any) -> WindowVerdict:
    """Make a verdict on a window."""
    return WindowVerdict("all", "run_1", verdict, "told", **more)


VERDICTS = [
    ((), "unknown", 0, 1),
    (("match",), "match", 0, 0),
    (("match", "unknown"), "unknown", 0, 1),
    (("match", "unknown", "mismatch"), "mismatch", 3, 3),
]


@pytest.mark.parametrize(("verdicts", "worst", "code", "strict"), VERDICTS)
def test_worst_window_decides(verdicts: tuple[str, ...], worst: str, code: int, strict: int) -> None:
    """Mismatch outweighs unknown, which is only a warning unless proof is asked for."""
    found = Reconciled("orders", "full", "counts", tuple(map(window, verdicts)))

    assert worst == found.verdict
    assert (code, strict) == (exit_code([found], strict=False), exit_code([found], strict=True))


def test_facts_hold_no_key_of_a_row() -> None:
    """Metadata has counts and names of columns, whatever was asked for."""
    rows = RowDifferences(1, 0, 0, (Example("missing", ("the-key",)),))
    found = Reconciled("orders", "full", "rows", (window("mismatch", source_count=2, exported_rows=1, rows=rows),))

    facts = facts_of_reconcile(found)

    assert (facts["rivet/verdict"], facts["rivet/source_count"], facts["rivet/exported_rows"]) == ("mismatch", 2, 1)
    assert "the-key" not in str(facts) + word_verdict(found.windows[0], Full.answers)


def test_report_just_made_and_report_read_flag_the_same() -> None:
    """A report that went through a file asks for the same repair."""
    from rivet_assets.prove.reconcile_report import document

    chunks = (ChunkVerdict(2, 5, 6), ChunkVerdict(4, 1, 2))
    found = [
        Reconciled("a", "chunked", "counts", (window("mismatch", chunks=chunks), window("match"))),
        Reconciled("b", "chunked", "counts", (window("mismatch", chunks=chunks, outside_rows=1),)),
        Reconciled("c", "full", "counts", (window("unknown"),)),
    ]

    made = tuple(flagged for each in found for flagged in flagged_of(each))

    assert [("a", (2, 4)), ("b", ())] == [(each.export, each.chunks) for each in made]
    assert made == flagged_in(document(found))


FINDINGS = {
    "part": ([("PART_MISSING", "x.parquet")], (("x.parquet",), False)),
    "values": ([("PART_MISSING", "x.parquet"), ("VALUE_CHECKSUM", "m")], ((), False)),
    "marker": ([("SUCCESS_STALE", "_SUCCESS")], ((), True)),
    "marker and part": ([("SUCCESS_STALE", "_SUCCESS"), ("PART_MISSING", "x.parquet")], ((), False)),
}


@pytest.mark.parametrize(("findings", "expected"), FINDINGS.values(), ids=FINDINGS)
def test_report_of_validate_names_parts_where_only_parts_are_wrong(
    findings: list[tuple[str, str]], expected: tuple[tuple[str, ...], bool]
) -> None:
    """Parts alone can be read again by their chunks; a marker alone needs no row; all else the whole window."""
    told = [{"code": f"RIVET_VERIFY_{code}", "kind": "wrong", "window": "all", "path": path} for code, path in findings]
    advice = {"code": "RIVET_VERIFY_UNTRACKED_OBJECT", "kind": "advisory", "window": None, "path": "y"}
    report = {
        "exports": [
            {
                "export": "orders",
                "windows": [{"window": "all", "run_id": "run_1", "verdict": "mismatch"}],
                "findings": [*told, advice],
            }
        ]
    }

    (flagged,) = flagged_in(report)

    assert expected == (flagged.parts, flagged.markers_only)
    assert dataclasses.replace(flagged, parts=(), reason="", markers_only=False) == Flagged("orders", "all", "run_1")
