"""`${NAME}` in a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from rivet_assets.config.load import load_text
from rivet_assets.config.variables import Substitution
from rivet_resources.errors import ConfigError

ENVIRONMENT = {"V": "hello", "EMPTY": "", "NESTED": "${V}", "BOTH": "environment", "STRANGE": "a: #b }{ 'c' \"d\"\n- e"}
PARAMS = {"BOTH": "param", "P": "1"}

ANSWERS = {
    "plain": "plain",
    "${V}": "hello",
    "a-${V}-${V}-b": "a-hello-hello-b",
    "${EMPTY}": "",
    "${BOTH}": "param",
    "${V:-other}": "hello",
    "${EMPTY:-other}": "other",
    "${MISSING:-other}": "other",
    "${MISSING:-}": "",
    "${MISSING:-a:-b}": "a:-b",
    "${NESTED}": "${V}",
    "${STRANGE}": ENVIRONMENT["STRANGE"],
    "$${V}": "${V}",
    "$$${V}": "$${V}",
    "${}": "",
    "${unclosed": "${unclosed",
    "$V {V} $": "$V {V} $",
}


@pytest.mark.parametrize("text", ANSWERS)
def test_reference_is_replaced_once(text: str) -> None:
    """Params come before the environment; inserted text is not looked at again."""
    substitution = Substitution(PARAMS, ENVIRONMENT)

    assert ANSWERS[text] == substitution.text(text, ())
    assert [] == substitution.missing


def test_keys_are_not_replaced() -> None:
    """Only values take references."""
    assert {"${V}": ["hello", {"k": "hello"}, 5, None]} == Substitution({}, ENVIRONMENT).value(
        {"${V}": ["${V}", {"k": "${V}"}, 5, None]}
    )


def test_every_missing_name_is_told_with_its_place() -> None:
    """One pass finds all of them, and never shows a value."""
    substitution = Substitution({}, ENVIRONMENT)
    substitution.value({"a": "${X}", "b": ["${V}", "${Y} and ${Z}"]})

    assert [(("a",), "X"), (("b", 1), "Y"), (("b", 1), "Z")] == [
        (missing.loc, missing.message.split("}")[0][2:]) for missing in substitution.missing
    ]


def test_names_are_case_sensitive() -> None:
    """`${v}` is not `${V}`."""
    substitution = Substitution({}, ENVIRONMENT)
    substitution.text("${v}", ())

    assert 1 == len(substitution.missing)


TEXT = """
source: {type: postgres, url_env: SHOP_URL}
exports:
  - {name: orders, table: orders, format: parquet, destination: {type: local, path: lake}, KEYS}
"""


def export(keys: str, **params: str):
    """Load one export with further keys."""
    return load_text(TEXT.replace("KEYS", keys), file=Path("rivet.yaml"), params=params).exports[0]


def test_value_cannot_change_the_structure_of_the_file() -> None:
    """What would be YAML stays one text."""
    strange = "x\nexports: []\n#: {a: [b"

    assert strange == export("description: ${TEXT}", TEXT=strange).description


TYPED = {
    "parallel: ${X}": ("3", lambda e: e.parallel == 3),
    "parallel: '${X}'": ("3", lambda e: e.parallel == 3),
    "parallel: ${X:-4}": ("", lambda e: e.parallel == 4),
    "skip_empty: ${X}": ("true", lambda e: e.skip_empty is True),
    "max_file_size: ${X}": ("1KB", lambda e: e.max_file_size == 1024),
    "quality: {null_ratio_max: {a: ${X}}}": ("0.25", lambda e: e.quality.null_ratio_max == {"a": 0.25}),
    "compression: ${X}": ("gzip", lambda e: e.compression == "gzip"),
    "description: ${X}": ("007", lambda e: e.description == "007"),
    "mode: time_window, time_column: at, start: ${X}": ("2026-01-31", lambda e: e.start.day == 31),
}


@pytest.mark.parametrize("keys", TYPED)
def test_scalar_that_is_one_reference_takes_the_type_of_its_field(keys: str) -> None:
    """Numbers and truth values come out of texts where the field wants them, and nowhere else."""
    value, holds = TYPED[keys]

    assert holds(export(keys, X=value))


def test_value_with_nul_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No database, path or driver takes a NUL; an environment cannot hold one, a param can."""
    with pytest.raises(ConfigError) as caught:
        export("description: ${X}", X="a\0b")
    assert ("RIVET_CONFIG_VARIABLE_NUL",) == caught.value.codes


def test_message_shows_the_reference_and_not_its_value() -> None:
    """A wrong value from outside may be a secret in the wrong place."""
    with pytest.raises(ConfigError) as caught:
        export("compression: ${X}, parallel: ${X}, schedule: ${X}, group: ${X}, columns: {a: '${X}'}", X="hunter2!")
    assert "hunter2" not in str(caught.value)
    assert "compression '${X}' is not one of" in str(caught.value)


def test_reference_in_a_comment_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unlike the original, which replaced in the raw text."""
    monkeypatch.delenv("NOWHERE", raising=False)
    text = TEXT.replace("KEYS", "parallel: 1") + "# ${NOWHERE}\n"

    assert 1 == len(load_text(text, file=Path("rivet.yaml")).exports)
