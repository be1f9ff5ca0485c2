"""How the store's tables came to be: numbered steps, applied once, in order, by whoever opens the store first.

Belongs here: DDL, written once and never changed; a later need is a new step at the end. Not here: the tables as
they are now; each family file describes its own, and a test proves that both agree. The words are those that SQLite
and PostgreSQL share: times are ISO texts (`Instant`), JSON is text.
"""

from __future__ import annotations

from sqlalchemy import Connection, inspect, text

from rivet_resources.errors import StateError
from rivet_resources.state.database import Database

# Names of `contract.md`, 12.3, where it has one.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE export_state (
            export_name TEXT PRIMARY KEY,
            last_cursor_value TEXT,
            updated_at TEXT NOT NULL
        )""",
        """CREATE TABLE export_lease (
            export_name TEXT NOT NULL,
            window_key TEXT NOT NULL,
            run_id TEXT NOT NULL,
            host TEXT NOT NULL,
            pid INTEGER NOT NULL,
            process_start DOUBLE PRECISION NOT NULL,
            acquired_at TEXT NOT NULL,
            expires_at TEXT NOT NULL,
            PRIMARY KEY (export_name, window_key)
        )""",
        """CREATE TABLE chunk_task (
            export_name TEXT NOT NULL,
            window_key TEXT NOT NULL,
            identity TEXT NOT NULL,
            fingerprint TEXT NOT NULL,
            run_id TEXT NOT NULL,
            result TEXT NOT NULL,
            finished_at TEXT NOT NULL,
            PRIMARY KEY (export_name, window_key, identity)
        )""",
        """CREATE TABLE export_metrics (
            run_id TEXT PRIMARY KEY,
            export_name TEXT NOT NULL,
            window_key TEXT NOT NULL,
            mode TEXT NOT NULL,
            status TEXT NOT NULL,
            started_at TEXT NOT NULL,
            finished_at TEXT,
            duration_ms BIGINT,
            total_rows BIGINT NOT NULL,
            files_produced BIGINT NOT NULL,
            bytes_written BIGINT NOT NULL,
            format TEXT NOT NULL,
            compression TEXT NOT NULL,
            tuning_profile TEXT NOT NULL,
            consistency TEXT NOT NULL,
            cursor_low TEXT,
            cursor_high TEXT,
            retries BIGINT NOT NULL,
            longest_statement_ms DOUBLE PRECISION NOT NULL,
            cpu_seconds DOUBLE PRECISION NOT NULL,
            peak_mb DOUBLE PRECISION NOT NULL,
            validated BOOLEAN,
            quality_passed BOOLEAN,
            schema_changed BOOLEAN,
            degraded BOOLEAN NOT NULL,
            error_code TEXT,
            error_message TEXT,
            host TEXT NOT NULL,
            pid INTEGER NOT NULL,
            process_start DOUBLE PRECISION NOT NULL
        )""",
        "CREATE INDEX export_metrics_by_export ON export_metrics (export_name, started_at)",
        """CREATE TABLE file_manifest (
            export_name TEXT NOT NULL,
            window_key TEXT NOT NULL,
            run_id TEXT NOT NULL,
            file_name TEXT NOT NULL,
            row_count BIGINT NOT NULL,
            bytes BIGINT NOT NULL,
            format TEXT NOT NULL,
            compression TEXT NOT NULL,
            content_md5 TEXT NOT NULL,
            created_at TEXT NOT NULL,
            PRIMARY KEY (export_name, run_id, file_name)
        )""",
        "CREATE INDEX file_manifest_by_time ON file_manifest (created_at)",
        """CREATE TABLE export_schema (
            export_name TEXT NOT NULL,
            version INTEGER NOT NULL,
            columns TEXT NOT NULL,
            recorded_at TEXT NOT NULL,
            PRIMARY KEY (export_name, version)
        )""",
    ),
    (
        """CREATE TABLE checkpoint (
            checkpoint_key TEXT PRIMARY KEY,
            generation BIGINT NOT NULL,
            version INTEGER,
            source_type TEXT,
            position_type TEXT,
            position TEXT,
            sort_key TEXT,
            timestamp BIGINT,
            transaction_id TEXT,
            metadata TEXT,
            saved_generation BIGINT,
            source_identity TEXT,
            pipeline TEXT,
            run_id TEXT,
            unknown TEXT,
            checksum TEXT
        )""",
        """CREATE TABLE checkpoint_audit (
            checkpoint_key TEXT NOT NULL,
            generation BIGINT NOT NULL,
            timestamp BIGINT NOT NULL,
            reason TEXT NOT NULL,
            position TEXT,
            PRIMARY KEY (checkpoint_key, generation)
        )""",
    ),
    (
        "ALTER TABLE export_metrics ADD COLUMN source_type TEXT",
        "ALTER TABLE export_metrics ADD COLUMN destination_type TEXT",
        "ALTER TABLE export_metrics ADD COLUMN rows_read BIGINT",
        "ALTER TABLE export_metrics ADD COLUMN harm TEXT",
        """CREATE TABLE run_journal (
            run_id TEXT NOT NULL,
            number INTEGER NOT NULL,
            export_name TEXT NOT NULL,
            at TEXT NOT NULL,
            event TEXT NOT NULL,
            detail TEXT NOT NULL,
            PRIMARY KEY (run_id, number)
        )""",
        "CREATE INDEX run_journal_by_export ON run_journal (export_name, at)",
        """CREATE TABLE verification (
            export_name TEXT NOT NULL,
            window_key TEXT NOT NULL,
            kind TEXT NOT NULL,
            run_id TEXT NOT NULL,
            verified_at TEXT NOT NULL,
            verdict TEXT NOT NULL,
            detail TEXT NOT NULL,
            PRIMARY KEY (export_name, window_key, kind)
        )""",
    ),
    # Which database and destination an export's state is of. From here on `export_name` holds a key (`scopes.py`) in
    # every table; rows of before keep their bare names until the export that they are of takes them (`adoption.py`),
    # since only the manifests at its destination can tell which of two files of one store that is.
    (
        """CREATE TABLE export_provenance (
            export_name TEXT PRIMARY KEY,
            provenance TEXT,
            destination TEXT NOT NULL,
            accepted TEXT NOT NULL,
            updated_at TEXT NOT NULL
        )""",
    ),
    (
        "ALTER TABLE export_state ADD COLUMN cursor_visit INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE export_state ADD COLUMN boundary TEXT",
    ),
    (
        "ALTER TABLE export_lease ADD COLUMN process_space TEXT",
        "ALTER TABLE export_metrics ADD COLUMN process_space TEXT",
    ),
    (
        """CREATE TABLE source_reading (
            source TEXT NOT NULL,
            month TEXT NOT NULL,
            total_rows BIGINT NOT NULL,
            total_bytes BIGINT NOT NULL,
            PRIMARY KEY (source, month)
        )""",
        """CREATE TABLE rate_meter (
            name TEXT PRIMARY KEY,
            paid_at DOUBLE PRECISION NOT NULL
        )""",
    ),
    (
        """CREATE TABLE export_leftovers (
            export_name TEXT PRIMARY KEY,
            failures BIGINT NOT NULL,
            swept BIGINT NOT NULL,
            place TEXT NOT NULL
        )""",
    ),
    # The schema registry that the store is for those who have no other, and what was agreed with any.
    (
        """CREATE TABLE schema_content (
            id INTEGER PRIMARY KEY,
            identity TEXT NOT NULL UNIQUE,
            format TEXT NOT NULL,
            text TEXT NOT NULL
        )""",
        """CREATE TABLE schema_subject (
            subject TEXT PRIMARY KEY,
            owner TEXT NOT NULL,
            compatibility TEXT,
            mode TEXT,
            last_version INTEGER NOT NULL
        )""",
        """CREATE TABLE schema_version (
            subject TEXT NOT NULL,
            version INTEGER NOT NULL,
            id INTEGER NOT NULL,
            deleted BOOLEAN NOT NULL,
            registered_at TEXT NOT NULL,
            PRIMARY KEY (subject, version)
        )""",
        """CREATE TABLE schema_agreement (
            export_name TEXT NOT NULL,
            registry TEXT NOT NULL,
            subject TEXT NOT NULL,
            columns TEXT NOT NULL,
            version INTEGER NOT NULL,
            id INTEGER NOT NULL,
            format TEXT NOT NULL,
            md5 TEXT NOT NULL,
            sha256 TEXT NOT NULL,
            agreed_at TEXT NOT NULL,
            PRIMARY KEY (export_name, registry, subject, columns)
        )""",
    ),
    (
        """CREATE TABLE audit_log (
            id TEXT PRIMARY KEY,
            at TEXT NOT NULL,
            action TEXT NOT NULL,
            export_name TEXT NOT NULL,
            actor TEXT NOT NULL,
            run_id TEXT NOT NULL,
            detail TEXT NOT NULL
        )""",
    ),
    ("ALTER TABLE export_leftovers ADD COLUMN looked_at TEXT",),
)

# "RIVET": keeps two processes from creating the tables of one server at once.
LOCK_KEY = 0x5249564554


def migrate(database: Database, migrations: tuple[tuple[str, ...], ...] = MIGRATIONS) -> int:
    """Bring the store to the newest version this program knows, in one transaction; the version it had before.

    Raises:
        StateError: the store is newer than this program, or its tables are another program's.
    """
    with database.write() as connection:
        if not database.is_sqlite:
            # Both would see no tables and create them, and CREATE TABLE of PostgreSQL has no turn to take. On SQLite
            # the write transaction is alone.
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
        before = _version(connection, database.name)
        # An older program would not fill the columns that a newer one counts on.
        if before > len(migrations):
            raise StateError(
                f"State store {database.name} has version {before}; this Rivet knows up to {len(migrations)}. "
                f"Upgrade Rivet, or name another store in RIVET_STATE_URL."
            )
        for step in migrations[before:]:
            for statement in step:
                connection.execute(text(statement))
        # Written even when nothing changed: SQLite lets a reader of a write-protected file begin a write transaction.
        # Every open writes here, so a store that cannot be written is found now and not after hours of reading.
        connection.execute(text("UPDATE rivet_store SET version = :version"), {"version": len(migrations)})
    return before


def _version(connection: Connection, name: str) -> int:
    """Read the store's version; 0 for a new one, whose version table is made here."""
    tables = set(inspect(connection).get_table_names())
    if "rivet_store" in tables:
        return int(connection.execute(text("SELECT version FROM rivet_store")).scalar_one())
    # The original names its tables alike, and its rows mean something else.
    if "export_state" in tables:
        raise StateError(
            f"State store {name} holds tables of another program, such as the original rivet. "
            f"Move it away or name another store in RIVET_STATE_URL; the first run then starts from the beginning."
        )
    connection.execute(text("CREATE TABLE rivet_store (version INTEGER NOT NULL)"))
    connection.execute(text("INSERT INTO rivet_store (version) VALUES (0)"))
    return 0
