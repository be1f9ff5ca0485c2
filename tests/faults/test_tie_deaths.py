"""Deaths while rows of the last cursor value are published: after the next run each row is readable once."""

from __future__ import annotations

from pathlib import Path

import pytest

from rivet_resources.state.store import default_url
from tests import processes
from tests.faults.dying import DIED, PLACES
from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES

pytestmark = pytest.mark.faults

BLOCK = "{name: orders, table: orders, mode: incremental, cursor_column: k, tuning: {batch_size: 3}}"
FORMS = {
    "key": ("whole", " NOT NULL PRIMARY KEY"),
    "no-key": ("whole", ""),
    "text": ("note", " NOT NULL PRIMARY KEY"),  # read in several chunks: only the server compares
}
# Rows by their cursor value: only the last one's, or that and a new one's; then what comes before the rerun.
LATER = {
    "same value": ({10: (3, 4, 5, 6, 7, 8, 9)}, {10: (10,)}),
    "and above": ({10: (3, 4, 5, 6), 11: (7, 8, 9)}, {10: (10,), 11: (11,), 12: (12,)}),
}


@pytest.fixture(params=["postgres", "mariadb", "mysql", "sqlserver", "sqlite"])
def lab(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """An empty database and an empty folder."""
    return lab_in(tmp_path, ENGINES[request.param], request, monkeypatch)


def insert(lab: Lab, rows: dict[int, tuple[int, ...]], word: str) -> list[int]:
    """Insert rows of some cursor values; their ids."""
    ids = []
    for k, keys in rows.items():
        lab.insert("orders", [{"id": key, "k": f"v{k:02}" if word == "note" else k} for key in keys])
        ids += keys
    return ids


@pytest.mark.vast
@pytest.mark.parametrize("loses_state", [False, True], ids=["state", "lost-state"])
@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", PLACES)
def test_rerun_after_a_death_has_each_row_once(lab: Lab, place: str, form: str, later: str, loses_state: bool) -> None:
    """The second run dies; a reader sees no row twice, and after the third each row once, with or without the store."""
    word, key = FORMS[form]
    types = lab.engine.types
    text = types["note"].replace("200", "20")  # short enough for an index
    lab.sql(
        f"CREATE TABLE orders (id {types['whole']}{key}, k {text if word == 'note' else types['whole']})",
        "CREATE INDEX orders_k ON orders (k)",
    )
    given = insert(lab, {9: (0,), 10: (1, 2)}, word)
    assert lab.export(BLOCK).success
    given += insert(lab, LATER[later][0], word)
    lab.config(BLOCK)
    process = processes.run("tests.faults.dying", str(lab.folder / "rivet.yaml"), place)
    if (place, form, process.returncode) == ("page", "no-key", 0):
        pytest.skip("without a key it is one page there, and nobody died after the first")
    assert process.returncode == DIED, process.stdout + process.stderr
    between = lab.ids("orders")
    if loses_state:
        Path(default_url(lab.folder).removeprefix("sqlite:///")).unlink()
    published, coming = len(between) > 3, LATER[later][1]
    if later == "and above" and published and (loses_state or place in ("acknowledge", "metrics")):
        coming = {k: keys for k, keys in coming.items() if k > 10}  # the next run starts at 11
    given += insert(lab, coming, word)

    outcome = lab.export(BLOCK)
    again = lab.export(BLOCK)

    assert outcome.success, outcome.message
    assert (True, 0) == (again.success, again.rows)
    assert sorted(between) == sorted(set(between))
    assert sorted(given) == lab.ids("orders")
