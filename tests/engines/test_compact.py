"""Compaction and retention of real exports: runs, proofs and repairs after them are as if nothing had been joined."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner

from rivet_assets.cli.main import commands
from rivet_assets.config.load import load_config
from rivet_assets.prove.reconcile import reconcile_export
from rivet_assets.prove.reconcile_report import flagged_of
from rivet_assets.prove.repair import repair_export
from rivet_assets.prove.validate import validate_export
from rivet_assets.upkeep.compact import CompactedExport, compact_export
from rivet_assets.upkeep.places import UpkeepRefused
from rivet_assets.upkeep.retain import RetainedExport, retain_export
from rivet_resources.dagster.frames import Parts, read_as
from rivet_resources.errors import BucketMissing, WindowBusy
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import SparkRuntime
from rivet_resources.write.formats.text_codec import counted
from tests.lab import Lab
from tests.lab_engines import SQLITE
from tests.servers.postgres import ObjectStore

SMALL = "compact: {min_parts: 2, older_than: 0}"
INCREMENTAL = f"{{name: orders, table: orders, mode: incremental, cursor_column: id, keep: 2, {SMALL}}}"
TIES = f"{{name: orders, table: orders, mode: incremental, cursor_column: batch, {SMALL}}}"
POLL = f"{{name: orders, table: orders, mode: poll, updated_at_column: at, keep: 2, {SMALL}}}"
DAYS = "{name: orders, table: orders, mode: time_window, time_column: at, start: 2026-01-01, keep: 30d%s}"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def lab(tmp_path: Path, fresh_sqlite: str, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with no order yet, and an empty folder."""
    monkeypatch.setenv("LAB_URL", fresh_sqlite)
    monkeypatch.chdir(tmp_path)
    laboratory = Lab(tmp_path, fresh_sqlite, SQLITE)
    laboratory.create("orders", {"id": "whole", "batch": "whole", "at": "instant", "note": "note"})
    return laboratory


def insert(lab: Lab, first: int, last: int, *, batch: int = 0) -> None:
    """Insert orders of these numbers, one a day."""
    lab.insert(
        "orders",
        [
            {"id": each, "batch": batch, "at": NOON + timedelta(days=each), "note": f"note {each}"}
            for each in range(first, last + 1)
        ],
    )


def fill(lab: Lab, block: str, runs: int = 4) -> None:
    """Export ten orders in each of some runs."""
    for run in range(runs):
        insert(lab, 10 * run + 1, 10 * run + 10, batch=run)
        assert lab.export(block).success


def compacted(lab: Lab, *, days: int = 0, is_dry: bool = False) -> CompactedExport:
    """Compact the lab's export; what is replaced goes after some days."""
    export = load_config(lab.folder / "rivet.yaml").exports[0]
    return compact_export(export, state=lab.state, tell=print, grace=timedelta(days=days), is_dry=is_dry)


def retained(lab: Lab, *, days: int = 0, is_dry: bool = False, now: datetime | None = None) -> RetainedExport:
    """Drop what is too old of the lab's export."""
    export = load_config(lab.folder / "rivet.yaml").exports[0]
    grace = timedelta(days=days)
    return retain_export(export, state=lab.state, tell=print, grace=grace, is_dry=is_dry, now=now)


def flaws(lab: Lab) -> list[object]:
    """Validate at full depth; what is wrong."""
    export = load_config(lab.folder / "rivet.yaml").exports[0]
    return [flaw for each in validate_export(export, state=lab.state) for flaw in each.all_flaws]


def verdict(lab: Lab, depth: str = "checksums") -> str:
    """Reconcile with the source."""
    config = load_config(lab.folder / "rivet.yaml")
    return reconcile_export(config, config.exports[0], depth=depth, state=lab.state, tell=print).verdict  # type: ignore[arg-type]


def repaired(lab: Lab) -> list[str]:
    """Repair what differs; the status of each window."""
    config, state = load_config(lab.folder / "rivet.yaml"), lab.state
    export = config.exports[0]
    report = flagged_of(reconcile_export(config, export, state=state, tell=print))
    exporter = Exporter(SparkRuntime(config.spark), state)
    done = repair_export(config, export, report, execute=True, exporter=exporter, state=state, tell=print)
    return [each.status for each in done.windows]


