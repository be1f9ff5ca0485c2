"""One look at a PostgreSQL server: who it is, how far its log reaches, how our slot and publication stand.

Belongs here: the statement of a survey, its facts, what they say about a position. Not here: advice before the
first run (preflight.py). The facts are plain texts and numbers, as a `Survey` carries them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rivet_resources.contracts.change_log import Capture, Position, Survey
from rivet_resources.contracts.evidence import Finding
from rivet_resources.engines.postgres.log.errors import position_lost
from rivet_resources.engines.postgres.log.layout import LAYOUT
from rivet_resources.engines.postgres.log.lsn import lsn_number, position
from rivet_resources.engines.postgres.sql import quote
from rivet_resources.engines.shared.names import split_name
from rivet_resources.errors import LogBusy, LogSetup

Rows = list[tuple[Any, ...]]
Ask = Callable[..., Rows]

FIRST_STANDBY = 160000
OPERATIONS = ("insert", "update", "delete", "truncate")
PUBLISH = "(publish)"  # among the notes of a publication; no table's name

# The flush position, never the insert position: only what is on the server's disk may be acknowledged. A standby
# has no flush position. An unqualified table follows the search path, as in a batch read.
SURVEY = f"""
SELECT json_build_object(
    'system_identifier', s.system_identifier::text, 'recovery', p.recovery, 'version', p.version,
    'database', current_database(), 'pid', pg_backend_pid(),
    'horizon', pg_snapshot_xmin(pg_current_snapshot())::text,
    'target', (CASE WHEN p.recovery THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END)::text,
    'slot', to_jsonb(r),
    'publication', (SELECT to_jsonb(b) || jsonb_build_object('written', b.xmin::text)
                    FROM pg_publication b WHERE b.pubname = %s),
    'tables', (SELECT json_object_agg(t.configured, json_build_object('oid', coalesce(t.rel, 0),
        'schema', (SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = t.rel),
        'membership', coalesce((SELECT l.oid::int8 FROM pg_publication_rel l JOIN pg_publication b ON b.oid = l.prpubid
                                WHERE b.pubname = %s AND l.prrelid = t.rel), 0),
        'published',
        EXISTS (SELECT FROM pg_publication_tables m JOIN pg_class c ON c.relname = m.tablename
                JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = m.schemaname
                WHERE m.pubname = %s AND c.oid = t.rel),
        'layout', {LAYOUT}))
        FROM (SELECT u.configured, to_regclass(u.quoted)::oid::int8 AS rel
              FROM unnest(%s::text[], %s::text[]) AS u (configured, quoted)) AS t))
FROM pg_control_system() AS s
CROSS JOIN (SELECT pg_is_in_recovery() AS recovery, current_setting('server_version_num')::int AS version) AS p
LEFT JOIN pg_replication_slots AS r ON r.slot_name = %s"""


def survey(ask: Ask, capture: Capture) -> Survey:
    """Look with one statement.

    Raises:
        LogBusy: another reader holds the slot.
        SourceError and its kin.
    """
    publication = publication_of(capture)
    quoted = [quote_table(table) for table in capture.tables]
    found = ask(
        SURVEY,
        (publication, publication, publication, list(capture.tables), quoted, capture.slot),
        doing="looking at the log",
    )[0][0]
    facts: dict[str, Any] = json.loads(found) if isinstance(found, str) else dict(found)
    slot = facts["slot"] = facts["slot"] or {}
    facts["tables"] = facts["tables"] or {}
    facts["slot_name"], facts["publication_name"] = capture.slot, publication
    if slot.get("active") and slot.get("active_pid") != facts["pid"]:
        raise LogBusy(
            f"Slot {capture.slot} is being read by another process (PID {slot.get('active_pid')} on the server); ours "
            "left it alone. Give each export a slot of its own, or wait until the other reader is done."
        )
    confirmed = slot.get("confirmed_flush_lsn")
    return Survey(
        identity=f"system_identifier:{facts['system_identifier']}",
        target=position(lsn_number(facts["target"])),
        oldest=position(lsn_number(confirmed)) if confirmed else None,
        facts=facts,
        warnings=tuple(_table_gone(table) for table, known in facts["tables"].items() if not known["oid"]),
    )


def _table_gone(table: str) -> Finding:
    return Finding(
        f"table {table}",
        "warn",
        f"the source shows no table {table} any more: it was renamed, and its changes are still read, or it was "
        "dropped, and its rows stay in what is published",
        "take it out of the export, or begin anew once it is there again",
    )


def publication_of(capture: Capture) -> str:
    """Name the publication; it has the slot's name unless it was given one."""
    return capture.publication or capture.slot


