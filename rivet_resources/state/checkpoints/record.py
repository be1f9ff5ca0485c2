"""One stored position of a change log: its fields, its checksum, and what may follow it (`connectors.md`, section 10).

Belongs here: the value, its JSON, the rules that every store keeps. Not here: where records lie
(`table.py`, `files.py`), how positions are spelled and ordered (`positions.py`).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rivet_resources.contracts.change_log import PositionType
from rivet_resources.errors import CheckpointUnusable
from rivet_resources.state.checkpoints.positions import is_behind, refuse_text

VERSION = 1
KEY_BYTES = 200
# What to do about a record that nobody can use; a change of its command belongs here and nowhere else.
START_ANEW = "`rivet state reset` forgets it, and the next run begins with a new copy (`initial: snapshot`)"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Up to where a log is durable with us, and whose log it is.

    `position` and `sort_key` are `Position.text` and `.key`. `generation` is what `take` gave to the run that saves.
    `timestamp` is in unix seconds; 0 asks the store for the time of the save.
    """

    key: str
    source_type: str  # postgres, mysql, mariadb, sqlserver …: decides how a Gtid is read
    position_type: PositionType
    position: str
    sort_key: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    generation: int = 0
    source_identity: str = ""
    pipeline: str = ""
    run_id: str = ""
    timestamp: int = 0
    transaction_id: str | None = None

    def age(self, at: float | None = None) -> float:
        """Return the seconds since the save; 0 for one from the future, as clocks of two hosts differ."""
        return max(0.0, (time.time() if at is None else at) - self.timestamp)

    def with_metadata(self, **texts: str) -> Checkpoint:
        """Add texts to the metadata, over those of the same name."""
        return replace(self, metadata={**self.metadata, **texts})

    def with_transaction_id(self, transaction_id: str | None) -> Checkpoint:
        """Name the last transaction it covers."""
        return replace(self, transaction_id=transaction_id)


@dataclass(frozen=True)
class Reset:
    """One entry of the audit: somebody made a store forget a position on purpose."""

    key: str
    reason: str
    timestamp: int
    generation: int  # the first that counts after it
    position: str | None  # what was forgotten; None: nothing, or not readable


Listed = list[tuple[str, Checkpoint | None]]  # by key; None: the record cannot be read

# Name → what JSON holds there. The original's records have those before `generation`, and no `version`.
FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "source_type": str, "position_type": str, "position": str, "timestamp": int,
    "transaction_id": (str, type(None)), "metadata": dict,
    "generation": int, "key": str, "sort_key": str, "source_identity": str, "pipeline": str, "run_id": str,
}  # fmt: skip
ORIGINAL = ("source_type", "position_type", "position", "timestamp")
KNOWN = frozenset({*FIELDS, "version", "checksum"})


def refuse_key(key: str) -> None:
    """Refuse what cannot name a checkpoint in every store.

    Raises:
        CheckpointUnusable
    """
    # A key may become the name of a file.
    if not key or key in (".", "..") or any(letter in "/\\" or not letter.isprintable() for letter in key):
        reason = "it is empty, a dot, or holds a slash, a backslash or a control character"
    elif len(key.encode(errors="surrogatepass")) > KEY_BYTES:
        reason = f"it is longer than {KEY_BYTES} bytes"
    else:
        return
    raise CheckpointUnusable(f"Checkpoint key {key[:KEY_BYTES]!r} is not allowed: {reason}. Choose another name.")


def unusable(where: str, key: str, reason: str, *, advice: str = "") -> CheckpointUnusable:
    """Return that a stored record cannot be used, and how to go on; nothing ever starts from now because of that."""
    # A message names the place, the key and the reason, never a position: a polling watermark is made of a row's
    # values.
    then = advice or f"Restore it from a backup of the same source, or give it up: {START_ANEW}."
    return CheckpointUnusable(f"Checkpoint {key} in {where} cannot be used: {reason}. {then}")


def whole(found: Listed, *, where: str) -> dict[str, Checkpoint]:
    """Return what was listed, if all of it could be read.

    Raises:
        CheckpointUnusable: naming the keys that could not.
    """
    bad = [key for key, record in found if record is None]
    if bad:
        raise CheckpointUnusable(f"Checkpoints of {where} cannot be read: {', '.join(bad)}. Load one to see why.")
    return {key: record for key, record in found if record is not None}


# --- JSON ----------------------------------------------------------------------------------------