# --- compaction ----------------------------------------------------------------------------------


FORMS = {
    "csv": "format: csv",
    "csv gzip": "format: csv, text_compression: gzip",
    "ndjson": "format: ndjson",
    "ndjson zstd": "format: ndjson, text_compression: zstd",
    "avro": "format: avro",
}


def text_of(file: Path) -> bytes:
    """Return what a text part says, unpacked."""
    with counted(file) as text:
        return text.read()


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_windows_of_other_formats_are_joined_too(lab: Lab, form: str) -> None:
    """Counted, summed and compared like Parquet's, and the next run goes on behind them."""
    block = INCREMENTAL.replace("{name", f"{{{form}, name")
    fill(lab, block)

    done = compacted(lab)
    insert(lab, 41, 50)

    assert [("joined", 3, 3, 1)] == [(e.status, e.windows, e.parts, e.parts_after) for e in done.joins], done.joins
    assert lab.export(block).success
    assert [30, 10, 10] == [lab.manifests("orders")[f"after={at}"].row_count for at in ("start", 30, 40)]
    assert [] == flaws(lab)
    assert "match" == verdict(lab)
    assert 3 == len(lab.parts("orders"))


@pytest.mark.parametrize("form", [form for name, form in FORMS.items() if name != "avro"])
def test_lines_of_text_are_joined_as_they_are(lab: Lab, form: str) -> None:
    """No cell is spelled anew: the joined text is the header once, and the lines of each part in their order."""
    block = INCREMENTAL.replace("{name", f"{{{form}, name")
    fill(lab, block)
    lab.insert("orders", [{"id": 41, "batch": 4, "at": NOON, "note": 'a "quoted",\nnote'}])
    assert lab.export(block).success
    insert(lab, 42, 50)
    assert lab.export(block).success
    windows = [lab.manifests("orders")[f"after={at}"] for at in ("start", 10, 20, 30, 40)]
    texts = [text_of(Path(lab.root("orders").uri, each.parts[0].path)) for each in windows]

    compacted(lab)

    (joined,) = (each for each in lab.manifests("orders").values() if each.window == "after=start")
    head = texts[0][: texts[0].index(b"\n") + 1] if "csv" in form else b""
    expected = head + b"".join(text.removeprefix(head) for text in texts)
    assert expected == text_of(Path(lab.root("orders").uri, joined.parts[0].path))
    assert [] == flaws(lab)


def test_text_that_is_not_the_one_committed_is_not_joined(lab: Lab) -> None:
    """Nothing is changed, and the message says what helps."""
    block = INCREMENTAL.replace("{name", "{format: csv, name")
    fill(lab, block)
    before = lab.manifests("orders")
    file = Path(lab.root("orders").uri, before["after=10"].parts[0].path)
    file.write_bytes(file.read_bytes().replace(b"note 11", b"note 99"))

    done = compacted(lab)

    assert ["failed"] == [each.status for each in done.joins]
    assert "is not the one that was committed" in done.joins[0].text
    assert before == lab.manifests("orders")


def test_export_whose_format_changed_joins_windows_of_the_new_one_alone(lab: Lab) -> None:
    """Windows of another format stay as they are."""
    fill(lab, INCREMENTAL, runs=3)
    csv = INCREMENTAL.replace("{name", "{format: csv, name")
    for first in (31, 41, 51, 61):
        insert(lab, first, first + 9)
        assert lab.export(csv).success

    done = compacted(lab)

    assert [("joined", "after=30", 3)] == [(each.status, each.window, each.windows) for each in done.joins]
    assert {"parquet": 3, "csv": 2} == Counter(each.format for each in lab.manifests("orders").values())


def test_run_after_a_compaction_goes_on_where_the_chain_ends(lab: Lab) -> None:
    """Joined windows are one part, proven and equal to their source; the next run brings what is new, once."""
    fill(lab, INCREMENTAL)

    done = compacted(lab)
    insert(lab, 41, 50)
    ran = lab.export(INCREMENTAL).success

    assert [("joined", 3, 3, 1)] == [(e.status, e.windows, e.parts, e.parts_after) for e in done.joins]
    assert ran
    assert list(range(1, 51)) == lab.ids("orders")
    assert ["after=start", "after=30", "after=40"] == list(lab.manifests("orders"))[-1:] + list(
        lab.manifests("orders")
    )[:-1]
    assert [] == flaws(lab)
    assert "match" == verdict(lab)


