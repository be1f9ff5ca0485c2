"""What stops an export, told by `rivet check`: types it would lose, tables, columns, rights and passwords it lacks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from rivet_assets.preflight.check import check_exports
from rivet_assets.preflight.checked import Checked
from rivet_assets.preflight.report import exit_code, render
from rivet_resources.errors import (
    SourceAuth,
    SourceError,
    SourcePermission,
    UnknownColumn,
    UnknownTable,
    UnsupportedColumn,
)
from tests.engines.test_modes import ALL_IDS, ORDERS, WHOLE_TABLE, order
from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES, Engine
from tests.servers.mysql import run

everywhere = pytest.mark.parametrize("engine", ENGINES, indirect=True)
on_postgres = pytest.mark.parametrize("engine", ["postgres"], indirect=True)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Engine:
    """The engine a test runs on."""
    return ENGINES[request.param]


@pytest.fixture
def lab(tmp_path: Path, engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with 240 hourly orders, an index on `at` and none on anything else, and an empty folder."""
    laboratory = lab_in(tmp_path, engine, request, monkeypatch)
    laboratory.create("orders", {**ORDERS, "moved": "instant"}, index=["at"])
    laboratory.insert("orders", map(order, ALL_IDS))
    laboratory.analyze("orders")
    return laboratory


def checked(lab: Lab, block: str, *, with_types: bool = False) -> Checked:
    """Check one export."""
    (found,) = check_exports(lab.config(block), with_types=with_types)
    return found


# --- types ---------------------------------------------------------------------------------------


@on_postgres
def test_type_report_tells_what_each_column_becomes(lab: Lab) -> None:
    """And which override would keep more."""
    lab.sql("CREATE TABLE kinds (id bigint PRIMARY KEY, amount numeric, u uuid, note text, span interval, born date)")
    block = "{name: kinds, table: kinds, mode: full, columns: {id: float4}}"

    told = checked(lab, block, with_types=True)

    found = {fact.column: fact for fact in told.types}
    assert {
        "id": ("bigint", "float", "lossy"),
        "amount": ("numeric", "string", "logical_string"),
        "u": ("uuid", "string", "exact"),
        "note": ("text", "string", "exact"),
        "span": ("interval", "string", "logical_string"),
        "born": ("date", "date32[day]", "exact"),
    } == {name: (fact.native, fact.becomes, fact.fidelity) for name, fact in found.items()}
    assert "columns: {amount: decimal(38,9)}" in found["amount"].helps
    assert "types: native" in found["u"].helps
    assert (0, 1) == (exit_code([told], strict=False), exit_code([told], strict=True))


@on_postgres
def test_refused_column_is_reported_beside_the_others(lab: Lab) -> None:
    """The export cannot run, and the report says which column and what to write."""
    lab.sql("CREATE TABLE kinds (id bigint PRIMARY KEY, span interval)")

    told = checked(lab, "{name: kinds, table: kinds, mode: full, on_unsupported: fail}", with_types=True)

    assert isinstance(told.error, UnsupportedColumn)
    assert {"id": "exact", "span": "unsupported"} == {fact.column: fact.fidelity for fact in told.types}
    assert "columns: {span: text}" == told.types[1].helps


# --- what goes wrong -----------------------------------------------------------------------------


@everywhere
def test_errors_of_one_export_stop_no_other(lab: Lab) -> None:
    """A missing table, a missing column, a wrong query; the session they broke is renewed for the next."""
    blocks = [
        "{name: a, table: ordres, mode: full}",
        "{name: b, table: orders, mode: incremental, cursor_column: updated}",
        "{name: c, query: 'SELECT no_such FROM orders', mode: full}",
        "{name: d, table: orders, mode: full}",
    ]

    found = check_exports(lab.config(*blocks))

    assert [UnknownTable, UnknownColumn] == [type(each.error) for each in found[:2]]
    assert isinstance(found[2].error, SourceError)
    assert (None, "ACCEPTABLE") == (found[3].error, found[3].verdict)
    assert 1 == exit_code(found, strict=False)
    assert "ordres" in str(render(found))


@everywhere
def test_evil_names_are_names(lab: Lab) -> None:
    """A table called so is not there, nothing is executed, and the real one stays."""
    evil, other = json.dumps('"x""; DROP TABLE orders; --"'), json.dumps("'; DROP TABLE orders; --")
    blocks = [
        f"{{name: a, table: {evil}, mode: full}}",
        f"{{name: b, table: orders, mode: incremental, cursor_column: {evil}}}",
        f"{{name: c, table: orders, mode: chunked, chunk_column: {other}}}",
        f"{{name: d, table: orders, mode: time_window, start: 2026-01-01, time_column: {json.dumps('`]; DROP')}}}",
    ]

    found = check_exports(lab.config(*blocks))

    assert [UnknownTable, UnknownColumn, UnknownColumn, UnknownColumn] == [type(each.error) for each in found]
    assert "ACCEPTABLE" == checked(lab, WHOLE_TABLE["full"]).verdict


@pytest.mark.parametrize("server", ["real_postgres_url", "mariadb_url", "mysql_url"])
def test_wrong_password_is_the_answer_of_every_export(
    server: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By class, and without the password."""
    parts = urlsplit(request.getfixturevalue(server))
    place = f"{parts.username}:wrong-horse@{parts.hostname}:{parts.port}"
    monkeypatch.setenv("LAB_URL", urlunsplit(parts._replace(netloc=place)))
    lab = Lab(tmp_path, "", ENGINES[server.removeprefix("real_").removesuffix("_url")])

    found = check_exports(lab.config("{name: a, table: t, mode: full}", "{name: b, table: t, mode: full}"))

    assert [SourceAuth, SourceAuth] == [type(each.error) for each in found]
    assert "wrong-horse" not in str(render(found))


@pytest.mark.parametrize("engine", ["postgres", "mariadb"], indirect=True)
def test_revoked_grant_is_told_with_the_grant(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The export that may be read is checked all the same."""
    lab.sql("CREATE TABLE hidden (id int PRIMARY KEY)")
    name = f"check_{Path(urlsplit(lab.url).path).name}"[:30]
    monkeypatch.setenv("LAB_URL", poor(lab, name))

    found = check_exports(lab.config("{name: a, table: hidden, mode: full}", "{name: b, table: orders, mode: full}"))

    assert isinstance(found[0].error, SourcePermission)
    assert re.search(r"GRANT SELECT ON .*hidden", str(found[0].error))
    assert (None, "ACCEPTABLE") == (found[1].error, found[1].verdict)


def poor(lab: Lab, name: str) -> str:
    """Make a user who may read `orders` alone; the URL to come as that one."""
    parts = urlsplit(lab.url)
    if lab.engine.name == "postgres":
        lab.sql(
            f"DO $$ BEGIN CREATE ROLE {name} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
            f"GRANT SELECT ON orders TO {name}",
        )
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit(parts._replace(netloc=f"{name}@{host}"))
    database = parts.path[1:]
    run(lab.url, f"CREATE OR REPLACE USER '{name}'@'%' IDENTIFIED BY 'poor'")
    run(lab.url, f"GRANT SELECT ON {database}.orders TO '{name}'@'%'")
    return urlunsplit(parts._replace(netloc=f"{name}:poor@{parts.hostname}:{parts.port}"))
