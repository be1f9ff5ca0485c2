"""Reports and tables on a terminal, in a pipe, and where the environment asks for colours or for none."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rivet_assets.cli.terminal import show
from rivet_assets.run.report import Line, Report, Section, Table

ROOT = Path(__file__).parents[3]
FIX = "ALTER ROLE shop REPLICATION; -- " + "and so on, " * 10 + "end"
REPORT = Report(
    [
        Section(
            "shop", [Line(("ok  ", "version"), "17.2", "ok"), Line(("fail", "role"), "it may not [read]", "fail", FIX)]
        ),
        Section(
            "lake",
            [Line(("warn", "disk"), "words " * 20 + "end", "warn")],
            Table(("a", "n"), [("x", "1"), ("y", "10")]),
        ),
    ],
    "3 checks",
)
PLAIN = f"""shop
  ok    version  17.2
  fail  role     it may not [read]
                 → {FIX}

lake
  warn  disk     {"words " * 20}end
    a  n
    x  1
    y  10

3 checks"""
WIDE = Table(("name", "rows", "note"), [("orders", "1,200", "word " * 30), ("x", "7", "–")], numbers=frozenset({1}))
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        """Claim it."""
        return True


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 60 columns that knows colours; nothing is asked for."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")


def shown(told: Report | Table, monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> str:
    """Show it on stdout, which is a terminal or not."""
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    show(told)
    return stream.getvalue()


def test_pipe_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels in columns, the fix below the text, tables below rows; no escape, and no line is folded."""
    assert PLAIN + "\n" == shown(REPORT, monkeypatch, terminal=False)


def test_table_of_a_pipe_is_as_wide_as_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line per row, numbers to the right."""
    first, second, third = shown(WIDE, monkeypatch, terminal=False).splitlines()

    assert ("name     rows  note", "x           7  –") == (first, third)
    assert second.endswith("word " * 29 + "word")


def test_terminal_folds_texts_below_themselves_and_no_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text goes on where it began; what is to be pasted stays one line; brackets are text."""
    lines = ESCAPES.sub("", shown(REPORT, monkeypatch, terminal=True)).splitlines()

    folded = [line.rstrip() for line in lines if "words" in line]
    assert len(folded) > 1
    assert all(len(line) <= 60 for line in folded)
    assert all(line.startswith(" " * 17 + "words") for line in folded[1:])
    assert f"{' ' * 17}→ {FIX}" in lines
    assert any("it may not [read]" in line for line in lines)


def test_table_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells are folded, and none is cut."""
    text = shown(WIDE, monkeypatch, terminal=True)

    assert max(map(len, ESCAPES.sub("", text).splitlines())) <= 60
    assert 30 == text.count("word")


@pytest.mark.parametrize(
    ("variables", "terminal", "has_colours"),
    [
        ({}, True, True),
        ({"NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
        ({}, False, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ],
)
def test_environment_decides_on_colours(
    variables: dict[str, str], terminal: bool, has_colours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Colours on a terminal, and in a pipe on request; NO_COLOR wins. The words are the same."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    text = shown(REPORT, monkeypatch, terminal=terminal)

    assert has_colours == bool(re.search(r"\x1b\[[0-9;]*3[0-9]", text))
    assert "it may not [read]" in ESCAPES.sub("", text)


def test_pipe_that_asks_for_colours_is_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log has no width."""
    monkeypatch.setenv("FORCE_COLOR", "1")

    assert PLAIN.splitlines() == [line.rstrip() for line in plain_of(shown(REPORT, monkeypatch, terminal=False))]


def plain_of(text: str) -> list[str]:
    """Return the lines without their styles."""
    return ESCAPES.sub("", text).splitlines()


@pytest.mark.parametrize(("command", "unwanted"), [("check", "rich"), ("run", "rich.live")])
def test_command_in_a_pipe_does_not_load_rich(tmp_path: Path, command: str, unwanted: str) -> None:
    """Nobody waits for what is not used; Dagster loads a part of it for itself."""
    (tmp_path / "rivet.yaml").write_text(
        "source: {type: sqlite, path: shop.db}\nspark: inline\n"
        "exports: [{name: a, table: a, format: csv, destination: {type: local, path: lake}}]\n"
    )
    (tmp_path / "shop.db").touch()
    code = (
        f"import atexit, sys; from rivet_assets.cli.main import main; sys.argv[1:] = ['{command}'];"
        f"atexit.register(lambda: print('loaded:', '{unwanted}' in sys.modules)); main()"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, text=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip

    assert 1 == done.returncode, done.stderr  # there is no table: its end is told as well
    assert "loaded: False" == done.stdout.splitlines()[-1]
