"""What somebody meets who does not know the commands yet: help, the nearest word, what to do without a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.shell_completion import get_completion_class

from rivet_assets.cli import main as cli
from rivet_assets.cli.commands.completions import SHELLS

ROOT = Path(__file__).parents[3]
HAPPY_PATH = ["init", "doctor", "check", "run"]
WIDTH = 80
BY_WINDOW = ["run", "plan", "validate", "reconcile", "repair"]


@dataclass(frozen=True)
class Answer:
    """What a command left on the terminal."""

    code: int
    out: str
    err: str


Rivet = Callable[..., Answer]


@pytest.fixture
def rivet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rivet:
    """`rivet …` in this process, in an empty folder, on a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(WIDTH))

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["rivet", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = capsys.readouterr()
        return Answer(int(ended.value.code or 0), told.out, told.err)

    return run


def commands() -> Iterator[tuple[str, ...]]:
    """List every command and subcommand, as it is typed."""
    context = click.Context(cli.commands)
    for name in cli.COMMANDS:
        yield (name,)
        found = cli.commands.get_command(context, name)
        if isinstance(found, click.Group):
            yield from ((name, each) for each in found.list_commands(context))


def test_help_begins_with_the_happy_path(rivet: Rivet) -> None:
    """The first commands are the first four to type, in their order; the example types them too."""
    text = rivet("--help").out

    listed = [
        line.split()[0] for line in text.splitlines() if line.startswith("  ") and line.split()[0] in cli.COMMANDS
    ]
    example = [line.split()[1] for line in text.splitlines() if line.startswith("  rivet ")]
    assert HAPPY_PATH == listed[:4] == example
    assert sorted(cli.COMMANDS) == sorted(listed)


def test_help_loads_what_it_shows_and_no_more() -> None:
    """All commands are imported, and none of what they need for their work: help answers at once."""
    heavy = ("pydantic", "yaml", "rich", "sqlalchemy", "pyarrow", "dagster", "pyspark")
    code = (
        "import sys; from rivet_assets.cli.main import commands; commands.main(['--help'], standalone_mode=False);"
        f"print([name for name in {heavy} if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=True)

    assert "[]" == done.stdout.splitlines()[-1]


def test_list_of_commands_gives_each_one_line(rivet: Rivet) -> None:
    """Nothing is cut, and nothing is continued: a name and a sentence per line."""
    texts = [rivet(*words, "--help").out.partition("\nExample:")[0] for words in ((), ("state",))]
    lines = [line for text in texts for line in text.splitlines()]

    rows = [line for line in lines if line.startswith("  ") and line.split()[0] in {name[-1] for name in commands()}]
    assert len(list(cli.COMMANDS)) + 6 == len(rows)
    assert [] == [row for row in rows if not row.endswith(".")]
    assert [] == [row for row in rows if row.endswith("...")]


@pytest.mark.parametrize("command", [(), *commands()], ids=" ".join)
def test_help_fits_a_terminal_of_80_columns(rivet: Rivet, command: tuple[str, ...]) -> None:
    """No line is longer, and no sentence is cut with dots."""
    answer = rivet(*command, "--help")

    body = [line for line in answer.out.splitlines() if not line.startswith("Usage:")]
    assert 0 == answer.code
    assert [] == [line for line in body if len(line) > WIDTH]
    assert [] == [line for line in body if line.endswith("...")]


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [(("runn",), "run"), (("sttae",), "state"), (("state", "shw"), "show"), (("schema", "confg"), "config")],
)
def test_wrong_command_names_the_nearest(rivet: Rivet, typed: tuple[str, ...], nearest: str) -> None:
    """At both levels; exit code 1 as for all wrong arguments, and the line for scripts has it too."""
    answer = rivet("--json-errors", *typed)

    told = json.loads(answer.err.splitlines()[-1])
    assert f"No such command '{typed[-1]}'. Did you mean '{nearest}'?" == told["error"]
    assert (1, "RIVET_USAGE") == (answer.code, told["code"])
    assert told["error"] in "".join(answer.err.splitlines()[:-1])


@pytest.mark.parametrize(
    "typed",
    [
        ("--json-errors", "run"),
        ("run", "--json-errors"),
        ("state", "--json-errors", "show"),
        ("run", "-e", "x", "--json-errors"),
    ],
    ids=" ".join,
)
def test_json_errors_may_stand_anywhere(rivet: Rivet, typed: tuple[str, ...]) -> None:
    """It is of all commands, and whoever adds it to a line adds it at the end."""
    answer = rivet(*typed)

    told = json.loads(answer.err.splitlines()[-1])
    assert 1 == answer.code
    assert "rivet.yaml cannot be read" in told["error"]


def test_command_like_no_other_names_none(rivet: Rivet) -> None:
    """A guess that is none would mislead."""
    answer = rivet("xylophone")

    assert (1, True, False) == (answer.code, "'xylophone'" in answer.err, "Did you mean" in answer.err)


@pytest.mark.parametrize("command", ["run", "check", "doctor", "plan", "validate"])
def test_missing_file_names_the_commands_that_bring_one(rivet: Rivet, command: str) -> None:
    """`rivet init` and `rivet demo`, and how to name another file."""
    answer = rivet(command)

    assert 1 == answer.code
    for word in ("rivet.yaml cannot be read", "-c", "`rivet init`", "`rivet demo`"):
        assert word in answer.err


def test_file_that_is_there_but_unreadable_is_not_to_be_made(rivet: Rivet, tmp_path: Path) -> None:
    """A folder of that name: another fault, without a way that would not help."""
    (tmp_path / "rivet.yaml").mkdir()

    answer = rivet("run")

    assert (1, True, False) == (answer.code, "Is a directory" in answer.err, "rivet init" in answer.err)


@pytest.mark.parametrize("command", BY_WINDOW)
def test_window_has_one_name_in_every_command(rivet: Rivet, command: str) -> None:
    """`--partition` and `--partition-range` everywhere, told in the same words; `--window` is read, and not shown."""
    shown = rivet(command, "--help").out
    found = cli.commands.get_command(click.Context(cli.commands), command)
    assert found is not None

    with found.make_context(command, ["--window", "a", "--partition", "b", "--partition-range", "c...d"]) as context:
        asked = context.params["partitions"], context.params["ranges"]

    assert ("--partition KEY", "--partition-range A...B") == tuple(
        word for word in ("--partition KEY", "--partition-range A...B") if word in shown
    )
    assert "--window" not in shown
    assert (("a", "b"), ("c...d",)) == asked


@pytest.mark.parametrize("command", BY_WINDOW)
def test_range_without_two_ends_is_refused_everywhere(rivet: Rivet, command: str) -> None:
    """Before a file is read."""
    answer = rivet(command, "--partition-range", "2026-01-03")

    assert (1, True) == (answer.code, "has no '...' between its two windows" in answer.err)


def test_powershell_completes(rivet: Rivet, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a script, and what it asks is answered: three lines per word, as it takes them."""
    script = rivet("completions", "powershell")
    monkeypatch.setitem(os.environ, "COMP_WORDS", "rivet rec")
    monkeypatch.setitem(os.environ, "COMP_CWORD", "1")
    kind = get_completion_class("powershell")
    assert kind is not None

    answer = kind(cli.commands, {}, "rivet", "_RIVET_COMPLETE").complete()

    assert "powershell" in SHELLS
    assert (0, True) == (script.code, "Register-ArgumentCompleter -Native -CommandName rivet" in script.out)
    assert ["plain", "reconcile", "Compare what is published with the source as it is now."] == answer.splitlines()