def quote_table(table: str) -> str:
    """Quote a configured table's name for SQL."""
    schema, name = split_name(table)
    return f"{quote(schema)}.{quote(name)}" if schema else quote(name)


def oids(facts: Mapping[str, Any]) -> dict[str, int]:
    """Return the configured tables that the catalog has now, by name."""
    return {table: int(found["oid"]) for table, found in facts["tables"].items() if found["oid"]}


def schemas(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the schema in which each configured table was found, by name."""
    return {table: str(found["schema"]) for table, found in facts["tables"].items() if found["oid"]}


def layouts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the layout of each configured table that is there; see layout.py."""
    known = {table: found["layout"] for table, found in facts["tables"].items() if found["layout"]}
    return {table: {**layout, "horizon": facts["horizon"]} for table, layout in known.items()}


def publishing(facts: Mapping[str, Any]) -> dict[str, int | str]:
    """Return what tells a publication, and each table's place in it, from ones made anew under the same names.

    What it publishes is noted with the transaction that last wrote its settings: PostgreSQL reads them as they were
    at each change, so what one left out for a while is missing though all is as before.
    """
    found = facts["publication"]
    if not found:
        return {}
    places = {table: int(known["membership"]) for table, known in facts["tables"].items() if known["membership"]}
    published = ", ".join(word for word in OPERATIONS if found.get(f"pub{word}"))
    # The membership's own number changes when a table is taken out and put back, which its name does not show.
    return {"": int(found["oid"]), PUBLISH: f"{published} ({found.get('written')})", **places}


def list_unpublished(facts: Mapping[str, Any]) -> list[str]:
    """List the configured tables that exist and are not in the publication."""
    return [table for table, found in facts["tables"].items() if found["oid"] and not found["published"]]


def refuse_lost(at: Position, found: Survey) -> None:
    """Refuse a position that the slot no longer serves; see the protocol.

    Raises:
        PositionLost: changes are gone.
        LogSetup: the slot or the publication is not what ours would be.
    """
    facts, slot, name = found.facts, found.facts["slot"], found.facts["slot_name"]
    refuse_setup(facts)
    if not slot:
        raise position_lost(
            f"The source has no slot {name} any more, and our checkpoint stands at {at.text}.", slot=name
        )
    reason = slot.get("invalidation_reason")
    if slot.get("wal_status") == "lost" or reason or slot.get("conflicting"):
        raise position_lost(f"The source has invalidated slot {name} ({reason or 'wal_removed'}).", slot=name)
    # A slot only moves forwards by reading it: beyond our checkpoint it served somebody else.
    if found.oldest is not None and found.oldest.key > at.key:
        raise position_lost(
            f"Slot {name} stands at {found.oldest.text}, beyond our checkpoint at {at.text}: someone else read from it "
            "or made it anew.",
            slot=name,
        )
    then, now = json.loads(at.more.get("relations", "{}")), oids(facts)
    # A table that is not there at all is only warned of, above: what its log still holds is read.
    if other := [table for table, oid in then.items() if now.get(table, oid) != oid]:
        raise position_lost(
            f"Another table has taken the name of {other[0]} since our checkpoint at {at.text}.", slot=name
        )
    noted, published = json.loads(at.more.get("publishing", "{}")), publishing(facts)
    # Newer servers pass over a publication that was not there when the log was written, in silence.
    if PUBLISH in noted and published.get("") == noted.get("") and published.get(PUBLISH) != noted[PUBLISH]:
        raise position_lost(
            f"Publication {facts['publication_name']} was altered since our checkpoint at {at.text}: changes that it "
            "left out meanwhile are not in the log.",
            slot=name,
        )
    if anew := [table for table, oid in noted.items() if table in published and published[table] != oid]:
        what = f"Table {anew[0]} was taken out of publication" if anew[0] else "Someone dropped publication"
        raise position_lost(
            f"{what} {facts['publication_name']} and put back, since our checkpoint at {at.text}: what changed "
            "between is not in the log.",
            slot=name,
        )
    if found.target.key < at.key and not facts["recovery"]:
        raise position_lost(
            f"The log of the source ends at {found.target.text}, before our checkpoint at {at.text}: it was restored "
            "from a backup, or another server took its place.",
            slot=name,
        )


def refuse_setup(facts: Mapping[str, Any]) -> None:
    """Refuse what no position can mend: the wrong kind of slot, a publication that lacks our tables.

    Raises:
        LogSetup
    """
    slot, name, publication = facts["slot"], facts["slot_name"], facts["publication_name"]
    if facts["recovery"] and facts["version"] < FIRST_STANDBY:
        raise LogSetup("A standby before PostgreSQL 16 cannot decode its log. Name the primary as the source.")
    if slot and slot.get("plugin") != "pgoutput":
        raise LogSetup(
            f"Slot {name} is for {slot.get('plugin') or 'physical replication'}, not for pgoutput. "
            "Choose another `cdc.slot`."
        )
    if slot and slot.get("database") != facts["database"]:
        raise LogSetup(
            f"Slot {name} is of database {slot.get('database')}, the source of {facts['database']}. "
            "Choose another `cdc.slot`."
        )
    if facts["publication"] is None:
        raise LogSetup(
            f"The source has no publication {publication}. What is written to the log meanwhile can never be read "
            f"through slot {name}: make the publication, drop the slot, reset the checkpoint, take a new snapshot."
        )
    if left_out := unpublished_operations(facts):
        raise LogSetup(
            f"Publication {publication} leaves out {', '.join(left_out)}, which then never reach slot {name}. Let its "
            f"owner run: {publish_all(publication)}. If it was so while the tables were written to, those changes are "
            f"lost: then also run SELECT pg_drop_replication_slot('{name}'), and begin anew with `rivet state reset`."
        )
    if missing := list_unpublished(facts):
        raise LogSetup(missing_tables(missing, publication=publication))


def unpublished_operations(facts: Mapping[str, Any]) -> list[str]:
    """List the operations that the publication leaves out."""
    found = facts["publication"] or {}
    return [word for word in OPERATIONS if found and not found.get(f"pub{word}")]


def publish_all(publication: str) -> str:
    """Write the statement that publishes every operation."""
    return f"ALTER PUBLICATION {quote(publication)} SET (publish = '{', '.join(OPERATIONS)}')"


def missing_tables(missing: Sequence[str], *, publication: str) -> str:
    """Return which tables the publication lacks, with the statement that adds them."""
    return (
        f"Publication {publication} does not have {', '.join(missing)}. Let the owner run: "
        f"{add_tables(missing, publication=publication)}. Changes of a table begin there: it needs a snapshot then. "
        f"A partitioned table must be published by its root: {publish_by_root(publication)}."
    )


def publish_by_root(publication: str) -> str:
    """Write the statement that publishes a partitioned table as one."""
    return f"ALTER PUBLICATION {quote(publication)} SET (publish_via_partition_root = true)"


def add_tables(missing: Sequence[str], *, publication: str) -> str:
    """Write the ALTER PUBLICATION."""
    return f"ALTER PUBLICATION {quote(publication)} ADD TABLE {', '.join(map(quote_table, missing))}"
