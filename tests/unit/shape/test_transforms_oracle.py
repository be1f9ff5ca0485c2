"""Pages against rows: every step must give, on random pages, what a few lines of plain Python give row by row."""

from __future__ import annotations

import hashlib
import hmac
import json
import random
import re
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import xxhash

from rivet_resources.shape.transforms import pipeline
from tests.transforming import steps

Row = dict[str, Any]
Rule = Callable[[Row], Row | None]  # None: the row is dropped

SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("note", pa.string()), ("n", pa.int32()), ("x", pa.float64()),
     ("ok", pa.bool_())]
)  # fmt: skip
TEXTS = [
    "",
    "a",
    "Alice",
    "žluťoučký kůň",
    "日本語テキスト",
    "😀🎉",
    ' "quoted" ',
    "back\\slash",
    "x" * 50,
    "tab\there",
    "-1-2-3-",
    "a,b,,c",
]


def put(row: Row, **cells: Any) -> Row:
    """Return the row with some cells replaced."""
    return {**row, **cells}


def asterisk(text: str | None) -> str | None:
    """Mask as the contract says."""
    return None if text is None else "*" * min(len(text), 20)


def partial(text: str | None, first: int, last: int) -> str | None:
    """Keep first and last characters."""
    if text is None or len(text) <= first + last:
        return asterisk_all(text)
    return text[:first] + "*" * (len(text) - first - last) + text[len(text) - last :]


def asterisk_all(text: str | None) -> str | None:
    """Mask every character."""
    return None if text is None else "*" * len(text)