def pack(checkpoint: Checkpoint, *, over: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Make the record: every field, those that `over` has and we do not know, and the checksum last."""
    # Fields of a newer Rivet survive a save by an older one, so that going back and forth between versions loses
    # nothing.
    unknown = {name: value for name, value in (over or {}).items() if name not in KNOWN}
    stamped = replace(checkpoint, timestamp=checkpoint.timestamp or int(time.time()))
    record = {**unknown, "version": VERSION, **asdict(stamped), "metadata": dict(checkpoint.metadata)}
    return {**record, "checksum": checksum(record)}


def checksum(record: Mapping[str, Any]) -> str:
    """Sum a record without its checksum: sha256 over JSON with sorted names, without blanks, in ASCII."""
    rest = {name: value for name, value in record.items() if name != "checksum"}
    # A spelling that every program can make again: anybody may
    # check a record, and no reader depends on the order of keys.
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"sha256:{hashlib.sha256(text.encode('ascii')).hexdigest()}"


def decode(content: bytes, *, where: str, key: str) -> dict[str, Any]:
    """Read a record's JSON.

    Raises:
        CheckpointUnusable: it is empty, cut or no JSON object.
    """
    if not content.strip():
        raise unusable(where, key, "it is empty")
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        raise unusable(where, key, "it is cut off or is not JSON") from None
    if not isinstance(record, dict):
        raise unusable(where, key, "it is not a JSON object")
    return record


def unpack(record: Mapping[str, Any], *, where: str, key: str) -> Checkpoint:
    """Read a record that must be the one of `key`.

    One without `version` is the original's: it has generation 0, and no identity or key of its own.

    Raises:
        CheckpointUnusable: a newer version, a field missing or of another kind, a wrong sum, another key's record, a
            position that is none of its type.
    """
    version = record.get("version", 0)
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise unusable(where, key, "its version is not a number")
    # Before the fields: a newer record may have other ones, and would be told to be damaged.
    if version > VERSION:
        advice = "Upgrade Rivet, or run the one that wrote it."
        reason = f"it has version {version}, and this Rivet knows up to {VERSION}"
        raise unusable(where, key, reason, advice=advice)
    asked = FIELDS if version else ORIGINAL
    missing = [name for name in (*asked, *(("checksum",) if version else ())) if name not in record]
    if missing:
        raise unusable(where, key, f"it lacks {', '.join(missing)}")
    wrong = [name for name, kind in FIELDS.items() if name in record and not _is(record[name], kind)]
    if wrong:
        raise unusable(where, key, f"{', '.join(wrong)} is of the wrong kind")
    if "checksum" in record and record["checksum"] != checksum(record):
        raise unusable(where, key, "its checksum does not fit: it was changed by hand, or damaged")
    # A file that was copied to another key's place has a good checksum, and another table's position.
    if record.get("key", key) != key:
        raise unusable(where, key, f"it is the record of key {record['key'][:KEY_BYTES]!r}")
    found = Checkpoint(**{"key": key, **{name: record[name] for name in FIELDS if name in record}})
    refuse_position(found, where=where)
    return found


def _is(value: object, kind: type | tuple[type, ...]) -> bool:
    if kind is int:
        # True is an int in Python.
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if kind is dict:
        return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
    return isinstance(value, kind)


# --- what may follow -----------------------------------------------------------------------------


def refuse_position(checkpoint: Checkpoint, *, where: str) -> None:
    """Refuse a position that is none of its type.

    Raises:
        CheckpointUnusable
    """
    try:
        refuse_text(checkpoint.position_type, checkpoint.source_type, checkpoint.position)
    except ValueError as error:
        raise unusable(where, checkpoint.key, str(error)) from None


def refuse_generation(checkpoint: Checkpoint, stored: int, *, where: str) -> None:
    """Refuse a save of a run that is not the last one to take the key.

    Raises:
        CheckpointUnusable
    """
    # Equal and not at least: a higher one than is stored means that the store went back, as by a restored backup.
    if checkpoint.generation == stored:
        return
    mine = f"it has generation {stored} and this run {checkpoint.generation}"
    if checkpoint.generation < stored:
        reason, advice = f"another run took it over ({mine})", "This run stops; run again if the other one did not end."
    else:
        reason = f"it was removed or replaced while this run had it ({mine})"
        advice = "This run stops; run again to go on from what is stored now."
    raise unusable(where, checkpoint.key, reason, advice=advice)


def refuse_step(new: Checkpoint, stored: Checkpoint | None, *, where: str) -> None:
    """Refuse a record that may not follow the stored one: of another source, or behind it. Equal is fine.

    Raises:
        CheckpointUnusable
    """
    refuse_position(new, where=where)
    if stored is None:
        return
    # A position of another server may well parse and even compare; it leads to other rows.
    if stored.source_identity and new.source_identity != stored.source_identity:
        reason = "it belongs to another source: the server was restored, replaced, or the address leads elsewhere"
        advice = f"Point `source` at the old server; if the new one is right, {START_ANEW}."
        raise unusable(where, new.key, reason, advice=advice)
    if _steps_back(new, stored):
        raise unusable(
            where, new.key, "the position to save lies behind the stored one", advice=f"If meant, {START_ANEW}."
        )


def _steps_back(new: Checkpoint, stored: Checkpoint) -> bool:
    """Compare texts by the order of their type; without one, or between two types, by the sort keys of the log."""
    if new.position_type == stored.position_type and new.source_type == stored.source_type:
        behind = is_behind(new.position, stored.position, position_type=new.position_type, source_type=new.source_type)
        # Two types compare by sort keys only: a file position and a set of transaction ids share no order of their own.
        if behind is not None:
            return behind
    return bool(new.sort_key and stored.sort_key) and new.sort_key < stored.sort_key