def test_dry_run_tells_and_changes_nothing(lab: Lab) -> None:
    """It names the windows, files and bytes of the joins, and no object differs afterwards."""
    fill(lab, INCREMENTAL)
    before = lab.root("orders").list()

    done = compacted(lab, is_dry=True)

    assert [("planned", 3, 3)] == [(each.status, each.windows, each.parts) for each in done.joins]
    assert sum(path.stat().st_size for path in lab.parts("orders")) > done.joins[0].bytes > 0
    assert before == lab.root("orders").list()


def test_lost_state_store_after_a_compaction_costs_no_row(lab: Lab) -> None:
    """The cursor is read from the chain, whose joined windows end where the last of them did."""
    fill(lab, INCREMENTAL)
    compacted(lab)
    for file in lab.folder.glob("**/*.db*"):
        if "lake" not in file.parts and str(file) != lab.url:
            file.unlink()

    insert(lab, 41, 45)
    ran = lab.export(INCREMENTAL).success

    assert ran
    assert list(range(1, 46)) == lab.ids("orders")
    assert [] == flaws(lab)


def test_rows_that_share_a_cursor_value_stay_known_after_a_compaction(lab: Lab) -> None:
    """Rows came to the same value in several runs; joined, no later run brings one of them again."""
    for run, batch in enumerate((1, 1, 1, 2, 2, 3)):
        insert(lab, 10 * run + 1, 10 * run + 10, batch=batch)
        assert lab.export(TIES).success

    done = compacted(lab)
    insert(lab, 61, 65, batch=3)
    ran = lab.export(TIES).success

    assert "joined" in {each.status for each in done.joins}
    assert ran
    assert list(range(1, 66)) == lab.ids("orders")
    assert [] == flaws(lab)
    assert "match" == verdict(lab)


def test_joined_window_is_repaired_whole(lab: Lab) -> None:
    """A row that the source has no more is found in the joined window, which is read again between its two ends."""
    fill(lab, INCREMENTAL)
    compacted(lab)
    lab.sql("DELETE FROM orders WHERE id = 15")

    before, done = verdict(lab, "counts"), repaired(lab)

    assert ("mismatch", ["repaired"]) == (before, done)
    assert [each for each in range(1, 41) if each != 15] == lab.ids("orders")
    assert [] == flaws(lab)
    insert(lab, 41, 42)
    assert lab.export(INCREMENTAL).success
    assert [each for each in range(1, 43) if each != 15] == lab.ids("orders")


def test_reset_export_replaces_joined_windows_and_what_they_hide(lab: Lab) -> None:
    """A run from the beginning, within the grace, leaves none of the hidden manifests to come back."""
    fill(lab, INCREMENTAL)
    compacted(lab, days=1)
    lab.state.reset("orders")

    ran = lab.export(INCREMENTAL).success

    assert ran
    assert list(range(1, 41)) == lab.ids("orders")
    assert ["after=start"] == list(lab.manifests("orders"))
    assert [] == flaws(lab)


def test_dataframes_have_the_same_rows_before_and_after(lab: Lab) -> None:
    """An input of a downstream asset is the same table, whether it was opened before the swap or after it."""
    fill(lab, INCREMENTAL)

    def read() -> pa.Table:
        found = sorted(lab.manifests("orders").values(), key=lambda each: each.finished_at)
        return read_as(pa.Table, Parts(lab.root("orders"), found, lambda: None), asset="orders")  # type: ignore[arg-type]

    opened = sorted(lab.manifests("orders").values(), key=lambda each: each.finished_at)
    before = read()
    compacted(lab, days=1)
    late = read_as(pa.Table, Parts(lab.root("orders"), opened, lambda: None), asset="orders")  # type: ignore[arg-type]

    assert before.equals(read())
    assert before.equals(late)


