"""Summaries of runs: the block, the files beside the config, progress on a terminal, errors as JSON."""

from __future__ import annotations

import importlib
import io
import json
import os
import pkgutil
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

import rivet_assets
import rivet_resources
from rivet_assets.cli import live
from rivet_assets.cli.json_errors import EXIT_CLASSES, line
from rivet_assets.cli.live import Screen
from rivet_assets.config.load import RivetConfig, load_text
from rivet_assets.launch.outcome import Outcome, block, document, harm_words, worst
from rivet_assets.launch.outcome_of_run import history
from rivet_assets.launch.recorder import News
from rivet_assets.launch.summary_files import FOLDER, KEPT, resume_command, write_run_files, write_summary
from rivet_assets.run.drift import Drift
from rivet_assets.run.journal import CHUNKS_TOLD, Journal
from rivet_assets.run.progress import Progress, Reporter, watch_progress
from rivet_assets.run.report import Report
from rivet_assets.run.words import human_bytes
from rivet_resources.errors import WORST_FIRST, RivetError
from rivet_resources.state.runs import RunRecord
from rivet_resources.state.store import State, default_url, open_state

AT = datetime(2026, 1, 31, 3, 15, tzinfo=UTC)
GOOD = Outcome(
    "orders", "shop", "full", "success", rows=1234, files=2, bytes=3_355_443, seconds=1.5, peak_mb=250.4,
    checks_passed=2, run_ids=("orders_20260131T031500.000_abcdef",), started_at=AT, finished_at=AT,
)  # fmt: skip
BAD = replace(GOOD, status="failed", rows=0, files=0, bytes=0, code="RIVET_SOURCE_LOST", message="Gone.", exit_code=2)
CANARY = "4929-1234-canary"
YAML = (
    "source: {type: postgres, url_env: SHOP_URL, tuning: {batch_size: 77}}\n"
    "exports:\n  - {name: orders, table: orders, format: parquet, destination: {type: local, path: lake}}\n"
)


@pytest.fixture
def config(tmp_path: Path) -> RivetConfig:
    """Load a configuration of one export."""
    return load_text(YAML, file=tmp_path / "rivet.yaml")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """Open a store of its own."""
    store = open_state(default_url(tmp_path))
    yield store
    store.close()


def lines_of(told: Report) -> dict[str, str]:
    """Read a block: {name: text}."""
    return dict(re.fullmatch(r"  ([^:]+): +(.*)", each).groups() for each in str(told).splitlines())  # type: ignore[union-attr, misc]


# --- the block -----------------------------------------------------------------------------------


def test_block_has_the_originals_lines_in_their_order() -> None:
    """Seven lines always; what does not apply has none."""
    assert {
        "export": "orders",
        "status": "success",
        "rows": "1,234",
        "files": "2",
        "bytes": "3.2 MB",
        "duration": "1.5 s",
        "peak RSS": "250 MB",
        "quality": "pass",
    } == lines_of(block(GOOD))


def test_block_tells_what_was_out_of_the_ordinary() -> None:
    """Retries, proofs, quality, drift and harm have a line when there is something to say."""
    told = lines_of(
        block(
            replace(
                GOOD,
                retries=3,
                validation={"passed": True},
                reconciliation={"matched": None},
                checks_failed=("row_count_min",),
                schema_changed=True,
                schema_changes="added nick",
                harm={"longest_statement_ms": 140.0, "rows_scanned_per_row": 1.0, "governed_seconds": 3.2},
            )
        )
    )

    assert told["retries"] == "3"
    assert told["validated"] == "parts pass, source rows unknown"
    assert told["quality"] == "FAIL (row_count_min)"
    assert told["schema"] == "CHANGED: added nick"
    assert told["harm"] == "longest statement 0.14 s, 1.0 rows read per row returned, governed 3 s"


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        ({}, ""),
        ({"rows_read": 5.0}, ""),
        ({"governed_seconds": 0.1, "steps_down": 0.0, "temp_bytes": 0.0}, ""),
        ({"temp_bytes": 2048.0, "steps_down": 2.0}, "slowed down 2 times, 2.0 KB of temporary files"),
    ],
)
def test_harm_is_told_only_where_there_was_any(harm: dict[str, float], expected: str) -> None:
    """Figures that are zero, or only numbers, are not worth a word."""
    assert expected == harm_words(harm)


