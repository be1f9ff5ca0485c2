"""How a SQLite column spells its times: found by looking at every cell once, since nothing declares it.

Belongs here: the one statement that looks, and what its answer means for comparing. Not here: rendering a bound in that
spelling (sql.py), whether a cell is a time at all (values.py).

Texts sort by time only when all have one separator and one suffix, and as many digits; digits may be missing where the
fraction is zero, as Python's isoformat() does. Looking is one pass over the column (0.6 to 0.8 s for 500 000 rows,
measured on a busy machine), and is done only for columns that `columns:` turns into times.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

SUFFIX = """CASE WHEN substr({c}, -1) = 'Z' THEN 'Z'
     WHEN length({c}) > 16 AND substr({c}, -6, 1) IN ('+', '-') AND substr({c}, -3, 1) = ':' THEN substr({c}, -6)
     WHEN length({c}) > 16 AND substr({c}, -5, 1) IN ('+', '-') THEN substr({c}, -5) ELSE '' END"""
LOOK = f"""SELECT DISTINCT typeof({{c}}), length({{c}}), substr({{c}}, 11, 1), {SUFFIX},
       length({{c}}) > 19 AND trim(substr({{c}}, 20, 10), '.0Z') = ''
FROM {{relation}} WHERE {{c}} IS NOT NULL LIMIT 20"""
EMPTY = {"class": "text", "separator": " ", "digits": 0, "suffix": ""}
DAY, SECOND = len("2026-01-31"), len("2026-01-31 00:00:00")


@dataclass(frozen=True)
class _Form:
    """One spelling that occurs."""

    storage: str
    length: int
    separator: str
    suffix: str
    is_zero: bool  # digits are written though all are 0

    @property
    def digits(self) -> int:
        """Count the digits of the fraction; negative for a form that is no time we know."""
        bare = self.length - len(self.suffix)
        if bare in (DAY, SECOND):
            return 0
        return bare - SECOND - 1 if bare > SECOND + 1 else -1


def look(relation: str, quoted: str) -> str:
    """Write the statement that lists the spellings of a column."""
    return LOOK.format(c=quoted, relation=relation)


def spelling(rows: Sequence[tuple[str, int, str, str, int]]) -> str:
    """Read its answer: as JSON the one spelling, or words that say why there is none to compare by."""
    return json.dumps(_spelling([_Form(s, n, at or "", suffix or "", bool(zero)) for s, n, at, suffix, zero in rows]))


def _spelling(forms: Sequence[_Form]) -> dict[str, object] | str:
    if not forms:
        return dict(EMPTY)
    classes = {form.storage for form in forms}
    if classes == {"integer"}:
        return {"class": "integer"}
    if classes != {"text"}:
        return "partly as texts, partly as numbers" if "text" in classes else "as numbers with a fraction or bytes"
    if len({(form.separator, form.suffix) for form in forms}) > 1:
        return "in several spellings (separator, or offset from UTC)"
    # A form of unknown length counts as -1 digits, so the least of them shows that there is one.
    digits = {form.digits for form in forms}
    if min(digits) < 0 or max(digits) > 6:
        return "without seconds, or with more than six digits of them"
    # Digits that are missing must mean zero in every cell, or "12:00:00" would sort before "12:00:00.000".
    is_bare = len(digits) == 2 and 0 in digits and not forms[0].suffix and not any(form.is_zero for form in forms)
    if len(digits) > 1 and not is_bare:
        return "with different numbers of digits"
    first = forms[0]
    made: dict[str, object] = {
        "class": "text", "separator": first.separator, "digits": max(digits), "suffix": first.suffix,
    }  # fmt: skip
    return {**made, "bare": True} if is_bare else made
