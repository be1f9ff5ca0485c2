"""A captured table of orders that is written to and drained, and what a reader of manifests sees of it.

Belongs here: what tests of dying and failing drains share: the shop, its servers, what must hold. Not here: the faults.
"""

from __future__ import annotations

import io
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rivet_assets.config.load import load_config
from rivet_assets.modes.cdc import Cdc
from rivet_assets.run.admit.scope import state_of
from rivet_assets.run.drain import checkpoint_key, checkpoints_of
from rivet_assets.run.reset import forget
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.contracts.destination import Root
from rivet_resources.drain.plan import Drained
from rivet_resources.engines.postgres.log.lsn import lsn_number, position
from rivet_resources.errors import RivetError
from rivet_resources.state.checkpoints.stores import Checkpoint, Checkpoints
from tests import processes
from tests.faults.drain_run import DEAD, drained

CREATE = "CREATE TABLE orders (id bigint PRIMARY KEY, total bigint)"


@dataclass
class Shop:
    """A captured table of orders, a config that drains it, and what a reader sees of it."""

    folder: Path
    engine: str
    url: str
    run: Callable[..., None]  # statements, each committed by itself
    rows: Callable[[], dict[int, int]]  # the table as it is: id → total
    settings: str = ""  # more of the export's `cdc:` block
    written: int = field(default=0)
    account: Callable[[], str | None] = lambda: None  # up to where the source may forget; None: it keeps no account
    rollover: int = 4

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.configure()

    @property
    def config(self) -> Path:
        """The file."""
        return self.folder / "rivet.yaml"

    def configure(self, *, url: str = "", destination: str = "", cdc: str = "", export: str = "") -> None:
        """Write the config: another user or destination, more of the `cdc:` block or of the export."""
        where = destination or f"{{type: local, path: '{self.folder}/lake'}}"
        self.config.write_text(
            f"source: {{type: {self.engine}, url: '{url or self.url}'}}\nspark: inline\nexports:\n"
            f"  - {{name: orders, table: orders, mode: cdc, format: parquet, destination: {where},\n"
            f"     cdc: {{initial: snapshot, rollover: {self.rollover}{self.settings}{cdc}}}{export}}}\n"
        )

    def write(self) -> None:
        """Insert ten rows, change and delete some of them and of those before."""
        first = self.written
        self.written += 10
        values = ", ".join(f"({number}, {number})" for number in range(first, first + 10))
        self.run(
            f"INSERT INTO orders (id, total) VALUES {values}",
            f"UPDATE orders SET total = total + 1000 WHERE id >= {first + 5} OR id = {first // 2}",
            f"DELETE FROM orders WHERE id = {first + 2}",
        )

    # --- draining --------------------------------------------------------------------------------

    def drain(self, step: Callable[[str], None] = lambda name: None) -> Drained:
        """Drain here; `step` is told the name of every step that begins."""
        return drained(self.config, step=step)

    def at(self, place: str, *actions: Callable[[], object]) -> Drained:
        """Drain, and do this when the first step of this name begins."""
        waiting = [*actions]

        def step(name: str) -> None:
            while name == place and waiting:
                waiting.pop(0)()

        done = self.drain(step)
        assert not waiting, f"no step {place} in this drain"
        return done

    def die(self, step: str, nth: int = 1, *, windows: int | None = None, held: str = "") -> None:
        """Drain in a process of its own, which must die at this step.

        Args:
            windows: of so many changes; the death comes while one is read and the one before is published.
            held: the step at which that publication stays.
        """
        overlap = [] if windows is None else [str(windows), held]
        process = processes.run(*self.command(step, nth), *overlap)
        assert process.returncode == DEAD, process.stdout + process.stderr

    def command(self, step: str = "", nth: int = 1) -> list[str]:
        """Spell what drains in a process of its own."""
        return ["tests.faults.drain_run", str(self.config), step, str(nth)]

    @contextmanager
    def refused(self, error: type[RivetError], *words: str) -> Iterator[pytest.ExceptionInfo[RivetError]]:
        """Expect this error with these words; what is committed, stored and acknowledged stays as it was."""
        before = self.account(), self.stored(), self.seen()
        with pytest.raises(RivetError) as failure:
            yield failure
        assert type(failure.value) is error, repr(failure.value)
        for word in words:
            assert word in str(failure.value)
        assert (self.account(), self.stored(), self.seen()) == before

    def give_up(self) -> None:
        """Forget the position, as the messages advise: `rivet state reset -e orders`."""
        config = load_config(self.config)
        forget(config, config.exports[0], state=state_of(config))

    # --- what there is ---------------------------------------------------------------------------

    def checkpoints(self) -> tuple[Checkpoints, str]:
        """Return the store of the checkpoint, and its key."""
        config = load_config(self.config)
        export = config.exports[0]
        assert isinstance(export, Cdc)
        key = checkpoint_key(export, config.source_of(export)[0])
        return checkpoints_of(export, state=state_of(config), folder=config.folder), key

    def stored(self) -> str | None:
        """Read the position that the checkpoint has, to be compared; None: it has none, or cannot be read."""
        store, key = self.checkpoints()
        found: dict[str, Checkpoint | None] = dict(store.list())
        record = found.get(key)
        return record.sort_key if record else None

    def root(self) -> Root:
        """The export's folder at its destination."""
        export = load_config(self.config).exports[0]
        return export.destination.root(export.name)

    def parts(self) -> list[pa.Table]:
        """Read every committed part."""
        root = self.root()
        return [
            pq.read_table(io.BytesIO(root.open(part.path).read()))
            for manifest in current_manifests(root).values()
            for part in manifest.parts
        ]

    def seen(self) -> list[tuple[str, int, str, int, int | None]]:
        """Read (pos, seq, op, id, total) of every committed change, in log order."""
        parts = self.parts()
        if not parts:
            return []
        changes = pa.concat_tables(
            [part.select(["__pos", "__seq", "__op", "id", "total"]) for part in parts], promote_options="permissive"
        )
        query = "SELECT __pos, __seq, __op, id, total FROM changes ORDER BY __pos, __seq, id"
        with duckdb.connect() as connection:
            return [tuple(row) for row in connection.register("changes", changes).execute(query).fetchall()]

    def must_hold(self) -> None:
        """No change twice; replayed, the changes are the table; nothing beyond the checkpoint is acknowledged."""
        changes = self.seen()
        later = [change[:2] for change in changes if change[1] != 0]
        assert len(later) == len(set(later))
        table: dict[int, int | None] = {}
        for _, _, op, key, total in changes:
            if op == "delete":
                table.pop(key, None)
            else:
                table[key] = total
        assert table == self.rows()
        account, stored = self.account(), self.stored()
        assert stored is not None
        assert account is None or account <= stored
        assert not changes or changes[-1][0] <= stored


