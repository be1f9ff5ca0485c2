"""`python -m tests.bench.check`: `rivet check` of 100 exports of 100 tables, on PostgreSQL and on MariaDB.

Belongs here: how long a check takes from shell to shell, and its share inside the process. Not here: what it says.
The limit that it must stay below is 10 s, without a JVM.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import yaml

from rivet_assets.config.load import load_config
from rivet_assets.preflight.check import check_exports
from tests.lab_engines import MARIADB, POSTGRES, Engine, Execute
from tests.servers import mysql as servers_mysql
from tests.servers import postgres as servers

TABLES, ROWS = 100, 1000
MODES = (
    {"mode": "full"},
    {"mode": "incremental", "cursor_column": "at"},
    {"mode": "incremental", "cursor_column": "n"},
    {"mode": "chunked", "chunk_column": "id", "chunk_size": 100, "parallel": 2},
    {"mode": "full", "parallel": 4},
)
ROWS_OF = {
    "postgres": f"SELECT n, now() - n * interval '1 min', n, 'note' FROM generate_series(1, {ROWS}) AS n",
    "mariadb": f"SELECT seq, NOW() - INTERVAL seq MINUTE, seq, 'note' FROM seq_1_to_{ROWS}",
}


def main() -> None:
    """Fill, check twice by the command and once inside this process, print seconds."""
    with tempfile.TemporaryDirectory(prefix="rivet-check-", dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        with servers.embedded_postgres(Path(folder) / "server") as url:
            _measure(POSTGRES, servers.create_database(url), POSTGRES.connect, Path(folder))
        url = servers_mysql.create_mysql_database(servers_mysql.shared_mariadb())
        try:
            _measure(MARIADB, url, MARIADB.connect, Path(folder))
        finally:
            servers_mysql.drop_mysql_database(url)
            servers_mysql.release_all()


def _measure(engine: Engine, url: str, connect: Callable[[str], AbstractContextManager[Execute]], folder: Path) -> None:
    with connect(url) as execute:
        for number in range(TABLES):
            columns = f"id bigint PRIMARY KEY, at {engine.types['instant']}, n bigint, note varchar(20)"
            execute(f"CREATE TABLE t{number} ({columns})")
            execute(f"INSERT INTO t{number} (id, at, n, note) {ROWS_OF[engine.name]}")
            execute(f"CREATE INDEX t{number}_at ON t{number} (at)")
            execute(engine.analyze.format(f"t{number}"))
    config = folder / f"{engine.name}.yaml"
    config.write_text(yaml.safe_dump({"source": dict(engine.source), "exports": [_export(n) for n in range(TABLES)]}))
    env = {**os.environ, "LAB_URL": url}
    os.environ["LAB_URL"] = url
    walls = [_command(config, env) for _ in range(2)]
    began = time.perf_counter()
    checked = check_exports(load_config(config))
    inside = time.perf_counter() - began
    failed = sum(each.error is not None for each in checked)
    print(
        f"{engine.name}: {TABLES} exports, {failed} not checked; rivet check {walls[0]:.1f} s and {walls[1]:.1f} s, "
        f"of which {inside:.1f} s in check_exports"
    )


def _command(config: Path, env: dict[str, str]) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-m", "rivet_assets.cli.main", "check", "-c", str(config)]
    subprocess.run(command, env=env, check=True, capture_output=True)
    return time.perf_counter() - began


def _export(number: int) -> dict[str, object]:
    destination = {"type": "local", "path": "/nowhere"}
    table = {"name": f"t{number}", "table": f"t{number}", "format": "parquet", "destination": destination}
    return table | MODES[number % len(MODES)]


if __name__ == "__main__":
    main()
