"""Servers of MariaDB and MySQL whose binary log a test may purge, reset and reconfigure: one of each per test process.

Belongs here: starting, restarting and stopping a server with options of its own. Not here: the servers that all tests
share (`mysql.py`), whose log nobody may touch.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.servers.mysql import MARIADB_SETTINGS, MYSQL, MYSQL_SCRIPT, NoServer, connection
from tests.servers.postgres import free_port

USER = ("CREATE USER IF NOT EXISTS rivet@'%' IDENTIFIED BY 'rivet'", "GRANT ALL ON *.* TO rivet@'%' WITH GRANT OPTION")
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "mariadb": (
        *(setting for setting in MARIADB_SETTINGS if not setting.startswith(("--performance", "--max-allowed"))),
        "--max-allowed-packet=256M",
        "--gtid-strict-mode=1",
    ),
    "mysql": (
        "--mysqlx=0", "--default-time-zone=+00:00", "--server-id=1", "--log-bin=binlog", "--binlog-row-metadata=FULL",
        "--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--max-allowed-packet=256M", "--sync-binlog=0",
        "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0", "--innodb-buffer-pool-size=64M",
        "--secure-file-priv=NULL",
        "--bind-address=127.0.0.1",
    ),
}  # fmt: skip


@dataclass
class BinlogServer:
    """One server of this process; `restart` keeps its data and its port."""

    product: str  # mariadb, mysql
    folder: Path
    port: int = 0
    options: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"mysql://rivet:rivet@127.0.0.1:{self.port}/"

    def start(self, *options: str) -> None:
        """Start on the folder's data, with these options besides the usual ones, and wait until it answers."""
        self.port = self.port or free_port()
        self.options = options
        command = [*_program(self.product), f"--datadir={self.folder}/data", *SETTINGS[self.product], *options]
        command += [f"--socket={self.folder}/data/s", f"--pid-file={self.folder}/pid", f"--port={self.port}"]
        command += [f"--tmpdir={self.folder}/data", *(["--user=root"] if os.getuid() == 0 else [])]
        with open(self.folder / "log", "a") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._await()

    def stop(self, how: int = signal.SIGTERM) -> None:
        """End it, orderly or at once."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(60)
            self.process = None

    def restart(self, *options: str, how: int = signal.SIGTERM) -> None:
        """Stop and start again, with these options."""
        self.stop(how)
        self.start(*options)

    def run(self, *statements: str) -> None:
        """Run statements as the tests' user, each committed on its own."""
        with connection(self.url) as opened, opened.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def _await(self) -> None:
        import pymysql

        assert self.process is not None
        for _ in range(1200):
            if self.process.poll() is not None:
                break
            try:
                with pymysql.connect(
                    unix_socket=f"{self.folder}/data/s", user="root", autocommit=True, ssl_disabled=True
                ) as opened:
                    for statement in USER:
                        opened.cursor().execute(statement)
                    return
            except pymysql.err.OperationalError:
                time.sleep(0.05)
        raise RuntimeError(f"{self.product} does not answer: {(self.folder / 'log').read_text()[-2000:]}")


def _program(product: str) -> list[str]:
    """Return the command that runs the server: Debian's, or the one that the script beside the repository unpacked."""
    if product == "mariadb":
        return ["mariadbd", "--no-defaults"]
    root = MYSQL / "root"
    loader = next((p for p in sorted(root.rglob("ld-linux*.so.*")) if "/lib" in str(p)), None)
    if loader is None:
        raise NoServer(f"no unpacked MySQL in {root}")
    libraries = f"{loader.parent}:{root}/usr/lib/mysql/private"
    program = [str(loader), "--library-path", libraries, f"{root}/usr/sbin/mysqld", "--no-defaults"]
    share = f"{root}/usr/share/mysql"
    places = {"basedir": f"{root}/usr", "plugin-dir": f"{root}/usr/lib/mysql/plugin"}
    places |= {"lc-messages-dir": share, "character-sets-dir": f"{share}/charsets"}
    return [*program, *(f"--{name}={place}" for name, place in places.items())]


def initialise(product: str, folder: Path) -> None:
    """Make an empty data folder.

    Raises:
        NoServer: it is not installed.
    """
    as_root = ["--user=root"] if os.getuid() == 0 else []
    if product == "mariadb":
        if shutil.which("mariadb-install-db") is None:
            raise NoServer("no mariadbd: apt-get install mariadb-server")
        command = ["mariadb-install-db", "--no-defaults", "--skip-test-db", "--skip-name-resolve", *as_root]
        command += ["--auth-root-authentication-method=normal", "--innodb-log-file-size=16M"]
    else:
        if not MYSQL_SCRIPT.exists():
            raise NoServer(f"no MySQL: put a script that starts one at {MYSQL_SCRIPT}")
        command = [*_program(product), "--initialize-insecure", "--innodb-redo-log-capacity=16M", *as_root]
    with open(folder / "log", "w") as log:
        subprocess.run(
            [*command, f"--datadir={folder}/data"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True
        )


@contextmanager
def serving(product: str, folder: Path, *options: str) -> Iterator[BinlogServer]:
    """Serve a fresh server from a folder until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    initialise(product, folder)
    server = BinlogServer(product, folder)
    try:
        server.start(*options)
        yield server
    finally:
        server.stop(signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