def begun(shop: Shop) -> Shop:
    """Drain the first rows, then write more."""
    shop.write()
    shop.drain()
    shop.write()
    return shop


def begin_anew(shop: Shop, *statements: str) -> None:
    """Do what the messages advise, and go on; the new copy replaces all that was published."""
    shop.run(*statements)
    shop.give_up()
    shop.drain()
    shop.must_hold()
    shop.write()
    shop.drain()
    shop.must_hold()


def until(is_so: Callable[[], bool]) -> None:
    """Ask until it is so."""
    for _ in range(400):
        if is_so():
            return
        time.sleep(0.02)
    raise AssertionError("it never came")


# --- PostgreSQL ----------------------------------------------------------------------------------


@contextmanager
def postgres_shop(url: str, folder: Path, *, settings: str = "", rollover: int = 4) -> Iterator[Shop]:
    """Open a shop on an empty database of PostgreSQL; its slot goes with it."""
    import psycopg

    slot = f"shop_{secrets.token_hex(4)}"

    def run(*statements: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = on")
            for statement in statements:
                connection.execute(statement.replace("{slot}", slot).encode())

    def rows() -> dict[int, int]:
        with psycopg.connect(url) as connection:
            return dict(connection.execute("SELECT id, total FROM orders").fetchall())

    def account() -> str | None:
        """The slot's own: behind it, the server may forget."""
        with psycopg.connect(url) as connection:
            asked = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
            found = connection.execute(asked, [slot]).fetchone()
        return position(lsn_number(found[0])).key if found and found[0] else None

    run(CREATE)
    try:
        yield Shop(folder, "postgres", url, run, rows, f", slot: {slot}{settings}", account=account, rollover=rollover)
    finally:
        drop_slot(url, slot)


def drop_slot(url: str, slot: str) -> None:
    """Drop a slot if its server lives, ending who reads it."""
    import psycopg

    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots "
                               "WHERE slot_name = %s AND active", [slot])  # fmt: skip
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", [slot]
            )
    except psycopg.OperationalError:  # the test has ended the server
        return


# --- MariaDB and MySQL ---------------------------------------------------------------------------


def mysql_shop(url: str, folder: Path, *, settings: str = "", rollover: int = 4) -> Shop:
    """Open a shop on a database of MariaDB or MySQL that has no table `orders`."""
    from tests.servers.mysql import connection

    def run(*statements: str) -> None:
        with connection(url) as opened, opened.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def rows() -> dict[int, int]:
        with connection(url) as opened, opened.cursor() as cursor:
            cursor.execute("SELECT id, total FROM orders")
            return dict(cursor.fetchall())

    run(CREATE)
    return Shop(folder, "mysql", url, run, rows, settings, rollover=rollover)


def user_of(url: str, user: str, password: str = "") -> str:
    """Spell the URL for another user."""
    at = urlsplit(url)
    host = at.netloc.rpartition("@")[2]
    return url.replace(f"//{at.netloc}/", f"//{user}{f':{password}' if password else ''}@{host}/", 1)