def test_polled_windows_are_joined_and_the_poll_goes_on(lab: Lab) -> None:
    """The changes are those of before in their order, and the next poll brings what changed since."""
    fill(lab, POLL)
    before = [(row["__pos"], row["__seq"], row["id"]) for row in lab.rows("orders")]

    done = compacted(lab)
    after = [(row["__pos"], row["__seq"], row["id"]) for row in lab.rows("orders")]
    insert(lab, 41, 45)
    ran = lab.export(POLL).success

    assert [2] == [each.windows for each in done.joins]  # the first window stays: mirrors know their beginning by it
    assert before == after
    assert ran
    assert list(range(1, 46)) == lab.ids("orders")
    assert [] == flaws(lab)


def test_window_of_time_is_compacted_within_itself_and_replaced_by_a_backfill(lab: Lab) -> None:
    """Its small parts become one; a backfill later replaces them, and nothing else."""
    days = DAYS % ", max_file_size: 1KB, tuning: {batch_size: 100}"
    lab.sql(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) INSERT INTO orders "
        "SELECT i, 0, '2026-01-02 0' || (i % 10) || ':00:00.000000+00:00', 'note ' || (i * 7919 % 10007) FROM n"
    )
    assert lab.export(days, partitions=("2026-01-02",)).success
    split = len(lab.parts("orders"))
    lab.config(DAYS % f", {SMALL}")

    done = compacted(lab)
    parts, whole = len(lab.parts("orders")), lab.ids("orders")
    found = flaws(lab)
    lab.sql("DELETE FROM orders WHERE id > 10")
    again = lab.export(DAYS % f", {SMALL}", partitions=("2026-01-02",)).success

    assert split > 2
    assert (["joined"], 1) == ([each.status for each in done.joins], parts)
    assert (list(range(1, 3001)), []) == (whole, found)
    assert again
    assert list(range(1, 11)) == lab.ids("orders")
    assert [] == flaws(lab)


def test_chunks_keep_their_parts_apart(lab: Lab) -> None:
    """A chunk's parts are joined with each other only, so that one chunk can be read again alone."""
    block = (
        "{name: orders, table: orders, mode: chunked, chunk_column: id, chunk_size: 1500, tuning: {batch_size: 100}%s}"
    )
    lab.sql(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) INSERT INTO orders "
        "SELECT i, 0, '2026-01-02 00:00:00.000000+00:00', 'note ' || (i * 7919 % 10007) FROM n"
    )
    assert lab.export(block % ", max_file_size: 1KB").success
    lab.config(block % f", {SMALL}")

    done = compacted(lab)
    (manifest,) = lab.manifests("orders").values()
    lab.sql("DELETE FROM orders WHERE id = 7")
    statuses = repaired(lab)

    assert ["joined"] == [each.status for each in done.joins]
    assert [0, 1] == [part.chunk for part in manifest.parts]
    assert ["repaired"] == statuses
    assert [each for each in range(1, 3001) if each != 7] == lab.ids("orders")
    assert [] == flaws(lab)


def test_export_that_a_run_holds_is_left_alone(lab: Lab) -> None:
    """The lease of a run refuses a compaction, which says who holds it and changes nothing."""
    fill(lab, INCREMENTAL, 3)

    with lab.state.lease("orders", "all", "orders_20260131T120000.000_abcdef"), pytest.raises(WindowBusy):
        compacted(lab)

    assert 3 == len(lab.manifests("orders"))


def test_export_without_the_key_is_refused(lab: Lab) -> None:
    """Neither command does anything that the file does not ask for."""
    lab.config("{name: orders, table: orders}")

    with pytest.raises(UpkeepRefused, match="has no `compact:`"):
        compacted(lab)
    with pytest.raises(UpkeepRefused, match="has no `keep:`"):
        retained(lab)


def test_damaged_part_is_told_and_nothing_is_joined(lab: Lab) -> None:
    """Bytes that are not those of the manifest stop the join; the window stays as it is, for a repair."""
    fill(lab, INCREMENTAL)
    damaged = lab.parts("orders")[0]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    before = lab.root("orders").list()

    done = compacted(lab)

    assert [("failed", "RIVET_VERIFY_PART", 3)] == [(e.status, e.code, e.exit_code) for e in done.joins]
    assert before == lab.root("orders").list()
    assert 3 == done.exit_code


