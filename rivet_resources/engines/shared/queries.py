"""A user's query as text: its `:name` parameters, and what may stand around it.

Belongs here: telling code from quoted things and comments, given an engine's words. Not here: those words
(`engines/*/sql.py`), describing a query (`engines/*/catalog.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from rivet_resources.errors import ConfigError

COMMENT_EDGE = re.compile(r"/\*|\*/")


@dataclass(frozen=True)
class Lexicon:
    """What one engine's SQL is made of, as far as a colon may hide in it.

    `tokens` matches quoted things, comments, colons that are code, and `:name`, whose name is group 1. A match that
    ends before its token does is one of `long`: given the query and the match, that tells where the token ends.
    """

    tokens: re.Pattern[str]
    quote: Callable[[str], str]
    comments: tuple[str, ...] = ("--", "/*")
    long: Callable[[str, re.Match[str]], int] = lambda query, match: match.end()
    holds_nul: bool = True  # whether a text may


def render_parameters(query: str, params: Mapping[str, str], lexicon: Lexicon) -> str:
    """Replace each `:name` outside quotes and comments by a quoted text.

    Raises:
        ConfigError: a name without a value; the message lists the known ones.
    """
    return "".join(_parameter(name, params, lexicon) if name else text for text, name in _pieces(query, lexicon))


def strip_query(query: str, lexicon: Lexicon) -> str:
    """Return a query without blanks around it and without the semicolons that end it: it becomes a derived table.

    Raises:
        ConfigError: it is empty.
    """
    pieces = list(_pieces(query.strip(), lexicon))
    # From the end, past comments: a semicolon inside a text or a comment is not one that ends the query.
    for place, (text, name) in reversed(list(enumerate(pieces))):
        if _is_comment(text, name, lexicon):
            continue
        # A parameter is no code of the query, so nothing of it is cut.
        code = text if name is not None else text.rstrip("; \t\r\n\f\v")
        # Semicolons between the last statement and a comment behind it: blanks keep the text's places.
        pieces[place] = (code + text[len(code) :].replace(";", " "), name)
        if code:
            break
    bare = "".join(text for text, _ in pieces).strip()
    # What is left may be comments only, and a derived table of nothing is a syntax error of the server with a worse
    # message.
    if not code_of(bare, lexicon):
        raise ConfigError("The query is empty; write one SELECT.")
    return bare


def code_of(query: str, lexicon: Lexicon) -> str:
    """Blank out comments, keeping quoted things as they are; no blanks around."""
    pieces = _pieces(query, lexicon)
    return "".join(" " if _is_comment(text, name, lexicon) else text for text, name in pieces).strip()


def nested_comment(query: str, match: re.Match[str]) -> int:
    """Find where a block comment ends, at its own depth; any other token where it was matched to."""
    if match[0] != "/*":
        return match.end()
    depth, position = 1, match.end()
    while depth and (edge := COMMENT_EDGE.search(query, position)):
        depth += 1 if edge[0] == "/*" else -1
        position = edge.end()
    # A comment that is never closed reaches to the end of the query, as it does for the server.
    return len(query) if depth else position


def _pieces(query: str, lexicon: Lexicon) -> Iterator[tuple[str, str | None]]:
    """Cut a query into tokens, each with its name ('' unless it is a parameter), and the code between them (None)."""
    position = 0
    while match := lexicon.tokens.search(query, position):
        yield query[position : match.start()], None
        position = lexicon.long(query, match)
        yield query[match.start() : position], match[1] or ""
    yield query[position:], None


def _is_comment(text: str, name: str | None, lexicon: Lexicon) -> bool:
    return name == "" and text.startswith(lexicon.comments)


def _parameter(name: str, params: Mapping[str, str], lexicon: Lexicon) -> str:
    if name not in params:
        known = ", ".join(sorted(params)) or "none"
        raise ConfigError(
            f"The query uses :{name}, which has no value; known parameters: {known}. Add `params: {{{name}: …}}`."
        )
    # Refused here by the parameter's name, which an error of the server would not tell.
    if "\0" in params[name] and not lexicon.holds_nul:
        raise ConfigError(f"Parameter {name} of the query holds a NUL, which this source's text cannot; remove it.")
    return lexicon.quote(params[name])
