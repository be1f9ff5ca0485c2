"""How the tests of PostgreSQL's log read it: a database, windows drained, and an oracle that decodes one by one.

Belongs here: what several test modules share. Not here: tests.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa

from rivet_resources.contracts.change_log import Capture, Changes, Commit, Position
from rivet_resources.engines.postgres.log.log import PostgresLog, open_log
from rivet_resources.engines.postgres.source import Postgres
from tests.engines.postgres.reads import EAGER, rules

FLUSHED = "-c synchronous_commit=on"  # the tests' servers have it off
PIN = "SET datestyle = 'ISO'; SET timezone = 'UTC'; SET intervalstyle = 'iso_8601'; SET bytea_output = 'hex'"


def capture(*tables: str, slot: str = "rivet_t", **settings: Any) -> Capture:
    """Describe what to capture."""
    typed = rules(
        **{name: settings.pop(name) for name in ("columns", "on_special_value", "typing") if name in settings}
    )
    return Capture(export="t", tables=tables, rules=typed, slot=slot, **settings)


@contextmanager
def log_of(url: str, asked: Capture) -> Iterator[PostgresLog]:
    """Open a log as a drain does."""
    with open_log(asked, conn_params=Postgres(url=url).conn_params("rivet:test", EAGER), pace=EAGER) as log:
        yield log


@dataclass
class Drained:
    """What windows gave."""

    changes: list[Changes] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)

    @property
    def position(self) -> Position:
        return self.commits[-1].position

    def rows(self, table: str | None = None) -> list[dict[str, Any]]:
        """Return all rows in log order, columns of the envelope but for the time included."""
        found = [
            (row["__pos"], row["__seq"], {k: v for k, v in row.items() if k != "__ts"})
            for changes in self.changes
            if table in (None, changes.table)
            for row in changes.data.to_pylist()
        ]
        return [row for _, _, row in sorted(found, key=lambda each: each[:2])]

    def short(self, table: str | None = None) -> list[tuple[Any, ...]]:
        """Return op and cells, without positions."""
        return [(row["__op"], *(v for k, v in row.items() if not k.startswith("__"))) for row in self.rows(table)]

    def special(self) -> dict[str, dict[str, int]]:
        """Add up what policies replaced."""
        total: dict[str, dict[str, int]] = {}
        for changes in self.changes:
            for column, kinds in changes.special.items():
                for kind, count in kinds.items():
                    total.setdefault(column, {})[kind] = total.get(column, {}).get(kind, 0) + count
        return total


def window(
    log: PostgresLog, after: Position, *, upto: Position | None = None, most: int = 10**6, seen: str = ""
) -> Drained:
    """Read one window up to the end of the log."""
    drained = Drained()
    for event in log.read(after, upto or log.survey().target, most=most, seen=seen):
        if isinstance(event, Commit):
            drained.commits.append(event)
        else:
            assert not drained.commits, "a Commit comes last"
            event.data.validate(full=True)
            drained.changes.append(event)
    return drained


def drain(log: PostgresLog, after: Position, *, most: int = 10**6, seen: str = "", acknowledge: bool = True) -> Drained:
    """Read windows until the log's end as it is now, as the drain does."""
    found, total = log.survey(), Drained()
    log.refuse_lost(after, found)
    while after.key < found.target.key:
        part = window(log, after, upto=found.target, most=most, seen=seen)
        after = part.position
        total.changes += part.changes
        total.commits += part.commits
        if acknowledge:
            log.acknowledge(after)
    return total


def run(url: str, *statements: str) -> None:
    """Run statements, each committed on its own, and on the server's disk: what is not there is not in the log yet."""
    with psycopg.connect(url, autocommit=True, options=FLUSHED) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def transaction(url: str, *statements: str) -> None:
    """Run statements in one transaction."""
    with psycopg.connect(url, options=FLUSHED) as connection:
        for statement in statements:
            connection.execute(statement.encode())


# --- the oracle ----------------------------------------------------------------------------------


