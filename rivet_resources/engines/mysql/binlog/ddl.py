"""What an ALTER TABLE does to rows that were there already, without a word of it in the log's rows.

Belongs here: the words of the statement, taken apart. Not here: whose table it is (tables.py), refusing
(transactions.py).

The log has the statement as it was given, so it is read where it stands: the catalog is of now, and does not say
whether a column of this name is a renamed one, or had another default when it was added. What is not understood is
taken for the harmful case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

# Of an executable comment, `/*!50100 … */` or MariaDB's `/*M! … */`, only the marks are blank: servers carry
# its words out. `--` begins a comment before white space only. Source: MySQL Reference Manual, "Comments".
TOKEN = re.compile(
    r"""(?xs)(?P<blank>\s+|/\*M?!\d*|\*/|/\*.*?\*/|--(?=\s)[^\n]*|\#[^\n]*)
    |(?P<text>'(?:[^'\\]|''|\\.)*')|(?P<name>`(?:[^`]|``)+`|"(?:[^"]|"")*")|(?P<word>[^\s`"'(),;]+)|(?P<sign>.)"""
)
# What ADD and DROP may name that is no column.
NO_COLUMN = frozenset({"INDEX", "KEY", "CONSTRAINT", "PRIMARY", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK",
                       "PARTITION", "PERIOD", "SYSTEM"})  # fmt: skip
# Words by which old rows get a value: a number, that of an expression, or, where NULL is ruled out, the type's zero.
FILLING = frozenset({"AUTO_INCREMENT", "SERIAL", "PRIMARY", "GENERATED", "AS"})
EVERY_TEXT = ""  # stands for all columns of texts
# What begins a query, and what goes on behind the VALUES of a partition instead.
QUERIES, PARTITIONS = frozenset({"SELECT", "TABLE", "VALUES"}), frozenset({"LESS", "IN"})
CASCADES = re.compile(r"(?is)\bON\s+(?:DELETE|UPDATE)\s+(?:CASCADE|SET\s+NULL|SET\s+DEFAULT)\b")


@dataclass(frozen=True)
class Token:
    """One word, quoted name, text or sign; `depth` counts the parentheses around it."""

    text: str
    is_word: bool
    depth: int = 0

    @property
    def word(self) -> str:
        """Return a word in upper case; '' for what is quoted, and for signs."""
        return self.text.upper() if self.is_word else ""

    @property
    def name(self) -> str:
        """Return it as the name of a column."""
        quote = self.text[:1]
        return self.text[1:-1].replace(quote * 2, quote) if quote in ("`", '"') else self.text


@dataclass(frozen=True)
class Definition:
    """What a statement says a column is from now on."""

    native: str  # as the server would spell it, without what decides nothing here; '' for a character set alone
    charset: str  # `?`: that of the table, or of the collation
    allows_null: bool
    says_null: bool = False
    is_made: bool = False  # of others, by an expression
    is_counted: bool = False  # a zero, or a NULL, becomes the next number


@dataclass
class Altered:
    """What an ALTER TABLE does to columns; names as it spells them."""

    renamed: list[tuple[str, str]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    filled: list[str] = field(default_factory=list)  # of the added ones: those that give old rows a value
    stamped: list[str] = field(default_factory=list)  # TIMESTAMPs that a setting of the server fills, or not
    retyped: list[tuple[str, Definition]] = field(default_factory=list)  # EVERY_TEXT for a character set of all


def parse_alter(body: str) -> Altered:
    """Take apart what stands behind the table's name."""
    found = Altered()
    for clause in _split(_tokens(body)):
        _clause(clause, found)
    return found


def has_query(definition: str) -> bool:
    """Return whether a CREATE TABLE fills its table by a query, given what stands behind the table's name."""
    words = [token.word for token in _tokens(definition)]
    pairs = zip(words, [*words[1:], ""], strict=True)
    return any(word in QUERIES and following not in PARTITIONS for word, following in pairs)


def has_cascades(statement: str) -> bool:
    """Return whether a statement makes a foreign key that changes rows of its table by itself."""
    bare = " ".join(token.text for token in _tokens(statement) if token.is_word)
    return CASCADES.search(bare) is not None


def _tokens(text: str) -> list[Token]:
    found, depth = [], 0
    for match in TOKEN.finditer(text):
        kind = match.lastgroup
        if kind == "blank":
            continue
        if match[0] == ")":
            depth -= 1
        found.append(Token(match[0], kind == "word", depth))
        if match[0] == "(":
            depth += 1
    return found


def _split(tokens: Sequence[Token], depth: int = 0) -> Iterator[list[Token]]:
    """Cut at the commas that stand at a depth."""
    clause: list[Token] = []
    for token in tokens:
        if token.text == "," and token.depth == depth:
            yield clause
            clause = []
        else:
            clause.append(token)
    yield clause


