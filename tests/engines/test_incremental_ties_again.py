"""Windows that share a cursor value, read again: compared, repaired, validated, planned; each row is counted once."""

from __future__ import annotations

from pathlib import Path

import pytest

from rivet_assets.launch.apply_plan import PlanStale, apply_plan
from rivet_assets.plan.planner import plan_exports
from rivet_assets.prove.reconcile import reconcile_export
from rivet_assets.prove.reconcile_report import flagged_of
from rivet_assets.prove.reconcile_result import Depth, Reconciled
from rivet_assets.prove.repair import Repaired, repair_export
from rivet_assets.prove.validate import validate_export
from rivet_resources.contracts.settings import Spark
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import SparkRuntime
from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES, Engine

pytestmark = pytest.mark.wide

BLOCK = "{name: orders, table: orders, mode: incremental, cursor_column: k}"
FILTERED = BLOCK.replace("}", ", transforms: [{type: filter, where: 'id >= 0'}]}")
DEPTHS: tuple[Depth, ...] = ("counts", "checksums", "rows")
KEYS = {"key": " NOT NULL PRIMARY KEY", "no-key": ""}


@pytest.fixture(params=["sqlite"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The engine a test runs on."""
    return ENGINES[request.param]


@pytest.fixture
def lab(tmp_path: Path, engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """An empty database and an empty folder."""
    return lab_in(tmp_path, engine, request, monkeypatch)


everywhere = pytest.mark.parametrize("engine", ["sqlite", "postgres", "mariadb", "sqlserver"], indirect=True)
every_key = pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)


def insert(lab: Lab, *keys: int, k: object) -> None:
    """Insert rows of one cursor value."""
    lab.insert("orders", [{"id": id, "k": k, "note": f"note {id}"} for id in keys])


def exported(lab: Lab, block: str = BLOCK, *, key: str = KEYS["key"], word: str = "whole") -> None:
    """Export four windows: up to 10, twice 10 alone, and from 10 to 11."""
    whole, note = lab.engine.types["whole"], lab.engine.types["note"]
    lab.sql(f"CREATE TABLE orders (id {whole}{key}, k {lab.engine.types[word]}, note {note})")
    for new in ({9: (1,), 10: (2, 3)}, {10: (4, 5)}, {10: (0,)}, {10: (6,), 11: (7, 8)}):
        for k, keys in new.items():
            insert(lab, *keys, k=f"{k:02}" if word == "note" else k)
        outcome = lab.export(block)
        assert outcome.success, outcome.message
    assert {"after=start", "after=10", "after+1=10", "after+2=10"} == set(lab.manifests("orders"))


def compared(lab: Lab, block: str = BLOCK, depth: Depth = "counts") -> Reconciled:
    """Compare with the source."""
    config = lab.config(block)
    return reconcile_export(config, config.exports[0], depth=depth, state=lab.state, tell=lambda line: None)


def verdicts(lab: Lab, block: str = BLOCK, depth: Depth = "counts") -> dict[str, str]:
    """Return the verdict of each window."""
    return {each.window: each.verdict for each in compared(lab, block, depth).windows}


def repaired(lab: Lab, block: str = BLOCK, depth: Depth = "checksums") -> Repaired:
    """Repair what differs."""
    config, state = lab.config(block), lab.state
    report = flagged_of(compared(lab, block, depth))
    exporter = Exporter(SparkRuntime(Spark(engine="inline")), state)
    return repair_export(
        config, config.exports[0], report, execute=True, exporter=exporter, state=state, tell=lambda line: None
    )


@everywhere
@every_key
@pytest.mark.matrix
@pytest.mark.parametrize("depth", DEPTHS)
def test_windows_of_one_value_match_the_source_together(lab: Lab, key: str, depth: Depth) -> None:
    """Each row of the source is counted, summed and compared in one window."""
    exported(lab, key=key)

    found = compared(lab, depth=depth)

    assert {"match"} == {each.verdict for each in found.windows}, [each.text for each in found.windows]
    assert 9 == sum(each.source_count for each in found.windows)


@pytest.mark.parametrize("depth", DEPTHS)
def test_rows_that_came_to_the_last_value_since_are_of_the_next_run(lab: Lab, depth: Depth) -> None:
    """They are told, and are no difference; the next run brings them."""
    exported(lab)
    insert(lab, 9, 10, k=11)

    last = compared(lab, depth=depth).windows[-1]

    assert ("match", 3, 2) == (last.verdict, last.source_count, last.newer_rows)
    assert "2 rows came later and come with the next run" in last.text
    assert lab.export(BLOCK).rows == 2
    assert {"match"} == set(verdicts(lab, depth=depth).values())


@pytest.mark.matrix
@everywhere
@every_key
def test_repair_of_each_window_takes_its_own_rows_only(lab: Lab, key: str) -> None:
    """Rows change in every window, and more come to the last value: after repair and run each is there once."""
    exported(lab, key=key)
    lab.sql("UPDATE orders SET note = 'new' WHERE id IN (1, 7)", "DELETE FROM orders WHERE id = 4")
    insert(lab, 9, k=11)

    done = repaired(lab, depth="rows")
    outcome = lab.export(BLOCK)

    assert {"repaired"} == {each.status for each in done.windows}, [each.text for each in done.windows]
    assert outcome.success
    assert [0, 1, 2, 3, 5, 6, 7, 8, 9] == lab.ids("orders")
    assert {"match"} == set(verdicts(lab, depth="checksums").values())
    assert 0 == lab.export(BLOCK).rows


def test_row_that_came_to_a_value_the_cursor_has_passed_is_found_and_repaired(lab: Lab) -> None:
    """Nobody else takes it: the window that ended at the value does."""
    exported(lab)
    insert(lab, 12, k=10)

    before = verdicts(lab)
    done = repaired(lab)

    assert {"after=start"} == {window for window, verdict in before.items() if verdict != "match"}
    assert ["after=start"] == [each.window for each in done.windows]
    assert [*range(9), 12] == lab.ids("orders")
    assert {"match"} == set(verdicts(lab, depth="checksums").values())


@pytest.mark.parametrize("emptied", ["DELETE FROM orders WHERE k = 10", "DELETE FROM orders"])
def test_repair_keeps_the_chain_of_windows(lab: Lab, emptied: str) -> None:
    """A window of one value that is empty by now stays where it is: the store can be filled from the manifests."""
    exported(lab)
    lab.sql(emptied)
    repaired(lab)
    (lab.folder / ".rivet_state.db").unlink()
    insert(lab, 20, k=12)

    outcome = lab.export(BLOCK)

    assert (True, 1) == (outcome.success, outcome.rows)
    assert 20 in lab.ids("orders")


@pytest.mark.parametrize("depth", DEPTHS)
def test_windows_whose_manifests_name_no_rows_are_not_mistaken(lab: Lab, depth: Depth) -> None:
    """An export with transforms keeps names out of manifests: counts still match, and nothing is called different."""
    exported(lab, FILTERED)

    found = verdicts(lab, FILTERED, depth)

    assert ({"match"} if depth == "counts" else {"unknown"}) == set(found.values())


def test_repair_that_cannot_tell_the_rows_changes_nothing(lab: Lab) -> None:
    """Where the manifests do not say whose a row is, repair says so."""
    exported(lab, FILTERED)
    lab.sql("DELETE FROM orders WHERE id = 6")
    before = lab.ids("orders")

    done = repaired(lab, FILTERED, "counts")

    assert {"failed"} <= {each.status for each in done.windows} or not done.windows
    assert before == lab.ids("orders")


def test_texts_are_compared_and_repaired_by_the_server(lab: Lab) -> None:
    """A cursor of texts is read in several chunks, again too."""
    exported(lab, word="note")
    assert {"match"} == set(verdicts(lab, depth="checksums").values())
    lab.sql("UPDATE orders SET note = 'new' WHERE id IN (2, 8)")

    repaired(lab)

    assert list(range(9)) == lab.ids("orders")
    assert {"match"} == set(verdicts(lab, depth="checksums").values())


def test_windows_of_one_value_validate(lab: Lab) -> None:
    """They form one chain, and the store stands at its end."""
    exported(lab)
    config = lab.config(BLOCK)

    found = validate_export(config.exports[0], state=lab.state)

    assert [()] == [each.all_flaws for each in found]


def test_plan_is_stale_after_a_run_that_found_only_rows_of_the_last_value(lab: Lab) -> None:
    """The cursor is the same, the window is not."""
    lab.create("orders", {"id": "whole", "k": "whole", "note": "note"})
    insert(lab, 1, k=10)
    assert lab.export(BLOCK).success
    config = lab.config(BLOCK)
    insert(lab, 2, k=10)
    plan = plan_exports(config).artefact
    assert ["after=10"] == [window.key for window in plan.exports[0].computed.windows]
    assert lab.export(BLOCK).rows == 1
    insert(lab, 3, k=10)

    with pytest.raises(PlanStale):
        apply_plan(config, plan, watch=lambda news: None)

    assert ["after+1=10"] == [window.key for window in plan_exports(config).artefact.exports[0].computed.windows]
