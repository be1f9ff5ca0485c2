"""Nobody outside of `modes/` asks an export for its mode by name: each mode answers for itself."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from rivet_assets.modes.registry import MODES
from tests.product import ROOT, SHARED, modules

pytestmark = SHARED

CLASSES = {mode.__name__ for mode in MODES.values()}


def _asked(nodes: Iterable[ast.AST]) -> list[int]:
    """List the lines that ask `isinstance(…, Cdc)` and the like, or compare a `.mode` with a mode's word."""
    lines = []
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                if CLASSES & {each.id for each in ast.walk(kinds) if isinstance(each, ast.Name)}:
                    lines.append(node.lineno)
            case ast.Compare(left=ast.Attribute(attr="mode"), comparators=comparators):
                words = {
                    each.value for side in comparators for each in ast.walk(side) if isinstance(each, ast.Constant)
                }
                if words & set(MODES):
                    lines.append(node.lineno)
    return lines


def test_mode_is_asked_for_by_name_in_its_own_room_only() -> None:
    """A new mode is one file and one line in the registry."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path, (_, nodes) in modules().items()
        if path.is_relative_to(ROOT / "rivet_assets") and path.parent.name != "modes"
        for line in _asked(nodes)
    ]

    assert [] == found


def test_every_way_of_asking_is_seen() -> None:
    """The test above would fail for each of these."""
    for text in ("isinstance(export, Cdc)", "isinstance(x, Full | Poll)", 'e.mode == "cdc"', 'e.mode in ("full", "x")'):
        assert [1] == _asked(ast.walk(ast.parse(text))), text


def test_answers_carry_the_word_of_their_mode() -> None:
    """Messages of engines name the mode by it."""
    assert {word: word for word in MODES} == {word: mode.answers.name for word, mode in MODES.items()}