def _clause(tokens: list[Token], found: Altered) -> None:
    words = [token.word for token in tokens]
    # MariaDB: before the first clause, without a comma.
    while words[:1] in (["WAIT"], ["NOWAIT"]):
        count = 2 if words[0] == "WAIT" else 1
        tokens, words = tokens[count:], words[count:]
    if words[:2] == ["CONVERT", "TO"]:
        found.retyped.append((EVERY_TEXT, Definition("", _charset(tokens), allows_null=True)))
    if not words or words[0] not in ("ADD", "CHANGE", "MODIFY", "RENAME", "DROP"):
        return
    verb, rest = words[0], tokens[1:]
    is_column = bool(rest) and rest[0].word == "COLUMN"
    rest = _without(rest, "COLUMN") if is_column else rest
    # Without the word COLUMN, RENAME means the table or one of its keys; ADD and DROP may mean either.
    if not is_column and (verb == "RENAME" or _names_no_column(rest)):
        return
    rest = _without(_without(rest, "IF", "NOT", "EXISTS"), "IF", "EXISTS")
    if verb == "ADD":
        _parse_added(rest, found)
    elif verb == "DROP" and rest:
        found.dropped.append(rest[0].name)
    elif verb == "MODIFY" and rest:
        found.retyped.append((rest[0].name, _definition(rest[1:])))
    # CHANGE with the same name twice alters the type alone.
    elif verb == "CHANGE" and len(rest) > 1:
        if rest[0].name == rest[1].name:
            found.retyped.append((rest[0].name, _definition(rest[2:])))
        else:
            found.renamed.append((rest[0].name, rest[1].name))
    elif verb == "RENAME" and len(rest) > 2 and rest[1].word == "TO" and rest[0].name != rest[2].name:
        found.renamed.append((rest[0].name, rest[2].name))


def _definition(tokens: Sequence[Token]) -> Definition:
    """Take apart what stands behind a column's name: its type, and what else decides about old values."""
    words = [token.word for token in tokens if token.depth == 0]
    inside = "".join(token.text for token in _arguments(tokens[1:]))
    kind = tokens[0].text.lower() if tokens else ""
    # What makes bytes of a text, or another type of this one, ends in a spelling that nobody knows, and is not judged.
    marks = [word.lower() for word in words if word in ("UNSIGNED", "ZEROFILL", "BYTE", "PRECISION", "VARYING")]
    charset = _charset(tokens)
    native = " ".join([kind + inside, *marks, *(["byte"] if charset == "binary" else [])])
    pairs = list(zip(words, [*words[1:], ""], strict=True))
    is_key = "PRIMARY" in words or kind == "serial"
    return Definition(
        native, charset, allows_null=("NOT", "NULL") not in pairs and not is_key, says_null="NULL" in words,
        is_made=bool({"GENERATED", "AS"} & set(words)), is_counted="AUTO_INCREMENT" in words or kind == "serial",
    )  # fmt: skip


def _arguments(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the parentheses that follow a type, and what is in them."""
    if not tokens or tokens[0].text != "(":
        return
    for token in tokens:
        yield token
        if token.text == ")" and token.depth == tokens[0].depth:
            return


def _charset(tokens: Sequence[Token]) -> str:
    """Name the character set that a definition says; `?` where it says none."""
    for place, token in enumerate(tokens[:-1]):
        is_two = token.word in ("CHARACTER", "CHAR") and tokens[place + 1].word == "SET"
        named = tokens[place + 2 : place + 3] if is_two else tokens[place + 1 : place + 2]
        if named and named[0].text == "=":
            named = tokens[place + 3 : place + 4] if is_two else tokens[place + 2 : place + 3]
        if named and (is_two or token.word == "CHARSET"):
            return named[0].text.strip("'`\"").lower()
    return "?"


def _names_no_column(rest: Sequence[Token]) -> bool:
    words = [token.word for token in rest[:2]]
    return bool(words) and (words[0] in NO_COLUMN or words == ["VECTOR", "INDEX"] or words == ["VECTOR", "KEY"])


def _without(tokens: list[Token], *words: str) -> list[Token]:
    """Leave out the first tokens if they are these words."""
    return tokens[len(words) :] if [token.word for token in tokens[: len(words)]] == list(words) else tokens


def _parse_added(rest: list[Token], found: Altered) -> None:
    if rest and rest[0].text == "(":
        inside = [token for token in rest if token.depth > 0]
        for each in _split(inside, depth=1):
            if not _names_no_column(each):
                _column(each, 1, found)
    else:
        _column(rest, 0, found)


def _column(definition: Sequence[Token], depth: int, found: Altered) -> None:
    """Judge the definition of a column: what it gives to rows that are there."""
    if not definition:
        return
    name = definition[0].name
    # At the definition's own depth: the words of an expression, or of a list of labels, decide nothing.
    tokens = [token for token in definition[1:] if token.depth == depth]
    words = [token.word for token in tokens]
    found.added.append(name)
    pairs = list(zip(words, [*words[1:], ""], strict=True))
    has_default = any(word == "DEFAULT" and following != "NULL" for word, following in pairs)
    if has_default or ("NOT", "NULL") in pairs or FILLING & set(words):
        found.filled.append(name)
    # Whether such a column may be NULL is a setting of the server (`TableMaps._stamps_are_explicit`).
    elif words[:1] == ["TIMESTAMP"] and "NULL" not in words:
        found.stamped.append(name)