def keyed(value: Any) -> str | None:
    """HMAC-SHA256 over the JSON text."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return None if value is None else hmac.new(b"k", text.encode(), hashlib.sha256).hexdigest()[:16]


def joined(*texts: str | None) -> str | None:
    """Join what is there with a dash."""
    there = [text for text in texts if text is not None]
    return "-".join(there) if there else None


def pieces(text: str | None) -> list[str | None]:
    """Split at the first comma."""
    return [None, None] if text is None else [*text.split(",", 1), None][:2]


def bucket(row: Row) -> int:
    """Number the row by name and n."""
    texts = ["\x00" if row[c] is None else str(row[c]) for c in ("name", "n")]
    return xxhash.xxh3_64_intdigest("\x1f".join(texts).encode()) % 7


# Step as in YAML, and what it makes of one row.
RULES: list[tuple[dict[str, Any], Rule]] = [
    ({"type": "mask", "fields": ["name"]}, lambda r: put(r, name=asterisk(r["name"]))),
    (
        {"type": "mask", "fields": ["name"], "method": "partial", "first": 2, "last": 1},
        lambda r: put(r, name=partial(r["name"], 2, 1)),
    ),
    (
        {"type": "mask", "fields": ["name", "note"], "method": "hash", "key": "k", "length": 16},
        lambda r: put(r, name=keyed(r["name"]), note=keyed(r["note"])),
    ),
    (
        {"type": "mask", "fields": ["n", "x", "ok"], "method": "hash", "key": "k", "length": 16},
        lambda r: put(r, n=keyed(r["n"]), x=keyed(r["x"]), ok=keyed(r["ok"])),
    ),
    (
        {"type": "mask", "fields": ["name"], "method": "redact", "when": "n > 0"},
        lambda r: put(r, name="[REDACTED]") if (r["n"] or 0) > 0 and r["name"] is not None else r,
    ),
    ({"type": "filter", "field": "name", "op": "!=", "value": "a"}, lambda r: r if r["name"] != "a" else None),
    ({"type": "filter", "field": "n", "op": "<", "value": 0}, lambda r: r if (r["n"] or 0) < 0 else None),
    (
        {"type": "filter", "field": "note", "op": "matches", "value": "[a-z]{2}", "drop": True},
        lambda r: None if r["note"] is not None and re.search("[a-z]{2}", r["note"]) else r,
    ),
    ({"type": "filter", "where": "n > 0 OR ok"}, lambda r: r if (r["n"] or 0) > 0 or r["ok"] else None),
    (
        {"type": "filter", "field": "n", "op": "not_in", "value": [1, 2, 3]},
        lambda r: r if r["n"] not in (1, 2, 3) else None,
    ),
    ({"type": "rename", "columns": {"name": "note", "note": "name"}}, lambda r: put(r, name=r["note"], note=r["name"])),
    ({"type": "cast", "columns": {"n": "text"}}, lambda r: put(r, n=None if r["n"] is None else str(r["n"]))),
    (
        {"type": "cast", "columns": {"note": "int8"}, "on_error": "null"},
        lambda r: put(r, note=int(r["note"]) if r["note"] and re.fullmatch("[+-]?[0-9]+", r["note"]) else None),
    ),
    (
        {"type": "concat", "columns": ["name", "note"], "separator": "-", "into": "both"},
        lambda r: put(r, both=joined(r["name"], r["note"])),
    ),
    (
        {"type": "coalesce", "columns": ["name", "note"]},
        lambda r: put(r, name=r["note"] if r["name"] is None else r["name"]),
    ),
    (
        {"type": "replace", "columns": ["note"], "find": "-", "with": "→"},
        lambda r: put(r, note=r["note"] and r["note"].replace("-", "→")),
    ),
    (
        {"type": "split", "column": "note", "separator": ",", "into": ["p", "q"]},
        lambda r: put(r, p=pieces(r["note"])[0], q=pieces(r["note"])[1]),
    ),
    ({"type": "trim", "columns": ["note"]}, lambda r: put(r, note=r["note"] and r["note"].strip())),
    (
        {"type": "substring", "columns": ["name"], "start": 1, "length": 3},
        lambda r: put(r, name=r["name"] and r["name"][1:4]),
    ),
    ({"type": "upper", "columns": ["name"]}, lambda r: put(r, name=r["name"] and r["name"].upper())),
    ({"type": "set_null", "columns": ["name"], "if_empty": True}, lambda r: put(r, name=r["name"] or None)),
    ({"type": "hash_bucket", "columns": ["name", "n"], "buckets": 7}, lambda r: put(r, bucket=bucket(r))),
    (
        {"type": "compute", "columns": {"m": "n::BIGINT * 2", "size": "length(name)"}},
        lambda r: put(r, m=None if r["n"] is None else r["n"] * 2, size=None if r["name"] is None else len(r["name"])),
    ),
    (
        {"type": "compute", "columns": {"n": "n // 2"}, "when": "n > 10"},
        lambda r: put(r, n=r["n"] // 2) if (r["n"] or 0) > 10 else r,
    ),
    ({"type": "add", "columns": {"region": "EU"}, "when": "ok"}, lambda r: put(r, region="EU" if r["ok"] else None)),
    ({"type": "drop", "columns": ["x*"]}, lambda r: {name: cell for name, cell in r.items() if name != "x"}),
]  # fmt: skip


def page(chance: random.Random) -> pa.Table:
    """Make a page: several chunks with offsets, NULLs, unicode, repeated or different cells, or no rows at all."""
    texts = TEXTS if chance.random() < 0.5 else [f"{text}{n}" for text in TEXTS for n in range(200)]
    makers = {
        "id": lambda: chance.randrange(10**9), "name": lambda: chance.choice(texts),
        "note": lambda: chance.choice([*texts, str(chance.randrange(-99, 99))]), "n": lambda: chance.randrange(-30, 30),
        "x": lambda: chance.uniform(-1e6, 1e6), "ok": lambda: chance.random() < 0.5,
    }  # fmt: skip
    chunks = []
    for _ in range(chance.randrange(0, 4)):
        rows = chance.choice([0, 1, 7, 700])
        made = {
            name: [None if chance.random() < 0.2 else make() for _ in range(rows + 5)] for name, make in makers.items()
        }
        chunks.append(pa.table(made, schema=SCHEMA).slice(chance.randrange(0, 5), rows))
    return pa.concat_tables(chunks) if chunks else SCHEMA.empty_table()


def check(table: pa.Table, chosen: list[tuple[dict[str, Any], Rule]]) -> None:
    """Compare a page shaped by steps with its rows shaped by rules."""
    rows = table.to_pylist()
    for _, rule in chosen:
        rows = [shaped for row in rows if (shaped := rule(row)) is not None]
    plan = pipeline.plan(steps(*(block for block, _ in chosen)), table.schema)

    result = plan.apply(table)

    result.validate(full=True)
    assert plan.schema.equals(result.schema)
    assert rows == [{name: row[name] for name in rows[0]} if rows else row for row in result.to_pylist()]


@pytest.mark.parametrize("number", range(len(RULES)), ids=[f"{block['type']}{n}" for n, (block, _) in enumerate(RULES)])
def test_step_on_a_page_is_the_rule_on_each_row(number):
    """Twelve random pages per step."""
    chance = random.Random(number)

    for _ in range(12):
        check(page(chance), [RULES[number]])


# Steps that keep the names and types the others expect, so that any of them may follow any other.
CHAINABLE = [n for n, (block, _) in enumerate(RULES) if block["type"] in
             ("filter", "rename", "coalesce", "replace", "trim", "substring", "upper", "set_null")
             or block.get("method") == "partial" or block.get("when") == "n > 10"]  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_chain_of_steps_is_the_chain_of_rules(seed):
    """Random chains of up to ten steps, in order."""
    chance = random.Random(1000 + seed)

    check(page(chance), [RULES[chance.choice(CHAINABLE)] for _ in range(chance.randrange(2, 11))])


def test_threads_each_have_their_own_engine():
    """The inline engine may run chunks in threads; SQL steps do not meet there."""
    plan = pipeline.plan(steps({"type": "compute", "columns": {"m": "n + 1"}}), SCHEMA)
    results: dict[int, list[int]] = {}

    def work(number: int) -> None:
        table = pa.table({"n": [number] * 2_000}, schema=pa.schema([("n", pa.int32())]))
        full = pa.table([pa.nulls(2_000, f.type) if f.name != "n" else table.column(0) for f in SCHEMA], schema=SCHEMA)
        for _ in range(5):
            results[number] = plan.apply(full).column("m").to_pylist()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {number: [number + 1] * 2_000 for number in range(6)} == results
