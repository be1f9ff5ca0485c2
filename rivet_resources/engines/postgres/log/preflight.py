"""Every prerequisite of a PostgreSQL log, judged, each with what to run (`cdc.md`, sections 4.1, 7 and 10).

Belongs here: what doctor shows and a first run insists on. Not here: refusals of a later run (survey.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rivet_resources.contracts.change_log import Capture
from rivet_resources.contracts.evidence import Finding
from rivet_resources.engines.postgres.catalog import Catalog, all_indexes, key_of, rule_column
from rivet_resources.engines.postgres.log.create_slot import publication_sql
from rivet_resources.engines.postgres.log.relations import (
    IMMEDIATE_KEY,
    KEYS_READ,
    UNIQUE_KEY,
    UNIQUE_WITHIN,
    deferrable_key,
    exchangeable,
    unidentified,
)
from rivet_resources.engines.postgres.log.survey import (
    FIRST_STANDBY,
    add_tables,
    list_unpublished,
    publication_of,
    publish_all,
    publish_by_root,
    quote_table,
    survey,
    unpublished_operations,
)
from rivet_resources.engines.postgres.sql import quote
from rivet_resources.errors import LogBusy

GIB = 1 << 30

SERVER = """
SELECT json_build_object(
    'wal_level', current_setting('wal_level'),
    'slots', current_setting('max_replication_slots')::int, 'senders', current_setting('max_wal_senders')::int,
    'used', (SELECT count(*) FROM pg_replication_slots),
    'keep', current_setting('max_slot_wal_keep_size'),
    'plugins', current_setting('output_plugin_libraries', true),
    'recovery', pg_is_in_recovery(), 'pid', pg_backend_pid(),
    'may_replicate', (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user),
    'may_see', pg_has_role('pg_read_all_stats', 'USAGE'),
    'abandoned', (SELECT json_agg(r.slot_name) FROM pg_replication_slots r WHERE NOT r.active AND r.slot_name <> %s
        AND NOT pg_is_in_recovery() AND pg_wal_lsn_diff(pg_current_wal_flush_lsn(), r.restart_lsn) > %s))"""

# relreplident: d primary key, i an index, f the whole row, n nothing. A DEFERRABLE primary key identifies no row for
# the log (PostgreSQL, src/backend/utils/cache/relcache.c, RelationGetIndexList).
TABLES = """
SELECT u.configured, c.relkind::text, c.relreplident::text,
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate) AS has_key,
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident AND NOT i.indisprimary),
       has_any_column_privilege(c.oid, 'SELECT'),
       ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
             AND NOT a.attisdropped AND a.attgenerated <> '' ORDER BY a.attnum),
       ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
             AND NOT a.attisdropped ORDER BY a.attnum),
       n.nspname || '.' || c.relname, c.relpersistence::text, c.oid::int8,
       ARRAY(SELECT a.attname::text FROM pg_index i
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
             WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'i' THEN i.indisreplident
                   WHEN 'd' THEN i.indisprimary AND i.indimmediate END)
FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS u (configured, quoted, n)
JOIN pg_class c ON c.oid = to_regclass(u.quoted) JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY u.n"""


def findings(log: Catalog, capture: Capture) -> tuple[Finding, ...]:
    """Judge everything with four short statements."""
    server = log.ask(SERVER, (capture.slot, GIB), doing="reading the server's settings")[0][0]
    names = [quote_table(table) for table in capture.tables]
    tables = log.ask(TABLES, (list(capture.tables), names), doing="reading the tables")
    try:
        facts = survey(log.ask, capture).facts
    except LogBusy as busy:
        # Another reader has the slot: what can be told without it is told all the same.
        return (*_server(server, log), Finding("slot", "fail", str(busy)))
    found = [
        *_server(server, log),
        *_line(server, facts),
        *_publication(facts, capture),
        *_missing(facts),
    ]
    for row in tables:
        found += _table(row[:10], user=log.user)
        found += _keyed(log, capture, row)
    found += _rules(capture, tables)
    return tuple(found)


# --- the server ----------------------------------------------------------------------------------


def _server(server: Mapping[str, Any], log: Catalog) -> Iterator[Finding]:
    level = server["wal_level"]
    yield _judge(
        "wal_level", level == "logical", f"wal_level is {level}",
        "ALTER SYSTEM SET wal_level = 'logical';  -- then restart. Never lower it while a logical slot exists: the "
        "server would not start",
    )  # fmt: skip
    for name, key in (("max_replication_slots", "slots"), ("max_wal_senders", "senders")):
        count = server[key]
        yield _judge(name, count > 0, f"{name} is {count}", f"ALTER SYSTEM SET {name} = 10;  -- then restart")
    if 0 < server["slots"] <= server["used"]:
        text = f"all {server['slots']} replication slots are taken"
        yield Finding("free_slot", "warn", text, "ALTER SYSTEM SET max_replication_slots = 20;  -- then restart")
    user, has = quote(log.user), "has" if server["may_replicate"] else "lacks"
    yield _judge("role", has == "has", f"role {log.user} {has} REPLICATION", f"ALTER ROLE {user} REPLICATION;")
    if not server["may_see"]:
        text = "the activity of other roles is hidden, so lag is told without the oldest open transaction"
        yield Finding("pg_monitor", "warn", text, f"GRANT pg_monitor TO {user};")
    if str(server["keep"]) == "-1":
        text = "max_slot_wal_keep_size is unbounded: a drain that stops for long can fill the server's disk"
        yield Finding("max_slot_wal_keep_size", "warn", text, "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB';")
    plugins = server["plugins"]
    if plugins is not None and "pgoutput" not in [word.strip() for word in plugins.split(",")]:
        text = f"output_plugin_libraries is {plugins!r}"
        fix = "ALTER SYSTEM SET output_plugin_libraries = 'pgoutput, test_decoding'; SELECT pg_reload_conf();"
        yield Finding("output_plugin_libraries", "fail", text, fix)
    for slot in server["abandoned"] or ():
        text = f"slot {slot} is not read by anyone and holds more than 1 GiB of log"
        yield Finding(f"slot {slot}", "warn", text, f"SELECT pg_drop_replication_slot('{slot}');")
    if log.server_version < FIRST_STANDBY and server["recovery"]:
        yield Finding("standby", "fail", "a standby before PostgreSQL 16 cannot decode its log; name the primary")


def _line(server: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Recognise a pooler by a backend that changes between two statements."""
    # The connection is one, so two backends mean that a pooler shares it out by transactions.
    if server["pid"] != facts["pid"]:
        yield Finding(
            "pooler",
            "warn",
            "a transaction pooler stands between: each statement may meet another backend. The drain pins its "
            "settings inside each statement and works; the snapshot of `initial: snapshot` needs a direct line",
            "point the source at the server itself, or at a session pool",
        )
    if facts["recovery"] and facts["version"] >= FIRST_STANDBY:
        yield Finding(
            "standby",
            "warn",
            "the source is a standby: without feedback the primary may remove rows that decoding needs",
            "ALTER SYSTEM SET hot_standby_feedback = on; SELECT pg_reload_conf();",
        )


# --- publication and tables ----------------------------------------------------------------------


def _publication(facts: Mapping[str, Any], capture: Capture) -> Iterator[Finding]:
    name, found, slot = publication_of(capture), facts["publication"], facts["slot"]
    if slot and slot.get("plugin") != "pgoutput":
        yield Finding("slot", "fail", f"slot {capture.slot} is not for pgoutput", "choose another `cdc.slot`")
    if slot and slot.get("database") != facts["database"]:
        yield Finding("slot", "fail", f"slot {capture.slot} is of database {slot.get('database')}")
    if found is None:
        fix = f"{publication_sql(capture)};"
        if slot:
            yield Finding("publication", "fail", f"publication {name} is gone, and slot {capture.slot} needs it", fix)
        else:
            yield Finding("publication", "warn", f"publication {name} is not there; the first run makes it", fix)
        return
    if missing := list_unpublished(facts):
        text = f"publication {name} does not have {', '.join(missing)}; they also need a snapshot"
        # A partitioned table that was added is missing all the same while its partitions are published.
        strangers = [table for table in missing if not facts["tables"][table]["membership"]]
        fixes = [publish_by_root(name)] if len(strangers) < len(missing) else []
        fixes += [add_tables(strangers, publication=name)] if strangers else []
        yield Finding("publication", "fail", text, "; ".join(fixes) + ";")
    else:
        yield Finding("publication", "ok", f"publication {name} has the tables")
    if left_out := unpublished_operations(facts):
        fix = f"{publish_all(name)};"
        yield Finding("publication publish", "fail", f"publication {name} leaves out {', '.join(left_out)}", fix)
    if found.get("puballtables"):
        yield Finding("publication tables", "warn", f"publication {name} is for all tables: the log of all is decoded")
    # Partitions are then published under names that no export has.
    if not found.get("pubviaroot"):
        text = f"publication {name} names partitions, not their table"
        yield Finding("publication root", "warn", text, f"{publish_by_root(name)};")


def _missing(facts: Mapping[str, Any]) -> Iterator[Finding]:
    for table, known in facts["tables"].items():
        if not known["oid"]:
            yield Finding(f"table {table}", "fail", f"the source shows no table {table}", "fix `table` of the export")


def _describe_kept(kind: str, persistence: str) -> str:
    if kind not in ("r", "p"):
        return "is no table"
    return "is an UNLOGGED table" if persistence == "u" else "is a temporary table"


