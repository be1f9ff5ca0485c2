"""What a refusal of the state store's database means, in our words: which store, why, what to do; no password.

Belongs here: the facts about both databases' errors and the sentences. Not here: catching them (`database.py`).
"""

from __future__ import annotations

from sqlalchemy import URL

from rivet_resources.errors import StateError

SQLITE_BUSY_SECONDS = 30

# Words by which drivers say that the store may answer later. SQLite: sqlite.org/rescode.html, SQLITE_BUSY and
# SQLITE_LOCKED. PostgreSQL is judged by SQLSTATE: Appendix A, classes 08 (connection), 53 (resources), 40
# (rollback), 57P (operator intervention); libpq errors of a lost line carry none.
SQLITE_LATER = ("database is locked", "database table is locked")
SQLITE_DAMAGED = ("file is not a database", "malformed", "file is encrypted")
SQLITE_UNWRITABLE = ("readonly database", "unable to open database", "disk i/o error", "is full")
POSTGRES_FOR_GOOD = (
    "authentication failed", "no password supplied", "no pg_hba.conf entry", "does not exist", "no such database",
    "no such user", "certificate", "invalid connection option", "invalid port number",
)  # fmt: skip
POSTGRES_LATER = ("08", "53", "40", "57P")


class StateUnavailable(StateError):
    """The state store did not answer, or stayed locked; it may later."""

    code = "RIVET_STATE_UNAVAILABLE"
    retry = True
    exit_code = 2


def name_of(url: URL) -> str:
    """Name the store for people: the file, or the URL with its password hidden and its options left out."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    place = {name: value for name, value in url.query.items() if name in ("host", "port")}  # a socket's folder
    return url.set(drivername="postgresql", query=place).render_as_string(hide_password=True)


def explain_sqlite(cause: str, url: URL) -> StateError:
    """Return what a SQLite error, told apart by its words, means for the user."""
    said = cause.lower()
    name = name_of(url)
    if any(words in said for words in SQLITE_LATER):
        return StateUnavailable(
            f"State store {name} stayed locked by another process for {SQLITE_BUSY_SECONDS} s. "
            f"Find who holds it (`fuser {url.database}`), or use a PostgreSQL server through RIVET_STATE_URL."
        )
    if any(words in said for words in SQLITE_DAMAGED):
        return StateError(
            f"State store {name} is damaged or not a state store ({cause}). "
            f"Move the file away, then run `rivet state rebuild`: the manifests hold the truth."
        )
    if any(words in said for words in SQLITE_UNWRITABLE):
        return StateError(
            f"State store {name} cannot be written ({cause}). "
            f"Make its folder writable for this user, with free space, or name another place in RIVET_STATE_URL."
        )
    return StateError(
        f"State store {name} refused a statement: {cause}. Move the file away and run `rivet state rebuild`."
    )


def explain_line(cause: str, url: URL, *, served_before: bool) -> StateError:
    """Return what it means that no line was had, or one broke: the server is away, unless it says what is wrong."""
    name = name_of(url)
    # What answered before has the right address and password, so whatever it says now may pass.
    if served_before:
        return StateUnavailable(f"State store {name} did not answer: {cause}. Run again when the server is back.")
    kind = StateError if any(words in cause.lower() for words in POSTGRES_FOR_GOOD) else StateUnavailable
    return kind(
        f"State store {name} cannot be reached: {cause}. Check RIVET_STATE_URL (host, port, user, password, database) "
        f"and that the server runs."
    )


def explain_postgres(cause: str, url: URL, *, sqlstate: str) -> StateError:
    """Return what a server's SQLSTATE means for the user."""
    name = name_of(url)
    if sqlstate.startswith(POSTGRES_LATER):
        return StateUnavailable(f"State store {name} did not answer: {cause}. Run again when the server is back.")
    # No privilege, or none even to see the schema.
    if sqlstate in ("42501", "3F000"):
        return StateError(
            f"State store {name} refused: {cause}. Let its user create and write tables: GRANT CREATE, USAGE ON SCHEMA "
            f"public TO {url.username or 'the user'}; or name a database of its own in RIVET_STATE_URL."
        )
    if sqlstate == "25006":
        return StateError(f"State store {name} is read only: {cause}. Name the primary server in RIVET_STATE_URL.")
    return StateError(f"State store {name} refused a statement (SQLSTATE {sqlstate}): {cause}.")
