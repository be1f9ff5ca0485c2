"""Limits of a source as its user meets them: commands, what is published, what the next run goes on with."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from rivet_assets.cli.main import commands
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.destinations.local import Local
from rivet_resources.state.store import default_url, open_state

CONFIG = """
source: {type: sqlite, path: shop.db, LIMITS}
spark: inline
exports:
  - name: orders
    table: orders
    MODE
    format: parquet
    destination: {type: local, path: lake}
"""
MODES = {
    "full": "mode: full",
    "chunked": "mode: chunked\n    chunk_column: id\n    chunk_size: 1000\n    chunk_checkpoint: true",
}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Write a configuration of 6,000 rows with these limits."""
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db")) as shop, shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
        shop.executemany("INSERT INTO orders VALUES (?, ?)", [(n, f"note {n}") for n in range(6000)])

    def write(limits: str, mode: str = "full") -> None:
        Path("rivet.yaml").write_text(CONFIG.replace("LIMITS", limits).replace("MODE", MODES[mode]))

    return write


def rivet(*words: str) -> tuple[int, str]:
    """Run a command in this process: its exit code, and what it told, without line breaks."""
    done = CliRunner().invoke(commands, list(words), standalone_mode=False)
    return int(done.return_value or done.exit_code), " ".join([*done.output.split(), str(done.exception or "")])


def published() -> list[int]:
    """Return the rows of each committed window."""
    return [each.row_count for each in current_manifests(Local(path="lake").root("orders")).values()]


def closed_now() -> str:
    """Return a window that opens in two hours."""
    opens = datetime.now(UTC) + timedelta(hours=2)
    return f'read_windows: [{{start: "{opens:%H:%M}", end: "{opens + timedelta(hours=1):%H:%M}"}}]'


def test_budget_that_is_reached_in_mid_run_publishes_nothing_and_chunks_are_kept(write) -> None:
    """The run after the budget was raised reads the rest, and no chunk twice."""
    write("budget: {rows_per_month: 2600}", "chunked")

    code, told = rivet("run")
    assert (2, []) == (code, published())
    assert "the budget of the source for" in told
    assert "RIVET_BUDGET_REACHED" in told
    write("budget: {rows_per_month: 7000}", "chunked")
    code, told = rivet("run")

    assert (0, [6000]) == (code, published())
    assert "3 of 6 chunks (3,000 rows) were kept of a run that died" in rivet("journal")[1]
    assert "6,000 of 7,000 rows (86%) read" in told  # beyond 80 % it is warned of


def test_budget_stops_a_full_export_between_pages(write) -> None:
    """It has no chunks to keep: nothing of it is left, and its rows count."""
    write("tuning: {batch_size: 500}, budget: {rows_per_month: 2500}")

    code, _ = rivet("run")

    assert (2, []) == (code, published())
    assert [] == [path for path in Path("lake").rglob("*.parquet")]
    with closing(open_state(default_url(Path.cwd()))) as state:
        read = state.read_in_month(f"sqlite:{Path('shop.db').resolve()}", datetime.now(UTC))
    assert 2500 <= read.rows <= 3500


def test_run_after_the_budget_connects_to_nothing(write) -> None:
    """Refused before the first connection: the file need not even be there."""
    write("budget: {rows_per_month: 1}")
    rivet("run")
    Path("shop.db").unlink()

    code, told = rivet("run")

    assert 2 == code
    assert "RIVET_BUDGET_REACHED" in told


def test_budget_that_warns_publishes_and_says_so(write) -> None:
    """`on_reached: warn`."""
    write("budget: {rows_per_month: 100, on_reached: warn}")

    code, told = rivet("run")

    assert (0, [6000]) == (code, published())
    assert "6,000 of 100 rows (6000%) read" in told


def test_closed_window_refuses_every_reader_by_name(write) -> None:
    """Runs and proofs; the message says when it opens."""
    write("budget: {rows_per_month: 100000}")
    rivet("run")
    write(closed_now())

    for words in (["run"], ["reconcile"]):
        code, told = rivet(*words)
        assert code, words
        assert "The next window opens at" in told, words
    assert [6000] == published()


def test_check_and_plan_tell_of_limits(write) -> None:
    """What is allowed, how long it takes at least, what is read of the month, and that it is closed now."""
    write("rate_limit: {rows_per_second: 1000000}, budget: {rows_per_month: 7000}")
    rivet("run")
    write(f"rate_limit: {{rows_per_second: 100}}, budget: {{rows_per_month: 7000}}, {closed_now()}")

    code, checked = rivet("check")
    _, planned = rivet("plan")

    assert 0 == code
    for told in (checked, planned):
        assert re.search(r"no more than 100 rows/s: about [56],\d{3} rows take 1 min or more", told)
        assert "closed now, opens at" in told
        assert "6,000 of 7,000 rows (86%) read" in told


def test_limits_change_no_digest(write) -> None:
    """A plan that was made before is still good, whatever pace its source is read at."""
    write("tuning: {profile: fast}")
    rivet("plan", "-o", "before.json")
    write("tuning: {profile: fast}, rate_limit: {rows_per_second: 1000000}, budget: {rows_per_month: 100000}")

    code, told = rivet("apply", "before.json")

    assert (0, [6000]) == (code, published()), told


@pytest.mark.spark
def test_rate_holds_in_sparks_workers(write) -> None:
    """Tasks of Spark count in the same store as this process."""
    write("rate_limit: {rows_per_second: 1000000}")
    text = Path("rivet.yaml").read_text().replace("spark: inline", 'spark: {master: "local[2,3]"}')
    text = text.replace("path: lake", f"path: {Path.cwd() / 'lake'}")  # the JVM may be one that began elsewhere
    Path("rivet.yaml").write_text(text.replace("mode: full", MODES["chunked"] + "\n    parallel: 2"))

    code, told = rivet("run")

    assert (0, [6000]) == (code, published()), told
    with closing(open_state(default_url(Path.cwd()))) as state:
        read = state.read_in_month(f"sqlite:{Path('shop.db').resolve()}", datetime.now(UTC))
    assert 6000 == read.rows


def test_drain_does_not_begin_outside_of_its_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its position stays where it is."""
    monkeypatch.chdir(tmp_path)
    source = f"{{type: datagen, pattern: orders, cdc_mode: true, max_events: 10, seed: 1, {closed_now()}}}"
    export = "{name: changes, table: orders, mode: cdc, format: ndjson, destination: {type: local, path: lake}}"
    Path("rivet.yaml").write_text(f"source: {source}\nexports:\n  - {export}\n")

    code, told = rivet("run")

    assert 2 == code
    assert "RIVET_READ_WINDOW_CLOSED" in told
    assert not list(Path("lake").rglob("*.ndjson"))
