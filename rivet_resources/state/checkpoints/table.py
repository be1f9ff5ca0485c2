"""Checkpoints in the state store: one row per key, fenced by its generation, and the audit of resets.

Belongs here: the tables `checkpoint` and `checkpoint_audit`. Not here: what may follow what (`record.py`).
"""

from __future__ import annotations

import json
import time
from typing import Any

from sqlalchemy import BigInteger, Column, ColumnElement, Connection, Integer, Row, Table, Text, not_, select, update

from rivet_resources.errors import CheckpointUnusable
from rivet_resources.state.checkpoints.record import (
    FIELDS,
    KNOWN,
    Checkpoint,
    Listed,
    Reset,
    decode,
    pack,
    refuse_generation,
    refuse_key,
    refuse_step,
    unpack,
    unusable,
    whole,
)
from rivet_resources.state.database import METADATA, Database, insert
from rivet_resources.state.patience import patient
from rivet_resources.state.scopes import SEPARATOR, escape

checkpoint = Table(
    "checkpoint",
    METADATA,
    Column("checkpoint_key", Text, primary_key=True),
    Column("generation", BigInteger, nullable=False),  # the last one taken: the fence
    # The record, all NULL when there is none; `saved_generation` is its own `generation`.
    Column("version", Integer),
    Column("source_type", Text),
    Column("position_type", Text),
    Column("position", Text),
    Column("sort_key", Text),
    Column("timestamp", BigInteger),
    Column("transaction_id", Text),
    Column("metadata", Text),  # JSON
    Column("saved_generation", BigInteger),
    Column("source_identity", Text),
    Column("pipeline", Text),
    Column("run_id", Text),
    Column("unknown", Text),  # JSON: fields that another Rivet wrote
    Column("checksum", Text),
)

