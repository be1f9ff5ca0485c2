"""YAML as a value, with the line of every key."""

from __future__ import annotations

import pytest

from rivet_assets.config.yaml_document import YamlFault, read_documents, read_yaml

VALUES = {
    "a: yes": {"a": "yes"},
    "on: off": {"on": "off"},
    "a: true": {"a": True},
    "a: 2026-01-31": {"a": "2026-01-31"},
    "a: 010": {"a": 10},
    "a: 0o10": {"a": 8},
    "a: 0x1F": {"a": 31},
    "a: 1:30": {"a": "1:30"},
    "a: 1.5": {"a": 1.5},
    "a: 1e3": {"a": 1000.0},
    "a: null": {"a": None},
    "a:": {"a": None},
    "a: 'null'": {"a": "null"},
    "a: ${X}": {"a": "${X}"},
    "{a: ${X}, b: [${Y:-1, 2}]}": {"a": "${X}", "b": ["${Y:-1, 2}"]},
    "a: ${X:-b: [c] # d}": {"a": "${X:-b: [c] # d}"},
    'a: "${X:-ä} # b"': {"a": "${X:-ä} # b"},
    "${K}: 1": {"${K}": 1},
    "a: &x {b: 1}\nc: {<<: *x, d: 2}": {"a": {"b": 1}, "c": {"b": 1, "d": 2}},
    "a: |\n  SELECT\n    1\n": {"a": "SELECT\n  1\n"},
    "": None,
    "# nothing": None,
}


@pytest.mark.parametrize("text", VALUES)
def test_text_is_read_as_yaml_1_2(text: str) -> None:
    """`on`, `no` and days are words; a reference is one piece of text wherever it stands."""
    assert VALUES[text] == read_yaml(text).value


TREE = """\
source:
  type: postgres
exports:
  - name: a
    destination: {type: local,
                  path: x}
  - name: b
"""
LINES = {
    (): 1,
    ("source", "type"): 2,
    ("exports",): 3,
    ("exports", 0): 4,
    ("exports", 0, "destination", "path"): 6,
    ("exports", 0, "destination", "missing"): 5,
    ("exports", 1, "missing", "deeper"): 7,
    ("nowhere",): 1,
}


@pytest.mark.parametrize("loc", LINES, ids=str)
def test_line_is_that_of_the_key(loc: tuple[str | int, ...]) -> None:
    """A key that is not written is placed at the block around it."""
    assert LINES[loc] == read_yaml(TREE).line(loc)


def test_duplicate_keys_are_found_at_any_depth() -> None:
    """YAML would silently take the last one."""
    document = read_yaml("a: 1\nb:\n  - {c: 1,\n     c: 2}\na: 3\n")

    assert [(4, ("b", 0)), (5, ())] == sorted((fault.line, fault.loc) for fault in document.duplicates)


FAULTS = {
    "a: [1\n": 2,
    "a: b: c": 1,
    "a: @x": 1,
    "a: *nothing": 1,
    "a: \x07": 1,
    "ok: 1\n\tb: 2": 2,
    "a: !!python/object/new:os.system [ls]": 1,
    "a: &a [*a]": 1,
    "a: 1\n---\nb: 2": 3,
    "[a]: b: c": 1,
    "? [a]\n: b": 1,
}


@pytest.mark.parametrize("text", FAULTS)
def test_what_is_not_yaml_is_told_with_its_line(text: str) -> None:
    """Nothing but a YamlFault leaves the reader, and no tag runs code."""
    with pytest.raises(YamlFault) as caught:
        read_yaml(text)

    assert FAULTS[text] == caught.value.line


def test_several_documents_keep_the_lines_of_the_file() -> None:
    """A component file may hold several components."""
    second = read_documents("a: {x: 1}\n---\nattributes:\n  x: 2\n")[1].below("attributes")

    assert second is not None
    assert ({"x": 2}, 4) == (second.value, second.line(("x",)))
