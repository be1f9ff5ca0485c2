"""The rule that tells databases apart, and the memory of it in the state store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rivet_resources.contracts.provenance import Provenance, provenance_of
from rivet_resources.engines.mysql.identity import servers_of
from rivet_resources.state.provenances import difference
from rivet_resources.state.scopes import Scope, key_of, name_in
from rivet_resources.state.store import default_url, open_state

SHOP = Provenance("postgres", "shop", ("system_identifier:7",), "shop", "public.orders")
QUERY = replace(SHOP, relation="")
MYSQL = Provenance("mysql", "shop", ("server_uuid:a", "server_uuid:b"), "app", "app.orders")
MARIADB = Provenance("mariadb", "shop", ("mariadb:server_id=1,domain=0",), "app", "app.orders")

APART = [
    (SHOP, replace(SHOP, engine="mysql"), "the engine"),
    (SHOP, replace(SHOP, servers=("system_identifier:8",)), "the server"),
    (SHOP, replace(SHOP, database="billing"), "the database"),
    (SHOP, replace(SHOP, relation="public.lines"), "the table"),
    (QUERY, replace(QUERY, source_name="billing"), "the source"),
    (replace(SHOP, servers=()), replace(SHOP, servers=(), source_name="billing"), "the source"),
    (MARIADB, replace(MARIADB, source_name="billing"), "the source"),
    (MYSQL, replace(MYSQL, servers=("server_uuid:c",)), "the server"),
    (
        replace(SHOP, engine="sqlserver", servers=("broker_guid:1", "database_guid:2")),
        replace(SHOP, engine="mssql", servers=("broker_guid:1", "database_guid:3")),
        "the server",
    ),
]
SAME = [
    (SHOP, replace(SHOP, source_name="renamed")),  # the server says it is the same one
    (SHOP, QUERY),  # an export that became a query of its table
    (SHOP, Provenance("postgres", relation="public.orders")),  # a manifest of before
    (SHOP, replace(SHOP, servers=("address:db:5432",))),  # a right that was given or taken away
    (MYSQL, replace(MYSQL, servers=("server_uuid:b",))),  # the replica that took over
    (MYSQL, replace(MYSQL, engine="mariadb", servers=())),
    (MYSQL, replace(MYSQL, database="another default")),  # the schema is the database
]


@pytest.mark.parametrize(("one", "other", "what"), APART)
def test_what_tells_two_apart_is_named_from_either_side(one: Provenance, other: Provenance, what: str):
    """The first difference is told, whichever was remembered."""
    assert [what, what] == [difference(one, other), difference(other, one)]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_is_unknown_tells_nothing_apart(one: Provenance, other: Provenance):
    """Names that may change, and facts that one side has not, are no difference."""
    assert ["", ""] == [difference(one, other), difference(other, one)]


def test_provenance_is_read_back_as_it_was_written():
    """Keys of a newer writer are passed over."""
    assert MYSQL == provenance_of(MYSQL.text)
    assert SHOP == provenance_of(SHOP.text.replace("{", '{"colour": "red", ', 1))


@pytest.mark.parametrize(
    ("variables", "servers"),
    [
        ({}, ()),
        ({"server_uuid": "AAAAAAAA-0000-0000-0000-000000000001"}, ("aaaaaaaa-0000-0000-0000-000000000001",)),
        (
            {
                "server_uuid": "aaaaaaaa-0000-0000-0000-000000000002",
                "gtid_executed": "aaaaaaaa-0000-0000-0000-000000000001:1-5:7,\naaaaaaaa-0000-0000-0000-000000000002:1",
            },
            ("aaaaaaaa-0000-0000-0000-000000000002", "aaaaaaaa-0000-0000-0000-000000000001"),
        ),
        (
            {"server_id": "2", "gtid_domain_id": "0", "gtid_binlog_state": "0-1-57,0-2-58", "gtid_slave_pos": ""},
            ("server_id=2,domain=0", "server_id=1,domain=0"),
        ),
    ],
)
def test_server_is_named_first_and_then_those_it_has_transactions_of(variables: dict[str, str], servers: tuple):
    """A replica and its primary have a name in common."""
    assert servers == tuple(each.partition(":")[2] for each in servers_of(variables))


# --- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [("", "shop", "orders"), ("a/b", "s", "shop/orders"), ("100%", "s%2F", "o")])
def test_key_gives_its_name_back_and_no_two_are_one(parts: tuple[str, str, str]):
    """Slashes of a part are written otherwise; a bare name is its own."""
    assert parts[2] == name_in(key_of(*parts))
    assert key_of("a", "b/c", "d") != key_of("a/b", "c", "d")
    assert "shop/orders" == name_in("shop/orders")


def test_names_of_no_export_are_of_all_projects():
    """Permits to connect count over every project that shares the store."""
    scope = Scope("p", {"orders": "shop"})

    assert ("p//shop//orders", "source:db:5432") == (scope.key("orders"), scope.key("source:db:5432"))


# --- the memory ----------------------------------------------------------------------------------


def test_memory_grows_by_the_names_of_one_installation_and_a_reset_keeps_it_as_accepted(tmp_path: Path):
    """A fail-over there and back is one database; a reset lets its old windows be replaced."""
    state = open_state(default_url(tmp_path)).of(Scope("", {"orders": "shop"}))
    state.remember("orders", MYSQL, destination="/lake/orders")
    state.remember("orders", replace(MYSQL, servers=("server_uuid:b", "server_uuid:c")), destination="")
    known = state.provenance("orders")

    assert known.provenance is not None
    assert {"server_uuid:a", "server_uuid:b", "server_uuid:c"} == set(known.provenance.servers)
    assert "/lake/orders" == known.destination

    state.reset("orders")
    state.reset("orders")
    given_up = state.provenance("orders")
    assert (None, 1) == (given_up.provenance, len(given_up.accepted))
    assert "" == difference(given_up.accepted[0], MYSQL)
    assert None is open_state(default_url(tmp_path)).provenance("orders").provenance