checkpoint_audit = Table(
    "checkpoint_audit",
    METADATA,
    Column("checkpoint_key", Text, primary_key=True),
    Column("generation", BigInteger, primary_key=True),
    Column("timestamp", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("position", Text),
)

RECORD = [column.name for column in checkpoint.columns if column.name not in ("checkpoint_key", "generation")]
NO_RECORD: dict[str, Any] = dict.fromkeys(RECORD)


@patient
class TableCheckpoints:
    """Checkpoints beside the runs they belong to; several hosts may share them through PostgreSQL.

    Rows of a project have its name before their key.
    """

    def __init__(self, database: Database, *, project: str = "") -> None:
        self._database = database
        # No key has a slash, so no key looks like one of a project.
        self._prefix = f"{escape(project)}{SEPARATOR}" if project else ""
        self.name = f"the state store {database.name}"

    def __repr__(self) -> str:
        return f"TableCheckpoints({self._database.name})"

    def take(self, key: str) -> tuple[Checkpoint | None, int]:
        """Return the stored record and a generation that is now ours: whoever had the key before can save no more.

        Raises:
            CheckpointUnusable: the record cannot be read; the generation stays.
        """
        refuse_key(key)
        with self._database.write() as connection:
            _seed(connection, self._row(key))
            # The UPDATE takes the row's lock, so two runs that take the key at once get two generations.
            ours = _raise_generation(connection, self._row(key))
            # Read inside: a record that cannot be used raises, which rolls the raised generation back, so nobody is
            # fenced for it.
            return self._read(_lock_row(connection, self._row(key))), ours

    def save(self, record: Checkpoint) -> None:
        """Store a position; durable when this returns.

        Raises:
            CheckpointUnusable: another run took the key; the position lies behind the stored one, or is of another
                source.
        """
        refuse_key(record.key)
        with self._database.write() as connection:
            _seed(connection, self._row(record.key))
            # FOR UPDATE on a server; SQLite leaves the words out, and its write transaction is alone anyway.
            row = _lock_row(connection, self._row(record.key))
            refuse_generation(record, row.generation, where=self.name)
            refuse_step(record, self._read(row), where=self.name)
            values = _columns(pack(record, over=_record(row)))
            # Compared once more in the UPDATE itself, whatever isolation the server has.
            ours = (checkpoint.c.checkpoint_key == self._row(record.key), checkpoint.c.generation == record.generation)
            if connection.execute(update(checkpoint).where(*ours).values(**values)).rowcount != 1:
                reason = "another run took it over while this one saved"
                raise unusable(self.name, record.key, reason, advice="This run stops; run again.")

    def load(self, key: str) -> Checkpoint | None:
        """Read a record; None: there is none.

        Raises:
            CheckpointUnusable: there is one that cannot be read.
        """
        refuse_key(key)
        with self._database.read() as connection:
            of_key = checkpoint.c.checkpoint_key == self._row(key)
            row = connection.execute(select(checkpoint).where(of_key)).one_or_none()
            return None if row is None else self._read(row)

    def delete(self, key: str) -> None:
        """Forget a record, readable or not; a run that has the key can save no more. Without one, do nothing."""
        refuse_key(key)
        with self._database.write() as connection:
            _raise_generation(connection, self._row(key), **NO_RECORD)

    def waiting(self, key: str) -> Checkpoint | None:
        """Read what an earlier Rivet kept under this key without a project; None where we have a row of our own."""
        of_bare, of_ours = (checkpoint.c.checkpoint_key == name for name in (key, self._row(key)))
        with self._database.read() as connection:
            if not self._prefix or connection.execute(select(checkpoint.c.generation).where(of_ours)).first():
                return None
            row = connection.execute(select(checkpoint).where(of_bare)).one_or_none()
            return None if row is None else self._read_or_none(row)

    def adopt(self, key: str, identity: str) -> None:
        """Take over what is waiting, if it is of this source identity."""
        of_bare = checkpoint.c.checkpoint_key == key
        with self._database.write() as connection:
            ours = select(checkpoint.c.generation).where(checkpoint.c.checkpoint_key == self._row(key))
            if not self._prefix or connection.execute(ours).first() is not None:
                return
            # By identity: under a bare key the record may be another project's, of another server.
            moved = update(checkpoint).where(of_bare, checkpoint.c.source_identity == identity)
            if connection.execute(moved.values(checkpoint_key=self._row(key))).rowcount:
                entries = update(checkpoint_audit).where(checkpoint_audit.c.checkpoint_key == key)
                connection.execute(entries.values(checkpoint_key=self._row(key)))

    def reset(self, key: str, reason: str) -> None:
        """Forget a record as `delete` does, and note why."""
        refuse_key(key)
        with self._database.write() as connection:
            _seed(connection, self._row(key))
            row = _lock_row(connection, self._row(key))
            # In one transaction with the audit: no position vanishes without an entry that says why.
            generation = _raise_generation(connection, self._row(key), **NO_RECORD)
            entry = {"timestamp": int(time.time()), "reason": reason, "position": row.position}
            values = {"checkpoint_key": self._row(key), "generation": generation, **entry}
            connection.execute(checkpoint_audit.insert().values(**values))

    def list(self) -> Listed:
        """Return every record by key, sorted; None: it cannot be read, and `load` says why."""
        listed = (checkpoint.c.position.is_not(None), self._is_ours())
        query = select(checkpoint).where(*listed).order_by(checkpoint.c.checkpoint_key)
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return sorted(((_key_in(row), self._read_or_none(row)) for row in rows), key=lambda pair: pair[0])

    def all(self) -> dict[str, Checkpoint]:
        """Return every record by key.

        Raises:
            CheckpointUnusable: some cannot be read; the message names them.
        """
        return whole(self.list(), where=self.name)

    def resets(self, key: str) -> tuple[Reset, ...]:
        """Return the audit of a key, oldest first."""
        refuse_key(key)
        table = checkpoint_audit.c
        query = select(checkpoint_audit).where(table.checkpoint_key == self._row(key)).order_by(table.generation)
        with self._database.read() as connection:
            return tuple(
                Reset(_key_in(row), row.reason, row.timestamp, row.generation, row.position)
                for row in connection.execute(query)
            )

    def _read(self, row: Row[Any]) -> Checkpoint | None:
        record = _record(row, where=self.name)
        return None if record is None else unpack(record, where=self.name, key=_key_in(row))

    def _row(self, key: str) -> str:
        """Name the row of a key."""
        return f"{self._prefix}{key}"

    def _is_ours(self) -> ColumnElement[bool]:
        column = checkpoint.c.checkpoint_key
        if self._prefix:
            return column.startswith(self._prefix, autoescape=True)
        return not_(column.contains(SEPARATOR))

    def _read_or_none(self, row: Row[Any]) -> Checkpoint | None:
        try:
            return self._read(row)
        except CheckpointUnusable:
            return None


def _key_in(row: Row[Any]) -> str:
    """Read the key out of a row's, without its project."""
    return str(row.checkpoint_key).rpartition(SEPARATOR)[2]


def _seed(connection: Connection, key: str) -> None:
    """See to it that the key has a row; a new one has generation 0 and no record."""
    first = insert(connection, checkpoint).values(checkpoint_key=key, generation=0)
    connection.execute(first.on_conflict_do_nothing())


def _lock_row(connection: Connection, key: str) -> Row[Any]:
    """Read a row that is there; on a server nobody else changes it until the transaction ends."""
    return connection.execute(select(checkpoint).where(checkpoint.c.checkpoint_key == key).with_for_update()).one()


def _raise_generation(connection: Connection, key: str, **values: Any) -> int:
    """Move the fence by one, which also locks the row; 0: there is no row."""
    change = update(checkpoint).where(checkpoint.c.checkpoint_key == key)
    change = change.values(generation=checkpoint.c.generation + 1, **values)
    found = connection.execute(change.returning(checkpoint.c.generation)).scalar_one_or_none()
    return int(found or 0)


def _record(row: Row[Any], *, where: str = "") -> dict[str, Any] | None:
    """Put the record of a row together as it was summed; None: there is none."""
    # Taken and never saved, or reset: the row stays, since its generation must outlive the record.
    if row.position is None:
        return None
    texts = {}
    for name in ("metadata", "unknown"):
        texts[name] = decode((getattr(row, name) or "").encode(), where=where, key=_key_in(row))
    # Put together exactly as it was summed, so that the checksum proves the columns, and with them the database's own
    # way.
    plain = {name: getattr(row, name) for name in FIELDS if name not in ("key", "generation", "metadata")}
    return {
        **texts["unknown"],
        "version": row.version,
        **plain,
        "key": _key_in(row),
        "generation": row.saved_generation,
        "metadata": texts["metadata"],
        "checksum": row.checksum,
    }


def _columns(record: dict[str, Any]) -> dict[str, Any]:
    """Spread a record over its columns."""
    values = {name: record[name] for name in FIELDS if name not in ("key", "generation")}
    unknown = {name: value for name, value in record.items() if name not in KNOWN}
    return {
        **values,
        "version": record["version"],
        "saved_generation": record["generation"],
        "metadata": json.dumps(record["metadata"]),
        "unknown": json.dumps(unknown),
        "checksum": record["checksum"],
    }
