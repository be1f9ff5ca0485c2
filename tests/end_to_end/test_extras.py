"""What is not installed: one error that names its extra, before anything is read, in every command.

The modules of an extra are hidden from a process of its own, as if pip had never brought them.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rivet_assets.config.load import load_config
from rivet_resources import extras
from rivet_resources.extras import EXTRAS, Extra
from tests.processes import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOR_DEVELOPERS = {"test", "docs"}
SQLITE = "{type: sqlite, path: shop.db}"
LOCAL = "{type: local, path: lake}"

# Runs commands one after the other; their exit codes and what they wrote, as JSON, on the last line.
COMMANDS = """
import contextlib, io, json, sys

hidden, commands = json.loads(sys.argv[1]), json.loads(sys.argv[2])

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in hidden):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from rivet_assets.cli.main import main

answers = []
for command in commands:
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["rivet", *command]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            answers.append((end.code, out.getvalue(), err.getvalue()))
print(json.dumps(answers))
"""


@dataclass(frozen=True)
class Answer:
    """What one command answered."""

    code: int
    out: str
    err: str


def answers(
    folder: Path, hidden: Sequence[str], *commands: Sequence[str], env: Mapping[str, str] | None = None
) -> list[Answer]:
    """Run commands in a process that cannot import what is hidden."""
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(hidden), json.dumps(commands)],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [Answer(*each) for each in json.loads(done.stdout.splitlines()[-1])]


def config(folder: Path, *, source: str = SQLITE, destination: str = LOCAL, more: str = "spark: inline") -> Path:
    """Write a configuration of one export, and the SQLite file that it may read."""
    with sqlite3.connect(folder / "shop.db") as shop:
        shop.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)")
    shop.close()
    file = folder / "rivet.yaml"
    file.write_text(
        textwrap.dedent(f"""\
            {more}
            source: {source}
            exports:
              - name: orders
                table: orders
                format: parquet
                destination: {destination}
            """)
    )
    return file


SOURCES = {
    "postgres": (extras.POSTGRES, "postgresql://shop@127.0.0.1:1/shop"),
    "mysql": (extras.MYSQL, "mysql://shop@127.0.0.1:1/shop"),
    "sqlserver": (extras.SQLSERVER, "mssql://shop@127.0.0.1:1/shop"),
}


@pytest.mark.parametrize("engine", SOURCES)
def test_missing_driver_is_named_by_every_command_before_anything_is_read(engine, tmp_path):
    """`run`, `check`, `doctor`, `plan` and `init` name the extra, exit with 1, and write nothing."""
    extra, url = SOURCES[engine]
    config(tmp_path, source=f"{{type: {engine}, url_env: SHOP_URL}}")

    run, check, doctor, plan, init = answers(
        tmp_path, extra.modules,
        ["--json-errors", "run"], ["check", "--json"], ["doctor", "--json"], ["plan"],
        ["init", "--source", url, "-o", "new.yaml"],
        env={"SHOP_URL": url},
    )  # fmt: skip

    sentence = f"{extra.need}: {extra.command}"
    assert [1, 1, 1, 1, 1] == [each.code for each in (run, check, doctor, plan, init)]
    assert f"error: {sentence}" in run.err
    assert ("RIVET_EXTRA_MISSING", "permanent") == fields(run.err.splitlines()[-1], "code", "exit_class")
    assert sentence in json.dumps(json.loads(check.out), ensure_ascii=False).replace('\\"', '"')
    assert {("machine", extra.name, extra.command), ("source " + engine, "connect", None)} == failures(doctor, extra)
    assert sentence in plan.out + plan.err
    assert f"error: {sentence}" in init.err
    assert [] == list(tmp_path.rglob("lake/**/*.*"))
    assert not (tmp_path / "new.yaml").exists()


def test_driver_that_the_source_chose_is_the_one_that_is_named(tmp_path):
    """With `driver: odbc` it is pyodbc that is missing, and Microsoft's wheel is asked for by nobody."""
    config(tmp_path, source="{type: sqlserver, url_env: SHOP_URL, driver: odbc, odbc_driver: FreeTDS}")
    extra, hidden = extras.SQLSERVER_ODBC, [*extras.SQLSERVER.modules, *extras.SQLSERVER_ODBC.modules]

    run, doctor = answers(tmp_path, hidden, ["run"], ["doctor", "--json"], env={"SHOP_URL": SOURCES["sqlserver"][1]})

    assert (1, 1) == (run.code, doctor.code)
    assert f"error: {extra.need}: {extra.command}" in run.err
    assert {("machine", extra.name, extra.command), ("source sqlserver", "connect", None)} == failures(doctor, extra)


