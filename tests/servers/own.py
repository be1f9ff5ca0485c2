"""Servers that one test sets up as it likes: certificates of several kinds, PostgreSQL 15, its standby, PgBouncer.

Belongs here: starting and stopping what is ended with its test. Not here: servers that tests share (`postgres.py`,
`mysql.py`).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.servers import mysql as servers_mysql
from tests.servers.postgres import DEBIAN_POSTGRES, free_port

SERVANT = "postgres" if os.getuid() == 0 else None
SETTINGS = {
    "shared_buffers": "16MB", "max_connections": "30", "fsync": "off", "synchronous_commit": "off",
    "max_wal_size": "128MB", "wal_level": "replica", "max_wal_senders": "3", "logging_collector": "off",
    "listen_addresses": "*", "autovacuum": "off",
}  # fmt: skip
HBA = ("local all all trust", "hostssl all all all scram-sha-256", "hostnossl all all all scram-sha-256")
PASSWORD = "correct-horse"

# --- certificates --------------------------------------------------------------------------------

# Kind → name that the certificate is for, the authority that signs it, days it lasts.
CERTIFICATES: Mapping[str, tuple[str, str, int]] = {
    "good": ("DNS:localhost,IP:127.0.0.1", "ours", 30),
    "other-name": ("DNS:db.example.com", "ours", 30),
    "expired": ("DNS:localhost,IP:127.0.0.1", "ours", -1),
    "other-authority": ("DNS:localhost,IP:127.0.0.1", "theirs", 30),
}


def make_certificates(folder: Path) -> None:
    """Write authorities (ours.pem, theirs.pem) and one certificate per kind (`<kind>.pem`, `<kind>.key`)."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ["-newkey", "rsa:2048", "-nodes"]
    for name in ("ours", "theirs"):
        subject = ["-subj", f"/CN={name}"]
        files = ["-keyout", f"{name}.key", "-out", f"{name}.pem"]
        _openssl(folder, "req", "-x509", *key, *servers_mysql.AUTHORITY, "-days", "30", *files, *subject)
    for kind, (names, authority, days) in CERTIFICATES.items():
        common = names.partition(",")[0].partition(":")[2]
        (folder / f"{kind}.names").write_text(f"subjectAltName={names}\nauthorityKeyIdentifier=keyid\n")
        _openssl(folder, "req", *key, "-keyout", f"{kind}.key", "-out", f"{kind}.csr", "-subj", f"/CN={common}")
        signed = ["-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial", "-days", str(days)]
        names_file = ["-extfile", f"{kind}.names"]
        _openssl(folder, "x509", "-req", "-in", f"{kind}.csr", *signed, *names_file, "-out", f"{kind}.pem")


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