def oracle(url: str, slot: str, publication: str) -> list[tuple[Any, ...]]:
    """Decode the slot one message at a time: (table, op, pos, seq, cells as texts, unchanged names)."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(PIN)
        rows = connection.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1', "
            "'publication_names', %s)",
            (slot, f'"{publication}"'),
        ).fetchall()
    found: list[tuple[Any, ...]] = []
    relations: dict[int, tuple[str, list[tuple[bool, str]]]] = {}
    commit, number = 0, 0
    for (message,) in rows:
        kind = chr(message[0])
        if kind == "B":
            commit, number = struct.unpack(">Q", message[1:9])[0], 0
        elif kind == "R":
            oid, relation = read_relation(message)
            relations[oid] = relation
        elif kind == "T":
            for oid in struct.unpack(f">{(len(message) - 6) // 4}I", message[6:]):
                found.append((relations[oid][0], "truncate", f"{commit:016x}", 2 * number + 1, None, ()))
            number += 1
        elif kind in "IUD":
            found += read_change(message, relations, f"{commit:016x}", number)
            number += 1
    return found


def read_relation(message: bytes) -> tuple[int, tuple[str, list[tuple[bool, str]]]]:
    """Read an R message: oid, name, whether each column is of the identity and its name."""
    schema, name, rest = message[5:].split(b"\0", 2)
    columns, at = [], 3
    for _ in range(int.from_bytes(rest[1:3], "big")):
        end = rest.index(0, at + 1)
        columns.append((bool(rest[at] & 1), rest[at + 1 : end].decode()))
        at = end + 9
    return int.from_bytes(message[1:5], "big"), (f"{schema.decode()}.{name.decode()}", columns)


def read_change(message: bytes, relations: dict[int, Any], pos: str, number: int) -> list[tuple[Any, ...]]:
    """Read one change; a change of the key is two. Under identity FULL the first column is the key here."""
    kind, table = chr(message[0]), relations[int.from_bytes(message[1:5], "big")]
    names = [name for _, name in table[1]]
    at, old, tag, new = 5, None, "", None
    while at < len(message):
        mark = chr(message[at])
        values, at = read_tuple(message, at + 1)
        if mark == "N":
            new = values
        else:
            old, tag = values, mark
    if kind == "D":
        return [(table[0], "delete", pos, 2 * number + 1, old, ())]
    assert new is not None
    keys = [0] if tag == "O" else [i for i, (is_key, _) in enumerate(table[1]) if is_key]
    if old is not None:
        new = [
            o if n is ... and (tag == "O" or i in keys) else n for i, (o, n) in enumerate(zip(old, new, strict=True))
        ]
    missing = tuple(name for name, value in zip(names, new, strict=True) if value is ...)
    cells = [None if value is ... else value for value in new]
    if old is not None and any(old[i] != new[i] for i in keys):
        return [
            (table[0], "delete", pos, 2 * number, old, ()),
            (table[0], "insert", pos, 2 * number + 1, cells, missing),
        ]
    return [(table[0], "insert" if kind == "I" else "update", pos, 2 * number + 1, cells, missing)]


def read_tuple(message: bytes, at: int) -> tuple[list[Any], int]:
    """Read a tuple's values: None, ... for unchanged, or text."""
    values: list[Any] = []
    count, at = int.from_bytes(message[at : at + 2], "big"), at + 2
    for _ in range(count):
        kind, at = chr(message[at]), at + 1
        if kind in "nu":
            values.append(None if kind == "n" else ...)
            continue
        size = int.from_bytes(message[at : at + 4], "big")
        values.append(message[at + 4 : at + 4 + size].decode())
        at += 4 + size
    return values, at


def as_oracle(changes: list[Changes], labels: dict[str, str]) -> list[tuple[Any, ...]]:
    """Write our changes of text and integer tables in the oracle's words."""
    found = []
    for each in changes:
        names = [column.name for column in each.columns]
        for row in each.data.to_pylist():
            cells = [None if row[name] is None else str(row[name]) for name in names]
            given = None if row["__op"] == "truncate" else cells
            found.append(
                (labels[each.table], row["__op"], row["__pos"], row["__seq"], given, tuple(row["__unchanged"] or ()))
            )
    return sorted(found, key=lambda row: (row[2], row[3], row[0]))


def types_of(table: pa.Table) -> dict[str, pa.DataType]:
    """Return the types of a table's own columns."""
    return {f.name: f.type for f in table.schema if not f.name.startswith("__")}