def _table(row: tuple[Any, ...], *, user: str) -> Iterator[Finding]:
    table, kind, identity, has_key, has_index, is_readable, generated, _, label, persistence = row
    name = quote_table(table)
    if kind not in ("r", "p") or persistence != "p":
        yield Finding(
            f"table {table}",
            "fail",
            f"{label} {_describe_kept(kind, persistence)}, and only permanent tables are in the log",
        )
        return
    if not is_readable:
        text = f"role {user} may not read {label}: needed for the snapshot"
        yield Finding(f"select {label}", "fail", text, f"GRANT SELECT ON {name} TO {quote(user)};")
    yield _identity(label, name, identity, has_key=has_key, has_index=has_index)
    if generated:
        text = f"generated columns of {label} are not in the log and not in its changes: {', '.join(generated)}"
        yield Finding(f"generated {label}", "warn", text, "compute them where the changes are read")
    if kind == "p":
        text = f"{label} is partitioned: TRUNCATE of a single partition is not in the log under its root's name"
        yield Finding(f"partitions {label}", "warn", text, "delete rows, or detach and drop the partition")


def _identity(label: str, name: str, identity: str, *, has_key: bool, has_index: bool) -> Finding:
    """Judge a replica identity; without one the application's own UPDATE fails as soon as the table is published."""
    title = f"replica_identity {label}"
    if identity == "n" or (identity == "d" and not has_key) or (identity == "i" and not (has_index or has_key)):
        text = f"{label} has no replica identity: once published, every UPDATE and DELETE of it fails"
        return Finding(title, "fail", text, f"ALTER TABLE {name} REPLICA IDENTITY FULL;")
    if identity == "f" and not has_key:
        text = f"{label} has no primary key: its changes cannot be told apart by key"
        return Finding(title, "warn", text, f"ALTER TABLE {name} ADD PRIMARY KEY (…);")
    if identity == "i" and has_key and has_index:
        text = f"{label} is identified by another index than its primary key, whose own changes are not seen"
        return Finding(title, "warn", text, f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT;")
    return Finding(title, "ok", f"{label} identifies its rows")


def _keyed(log: Catalog, capture: Capture, row: tuple[Any, ...]) -> Iterator[Finding]:
    """Judge whether the log names rows by the columns by which mirrors, histories and messages know them."""
    table, identity, columns, label, oid, known = row[0], row[2], row[7], row[8], row[10], row[11]
    if capture.is_keyed and identity == "f" and (constraint := deferrable_key(log, oid, capture.key)):
        yield Finding(f"key {label}", "fail", exchangeable(label, capture.key, constraint), IMMEDIATE_KEY)
    yield from _unique(log, capture, label, oid, columns)
    if not capture.is_keyed or identity in ("f", "n"):
        return
    key = capture.key or key_of(all_indexes(log, (oid,)))
    if lacking := [name for name in key if name in columns and name not in known]:
        fix = f"ALTER TABLE {quote_table(table)} REPLICA IDENTITY FULL;"
        yield Finding(f"key {label}", "fail", unidentified(label, lacking, known), fix)


def _unique(log: Catalog, capture: Capture, label: str, oid: int, columns: Sequence[str]) -> Iterator[Finding]:
    """Judge a `key:` that nothing keeps unique: whether two rows that share one would be found.

    An exact copy shows which keys are in use, so each insert and changed key behind it can be held against them.
    """
    if not capture.is_applied or not capture.key:
        return
    rows = log.ask(UNIQUE_WITHIN, (oid, list(capture.key)), doing=KEYS_READ)
    if any(is_never_null for _, _, is_never_null in rows):
        return
    title = f"key {label}"
    text = f"nothing keeps {', '.join(capture.key)} of {label} unique, by which its rows are told apart here (`key`)"
    if made := [name for name in capture.key if name not in columns]:
        yield Finding(title, "fail", f"{text}, and {made[0]} is no column of the table", UNIQUE_KEY)
    elif "partitions" in capture.accepts:
        why = "rows that go with partitions (`accept_untold`) hide which keys are in use"
        yield Finding(title, "fail", f"{text}, and {why}", UNIQUE_KEY)
    elif not capture.copies:
        why = "without a first copy nobody knows which keys are in use"
        yield Finding(title, "fail", f"{text}, and {why}", f"`cdc: {{initial: snapshot}}`; or {UNIQUE_KEY}")
    else:
        yield Finding(title, "warn", f"{text}; a run of `apply` ends where two rows share one", UNIQUE_KEY)


def _rules(capture: Capture, tables: list[tuple[Any, ...]]) -> Iterator[Finding]:
    """Find the keys of `columns:` that mean no column of any table."""
    for key in capture.rules.columns:
        if not any(rule_column(key, row[7], row[8]) for row in tables):
            yield Finding(f"columns.{key}", "fail", f"no captured table has a column {key!r}", "fix `columns`")


def _judge(name: str, is_good: bool, text: str, fix: str) -> Finding:
    return Finding(name, "ok", text) if is_good else Finding(name, "fail", text, fix)