# --- PostgreSQL ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Own:
    """A running PostgreSQL 15 of one test."""

    data: Path
    port: int

    def url(self, *, user: str = "postgres", password: str = PASSWORD, host: str = "127.0.0.1") -> str:
        """Spell an address of it, over TCP."""
        return f"postgresql://{user}:{password}@{host}:{self.port}/postgres"

    def run(self, *statements: str) -> list[tuple[object, ...]]:
        """Run statements as its superuser over its socket; the rows of the last."""
        rows: list[tuple[object, ...]] = []
        with psycopg.connect(f"host={self.data.parent} port={self.port} user=postgres", autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description else []
        return rows


def is_there() -> bool:
    """Return whether Debian's PostgreSQL 15 is installed."""
    return (DEBIAN_POSTGRES / "postgres").exists()


def initialise(folder: Path) -> Path:
    """Make an empty cluster in `<folder>/data`, with a password for those who come over TCP."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    _give(folder)
    secret = folder / "secret"
    secret.write_text(PASSWORD)
    secret.chmod(0o644)
    arguments = ["-U", "postgres", "-D", str(folder / "data"), "--encoding=UTF8", "--locale=C", "--no-sync"]
    _run("initdb", *arguments, "--auth=trust", f"--pwfile={secret}")
    (folder / "data/pg_hba.conf").write_text("\n".join((*HBA, "local replication all trust")) + "\n")
    return folder / "data"


def standby_of(primary: Own, folder: Path) -> Path:
    """Copy a running server into `<folder>/data` as its standby, by pg_basebackup."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    _give(folder)
    place = ["-h", str(primary.data.parent), "-p", str(primary.port), "-U", "postgres"]
    _run("pg_basebackup", *place, "-D", str(folder / "data"), "-R", "--checkpoint=fast", "--no-sync")
    return folder / "data"


@contextmanager
def postgres(data: Path, **settings: str) -> Iterator[Own]:
    """Run the server of a folder until the block ends."""
    options = SETTINGS | settings | {"port": str(free_port()), "unix_socket_directories": str(data.parent)}
    command = [str(DEBIAN_POSTGRES / "postgres"), "-D", str(data)]
    command += [piece for name, value in options.items() for piece in ("-c", f"{name}={value}")]
    with open(data.parent / "log", "ab") as log:
        process = subprocess.Popen(command, user=SERVANT, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    own = Own(data, int(options["port"]))
    try:
        _await(process, lambda: own.run("SELECT 1"), said=data.parent / "log")
        yield own
    finally:
        process.send_signal(signal.SIGQUIT)
        process.wait(30)


def _run(program: str, *arguments: str) -> None:
    done = subprocess.run(
        [str(DEBIAN_POSTGRES / program), *arguments],
        user=SERVANT, cwd="/", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def _give(path: Path) -> None:
    """Hand a file or folder to the user that runs the servers."""
    if SERVANT is not None:
        shutil.chown(path, SERVANT)


def hand_over(source: Path, target: Path) -> Path:
    """Copy a private file to where a server's user reads it, and nobody else."""
    shutil.copyfile(source, target)
    target.chmod(0o600)
    _give(target)
    return target


def _await(process: subprocess.Popen[bytes], ask: Callable[[], object], *, said: Path) -> None:
    """Wait until a server answers."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        try:
            ask()
        except (psycopg.OperationalError, NotYet):
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"the server does not answer: {said.read_text(errors='replace')[-2000:]}")


# --- PgBouncer -----------------------------------------------------------------------------------


@contextmanager
def pgbouncer(server: Own, folder: Path, *, users: Sequence[str], more: Sequence[str] = ()) -> Iterator[int]:
    """Pool a server's transactions; its port on 127.0.0.1. `more` are further lines of its file."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    port = free_port()
    (folder / "users.txt").write_text("".join(f'"{user}" "{PASSWORD}"\n' for user in users))
    target = f"host=127.0.0.1 port={server.port} dbname=postgres"
    (folder / "pgbouncer.ini").write_text("\n".join([
        "[databases]", f"postgres = {target}", "[pgbouncer]", "listen_addr = 127.0.0.1", f"listen_port = {port}",
        "unix_socket_dir =", "auth_type = plain", f"auth_file = {folder}/users.txt", "pool_mode = transaction",
        "default_pool_size = 5", "max_client_conn = 100", f"logfile = {folder}/log", *more,
    ]))  # fmt: skip
    _give(folder)
    command = [str(shutil.which("pgbouncer")), str(folder / "pgbouncer.ini")]
    with open(folder / "said", "wb") as said:
        process = subprocess.Popen(command, user=SERVANT, cwd="/", stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    url = f"postgresql://{users[0]}:{PASSWORD}@127.0.0.1:{port}/postgres"
    try:
        _await(process, lambda: psycopg.connect(url).close(), said=folder / "said")
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


# --- MariaDB -------------------------------------------------------------------------------------


@contextmanager
def mariadb(folder: Path, *settings: str) -> Iterator[int]:
    """Run a MariaDB on a copy of the tests' empty one, with a user `rivet`; its port, on all addresses."""
    shutil.copytree(servers_mysql.MARIADB / "pristine", folder / "data")
    port = free_port()
    command = ["mariadbd", "--no-defaults", f"--datadir={folder}/data", *SMALL_MARIADB, *settings]
    command += [f"--socket={folder}/socket", f"--port={port}", "--bind-address=0.0.0.0", f"--tmpdir={folder}/data"]
    command += ["--user=root"] if os.getuid() == 0 else []
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen(command, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _await(process, lambda: _create_user(folder / "socket"), said=folder / "log")
        yield port
    finally:
        process.kill()
        process.wait(30)


SMALL_MARIADB = ("--innodb-buffer-pool-size=16M", "--innodb-log-file-size=16M", "--skip-name-resolve",
                 "--innodb-flush-log-at-trx-commit=0", "--performance-schema=0", "--skip-log-bin")  # fmt: skip


def _create_user(socket: Path) -> None:
    import pymysql

    try:
        with pymysql.connect(unix_socket=str(socket), user="root", autocommit=True, ssl_disabled=True) as connection:
            connection.cursor().execute(f"CREATE USER rivet@'%' IDENTIFIED BY '{PASSWORD}'")
            connection.cursor().execute("GRANT ALL ON *.* TO rivet@'%' WITH GRANT OPTION")
            connection.cursor().execute("CREATE DATABASE shop")
    except pymysql.OperationalError as error:
        raise NotYet from error


class NotYet(Exception):
    """The server does not answer yet."""


# --- this machine's other name -------------------------------------------------------------------


def own_address() -> str | None:
    """Return an address of this machine that is not a loopback one; None when it has no network."""
    told = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split()
    return next((address for address in told if "." in address and not address.startswith("127.")), None)
