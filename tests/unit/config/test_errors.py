"""A wrong configuration gets one line per fault, with file, line, value, what is allowed and what to do.

Golden files: tests/unit/config_errors/<case>.yaml and the message it gets, <case>.txt, codes first.
After a change of wording: `RIVET_GOLDEN=write pytest tests/unit/config/test_errors.py`, then read the diff.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rivet_assets.config.error_codes import CODES
from rivet_assets.config.load import load_config, load_text
from rivet_resources.errors import ConfigError

FOLDER = Path(__file__).parent / "config_errors"
CASES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
ROOT = Path(__file__).parents[3]

# Codes no golden file can hold: they need another door, or are the answer to what nobody thought of.
ELSEWHERE = {
    "RIVET_CONFIG_FILE": "test_missing_file_is_named",
    "RIVET_CONFIG_VARIABLE_NUL": "test_variables.py",
    "RIVET_CONFIG_EXPORT_UNKNOWN": "test_load.py",
    "RIVET_CONFIG_WARNING": "test_warnings.py",
    "RIVET_CONFIG_INVALID": "the answer to errors that have no sentence of their own",
}


def message(case: str) -> str:
    """Load a golden file as it would be from its own folder: codes, then lines."""
    with pytest.raises(ConfigError) as caught:
        load_config(f"{case}.yaml")
    return f"{' '.join(caught.value.codes)}\n{caught.value}\n"


@pytest.fixture(autouse=True)
def _in_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand beside the golden files, where no variable of theirs is set."""
    monkeypatch.chdir(FOLDER)
    for name in ("SIZE", "OWNER", "TABLE", "NOWHERE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("case", CASES)
def test_wrong_file_gets_its_message(case: str) -> None:
    """Each bad file is answered with exactly the message beside it."""
    expected = FOLDER / f"{case}.txt"
    if os.environ.get("RIVET_GOLDEN") == "write":
        expected.write_text(message(case))

    assert expected.read_text() == message(case)


@pytest.mark.parametrize("case", CASES)
def test_message_shows_no_secret(case: str) -> None:
    """The word `hunter2` stands for every secret in the bad files; no message repeats it."""
    assert "hunter2" not in message(case)


@pytest.mark.parametrize("case", CASES)
def test_every_line_says_where(case: str) -> None:
    """One line per fault, each beginning with file and line, in the order of lines."""
    _, *lines = message(case).splitlines()
    places = [re.match(rf"{case}\.yaml:(\d+): ", line) for line in lines]

    assert all(places)
    assert sorted(int(place[1]) for place in places if place) == [int(place[1]) for place in places if place]


def test_every_code_has_a_golden_file() -> None:
    """No rule is without an example of its message."""
    shown = {code for case in CASES for code in message(case).splitlines()[0].split()}

    assert set(CODES) == shown | set(ELSEWHERE)


def test_table_of_codes_is_complete() -> None:
    """Every code in the two packages is in the table, and none is only there."""
    files = [*ROOT.glob("rivet_assets/**/*.py"), *ROOT.glob("rivet_resources/**/*.py")]
    used = {
        code
        for file in files
        if file.name != "config/error_codes.py"
        for code in re.findall(r"\"(RIVET_CONFIG_[A-Z_]+)\"", file.read_text())
    }

    assert set(CODES) == used


def test_missing_file_is_named(tmp_path: Path) -> None:
    """A path that leads nowhere is told with the path and what to do."""
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "nowhere.yaml")

    assert ("RIVET_CONFIG_FILE",) == caught.value.codes
    assert f"{tmp_path}/nowhere.yaml cannot be read: No such file or directory" in str(caught.value)


def test_empty_file_says_what_is_missing(tmp_path: Path) -> None:
    """Nothing at all is a configuration without exports."""
    with pytest.raises(ConfigError) as caught:
        load_text("", file=tmp_path / "rivet.yaml")

    assert ("RIVET_CONFIG_NO_EXPORTS",) == caught.value.codes