DESTINATIONS = {
    "s3": (extras.S3, "{type: s3, bucket: lake, endpoint: 'http://127.0.0.1:1', allow_anonymous: true}"),
    "azure": (
        extras.AZURE,
        "{type: azure, account: shop, container: lake, endpoint: 'http://127.0.0.1:1', account_key_env: NO_KEY}",
    ),
    "gcs": (extras.GCS, "{type: gcs, bucket: lake, endpoint: 'http://127.0.0.1:1', allow_anonymous: true}"),
}


@pytest.mark.parametrize("kind", DESTINATIONS)
def test_missing_client_of_a_store_is_named_before_anything_is_read(kind, tmp_path):
    """So that an hour of reading does not end at a door that nobody can open."""
    extra, block = DESTINATIONS[kind]
    config(tmp_path, destination=block)

    run, check, doctor, validate = answers(
        tmp_path, extra.modules, ["run"], ["check"], ["doctor", "--json"], ["validate"]
    )

    sentence = f"{extra.need}: {extra.command}"
    assert [1, 1, 1, 1] == [each.code for each in (run, check, doctor, validate)]
    assert f"error: {sentence}" in run.err
    assert sentence in check.out
    assert {("machine", extra.name, extra.command)} < failures(doctor, extra)
    assert sentence in validate.out + validate.err


def test_several_missing_extras_are_named_at_once(tmp_path):
    """One line each, so that one more command brings all of them."""
    config(tmp_path, source="{type: mysql, url_env: SHOP_URL}", destination=DESTINATIONS["s3"][1])

    (run,) = answers(
        tmp_path, [*extras.MYSQL.modules, *extras.S3.modules], ["run"], env={"SHOP_URL": SOURCES["mysql"][1]}
    )

    named = [re.sub(r" \(.*", "", line) for line in run.err.splitlines()]
    assert [f"error: {extra.need}: {extra.command}" for extra in (extras.MYSQL, extras.S3)] == named


def test_missing_java_is_named_before_anything_is_read(tmp_path):
    """Neither on the PATH, nor by JAVA_HOME, nor as a package."""
    config(tmp_path, more="spark: spark")

    run, doctor = answers(
        tmp_path, extras.JAVA.modules, ["run"], ["doctor", "--json"], env={"PATH": "/nowhere", "JAVA_HOME": ""}
    )

    assert (1, 1) == (run.code, doctor.code)
    assert f"Run `{extras.JAVA.command}`" in run.err
    assert ("spark", "java") in {(row["about"], row["name"]) for row in rows(doctor) if row["status"] == "fail"}
    assert [] == list(tmp_path.rglob("lake/**/*.*"))


def test_missing_client_of_spark_connect_is_named_before_anything_is_read(tmp_path):
    """The endpoint is there; nobody can speak to it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        shared = {
            "source": SQLITE.replace("}", ", shared_path: true}"),
            "destination": LOCAL.replace("}", ", shared_path: true}"),
        }
        config(tmp_path, more=f"spark: {{remote: 'sc://127.0.0.1:{server.getsockname()[1]}'}}", **shared)
        run, doctor = answers(tmp_path, ["grpc_status", "zstandard"], ["run"], ["doctor", "--json"])

    assert (1, 1) == (run.code, doctor.code)
    assert f"error: {extras.CONNECT.need}: {extras.CONNECT.command}" in run.err
    assert ("spark", "engine", None) in failures(doctor, extras.CONNECT)


@pytest.mark.parametrize(
    ("extra", "command"),
    [(extras.DEMO, ["demo"]), (extras.POSTGRES, ["demo"]), (extras.UI, ["demo", "--ui"])],
    ids=["server", "driver", "webserver"],
)
def test_demo_without_its_packages_leaves_no_folder(extra, command, tmp_path):
    """It says which extra brings them, and has not begun."""
    (demo,) = answers(tmp_path, extra.modules, command)

    assert 1 == demo.code
    assert f"error: {extra.need}: {extra.command}" in demo.err
    assert [] == list(tmp_path.iterdir())


def test_state_store_on_postgresql_names_the_driver(tmp_path):
    """The store is a PostgreSQL database, whatever is exported."""
    config(tmp_path)

    metrics, doctor = answers(
        tmp_path, ["psycopg"], ["metrics"], ["doctor", "--json"],
        env={"RIVET_STATE_URL": "postgresql://rivet@127.0.0.1:1/state"},
    )  # fmt: skip

    assert (1, 1) == (metrics.code, doctor.code)
    assert f"{extras.POSTGRES.need}: {extras.POSTGRES.command}" in metrics.err
    assert ("state", "open", None) in failures(doctor, extras.POSTGRES)


def test_base_exports_sqlite_without_any_extra(tmp_path):
    """What pip installs without extras reads SQLite and writes Parquet, in this process."""
    config(tmp_path)
    hidden = [module for extra in EXTRAS for module in extra.modules]

    (run,) = answers(tmp_path, hidden, ["run"])

    assert (0, 1) == (run.code, len(list((tmp_path / "lake").glob("orders/_rivet/*.json")))), run.err


# --- loading -------------------------------------------------------------------------------------

LOADED = """
import json, sys
from rivet_assets.config.load import load_config
load_config(sys.argv[1])
print(json.dumps(sorted(sys.modules)))
"""


def loaded_by(file: Path) -> set[str]:
    """Return what is imported to load a configuration."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(file)], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("engine", ["postgres", "mysql", "sqlserver", "sqlite", "datagen", "s3", "gcs", "azure"])
