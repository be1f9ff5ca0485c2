"""A YAML text as a value, and where each of its keys stands.

Belongs here: reading YAML as version 1.2 does (`on` and `no` are words, days are texts), duplicate keys, syntax
faults in words, line numbers. Not here: what the keys mean.

References `${NAME}` are hidden from the parser while it reads, so that a default such as `${X:-a: {b}}` and a
reference inside `{flow: ${X}}` stay one piece of text, as in the original, which replaced them before parsing.

A file may come from a pull request of somebody unknown, and CI checks it. So its size, its depth, its numbers and what
its aliases expand to have limits, far above what people write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import yaml

from rivet_assets.blocks.choice import Loc

REFERENCE = re.compile(r"\$?\$\{[^}\n]*\}")
LARGEST_FILE = 2 << 20  # characters; some ten thousand exports. PyYAML reads 0.4 million a second
DEEPEST = 100
MOST_VALUES = 250_000  # aliases counted wherever they are used; a hundred characters of text count as one value more
CHARACTERS_PER_VALUE = 100
MOST_DIGITS = 100
LONGEST_SHOWN = 200
HIDING = 0xE000  # Unicode's private use area: YAML reads it as plain text


class YamlFault(Exception):
    """One place where a text is not YAML, or holds a key twice."""

    def __init__(self, code: str, message: str, *, line: int, loc: Loc = ()) -> None:
        super().__init__(message)
        self.code, self.message, self.line, self.loc = code, message, line, loc


@dataclass(frozen=True)
class Document:
    """One YAML document: its value, and the tree of nodes it was made from."""

    value: Any
    root: yaml.Node | None
    duplicates: tuple[YamlFault, ...] = ()

    def line(self, loc: Loc) -> int:
        """Find the line of a key or list item, else of the nearest block around it; 1 is the first."""
        return _follow(self.root, loc)[0]

    def written(self, loc: Loc) -> str | None:
        """Return a scalar as it was written, references unresolved; None where there is none."""
        _, node, whole = _follow(self.root, loc)
        return show_references(node.value) if whole and isinstance(node, yaml.ScalarNode) else None

    def below(self, key: str) -> Document | None:
        """Return one block of it as a document of its own; lines stay those of the file."""
        _, node, whole = _follow(self.root, (key,))
        if not whole or not isinstance(self.value, dict):
            return None
        inner = tuple(
            YamlFault(d.code, d.message, line=d.line, loc=d.loc[1:]) for d in self.duplicates if d.loc[:1] == (key,)
        )
        return Document(self.value[key], node, inner)


def read_yaml(text: str) -> Document:
    """Read one document; an empty text is None.

    Raises:
        YamlFault: the text is not YAML, or holds more than one document.
    """
    documents = read_documents(text)
    if len(documents) > 1:
        line = documents[1].line(())
        raise YamlFault(
            "RIVET_CONFIG_YAML", "a second document begins here; keep one, without '---' between", line=line
        )
    return documents[0] if documents else Document(None, None)


def read_documents(text: str) -> list[Document]:
    """Read every document of a text.

    Raises:
        YamlFault: the text is not YAML, or passes one of the limits above.
    """
    if len(text) > LARGEST_FILE:
        raise _limit(f"has {len(text):,} characters; allowed are {LARGEST_FILE:,}. Split it into several files", line=1)
    try:
        return list(_documents(_Loader(hide_references(text))))
    except RecursionError as error:
        raise _limit(f"is nested more deeply than {DEEPEST} levels; write it flatter", line=1) from error
    except yaml.MarkedYAMLError as error:
        raise _in_words(error, text) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"holds the character U+{int(error.character):04X}, which YAML does not allow; remove it"
        raise YamlFault("RIVET_CONFIG_YAML", message, line=line) from error


def hide_references(text: str) -> str:
    """Move every reference into characters without meaning to YAML; lengths and lines stay."""
    return "\n".join(map(_line_hidden, text.split("\n"))) if "${" in text else text


def _line_hidden(line: str) -> str:
    # Only up to the last brace: behind it the pattern would run to the end of the line from every `${` in vain.
    head, brace, tail = line.rpartition("}")
    found = REFERENCE.sub(
        lambda match: "".join(chr(HIDING + ord(c)) if ord(c) < 256 else c for c in match[0]), head + brace
    )
    return found + tail


def show_references(text: str) -> str:
    """Undo `hide_references`."""
    return re.sub(r"[\ue000-\ue0ff]", lambda match: chr(ord(match[0]) - HIDING), text)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no stubs here
    """YAML 1.2's core schema, for values; merge keys kept."""

    # None of YAML 1.1's, which take `on` for a truth value and 2026-01-31 for a day.
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}
    depth = 0

    def construct_scalar(self, node: yaml.ScalarNode) -> Any:
        """Return text with its references visible again."""
        return show_references(str(super().construct_scalar(node)))

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node that does not lie too deep."""
        self.depth += 1
        if self.depth > DEEPEST:
            line = self.peek_event().start_mark.line + 1
            raise _limit(f"is nested more deeply than {DEEPEST} levels here; write it flatter", line=line)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Construct a value; one that is not what its tag says is a fault of the file."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, AttributeError, KeyError, TypeError, IndexError, OverflowError):
            kind = str(node.tag).rpartition(":")[2]
            text = f"`{_short(str(node.value))}`" if isinstance(node, yaml.ScalarNode) else "this block"
            raise _limit(
                f"{text} is not of type {kind}, which it is said to be", line=node.start_mark.line + 1
            ) from None


# YAML 1.2.2, section 10.3.2, "Tag Resolution" of the core schema; and YAML 1.1's merge key.
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), [c if c != "\0" else "" for c in _first]
    )


def _whole(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    if len(text) > MOST_DIGITS:
        line = node.start_mark.line + 1
        raise _limit(f"a number has {len(text):,} digits; allowed are {MOST_DIGITS}. Quote it if it is text", line=line)
    return int(text, 0) if text.startswith(("0o", "0x")) else int(text)


_Loader.add_constructor("tag:yaml.org,2002:int", _whole)


def _documents(loader: _Loader) -> Iterator[Document]:
    while loader.check_node():
        root = loader.get_node()
        _Expansion().check(root)
        duplicates = tuple(_duplicates(root, ()))
        yield Document(loader.construct_document(root), root, duplicates)


def _limit(message: str, *, line: int) -> YamlFault:
    return YamlFault("RIVET_CONFIG_YAML", message, line=line)


def _short(text: str) -> str:
    text = show_references(text)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


class _Expansion:
    """How much a document is once every alias is written out: what walking and copying it costs."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}  # values, levels
        self._open: set[int] = set()

    def check(self, node: yaml.Node) -> tuple[int, int]:
        """Return how many values a node has, and how many levels; each node is looked at once.

        Raises:
            YamlFault: an anchor holds itself, or there is too much of it.
        """
        if id(node) in self._known:
            return self._known[id(node)]
        line = node.start_mark.line + 1
        if id(node) in self._open:
            raise _limit("holds an anchor that refers to itself; write the block out", line=line)
        self._open.add(id(node))
        values, levels = 1, 1
        if isinstance(node, yaml.ScalarNode):
            values += len(node.value) // CHARACTERS_PER_VALUE
        for child in _children(node):
            more, below = self.check(child)
            values, levels = values + more, max(levels, below + 1)
        if values > MOST_VALUES:
            raise _limit(
                f"holds more than {MOST_VALUES:,} values, counting each where its alias is used; write less, or split "
                f"the file",
                line=line,
            )
        if levels > DEEPEST:
            raise _limit(f"is nested more deeply than {DEEPEST} levels by its aliases; write it flatter", line=line)
        self._open.discard(id(node))
        self._known[id(node)] = values, levels
        return values, levels


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key
            yield value


