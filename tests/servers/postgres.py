"""Real servers for tests: PostgreSQL (the wheel's and Debian's), S3, GCS and Azure over HTTP, all on this machine.

Belongs here: starting, addressing, stopping. Not here: fixtures (`conftest.py`) and what is in the tables.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from rivet_resources.embedded_postgres import SMALL, serving
from tests import processes

DEBIAN_POSTGRES = Path("/usr/lib/postgresql/15/bin")
TEST_SETTINGS = {**SMALL, "shared_buffers": "16MB", "max_prepared_transactions": "10", "wal_level": "logical"}
_numbers = itertools.count(1)


@dataclass(frozen=True)
class ObjectStore:
    """A local object store with one bucket, addressed as a user would."""

    endpoint: str
    bucket: str


@contextmanager
def embedded_postgres(folder: Path) -> Iterator[str]:
    """Serve the wheel's PostgreSQL on a Unix socket; its URL."""
    with serving(folder, settings=TEST_SETTINGS) as server:
        yield server.url()


@contextmanager
def debian_postgres(folder: Path) -> Iterator[str]:
    """Serve Debian's PostgreSQL 15 over TCP with a password; its URL."""
    with serving(folder, binaries=DEBIAN_POSTGRES, password="correct-horse", settings=TEST_SETTINGS) as server:
        yield server.url()


def free_port() -> int:
    """Find a TCP port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def create_database(url: str) -> str:
    """Make an empty database beside the one in `url`; its URL."""
    import psycopg

    name = f"test_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"/{name}"))


def drop_database(server_url: str, url: str) -> None:
    """Remove a database, ending whoever is still connected."""
    import psycopg

    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {urlsplit(url).path[1:]} WITH (FORCE)")


# In processes of their own: a test that computes in the same one would keep them from answering.
MOTO = """
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
port = server.get_host_and_port()[1]
"""
GCS_EMULATOR = """
from gcp_storage_emulator.server import create_server
server = create_server("127.0.0.1", 0, in_memory=True, default_bucket=sys.argv[1])
server.start()
port = server._api._httpd.server_port
"""
AZURITE_ACCOUNT = "devstoreaccount1"
# Azurite's own, published key, which signs nowhere else. Source: Azurite's README, "Default Storage Account".
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
AZURITE_FOLDER = Path(os.environ.get("RIVET_AZURITE", Path.home() / ".cache/rivet-azurite"))
EMULATOR = """
import os, sys
nowhere = os.open(os.devnull, os.O_WRONLY)
os.dup2(nowhere, 2)
{}
print(port, flush=True)
os.dup2(nowhere, 1)
sys.stdin.read()  # until whoever started it is gone
os._exit(0)
"""


@contextmanager
def emulator(code: str, *arguments: str) -> Iterator[str]:
    """Run an emulator in a process of its own; its endpoint."""
    with processes.Process("-c", EMULATOR.format(code), *arguments) as server:
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()


@contextmanager
def moto_s3(bucket: str = "lake") -> Iterator[ObjectStore]:
    """Serve an S3-compatible store on a free port."""
    import boto3

    with emulator(MOTO) as endpoint:
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        client.create_bucket(Bucket=bucket)
        yield ObjectStore(endpoint, bucket)


@contextmanager
def emulated_gcs(bucket: str = "lake") -> Iterator[ObjectStore]:
    """Serve a GCS-compatible store on a free port."""
    with emulator(GCS_EMULATOR, bucket) as endpoint:
        yield ObjectStore(endpoint, bucket)


def azurite() -> Path | None:
    """Find Azurite, which `.ci/run` installs by npm; None where it is not."""
    program = AZURITE_FOLDER / "node_modules/.bin/azurite-blob"
    return program if program.exists() else None


def _end_with_us() -> None:
    """Let the kernel end this process when the one that began it is gone; called in the child."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@contextmanager
def azurite_blobs(container: str = "lake") -> Iterator[ObjectStore]:
    """Serve Azure Blob Storage on a free port; `bucket` is its container."""
    from azure.storage.blob import BlobServiceClient

    words = (
        "--blobPort 0 --inMemoryPersistence --extentMemoryLimit 512 --disableTelemetry --skipApiVersionCheck --silent"
    )
    key = {"account_name": AZURITE_ACCOUNT, "account_key": AZURITE_KEY}
    with subprocess.Popen(
        [str(azurite()), *words.split()],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=_end_with_us, text=True,
    ) as server:  # fmt: skip
        try:
            assert server.stdout is not None
            found = next(found for line in server.stdout if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
            endpoint = f"{found[0]}/{AZURITE_ACCOUNT}"
            with BlobServiceClient(endpoint, credential=key) as client:
                client.create_container(container)
            yield ObjectStore(endpoint, container)
        finally:
            server.kill()
