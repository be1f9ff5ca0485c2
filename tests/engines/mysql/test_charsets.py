"""Texts in character sets of their own: what the server cannot send whole is refused, and both ways in read the same.

Belongs here: letters that are lost on the way, letters that the log and a statement could read otherwise. Not here:
types (test_log_types.py), pages (test_pages.py).
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rivet_resources.engines.mysql.binlog.texts import UTF8, WIDE_SETS, decoder
from rivet_resources.engines.mysql.columns import LOSSY_CHARSETS, Described, column_of
from rivet_resources.errors import LogRefused, ValueDoesNotFit
from tests.engines.mysql.reads import SERVERS, describe, pages, rules, run, session, table, whole
from tests.servers.mysql import connection


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database, of each server in turn."""
    return str(request.getfixturevalue(request.param))


# A code without a letter, and a text that has all of its letters, a question mark among them.
LOST = [
    ("cp1251", "98", "'Как? Ж'"),
    ("gbk", "A140", "'中文? a'"),
    ("big5", "A15A", "'你好?'"),
    ("cp1250", "81", "'žluť?'"),
    ("tis620", "DB", "'ก?'"),
    ("sjis", "81AD", "'日本? \\\\'"),
]


@pytest.mark.parametrize(("charset", "code", "text"), LOST)
@pytest.mark.parametrize("by", ["table", "query", "view"])
def test_code_without_a_letter_is_refused_and_never_read_as_a_question_mark(
    url: str, charset: str, code: str, text: str, by: str
) -> None:
    """The server sends `?` for it, and a `?` that was written passes; `null` counts it."""
    run(
        url,
        f"CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20) CHARACTER SET {charset})",
        f"INSERT INTO t VALUES (1, {text}), (2, x'{code}'), (3, NULL)",
        "CREATE VIEW w AS SELECT id, v FROM t",
    )
    asked = {"query": "SELECT id, v FROM t"} if by == "query" else {"table": "t" if by == "table" else "w"}

    with pytest.raises(ValueDoesNotFit, match="holds codes of its character set that Unicode has no letter for"):
        _read(url, asked)
    special, found = _read(url, asked, on_special_value="null")

    assert {"v": {"lost_letters": 1}} == special
    assert [text.strip("'").replace("\\\\", "\\"), None, None] == found


def _read(url: str, asked: dict[str, str], **policies: str) -> tuple[dict[str, dict[str, int]], list[str | None]]:
    typed = rules(**policies)
    with session(url) as planning:
        relation = planning.describe(table=asked.get("table"), query=asked.get("query"), params={}, rules=typed)
        (chunk,) = planning.chunks(relation, pieces=1)
    read = list(pages(url, relation, chunk))
    special = {name: dict(counts) for page in read for name, counts in page.special.items()}
    rows = sorted(whole(relation, iter(read)).to_pylist(), key=lambda row: int(row["id"]))
    return special, [row["v"] for row in rows]


def test_key_with_a_lost_letter_at_the_border_of_two_pages_is_refused(url: str) -> None:
    """As a question mark it would lead the next page back before itself, and rows would come twice."""
    run(
        url,
        "CREATE TABLE t (k VARCHAR(9) CHARACTER SET cp1251 COLLATE cp1251_bin PRIMARY KEY)",
        "INSERT INTO t VALUES " + ", ".join(f"('!{i:04}')" for i in range(499)),
        "INSERT INTO t VALUES (x'98')",
        "INSERT INTO t VALUES " + ", ".join(f"('Ж{i:04}')" for i in range(600)),
    )

    with pytest.raises(ValueDoesNotFit, match="Unicode has no letter"):
        table(url, on_special_value="null")


# Python has no codec for them at all: a log with them is refused.
UNREAD_BY_LOGS = {"armscii8", "dec8", "geostd8", "hp8", "keybcs2", "swe7"}
# Codes that a log refuses and a statement reads: vendors' letters, which Python's codec does not know.
REFUSED_BY_LOGS = {"big5", "eucjpms", "ujis"}
CODES = """
CREATE TEMPORARY TABLE t (code VARCHAR(4) CHARACTER SET {charset}) SELECT code FROM (
  SELECT CHAR(n USING {charset}) AS code FROM (
    SELECT a.n + 256 * b.n AS n FROM n256 a JOIN n256 b WHERE b.n = 0 OR (b.n >= 128 AND a.n >= 64 AND {is_multi})
  ) AS _numbers
) AS _codes WHERE LENGTH(code) > 0"""


@pytest.mark.parametrize("server", SERVERS)
def test_every_code_of_every_character_set_is_one_letter_to_statements_and_logs_or_refused(
    server: str, request: pytest.FixtureRequest
) -> None:
    """What a statement reads unflagged is what a log reads; what is flagged is no letter at all."""
    url = request.getfixturevalue(server)
    run(url, "CREATE TABLE n256 (n INT PRIMARY KEY)")
    run(url, "INSERT INTO n256 VALUES " + ", ".join(f"({n})" for n in range(256)))
    wrong = {}
    with connection(url) as opened, opened.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")  # what no letter is, is cut off
        cursor.execute("SELECT character_set_name, maxlen FROM information_schema.character_sets ORDER BY 1")
        sets = [(name, most) for name, most in cursor.fetchall() if name not in UTF8 | WIDE_SETS | {"binary"}]
        for charset, most in sets:
            described = Described("code", "varchar", "varchar(9)", charset=charset)
            flag = column_of(described, rules=rules(), relation="t").fact("flag") or "0"
            cursor.execute("DROP TEMPORARY TABLE IF EXISTS t")
            cursor.execute(CODES.format(charset=charset, is_multi=int(most > 1)))
            cursor.execute(f"SELECT HEX(code), CONVERT(code USING utf8mb4), {flag} FROM t WHERE LENGTH(code) > 0")
            found = _unlike(charset, cursor.fetchall())
            if found:
                wrong[charset] = found

    assert {} == wrong


def _unlike(charset: str, codes: object) -> list[str]:
    """List codes that are read in two ways, or flagged with a letter, or not flagged without."""
    read = None if charset in UNREAD_BY_LOGS else decoder(charset, SimpleNamespace(name="v"))  # type: ignore[arg-type]
    found = []
    for code, text, flag in codes:  # type: ignore[attr-defined]
        is_lost = ("?" in text and code != "3F") or "\ufffd" in text
        if is_lost != bool(flag):
            found.append(f"{code}: flag {flag} of {text!a}")
        if is_lost or read is None:
            continue
        try:
            of_log = read(bytes.fromhex(code))
        except UnicodeDecodeError:
            of_log = text if charset in REFUSED_BY_LOGS else "refused"
        if of_log != text:
            found.append(f"{code}: {text!a} of a statement, {of_log!a} of the log")
    return found


def test_logs_refuse_what_python_has_no_codec_for() -> None:
    """Never read as something else."""
    for charset in UNREAD_BY_LOGS:
        with pytest.raises(LogRefused, match=f"text in {charset}"):
            decoder(charset, SimpleNamespace(name="v"))  # type: ignore[arg-type]


def test_walk_along_a_key_of_a_set_without_losses_goes_on_reading_ahead(url: str) -> None:
    """A flag takes reading ahead away, so sets that lose nothing have none."""
    run(url, "CREATE TABLE t (k VARCHAR(9) CHARACTER SET latin1 PRIMARY KEY, v TEXT)")
    with session(url) as planning:
        relation = describe(planning)

    assert ["", ""] == [column.fact("flag") for column in relation.columns]
    assert not LOSSY_CHARSETS & {"latin1", "utf8mb3", "utf8mb4"}
