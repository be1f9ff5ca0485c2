"""SQLite as a source: its YAML block, where its file is, and the Source methods (`type: sqlite`).

Belongs here: settings, quoting and literals. Not here: the catalog, planning, pages, cells and faults, which are
beside this file.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import unquote

from pydantic import Field, field_validator, model_validator

from rivet_resources.contracts.dialect import Dialect
from rivet_resources.contracts.engine_facts import EngineFacts
from rivet_resources.contracts.evidence import Effort, Gauge
from rivet_resources.contracts.mode_facts import ModeFacts
from rivet_resources.contracts.read_limits import SourceBudget, SourceRate, SourceWindows
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace, Settings, Tuning
from rivet_resources.contracts.source import Page, Session, Wait
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.names import split_name
from rivet_resources.engines.shared.planning import planning
from rivet_resources.engines.sqlite import (
    gauge as sqlite_gauge,
)
from rivet_resources.engines.sqlite import (
    pages as sqlite_pages,
)
from rivet_resources.engines.sqlite import (
    session as sqlite_session,
)
from rivet_resources.engines.sqlite import (
    sql as sqlite_sql,
)
from rivet_resources.engines.sqlite.connect import ConnectionParams
from rivet_resources.engines.sqlite.facts import FACTS
from rivet_resources.secrets import resolve_secret

WAYS = ("path", "path_env", "url")
SCHEME = "sqlite:///"


class Sqlite(Settings):
    """Which SQLite file to read, and how hard it may be driven. It is opened for reading only, and never created."""

    type: Literal["sqlite"] = "sqlite"
    facts: ClassVar[EngineFacts] = FACTS
    path: Path | None = Field(default=None, description="the database file; one of path, path_env, url")
    path_env: str | None = Field(default=None, description="environment variable that holds the path")
    url: str | None = Field(default=None, description="sqlite:///relative.db or sqlite:////absolute.db")
    tuning: Tuning | None = Field(default=None, description="how hard the source may be driven")
    rate_limit: SourceRate = None
    read_windows: SourceWindows = None
    budget: SourceBudget = None
    shared_path: bool = Field(
        default=False,
        # A key that came later leaves the fingerprints of before as they are.
        exclude_if=lambda given: not given,
        description="the file is mounted at this path on every worker of a Spark cluster",
    )

    @property
    def only_here(self) -> str:
        """Return why a worker on another machine cannot read it; "" where it can."""
        return "" if self.shared_path else "is a file of this machine"

    @field_validator("path")
    @classmethod
    def _means_one_place(cls, path: Path | None) -> Path | None:
        """Make a relative path absolute where the config is read, so that every process means the same file."""
        return path.absolute() if path is not None else None

    @model_validator(mode="after")
    def _one_file(self) -> Sqlite:
        """Refuse a block that names its file in two ways, or in none.

        Raises:
            ValueError: the message lists the keys that were given.
        """
        given = [name for name in WAYS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"sets {', '.join(given) or 'no file'}; keep exactly one of {', '.join(WAYS)}")
        if self.url is not None and not self.url.startswith(SCHEME):
            raise ValueError(f"url does not start with {SCHEME}; write {SCHEME}shop.db, or use path")
        return self

    # --- what a Source does ----------------------------------------------------------------------

    def at(self, variable: str) -> Sqlite:
        """Return the same source with the file whose path an environment variable holds; see the protocol."""
        return self.model_copy(update={"path": None, "url": None, "path_env": variable})

    def session(self, *, application: str, pace: Pace, snapshot: bool = True) -> AbstractContextManager[Session]:
        """Connect for planning; see the protocol. Nothing shares an instant here, so `snapshot` changes nothing."""
        conn_params = self.conn_params(pace)
        return planning(lambda: sqlite_session.SqliteSession(conn_params), pace=pace)

    def pages(
        self,
        chunk: Chunk,
        columns: tuple[Column, ...],
        *,
        snapshot: str | None,
        application: str,
        pace: Pace,
        wait: Wait,
    ) -> Generator[Page, None, Effort]:
        """Read a chunk page by page, on a connection of its own; see the protocol."""
        return sqlite_pages.read(chunk, columns, conn_params=self.conn_params(pace), pace=pace, wait=wait)

    def gauge(self, *, application: str, pace: Pace) -> AbstractContextManager[Gauge]:
        """Connect for looking at the file while it is read; see the protocol."""
        return sqlite_gauge.open_gauge(self.conn_params(pace))

    def refuses(self, mode: ModeFacts, relation: Literal["table", "query"]) -> str:
        """Return why a mode cannot be; '' since all others can."""
        # Its write-ahead log holds pages of the file, not rows (sqlite.org/wal.html).
        if mode.follows_log:
            return "SQLite keeps no log of changes that could be read; use mode poll, which finds new and changed rows"
        return ""

    def quote(self, name: str) -> str:
        """Quote one identifier, inner quotes doubled."""
        return sqlite_sql.quote(name)

    def literal(self, text: str, column: Column) -> str:
        """Render a canonical text as a literal of this column's type; see the protocol."""
        return sqlite_sql.literal(text, column)

    def no_bound(self, column: Column, *, is_paged: bool) -> str:
        """Return why the values of a column cannot be bounds; see the protocol."""
        # `literal` refuses columns of no type.
        return ""

    def dialect(self, columns: Sequence[Column]) -> Dialect:
        """Return how statements that order and compare these columns are spelled."""
        return sqlite_sql.CollatedDialect(columns)

    def lineage_name(self, table: str) -> tuple[str, str]:
        """Split a table as configured into (schema, name); `main` where none is written."""
        schema, name = split_name(table)
        return schema or "main", name

    # --- connecting ------------------------------------------------------------------------------

    def conn_params(self, pace: Pace) -> ConnectionParams:
        """Find the file; it is opened later.

        Raises:
            ConfigError: the variable is not set.
        """
        return ConnectionParams(self._file(), pace)

    def _file(self) -> Path:
        if self.path is not None:
            return self.path
        if self.url is not None:
            return Path(unquote(self.url.removeprefix(SCHEME)))
        return Path(resolve_secret(None, env=self.path_env, key="path") or "")
