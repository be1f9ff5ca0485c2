"""Real MariaDB and MySQL servers for tests: one of each for all that run tests of this checkout at the same time.

Belongs here: starting a server on its first use, sharing it between processes, stopping it when the last one has
gone, making and dropping databases. Not here: fixtures (`conftest.py`) and what is in the tables.

Who uses a server holds a shared lock on a file in its folder; who finds that lock free may stop the server. A
process that was killed held nothing more, so its server is stopped, or used, by the next one.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from tests import room
from tests.servers.postgres import free_port

SERVERS = room.chosen()
# Of this checkout alone: what another suite on this machine runs would hold our cursors back.
OURS = f"{os.getuid()}-{hashlib.sha256(str(Path(__file__).parents[2]).encode()).hexdigest()[:8]}"
MARIADB = SERVERS / f"rivet-mariadb-{OURS}"
MYSQL = SERVERS / f"rivet-mysql-{OURS}"
MYSQL_SCRIPT = Path(__file__).parents[3] / "shared/services/mysql"
# Small and fast: a test server loses nothing that matters.
MARIADB_SETTINGS = (
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=16M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=0",
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--local-infile=1",
    "--max-allowed-packet=256M",
    "--performance-schema=0",
    "--max-connections=300",
    "--log-bin=binlog",
    "--binlog-format=ROW",
    "--binlog-row-metadata=FULL",
    "--server-id=1",
    "--sync-binlog=0",
)
ZONE = "Europe/Berlin"  # the one that MariaDB knows by name here: all of them would take seconds
_numbers = itertools.count(1)
_held: dict[Path, int] = {}  # folder → open file that holds the lock


class NoServer(Exception):
    """There is no such server on this machine; the message says how to get one."""


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one process at a time start or stop the server of a folder."""
    folder.mkdir(mode=0o755, exist_ok=True)
    with open(folder / "starting", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _hold(folder: Path) -> None:
    """Keep the server of a folder until this process ends."""
    if folder not in _held:
        _held[folder] = os.open(folder / "users", os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(_held[folder], fcntl.LOCK_SH)


def release(folder: Path, *, stop: str) -> None:
    """Let go of a server, and stop it if nobody else holds it."""
    if not folder.exists():
        return
    with _one_at_a_time(folder), open(folder / "users", "w") as users:
        if folder in _held:
            os.close(_held.pop(folder))
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if stop == "mariadb":
            _stop_mariadb(folder)
        else:
            subprocess.run([str(MYSQL_SCRIPT), "stop", str(folder)], capture_output=True, check=False)


def release_all() -> None:
    """Let go of both; called once, when a whole test run has ended."""
    release(MARIADB, stop="mariadb")
    if MYSQL_SCRIPT.exists():
        release(MYSQL, stop="mysql")


# --- MariaDB -------------------------------------------------------------------------------------


def shared_mariadb() -> str:
    """Serve Debian's MariaDB over TCP with a password and TLS; its URL, without a database.

    Raises:
        NoServer: it is not installed.
    """
    if shutil.which("mariadbd") is None or shutil.which("mariadb-install-db") is None:
        raise NoServer("no mariadbd: apt-get install mariadb-server")
    with _one_at_a_time(MARIADB):
        _hold(MARIADB)
        if not _is_mariadb_alive(MARIADB):
            _start_mariadb(MARIADB)
        return f"mysql://rivet:rivet@127.0.0.1:{(MARIADB / 'port').read_text()}/"


def mariadb_authority() -> Path:
    """Name the PEM file of the authority that signed the MariaDB server's certificate."""
    return MARIADB / "tls/ca.pem"


def _as_root() -> list[str]:
    return ["--user=root"] if os.getuid() == 0 else []


def _pid_of(folder: Path) -> int | None:
    """Find the server of a folder, if it is that very server."""
    try:
        pid = int((folder / "pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_text()
    except (OSError, ValueError):
        return None
    return pid if f"--datadir={folder}/data" in command else None


def _is_mariadb_alive(folder: Path) -> bool:
    return _pid_of(folder) is not None and (folder / "port").exists()


def _start_mariadb(folder: Path) -> None:
    """Start on a fresh copy of an initialised folder: what killed tests left is gone."""
    pristine = folder / "pristine"
    if not (pristine / "done").exists():
        _initialise_mariadb(folder, pristine)
    if not (folder / "tls/server.pem").exists():
        make_certificates(folder / "tls")
    shutil.rmtree(folder / "data", ignore_errors=True)
    shutil.copytree(pristine, folder / "data")
    (folder / "port").unlink(missing_ok=True)
    port = free_port()
    command = ["mariadbd", "--no-defaults", *_as_root(), f"--datadir={folder}/data", *MARIADB_SETTINGS]
    command += [f"--socket={folder}/socket", f"--pid-file={folder}/pid", f"--port={port}"]
    command += [f"--tmpdir={folder}/data"]  # not TMPDIR, which ends with the worker that starts the server
    command += [f"--ssl-ca={folder}/tls/ca.pem", f"--ssl-cert={folder}/tls/server.pem"]
    command += [f"--ssl-key={folder}/tls/server.key"]
    with open(folder / "log", "w") as log:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    _await_mariadb(folder, server)
    _load_zone(folder)
    (folder / "port").write_text(str(port))


def _initialise_mariadb(folder: Path, pristine: Path) -> None:
    shutil.rmtree(pristine, ignore_errors=True)
    command = ["mariadb-install-db", "--no-defaults", *_as_root(), f"--datadir={pristine}", "--skip-test-db"]
    command += ["--auth-root-authentication-method=normal", "--innodb-log-file-size=16M", "--skip-name-resolve"]
    with open(folder / "log", "w") as log:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)
    (pristine / "done").touch()


def _await_mariadb(folder: Path, server: subprocess.Popen[bytes]) -> None:
    """Wait until it answers, then make the user of the tests."""
    import pymysql

    for _ in range(600):
        if server.poll() is not None:
            break
        try:
            with pymysql.connect(
                unix_socket=f"{folder}/socket", user="root", autocommit=True, ssl_disabled=True
            ) as connection:
                connection.cursor().execute("CREATE USER rivet@'%' IDENTIFIED BY 'rivet'")
                connection.cursor().execute("GRANT ALL ON *.* TO rivet@'%' WITH GRANT OPTION")
                return
        except pymysql.OperationalError:
            time.sleep(0.05)
    raise RuntimeError(f"mariadbd does not answer: {(folder / 'log').read_text()[-2000:]}")


def _load_zone(folder: Path) -> None:
    """Teach the server one zone by its name, from the system's database."""
    from zoneinfo import TZPATH

    path = next((f"{place}/{ZONE}" for place in TZPATH if Path(place, ZONE).exists()), None)
    if path is None:
        raise NoServer("no time zones: apt-get install tzdata")
    told = subprocess.run(["mariadb-tzinfo-to-sql", path, ZONE], check=True, capture_output=True)
    client = ["mariadb", "--no-defaults", f"--socket={folder}/socket", "--user=root", "mysql"]
    subprocess.run(client, input=told.stdout, check=True, capture_output=True)


def _stop_mariadb(folder: Path) -> None:
    """End the server, without its shutdown's work: its folder is thrown away."""
    pid = _pid_of(folder)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    (folder / "port").unlink(missing_ok=True)
    shutil.rmtree(folder / "data", ignore_errors=True)


# Python 3.13 takes no authority that does not say what its key is for (`VERIFY_X509_STRICT`).
AUTHORITY = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")


def make_certificates(folder: Path) -> None:
    """Write an authority (ca.pem) and a certificate for 127.0.0.1 and localhost (server.pem, server.key)."""
    folder.mkdir(exist_ok=True)
    key = ["-newkey", "rsa:2048", "-nodes", "-days", "3650"]
    steps = [
        ["req", "-x509", *key, *AUTHORITY, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=Rivet tests"],
        ["req", *key[:-2], "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost"],
        ["x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "3650",
         "-extfile", "names", "-out", "server.pem"],
    ]  # fmt: skip
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    for step in steps:
        subprocess.run(["openssl", *step], cwd=folder, check=True, capture_output=True)


# --- MySQL ---------------------------------------------------------------------------------------


def shared_mysql() -> str:
    """Name a real MySQL's URL: RIVET_TEST_MYSQL_URL's, or one started by the script beside the repository.

    Raises:
        NoServer: there is neither; the script's own reason where it has one.
    """
    told = os.environ.get("RIVET_TEST_MYSQL_URL")
    if told:
        return told
    if not MYSQL_SCRIPT.exists():
        raise NoServer(f"no MySQL: set RIVET_TEST_MYSQL_URL, or put a script that starts one at {MYSQL_SCRIPT}")
    with _one_at_a_time(MYSQL):
        _hold(MYSQL)
        return _running_mysql() or _started_mysql()


def _running_mysql() -> str | None:
    answer = subprocess.run([str(MYSQL_SCRIPT), "status", str(MYSQL)], capture_output=True, text=True, check=False)
    return _url_in(answer.stdout) if answer.returncode == 0 else None


def _started_mysql() -> str:
    command = [str(MYSQL_SCRIPT), "start", str(MYSQL), str(free_port())]
    lasting = {name: text for name, text in os.environ.items() if name != "TMPDIR"}  # it ends with this process
    answer = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True, env=lasting)
    if answer.returncode:
        raise NoServer(f"{answer.stderr.strip().splitlines()[-1]}; or set RIVET_TEST_MYSQL_URL")
    return _url_in(answer.stdout)


def _url_in(line: str) -> str:
    """Take the URL from the script's `export RIVET_TEST_MYSQL_URL=…` line."""
    return line.strip().partition("=")[2]


# --- databases -----------------------------------------------------------------------------------


def connection(url: str, **settings: object):  # type: ignore[no-untyped-def]
    """Open an autocommit connection of PyMySQL on a URL, in UTC and strict."""
    import pymysql

    parts = urlsplit(url)
    place = {"host": parts.hostname, "port": parts.port, "user": parts.username, "password": parts.password or ""}
    start = "SET time_zone = '+00:00', NAMES utf8mb4"
    options = {"database": parts.path[1:] or None, "autocommit": True, "init_command": start} | settings
    options.setdefault("ssl_disabled", True)  # reading the system's authorities takes longer than to connect
    return pymysql.connect(**place, **options)


def run(url: str, *statements: str) -> None:
    """Run statements, each committed on its own."""
    with connection(url) as opened, opened.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def create_mysql_database(url: str) -> str:
    """Make an empty utf8mb4 database on a server; its URL."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    run(url, f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def drop_mysql_database(url: str) -> None:
    """Remove the database a URL names, ending whoever is still connected to it."""
    name = urlsplit(url).path[1:]
    with connection(url, database=None) as opened, opened.cursor() as cursor:
        for other in _connected(cursor, name):
            _end(cursor, other)
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")


def _connected(cursor, name: str) -> list[int]:  # type: ignore[no-untyped-def]
    """List who is connected to a database; the view fails while some statement of another test holds an emoji."""
    import pymysql

    for _ in range(50):
        try:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (name,))
            return [other for (other,) in cursor.fetchall()]
        except pymysql.err.OperationalError as error:
            if error.args[0] != 3854:  # ER_CANNOT_CONVERT_STRING
                raise
            time.sleep(0.1)
    return []


def _end(cursor, number: int) -> None:  # type: ignore[no-untyped-def]
    """End one connection; it may just have ended by itself."""
    import pymysql

    try:
        cursor.execute(f"KILL CONNECTION {number}")
    except pymysql.OperationalError as error:
        if error.args[0] != 1094:  # ER_NO_SUCH_THREAD
            raise