def test_bucket_that_is_not_there_is_told(lab: Lab, s3_server: ObjectStore) -> None:
    """The first listing says what is wrong with the destination; nothing is written anywhere."""
    place = f"{{type: s3, bucket: nowhere, endpoint: '{s3_server.endpoint}'}}"
    lab.config(f"{{name: orders, table: orders, keep: 2, mode: incremental, cursor_column: id, {SMALL}, "
               f"destination: {place}}}")  # fmt: skip

    with pytest.raises(BucketMissing):
        compacted(lab)
    with pytest.raises(BucketMissing):
        retained(lab)


def test_commands_say_what_they_do(lab: Lab) -> None:
    """Lines for people, JSON for programs; a wrong grace is a usage error."""
    fill(lab, INCREMENTAL)
    runner = CliRunner()

    planned = runner.invoke(commands, ["compact", "--dry-run", "--json"], standalone_mode=False)
    joined = runner.invoke(commands, ["compact", "--grace", "0s"], standalone_mode=False)
    kept = runner.invoke(commands, ["retain"], standalone_mode=False)
    wrong = runner.invoke(commands, ["retain", "--grace", "soon"], standalone_mode=False)

    (export,) = json.loads(planned.stdout)["exports"]
    assert ("planned", 3) == (export["joins"][0]["status"], export["joins"][0]["windows"])
    assert "3 windows with 3 parts" in joined.stdout
    assert "3 replaced files removed" in joined.stdout
    assert "no window is too old" in kept.stdout
    assert (0, 0, 0) == (planned.return_value, joined.return_value, kept.return_value)
    assert isinstance(wrong.exception, click.BadParameter)


# --- retention -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("block", "left"), [(INCREMENTAL, 21), (POLL, 21)], ids=["incremental", "poll"])
def test_beginning_of_a_chain_is_dropped_and_not_brought_back(lab: Lab, block: str, left: int) -> None:
    """The newest windows stay; runs go on from them, with the store and without it, and no proof misses the others."""
    fill(lab, block)

    told = retained(lab, is_dry=True)
    done = retained(lab)
    insert(lab, 41, 45)
    ran = lab.export(block).success

    assert [each.window for each in told.windows] == [each.window for each in done.windows if each.is_dropped]
    assert 2 == len(done.windows)
    assert ran
    assert list(range(left, 46)) == lab.ids("orders")
    assert [] == flaws(lab)
    assert verdict(lab, "counts") in ("match", "unknown")


def test_files_of_dropped_windows_stay_for_their_grace(lab: Lab) -> None:
    """Who has opened a window reads on; a validation calls none of its files strange, and later they go."""
    fill(lab, INCREMENTAL)
    before = lab.parts("orders")

    retained(lab, days=1)
    is_there, found = all(path.exists() for path in before), flaws(lab)

    assert (True, []) == (is_there, found)
    assert list(range(21, 41)) == lab.ids("orders")


def test_days_are_dropped_by_their_age_and_come_back_by_hand(lab: Lab) -> None:
    """A day goes with its folder's marks once it is older than `keep:`; a backfill that is asked for brings it back."""
    insert(lab, 1, 4)
    block = DAYS % ""
    days = tuple(f"2026-01-0{day}" for day in (2, 3, 4, 5))
    assert lab.export(block, partitions=days).success

    done = retained(lab, now=datetime(2026, 2, 3, tzinfo=UTC))
    left, found = lab.ids("orders"), flaws(lab)
    again = lab.export(block, partitions=days[:1]).success

    assert ["2026-01-02", "2026-01-03"] == [each.window for each in done.windows if each.is_dropped]
    assert ([3, 4], []) == (left, found)
    assert not any("2026-01-03" in path for path in lab.root("orders").list())
    assert again
    assert [1, 3, 4] == lab.ids("orders")


def test_newest_window_stays_however_old(lab: Lab) -> None:
    """A table that stopped moving keeps its position and one window to read."""
    fill(lab, INCREMENTAL.replace("keep: 2", "keep: 1s"), 2)

    retained(lab, now=datetime.now(UTC) + timedelta(days=900))

    assert list(range(11, 21)) == lab.ids("orders")