def test_loading_a_config_imports_no_driver_and_no_other_engine(engine, tmp_path):
    """A file can be read where it cannot be run, and costs what it names."""
    if engine in DESTINATIONS:
        file, room = config(tmp_path, destination=DESTINATIONS[engine][1]), "sqlite"
    else:
        file, room = config(tmp_path, source=source_blocks()[engine]), engine

    loaded = loaded_by(file)

    rooms = {name.split(".")[2] for name in loaded if re.match(r"rivet_resources\.engines\.\w+", name)}
    assert {room, "shared"} >= rooms >= {room}
    assert set() == loaded & {module for extra in EXTRAS for module in extra.modules}


def source_blocks() -> dict[str, str]:
    """Return a block of each kind of source."""
    servers = {engine: f"{{type: {engine}, url_env: SHOP_URL}}" for engine in [*SOURCES, "mariadb"]}
    return {**servers, "sqlite": SQLITE, "datagen": "{type: datagen, max_events: 1}"}


# --- the one list --------------------------------------------------------------------------------


def test_every_extra_of_the_project_is_in_the_list():
    """And brings the packages that the list says; `all` brings every extra that users have, `test` brings `all`.

    `deploy` is for Dagster's own services, which nothing of ours imports.
    """
    offered = PROJECT["optional-dependencies"]
    assert set(offered) - FOR_DEVELOPERS - {"all", "dg", "deploy"} == {
        extra.name for extra in EXTRAS
    }  # nothing of ours uses dg
    for extra in EXTRAS:
        brought = {distribution(text) for text in offered[extra.name]}
        assert brought >= {distribution(package) for package in extra.packages} - {"grpcio-status", "zstandard"}
    (everything,) = offered["all"]
    assert set(offered) - FOR_DEVELOPERS - {"all", "deploy"} == set(
        re.findall(r"[\w-]+", everything.removeprefix("rivet"))
    )
    assert "rivet[all,deploy]" in offered["test"]


def test_base_brings_no_package_of_an_extra():
    """Else nobody would be spared it. `wasm` is kept for who names it: the base took its package for column sums."""
    base = {distribution(text) for text in PROJECT["dependencies"]}

    assert {"wasmtime"} == base & {distribution(package) for extra in EXTRAS for package in extra.packages}


def test_every_source_and_destination_says_what_it_needs(tmp_path):
    """Those with a driver by its extra, the others with None."""
    destinations = {"local": LOCAL, **{kind: block for kind, (_, block) in DESTINATIONS.items()}}
    told: dict[str, str | None] = {}
    for engine, block in source_blocks().items():
        loaded = load_config(config(tmp_path, source=block))
        told[engine] = name_of(loaded.source_of(loaded.exports[0])[1].facts)
    for kind, block in destinations.items():
        told[kind] = name_of(load_config(config(tmp_path, destination=block)).exports[0].destination)

    assert told == {
        "postgres": "postgres", "mysql": "mysql", "mariadb": "mysql", "sqlserver": "sqlserver", "sqlite": None,
        "datagen": None, "local": None, "s3": "s3", "gcs": "gcs", "azure": "azure",
    }  # fmt: skip


def name_of(needy: Any) -> str | None:
    """Return the name of its extra."""
    return None if needy.extra is None else needy.extra.name


def distribution(requirement: str) -> str:
    """Return the name of a requirement's package, as indexes compare it."""
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def fields(line: str, *names: str) -> tuple[Any, ...]:
    """Return these fields of a line of JSON."""
    told = json.loads(line)
    return tuple(told[name] for name in names)


def rows(doctor: Answer) -> list[dict[str, Any]]:
    """Return the rows of `rivet doctor --json`."""
    told: list[dict[str, Any]] = json.loads(doctor.out)["checks"]
    return told


def failures(doctor: Answer, extra: Extra) -> set[tuple[str, str, str | None]]:
    """Return (about, name, fix) of the rows that name an extra; the fix only where it is the command itself."""
    told = [row for row in rows(doctor) if row["status"] == "fail" and extra.command in row["detail"]]
    return {(row["about"], row["name"], row["hint"] if row["hint"] == extra.command else None) for row in told}
