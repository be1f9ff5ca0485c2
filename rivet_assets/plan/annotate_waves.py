"""Writing `wave: N` into a YAML file, and nothing else: every other byte stays as its author left it.

Belongs here: where in a text the key goes. Not here: which wave (`priority.py`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from rivet_assets.config.yaml_document import Document, hide_references, read_yaml, show_references
from rivet_resources.errors import ConfigError

KEY = "wave"


def annotate(path: Path, waves: Mapping[str, int]) -> list[str]:
    """Write the wave of each export into the file, in one swap; the names of those that changed.

    Raises:
        ConfigError: the file cannot be written, or an export in it cannot be given a key by text alone.
    """
    before = path.read_bytes()
    text = before.decode("utf-8")
    after, changed = with_waves(text, waves)
    if not changed:
        return []
    # An editor may have saved it in the meantime, and its work must not be lost to ours.
    if path.read_bytes() != before:
        raise ConfigError(f"{path} was edited meanwhile; nothing was written. Plan again.")
    _swap(path, after.encode("utf-8"))
    return changed


def with_waves(text: str, waves: Mapping[str, int]) -> tuple[str, list[str]]:
    """Return a text in which each export has its wave, and the names of those whose wave was another.

    Raises:
        ConfigError: an export stands there by an anchor, so that its text belongs to more than one place.
    """
    root = yaml.compose(hide_references(text), Loader=yaml.SafeLoader)
    edits, changed = list[tuple[int, int, str]](), list[str]()
    seen = set[int]()
    for block in _exports(root):
        name = show_references(str(_scalar(block, "name") or ""))
        if name not in waves or _scalar(block, KEY) == str(waves[name]):
            continue
        if id(block) in seen or any(key.value == "<<" for key, _ in block.value):
            raise ConfigError(f"Export {name} is written with an anchor; write `wave: {waves[name]}` there by hand.")
        seen.add(id(block))
        edits.append(_edit(text, block, waves[name]))
        changed.append(name)
    # From the end, so that no edit moves the place of another one.
    for start, end, piece in sorted(edits, reverse=True):
        text = text[:start] + piece + text[end:]
    _prove(read_yaml(text), waves, changed)
    return text, changed


def _exports(root: yaml.Node | None) -> list[yaml.MappingNode]:
    if not isinstance(root, yaml.MappingNode):
        return []
    blocks = [value for key, value in root.value if key.value == "exports"]
    listed = blocks[0].value if blocks and isinstance(blocks[0], yaml.SequenceNode) else []
    return [block for block in listed if isinstance(block, yaml.MappingNode) and block.value]


def _value(block: yaml.MappingNode, key: str) -> yaml.Node | None:
    return next((value for each, value in block.value if each.value == key), None)


def _scalar(block: yaml.MappingNode, key: str) -> str | None:
    value = _value(block, key)
    return value.value if isinstance(value, yaml.ScalarNode) else None


def _edit(text: str, block: yaml.MappingNode, wave: int) -> tuple[int, int, str]:
    """Return which piece of the text becomes what: the old wave, else the place behind the export's name."""
    old = _value(block, KEY)
    if old is not None:
        return old.start_mark.index, old.end_mark.index, str(wave)
    name = _value(block, "name")
    assert name is not None  # exports without a name are in no plan
    if block.flow_style:
        return name.end_mark.index, name.end_mark.index, f", {KEY}: {wave}"
    key = next(each for each, _ in block.value if each.value == "name")
    end = text.find("\n", name.end_mark.index)
    # As the file has them, since every other byte stays.
    newline = "\r\n" if end > 0 and text[end - 1] == "\r" else "\n"
    line = f"{' ' * key.start_mark.column}{KEY}: {wave}"
    if end < 0:
        return len(text), len(text), f"{newline}{line}"
    return end + 1, end + 1, f"{line}{newline}"


def _prove(document: Document, waves: Mapping[str, int], changed: list[str]) -> None:
    """Read the new text back before it is trusted.

    Raises:
        ConfigError: an export has not got its wave.
    """
    found = {str(export.get("name")): export.get(KEY) for export in (document.value or {}).get("exports") or ()}
    for name in changed:
        if found.get(name) != waves[name]:
            raise ConfigError(f"Export {name} cannot be given its wave by text; write `wave: {waves[name]}` by hand.")


def _swap(path: Path, content: bytes) -> None:
    """Put the new content in the file's place, with its permissions.

    Raises:
        ConfigError: the folder cannot be written.
    """
    real = path.resolve()  # a link stays one
    try:
        handle, name = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}-")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, real.stat().st_mode & 0o7777)
        os.replace(name, real)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}. Write the waves by hand.") from error