def _duplicates(node: yaml.Node | None, loc: Loc) -> Iterator[YamlFault]:
    """Find keys that stand twice in one block, at any depth."""
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _duplicates(item, (*loc, index))
    if not isinstance(node, yaml.MappingNode):
        return
    first: dict[str, int] = {}
    for key, value in node.value:
        name = show_references(str(key.value))
        line = key.start_mark.line + 1
        if name in first and name != "<<":
            message = f"key `{name}` stands here and on line {first[name]}; keep one"
            yield YamlFault("RIVET_CONFIG_DUPLICATE_KEY", message, line=line, loc=loc)
        first.setdefault(name, line)
        yield from _duplicates(value, (*loc, name))


def _follow(node: yaml.Node | None, loc: Loc) -> tuple[int, yaml.Node | None, bool]:
    """Walk down as far as the tree goes: the line reached, the node there, and whether all of `loc` was found."""
    line = node.start_mark.line + 1 if node is not None else 1
    for step in loc:
        found = _child(node, step)
        if found is None:
            return line, node, False
        line, node = found
    return line, node, True


def _child(node: yaml.Node | None, step: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        item = node.value[step]
        return item.start_mark.line + 1, item
    if isinstance(node, yaml.MappingNode):
        # Of a key that stands twice the last one counts, here as in the value.
        for key, value in reversed(node.value):
            if show_references(str(key.value)) == str(step):
                return key.start_mark.line + 1, value
    return None


def _in_words(error: yaml.MarkedYAMLError, text: str) -> YamlFault:
    """Return what is wrong with the text, and the likely cause where the line shows it."""
    mark = error.problem_mark or error.context_mark
    number = mark.line + 1 if mark else 1
    lines = text.splitlines()
    line = lines[number - 1][:1000] if number <= len(lines) else ""
    message = f"is not YAML: {_short(error.problem or 'it cannot be read')}."
    if "\t" in line[: len(line) - len(line.lstrip())]:
        message = "is indented with a tab; YAML wants spaces."
    elif re.search(r":\s+\{[^}]*\}\s*\S", line):
        message += ' A value that begins with { must be quoted: "{export}/raw".'
    elif re.search(r":\s+[%@`]", line):
        message += " A value that begins with %, @ or ` must be quoted."
    else:
        message += " Check indentation, colons and quotes here and on the line above."
    return YamlFault("RIVET_CONFIG_YAML", message, line=number)
