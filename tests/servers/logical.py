"""PostgreSQL databases with logical slots, for tests of its change log: made, emptied of slots, killed, started again.

Belongs here: what slots add to `postgres.py`. Not here: reading a log (`engines/postgres_changes.py`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from rivet_resources.embedded_postgres import serving
from tests.servers import postgres as servers

# The last two: a crash must lose nothing that was told as flushed, and no checkpoint may come by itself.
DURABLE = {**servers.TEST_SETTINGS, "fsync": "on", "full_page_writes": "on", "checkpoint_timeout": "1h"}


@contextmanager
def logical_database(server_url: str) -> Iterator[str]:
    """Make an empty database on a running server; its slots go with it, or nobody could drop it."""
    url = servers.create_database(server_url)
    try:
        yield url
    finally:
        drop_slots(server_url, url)
        servers.drop_database(server_url, url)


def drop_slots(server_url: str, url: str) -> None:
    """Drop the slots of a database, ending who reads them."""
    name = urlsplit(url).path[1:]
    with psycopg.connect(server_url, autocommit=True) as connection:
        ended = "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE database = %s AND active"
        connection.execute(ended, (name,))
        dropped = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s"
        connection.execute(dropped, (name,))


class OwnServer:
    """A server of one test, which it may kill and start again. Its files outlive its process."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        self.folder, self.settings = folder, {**DURABLE, **(settings or {})}
        self._running = ExitStack()
        self.url = ""

    def start(self) -> str:
        """Start it; the URL of its first database."""
        server = self._running.enter_context(serving(self.folder, settings=self.settings))
        self._pid_file = server.folder / "pgdata" / "postmaster.pid"
        self.url = server.url()
        return self.url

    def kill(self, how: int = signal.SIGKILL) -> None:
        """Kill it as the system would, or by SIGQUIT as `immediate` does, and wait until all of it is gone."""
        pid = int(self._pid_file.read_text().split()[0])
        os.kill(pid, how)
        if how == signal.SIGKILL:
            self._pid_file.unlink()
        self._running.close()

    def stop(self) -> None:
        """Stop it in good order."""
        self._running.close()