@pytest.mark.parametrize(
    ("count", "expected"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KB"), (5 * 2**30, "5.0 GB"), (2**50, "1024.0 TB")]
)
def test_sizes_are_written_as_people_read_them(count: int, expected: str) -> None:
    """Units of 1024, one digit."""
    assert expected == human_bytes(count)


def test_document_is_plain_json() -> None:
    """`--json` needs no help to be written, and has no traceback."""
    told = json.loads(json.dumps(document([replace(GOOD, traceback=CANARY), BAD])))

    assert (False, 2, 1234) == (told["success"], told["exit_code"], told["rows"])
    assert "2026-01-31T03:15:00+00:00" == told["exports"][0]["started_at"]
    assert CANARY not in json.dumps(told)


def test_worst_outcome_answers_for_all() -> None:
    """The order is 3, 4, 1, 2; without a failure there is none."""
    codes = [2, 1, 4, 3]

    found = [worst([replace(BAD, exit_code=code) for code in codes[:upto]]) for upto in range(5)]

    assert [None, 2, 1, 4, 3] == [outcome and outcome.exit_code for outcome in found]


# --- files ---------------------------------------------------------------------------------------


def written(config: RivetConfig, outcome: Outcome) -> tuple[dict[str, object], str]:
    """Write the files of one run and read them back."""
    told: list[str] = []
    write_run_files(config, [outcome], tell=told.append)
    assert [] == told
    folder = config.folder / FOLDER / outcome.run_ids[-1]
    return json.loads((folder / "summary.json").read_text()), (folder / "summary.md").read_text()


def test_summary_file_has_the_originals_fields(config: RivetConfig) -> None:
    """Every name of the contract is there, null where nothing was asked for."""
    facts, text = written(config, GOOD)

    assert [
        "run_id", "export_name", "status", "started_at", "finished_at", "duration_ms", "source_engine",
        "destination_kind", "format", "compression", "tuning_profile", "batch_size", "total_rows", "files_produced",
        "bytes_written", "peak_rss_mb", "retries", "pg_temp_bytes_delta", "validation", "reconciliation",
        "schema_changed", "schema_changes", "plan_warnings", "error_message", "resumable", "resume_command",
        "apply_context",
    ] == list(facts)[:27]  # fmt: skip
    assert (GOOD.run_ids[-1], 1234, 1500, 77) == (
        facts["run_id"], facts["total_rows"], facts["duration_ms"], facts["batch_size"],
    )  # fmt: skip
    assert {None} == {facts[name] for name in ("validation", "reconciliation", "error_message", "resume_command")}
    assert text.startswith("# orders: success\n")
    assert "rows:     1,234" in text


def test_summary_of_a_failed_run_says_how_to_go_on(config: RivetConfig) -> None:
    """The command names the config, the export and the windows that are missing."""
    facts, text = written(config, replace(BAD, refused=("2026-01-01", "2026-01-02")))
    many = replace(BAD, refused=tuple(f"2026-01-{day:02}" for day in range(1, 12)))

    command = f"rivet run -c {config.file} -e orders --partition 2026-01-01 --partition 2026-01-02"
    assert ("Gone.", "RIVET_SOURCE_LOST", command) == (
        facts["error_message"], facts["error_code"], facts["resume_command"],
    )  # fmt: skip
    assert command in text
    assert resume_command(config, many).endswith("--partition-range 2026-01-01...2026-01-11")


def test_error_that_is_not_ours_is_in_no_file(config: RivetConfig, tmp_path: Path) -> None:
    """Files stay; a stranger's text may hold a row value, so only its class is written."""
    outcome = replace(BAD, code="", message=f"bad {CANARY}", cause="ValueError", traceback=CANARY)

    written(config, outcome)
    write_summary(tmp_path / "out" / "all.json", [outcome], tell=print)

    texts = [path.read_text() for path in tmp_path.rglob("*.*") if path.suffix in (".json", ".md")]
    assert 3 == len(texts)
    assert CANARY not in "".join(texts)
    assert all("ValueError" in text for text in texts)


def test_folder_that_cannot_be_written_is_a_warning(config: RivetConfig, tmp_path: Path) -> None:
    """A run does not fail for want of its summary."""
    (tmp_path / ".rivet").write_text("in the way")
    told: list[str] = []

    write_run_files(config, [GOOD], tell=told.append)
    write_summary(tmp_path / ".rivet" / "all.json", [GOOD], tell=told.append)

    assert 2 == len(told)
    assert all(each.startswith("warning: ") and "cannot be written" in each for each in told)


def test_newest_runs_are_kept_and_nothing_of_others_goes(config: RivetConfig) -> None:
    """A hundred folders stay; one that somebody put something into stays too."""
    runs = config.folder / FOLDER
    for number in range(KEPT + 3):
        (runs / f"run{number:03}").mkdir(parents=True)
        (runs / f"run{number:03}" / "summary.json").write_text("{}")
        os.utime(runs / f"run{number:03}", (number, number))
    (runs / "run000" / "notes.txt").write_text("mine")
    os.utime(runs / "run000", (0, 0))

    written(config, GOOD)

    left = {path.name for path in runs.iterdir()}
    assert KEPT + 1 == len(left)
    assert {"run000", GOOD.run_ids[-1], f"run{KEPT + 2:03}"} <= left
    assert not {"run001", "run002", "run003"} & left


# --- journal -------------------------------------------------------------------------------------


def test_many_chunks_make_few_entries(state: State) -> None:
    """Each of the first 200 chunks is told, then every tenth, and the last."""
    journal, told = Journal(state, "r", "orders", tell=print), 1005

    for done in range(1, told + 1):
        journal.chunk(done, told, done * 10)
    journal.completed("success", {"total_rows": 10_050})

    entries = state.journal(run_id="r", last=1000)
    chunks = [entry.detail["done"] for entry in entries if entry.event == "ChunkCompleted"]
    assert [*range(1, CHUNKS_TOLD + 1), *range(CHUNKS_TOLD + 10, told, 10), told] == chunks
    assert list(range(1, len(entries) + 1)) == [entry.number for entry in entries]
    assert ("RunCompleted", {"status": "success", "total_rows": 10_050}) == (entries[-1].event, entries[-1].detail)


def test_journal_that_cannot_be_written_is_told_once() -> None:
    """Losing history loses no run."""

    class Broken:
        def write_journal_of(self, *_: object) -> None:
            raise OSError("no space")

    told: list[str] = []
    journal = Journal(Broken(), "r", "orders", tell=told.append)  # type: ignore[arg-type]

    for _ in range(3):
        journal.add("Warning", {})
        journal.write()

    assert ["The journal of run r cannot be written (OSError)."] == told


def test_history_of_a_run_is_read_from_store_and_journal(state: State) -> None:
    """What the plan warned of and which columns changed come from the journal; earlier runs say what came before."""
    began = AT
    for number, run_id in enumerate(("old", "new")):
        at = AT.replace(hour=2 + number)
        state.begin_run(RunRecord(run_id, "orders", "all", at))
        state.finish_run(run_id, "success")
        journal = Journal(state, run_id, "orders", tell=print)
        journal.add("PlanWarning", {"text": f"of {run_id}"})
        journal.drifted(Drift(added=("nick",), retyped=(("a", "int32", "int64"),)))
        journal.write()

    found = history(state, "orders", began.replace(minute=0))

    assert ("new",) == tuple(run.run_id for run in found.records)
    assert found.before is not None
    assert "old" == found.before.run_id
    assert (("of new",), "added nick; a int32 → int64") == (found.notes, found.schema_changes)


def test_summary_says_why_reading_was_slowed_down(state: State) -> None:
    """The first step down of this run gives the reason; a step up, and other runs, give none."""
    state.begin_run(RunRecord("new", "orders", "all", AT))
    journal = Journal(state, "new", "orders", tell=print)
    for before, after, reason in ((0.5, 1.0, "well"), (1.0, 0.5, "a short statement took 83 ms"), (0.5, 0.25, "worse")):
        journal.add("ParallelismAdjusted", {"speed_from": before, "speed_to": after, "reason": reason})
    journal.write()

    found = history(state, "orders", AT)
    told = lines_of(block(replace(GOOD, harm={"steps_down": 2.0}, slowed_because=found.slowed_because)))

    assert "slowed down 2 times (a short statement took 83 ms)" == told["harm"]


def test_summary_of_a_drain_has_its_lag_and_what_it_cost(state: State) -> None:
    """How much is unread, and how much log the source keeps; other modes have no lag."""
    harm = {"log_read_seconds": 1.25, "log_held_bytes": 2**24, "lag_bytes": 120.0, "lag_seconds": 3.0}

    told = lines_of(block(replace(GOOD, mode="cdc", harm=harm)))

    assert "120 bytes unread, 3 s behind" == told["lag"]
    assert "log read for 1.2 s, 16.0 MB of log kept for us" == told["harm"]
    assert "lag" not in lines_of(block(replace(GOOD, harm={"longest_statement_ms": 140.0})))


# --- progress ------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        """Claim it."""
        return True


def seen(written_text: str) -> list[str]:
    """Play what was written to a terminal: the lines that are left to see."""
    shown, row = [""], 0
    for token in re.findall(r"\x1b\[\d+A|\x1b\[2K|\x1b\[[0-9;?]*[a-zA-Z]|\r|\n|[^\x1b\r\n]+", written_text):
        if token.startswith("\x1b") and token.endswith("A"):
            row -= int(token[2:-1])
        elif token == "\x1b[2K":
            shown[row] = ""
        elif token == "\n":
            row += 1
            shown += [""] * (row + 1 - len(shown))
        elif not token.startswith(("\x1b", "\r")):
            shown[row] += token
    return [line.rstrip() for line in shown if line.strip()]


def until(stream: io.StringIO, *words: str) -> None:
    """Wait until a terminal has shown all of these."""
    deadline = time.monotonic() + 60
    while not all(word in stream.getvalue() for word in words):
        assert time.monotonic() < deadline, stream.getvalue()
        time.sleep(0.01)


def test_live_lines_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """While windows run each has a line; what was said stays above them, and at the end only that is left."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    screen = Screen(stream)
    with screen.showing():
        screen(News("progress", "orders", "all", progress=Progress("orders", "all", 1, 4, 1000, 2.0)))
        screen(News("progress", "days", "2026-01-01", progress=Progress("days", "2026-01-01", 0, 2, 0, 0.5)))
        until(stream, "orders: 1 of 4", "2026-01-01: 0 of 2")
        screen.say("something happened")
        during = seen(stream.getvalue())
        screen(News("committed", "days", "2026-01-01"))
        screen(News("failed", "orders"))

    assert "something happened" == during[0]
    assert re.search(r"^━+.* orders: 1 of 4 chunks, 1,000 rows, \d+ rows/s, \d s$", during[1])
    assert "days 2026-01-01: 0 of 2 chunks, 0 rows" in during[2]
    assert ["something happened", "  days 2026-01-01 committed", "  orders failed"] == seen(stream.getvalue())
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")  # the cursor is there again


def test_line_of_a_narrow_terminal_is_cut_and_stays_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that wrapped could not be taken back."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    with Screen(stream).showing() as screen:
        screen(News("progress", "orders", "all", progress=Progress("orders", "all", 1, 4, 1000, 2.0)))
        until(stream, "orders: 1 of")
        during = seen(stream.getvalue())

    assert 1 == len(during)
    assert len(during[0]) <= 40
    assert during[0].endswith("…")


def test_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal a window is told at most every ten seconds, and no escape is written."""
    clock = [0.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    with Screen(stream).showing() as screen:
        for second in range(35):
            clock[0] = float(second)
            screen(News("progress", "orders", "all", progress=Progress("orders", "all", second, 40, 10, 1.0)))

    assert ["orders: 10 of 40", "orders: 20 of 40", "orders: 30 of 40"] == re.findall(
        r"orders: \d+ of 40", stream.getvalue()
    )
    assert "\x1b" not in stream.getvalue()


def test_quiet_screen_tells_failures_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """`-q` on a terminal: no live line, no progress, but what failed."""
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with Screen(stream, quiet=True).showing() as screen:
        screen(News("progress", "orders", "all", progress=Progress("orders", "all", 1, 4, 1000, 2.0)))
        screen(News("committed", "orders"))
        screen(News("failed", "days"))

    assert "  days failed\n" == stream.getvalue()


def test_progress_reaches_watchers_or_else_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """While somebody watches, the log stays free; in a Dagster run without `rivet run` the log has the lines."""
    clock = [0.0]
    monkeypatch.setattr("rivet_assets.run.progress.time.monotonic", lambda: clock[0])
    told: list[str] = []
    watched: list[Progress] = []
    reporter = Reporter(told.append)
    first, later = Progress("orders", "all", 0, 4, 0, 0.0), Progress("orders", "all", 2, 4, 50, 11.0)
    with watch_progress(watched.append):
        reporter(first)
    clock[0] = 11.0

    reporter(later)

    assert [first] == watched
    assert ["orders: 2 of 4 chunks, 50 rows, 5 rows/s, 11 s."] == told


# --- errors --------------------------------------------------------------------------------------


def error_classes() -> list[type[RivetError]]:
    """Import both packages whole, and list every class of error there is."""
    for package in (rivet_assets, rivet_resources):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith("rivet_assets.defs"):
                importlib.import_module(module.name)
    found, waiting = [], [RivetError]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        found.append(kind)
    return [kind for kind in found if kind.__module__.startswith(("rivet_assets", "rivet_resources"))]


def test_every_error_has_a_code_an_exit_code_and_a_sentence() -> None:
    """A code is one class's alone, but for private kin that inherit it; the docstring says what it means."""
    kinds = error_classes()
    own = [kind for kind in kinds if "code" in vars(kind)]
    codes = [kind.code for kind in own]

    assert len(kinds) > 30
    # A ConfigError carries several Faults, both under the code of the table in config/error_codes.py.
    assert ["RIVET_CONFIG_INVALID"] == sorted({code for code in codes if codes.count(code) > 1})
    assert [] == [kind.__name__ for kind in kinds if not re.fullmatch(r"RIVET_[A-Z_]+", kind.code)]
    assert [] == [kind.__name__ for kind in kinds if kind.exit_code not in (1, 2, 3, 4)]
    assert [] == [kind.__name__ for kind in kinds if "__doc__" not in vars(kind) or not kind.__doc__]


def test_every_passing_error_says_so_by_its_exit_code() -> None:
    """Whoever sees exit code 2 may run the same command again; a class that retries has it."""
    assert [] == [kind.__name__ for kind in error_classes() if kind.retry and kind.exit_code != 2]


def test_json_error_is_one_line_of_three_keys() -> None:
    """Newlines of a message are inside the JSON."""
    text = line("a\nb", "RIVET_SOURCE_LOST", 2)

    assert "\n" not in text
    assert {"error": "a\nb", "code": "RIVET_SOURCE_LOST", "exit_class": "transient"} == json.loads(text)
    assert {1, 2, 3, 4} < set(EXIT_CLASSES)
    assert WORST_FIRST == (3, 4, 1, 2)
