"""A Kerberos of one test: a KDC of MIT on this machine, a user with a ticket, a service with a keytab.

Belongs here: the realm and its files. Not here: who takes the tickets (`tests/emulators/tds/gss.py`).
Debian: krb5-kdc, krb5-admin-server, krb5-user.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

REALM = "RIVET.TEST"
USER = f"rivet@{REALM}"
PROGRAMS = ("krb5kdc", "kadmin.local", "kdb5_util", "kinit")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"


def missing() -> str:
    """Return what is not installed, '' when all is."""
    lacking = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    return f"no {', '.join(lacking)}: apt-get install krb5-kdc krb5-admin-server krb5-user" if lacking else ""


@dataclass(frozen=True)
class Realm:
    """A realm that answers; `environment` leads a process of the client, or of the service, to it."""

    folder: Path
    port: int

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the variables of everybody in the realm; the ticket is the user's."""
        return {
            "KRB5_CONFIG": str(self.folder / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf"),
            "KRB5_KTNAME": f"FILE:{self.folder / 'service.keytab'}",
            "KRB5CCNAME": f"FILE:{self.folder / 'ticket'}",
        }

    def run(self, *command: str) -> None:
        """Run a program of Kerberos in the realm."""
        subprocess.run(
            command, env={**os.environ, "PATH": PATH, **self.environment}, check=True, capture_output=True, timeout=60
        )

    def add_service(self, name: str) -> None:
        """Make a service, and put its key into the keytab."""
        self.run("kadmin.local", "-q", f"addprinc -randkey {name}@{REALM}")
        self.run("kadmin.local", "-q", f"ktadd -k {self.folder / 'service.keytab'} {name}@{REALM}")

    def sign_in(self) -> None:
        """Get the user's ticket."""
        self.run("kinit", "-k", "-t", str(self.folder / "user.keytab"), USER)


@contextmanager
def realm(folder: Path) -> Iterator[Realm]:
    """Run a KDC with one user."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = Realm(folder, port)
    folder.mkdir(parents=True)
    (folder / "krb5.conf").write_text(
        f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_canonicalize_hostname = false\n"
        f" rdns = false\n udp_preference_limit = 1\n"
        f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{port}\n }}\n"
        f"[domain_realm]\n 127.0.0.1 = {REALM}\n localhost = {REALM}\n"
    )
    (folder / "kdc.conf").write_text(
        f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{port}\n kdc_tcp_listen = 127.0.0.1:{port}\n"
        f"[realms]\n {REALM} = {{\n  database_name = {folder}/principal\n  key_stash_file = {folder}/stash\n"
        f"  acl_file = {folder}/acl\n }}\n[logging]\n kdc = FILE:{folder}/kdc.log\n"
    )
    made.run("kdb5_util", "create", "-s", "-r", REALM, "-P", "of-the-tests")
    made.run("kadmin.local", "-q", f"addprinc -randkey {USER}")
    made.run("kadmin.local", "-q", f"ktadd -k {folder / 'user.keytab'} {USER}")
    process = subprocess.Popen(
        ["krb5kdc", "-n", "-r", REALM], env={**os.environ, "PATH": PATH, **made.environment},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _wait_for(port)
        yield made
    finally:
        process.terminate()
        process.wait(timeout=20)


def _wait_for(port: int) -> None:
    until = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < until, "the KDC does not answer"
            time.sleep(0.02)
