"""What `rivet init` proposes for a table, from facts alone; and that the file it writes reads back as meant."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from rivet_assets.config.load import load_text
from rivet_assets.config.variables import Substitution
from rivet_assets.config.yaml_document import read_yaml
from rivet_assets.scaffold.catalog import JSON_TYPES
from rivet_assets.scaffold.cursors import cursor_candidates, snake
from rivet_assets.scaffold.init import destination_block, look
from rivet_assets.scaffold.names import comment, export_names, scalar, table_key
from rivet_assets.scaffold.propose import FULL_ROWS, MANY_ROWS, Proposal, append_only, chunk_rows, propose, rows_of
from rivet_assets.scaffold.source import point
from rivet_assets.scaffold.yaml import Scaffold, is_sensitive, name_proposals, render, wide_columns
from rivet_resources import registry
from rivet_resources.contracts.evidence import ColumnFacts, IndexFacts, Kind, TableFacts
from rivet_resources.contracts.settings import pace
from rivet_resources.contracts.types import Family
from rivet_resources.engines.datagen.source import Datagen
from rivet_resources.engines.postgres.sql import quote
from rivet_resources.engines.shared.names import is_meant, schema_asked, split_name
from rivet_resources.errors import ConfigError

MYSQL, POSTGRES = registry.ENGINES["mysql"].facts, registry.ENGINES["postgres"].facts
BIG = 2_000_000
MB = 1024**2


def column(
    name: str, family: Family = "text", *, nullable: bool = False, note: str = "", **facts: float
) -> ColumnFacts:
    """Make a column whose native type is spelled like its family."""
    return ColumnFacts(name, str(family), nullable, note=note, family=family, **facts)  # type: ignore[arg-type]


ID = column("id", "integer")
COUNTED = column("id", "integer", note="identity")
CODE = column("code", "text")
CREATED = column("created_at", "timestamptz", note="default now()")
KEPT = column("updated_at", "timestamptz", note="default now(); set on update by trigger touch")
ON_UPDATE = column("changed", "timestamptz", note="on update current_timestamp")
LOOSE = column("updated_at", "timestamptz")
INSERTS = {"inserts": str(BIG), "updates": "0", "deletes": "0"}
UPDATES = {"inserts": str(BIG), "updates": "5", "deletes": "0"}


def table(
    *columns: ColumnFacts,
    name: str = "orders",
    key: tuple[str, ...] = ("id",),
    index: tuple[str, ...] = (),
    rows: int | None = BIG,
    size: int | None = None,
    kind: Kind = "table",
    **facts: str,
) -> TableFacts:
    """Make a table: an index on the key, and one more on each column of `index`."""
    indexes = [IndexFacts(f"{each}_idx", (each,)) for each in index]
    indexes += [IndexFacts("pkey", key, is_unique=True, is_primary=True)] if key else []
    return TableFacts("public", name, kind, columns, tuple(indexes), key, rows, size, facts=facts)


FULL, LOG = ("full", None), {"name": "click_log"}
STAMPED = {"index": ("updated_at",)}
CASES: dict[str, tuple[TableFacts, tuple[str, str | None]]] = {
    "no rows": (table(ID, rows=0), FULL),
    "100 000 rows": (table(ID, KEPT, rows=FULL_ROWS, **STAMPED), FULL),  # type: ignore[arg-type]
    "one row more": (table(ID, rows=FULL_ROWS + 1), ("chunked", "id")),
    "rows by size alone": (table(ID, rows=None, size=100 * MB), ("chunked", "id")),
    "small by size alone": (table(ID, rows=None, size=MB), FULL),
    "0 rows but large": (table(ID, rows=0, size=100 * MB), ("chunked", "id")),
    "unknown size, key": (table(ID, rows=None), ("chunked", "id")),
    "unknown size, no key": (table(ID, key=(), rows=None), FULL),
    "trigger keeps the stamp": (table(ID, KEPT, **STAMPED), ("incremental", "updated_at")),  # type: ignore[arg-type]
    "ON UPDATE keeps the stamp": (table(ID, ON_UPDATE, index=("changed",)), ("incremental", "changed")),
    "kept, but no index": (table(ID, KEPT), ("chunked", "id")),
    "kept, but NULLs": (table(ID, replace(KEPT, nullable=True), **STAMPED), ("chunked", "id")),  # type: ignore[arg-type]
    "nobody keeps the stamp": (table(ID, LOOSE, **STAMPED), ("chunked", "id")),  # type: ignore[arg-type]
    "kept, of a view's rows": (
        table(ID, KEPT, kind="materialized_view", **STAMPED), ("chunked", "id")),  # type: ignore[arg-type]
    "only inserts, numbered": (table(COUNTED, CODE, **INSERTS), ("incremental", "id")),
    "only inserts, stamped": (table(CODE, CREATED, key=("code",), index=("created_at",), **INSERTS),
                              ("incremental", "created_at")),
    "only inserts, key unnumbered": (table(ID, CODE, **INSERTS), ("chunked", "id")),
    "only inserts, a date": (table(CODE, column("created_on", "date"), key=("code",), index=("created_on",), **INSERTS),
                             ("chunked", "code")),
    "few of the rows counted": (table(COUNTED, CODE, inserts="9", updates="0", deletes="0"), ("chunked", "id")),
    "emptied and loaded anew": (table(COUNTED, CODE, **INSERTS | {"inserts": str(3 * BIG)}), ("chunked", "id")),
    "updates counted": (table(COUNTED, CODE, name="click_log", **UPDATES), ("chunked", "id")),
    "a log, numbered": (table(COUNTED, CODE, name="click_log"), ("incremental", "id")),
    "a log with a status": (table(COUNTED, column("status"), name="event_log"), ("chunked", "id")),
    "not a log": (table(COUNTED, CODE, name="catalogue"), ("chunked", "id")),
    "partitioned by time": (table(ID, CREATED, kind="partitioned", partitioned_by="created_at",
                                  partitions_from="2026-01-01 00:00:00+00"), ("time_window", "created_at")),
    "partitioned, but updated": (table(ID, CREATED, kind="partitioned", partitioned_by="created_at",
                                       partitions_from="2026-01-01", **UPDATES), ("chunked", "id")),
    "partitioned from minus infinity": (table(ID, CREATED, kind="partitioned", partitioned_by="created_at"),
                                        ("chunked", "id")),
    "text key": (table(CODE, key=("code",)), ("chunked", "code")),
    "float key": (table(column("x", "float"), key=("x",)), FULL),
    "composite key": (table(column("a", "integer"), column("b", "integer"), key=("a", "b")), ("chunked", "a")),
    "composite key of texts": (table(column("a"), column("b"), key=("a", "b")), FULL),
    "no key, indexed number": (table(column("n", "integer"), key=(), index=("n",)), ("chunked", "n")),
    "no key, nullable number": (table(column("n", "integer", nullable=True), key=(), index=("n",)), FULL),
    "view": (table(ID, key=(), rows=None, kind="view"), FULL),
    "foreign table": (table(ID, key=(), kind="foreign"), FULL),
    "columns hidden": (table(ID, hidden="secret"), FULL),
    "endless stream": (table(ID, rows=None, endless="yes"), ("incremental", "id")),
}  # fmt: skip


def cut_by(proposal: Proposal) -> str | None:
    """Name the column that an export is cut by."""
    names = ("cursor_column", "chunk_by_key", "chunk_column", "time_column")
    return next((str(proposal.keys[name]) for name in names if name in proposal.keys), None)


@pytest.mark.parametrize(("facts", "expected"), CASES.values(), ids=CASES)
def test_table_gets_the_mode_its_evidence_supports(facts: TableFacts, expected: tuple[str, str | None]) -> None:
    """The mode, and the column that decides it; the first reason names the mode."""
    proposal = propose(facts, engine=MYSQL)

    assert (proposal.mode, cut_by(proposal)) == expected
    assert proposal.reasons[0].startswith(f"mode {proposal.mode}")


@pytest.mark.parametrize(("facts", "expected"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("engine", ["postgres", "sqlite"])
def test_whatever_is_proposed_loads_without_a_warning(
    facts: TableFacts, expected: tuple[str, str | None], engine: str
) -> None:
    """The text is a configuration: the keys of each mode are that mode's."""
    config = load_text(
        render(scaffold(engine), [propose(facts, engine=registry.ENGINES[engine].facts)]), file=Path("rivet.yaml")
    )

    assert config.warnings == ()
    assert [export.mode for export in config.exports] == [expected[0]]


def scaffold(engine: str = "postgres", **changed: object) -> Scaffold:
    """Make the frame of a file."""
    place = {"path_env": "SHOP_DB"} if engine == "sqlite" else {"url_env": "SHOP_URL"}
    frame = Scaffold({"type": engine, **place}, (), {"type": "local", "path": "lake"}, "parquet", "", quote)
    return replace(frame, **changed)  # type: ignore[arg-type]


NO_EXPORT = {
    "no columns": (table(), "it has no columns"),
    "case": (table(ID, column("ID")), "differ only in case"),
    "strange type": (table(ID, unsupported="place"), "no form of place is known"),
    "broken view": (table(ID, kind="view", unreadable="its table is gone"), "its table is gone"),
}


@pytest.mark.parametrize(("facts", "why"), NO_EXPORT.values(), ids=NO_EXPORT)
def test_what_cannot_be_exported_stands_there_as_a_comment(facts: TableFacts, why: str) -> None:
    """The file loads without it and says why."""
    text = render(
        scaffold(),
        [
            propose(facts, engine=POSTGRES),
            propose(table(ID, name="x"), engine=POSTGRES),
        ],
    )

    assert why in text
    assert [export.name for export in load_text(text, file=Path("rivet.yaml")).exports] == ["x"]


@pytest.mark.parametrize(
    ("rows", "parallel"),
    [(None, 1), (FULL_ROWS + 1, 2), (MANY_ROWS - 1, 2), (MANY_ROWS, 4)],
)
def test_readers_grow_with_the_table(rows: int | None, parallel: int) -> None:
    """One where the size is unknown, two below five million rows and four from there."""
    assert propose(table(ID, rows=rows), engine=MYSQL).keys["parallel"] == parallel


@pytest.mark.parametrize(
    ("rows", "size", "expected"),
    [
        (150_000, None, 100_000),
        (2_000_000, None, 200_000),
        (10_000_000, None, 1_000_000),
        (100_000_000, None, 1_000_000),
        (None, None, 1_000_000),
        (10_000_000, 100 * 1024 * MB, 50_000),
        (1_000_000, 10_000 * 1024 * MB, 10_000),
    ],
)
def test_chunks_make_about_ten_files_and_stay_small_where_rows_are_wide(
    rows: int | None, size: int | None, expected: int
) -> None:
    """Ten files per ten million rows; at most half a gigabyte of the source in one."""
    assert chunk_rows(table(ID, rows=rows, size=size), rows) == pytest.approx(expected, rel=0.1)


def test_size_stands_in_for_rows_that_nobody_counted() -> None:
    """Without statistics the size is divided by a guessed width; a table of 0 rows and 1 GB was never analysed."""
    assert rows_of(table(ID, rows=7, size=10_000 * MB)) == 7
    assert rows_of(table(ID, rows=0, size=8192)) == 0
    assert rows_of(table(ID, rows=None, size=40_000_000)) == 1_000_000
    assert (rows_of(table(ID, rows=0, size=1000 * MB)) or 0) > BIG
    assert rows_of(table(ID, rows=None)) is None


# --- cursors -------------------------------------------------------------------------------------


def test_cursor_score_is_the_sum_of_its_reasons() -> None:
    """Every point has a reason, and the best candidate comes first."""
    facts = table(COUNTED, KEPT, replace(CREATED, distinct=BIG, correlation=0.99), index=("updated_at", "created_at"))

    found = cursor_candidates(facts, rows=BIG)

    assert [(c.column, c.role, c.score) for c in found] == [
        ("created_at", "created", 95), ("updated_at", "updated", 95), ("id", "key", 85),
    ]  # fmt: skip
    for candidate in found:
        points = [int(re.match(r"[+-]\d+", reason)[0]) for reason in candidate.reasons]  # type: ignore[index]
        assert candidate.score == max(0, min(100, sum(points)))


WORSE = {
    "may be NULL": replace(CREATED, nullable=True),
    "a date": replace(CREATED, family="date"),
    "few values": replace(CREATED, distinct=3.0),
    "a name of nothing": replace(CREATED, name="x"),
    "no default": replace(CREATED, note=""),
}


@pytest.mark.parametrize("worse", WORSE.values(), ids=WORSE)
def test_what_speaks_against_a_cursor_costs_points(worse: ColumnFacts) -> None:
    """NULLs, days, few values, a name or default that says nothing: each scores below the good column."""
    (good,) = cursor_candidates(table(CODE, CREATED, key=("code",), index=("created_at",)), rows=BIG)
    (bad,) = cursor_candidates(table(CODE, worse, key=("code",), index=(worse.name,)), rows=BIG)

    assert bad.score < good.score


def test_column_without_index_is_no_safe_cursor() -> None:
    """It is listed with its score, and never chosen."""
    (found,) = cursor_candidates(table(CODE, CREATED, key=("code",)), rows=BIG)

    assert not found.is_safe


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("updated_at", "updated"), ("UpdatedAt", "updated"), ("lastModified", "updated"), ("modified", "updated"),
        ("update_time", "updated"), ("mtime", "updated"), ("created_at", "created"), ("createdOn", "created"),
        ("event_time", "created"), ("ts", "created"), ("inserted", "created"), ("birthday", "other"),
        ("valid_from", "other"),
    ],
)  # fmt: skip
def test_names_tell_changes_from_creation(name: str, role: str) -> None:
    """Whatever the spelling: snake, camel, with and without a suffix."""
    (found,) = cursor_candidates(table(CODE, column(name, "timestamp"), key=("code",)), rows=BIG)

    assert found.role == role


def test_evidence_of_counters_beats_names() -> None:
    """A log that was updated is not append-only; a table of any name that only grew is."""
    assert append_only(table(COUNTED, name="audit_log", **UPDATES), BIG) == ""
    assert "inserts" in append_only(table(COUNTED, name="orders", **INSERTS), BIG)
    assert "a log" in append_only(table(COUNTED, name="audit_log"), BIG)


# --- gates and hints -----------------------------------------------------------------------------


def test_gates_stand_only_where_the_evidence_says_so() -> None:
    """A proved key of a whole copy is unique; a table of many rows is not empty; nothing else is promised."""
    assert propose(table(ID, rows=5), engine=MYSQL).quality == {"unique_columns": ["id"]}
    assert propose(table(ID), engine=MYSQL).quality == {"row_count_min": 1, "unique_columns": ["id"]}
    assert propose(table(ID, rows=50_000_000), engine=MYSQL).quality == {"row_count_min": 1}
    assert propose(table(ID, rows=None, size=100 * MB), engine=MYSQL).quality == {"unique_columns": ["id"]}
    assert propose(table(ID, kind="view", key=(), rows=None), engine=MYSQL).quality == {}
    assert propose(table(COUNTED, **INSERTS), engine=MYSQL).quality == {}
    assert propose(table(ID, KEPT, key=("id", "updated_at"), rows=5), engine=MYSQL).quality == {}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("email", True), ("customer_email", True), ("PhoneNumber", True), ("ssn", True), ("passwordHash", True),
        ("api_key", True), ("card_no", True), ("dateOfBirth", True), ("first_name", True), ("discard", False),
        ("cardinality", False), ("id", False), ("company", False), ("name", False),
    ],
)  # fmt: skip
def test_sensitive_names_are_words_and_not_letters(name: str, expected: bool) -> None:
    """Of people and of keys, in any spelling; `discard` holds no card."""
    assert is_sensitive(name) is expected


def test_hints_are_yaml_that_works_once_it_is_uncommented() -> None:
    """The mask and the decimal: without their '#' the file still loads, and has them."""
    number = replace(column("amount", "numeric"), native="numeric")
    text = render(scaffold(), [propose(table(ID, column("email"), number, rows=5), engine=POSTGRES)])
    assert "transforms" not in load_text(text, file=Path("x.yaml")).exports[0].model_fields_set

    uncommented = re.sub(r"# (transforms|columns):", r"\1:", text)

    (export,) = load_text(uncommented, file=Path("x.yaml")).exports
    assert [type(step).__name__ for step in export.steps] == ["Mask"]
    assert export.columns["amount"].type == "decimal(38,18)"


def test_five_wide_columns_get_smaller_row_groups() -> None:
    """64 MB of Arrow per group where rows are wide; four wide columns are left to the default."""
    wide = [replace(column(f"c{n}"), average_bytes=500.0) for n in range(5)]
    declared = [replace(column(f"d{n}"), native="longtext") for n in range(5)]

    assert "target_row_group_mb: 64" in render(scaffold(), [propose(table(ID, *wide), engine=MYSQL)])
    assert "target_row_group_mb: 64" in render(scaffold(), [propose(table(ID, *declared), engine=MYSQL)])
    assert "target_row_group_mb" not in render(scaffold(), [propose(table(ID, *wide[:4]), engine=MYSQL)])
    assert "parquet" not in render(scaffold(form="csv"), [propose(table(ID, *wide), engine=MYSQL)])
    assert wide_columns(table(replace(column("s"), native="varchar(20)"), replace(column("n", "integer")))) == []


# --- names ---------------------------------------------------------------------------------------

NASTY = (
    "Order Items", 'weird"name', '"; DROP TABLE x; --', "a.b", "${HOME}", "$${x}", "line\nbreak", "tab\t",
    "# no comment", "- item", "key: value", "{flow}", "[x]", "*", "&a", "!tag", "%", "@", "`tick`",
    "'", "\\", "\x07bell", "\x85next", "\u2028line", "ünï", "日本", "😀", "null", "yes", "007", "1e3", "~", "", " ",
    "a" * 300,
)  # fmt: skip


@pytest.mark.parametrize("name", [name for name in NASTY if name], ids=ascii)
def test_any_name_reads_back_as_it_was(name: str) -> None:
    """Table, schema and columns of any name: the file loads, and means that very table."""
    facts = replace(table(ID, column(name)), name=name, schema=f"s {name}", comment=name)

    config = load_text(render(scaffold(), [propose(facts, engine=POSTGRES)]), file=Path("x.yaml"))

    (export,) = config.exports
    assert split_name(export.table or "") == (f"s {name}", name)
    assert export.description == name
    assert re.fullmatch(r"[a-z0-9_]{1,100}", export.name)
    assert config.warnings == ()


@pytest.mark.parametrize("text", NASTY, ids=ascii)
def test_scalars_are_the_text_they_were(text: str) -> None:
    """Whatever YAML would make of it, and references would: a config reads the very text."""
    read = Substitution({}).value(read_yaml(f"key: {scalar(text)}\nlist: {scalar([text, 1, True])}\n").value)

    assert read == {"key": text, "list": [text, 1, True]}


@pytest.mark.parametrize("text", NASTY, ids=ascii)
def test_comments_hold_anything_and_nothing_leaves_them(text: str) -> None:
    """Every line of a comment is one, whatever a name holds."""
    lines = comment(f"table {text} is large " * 5, indent=4)

    assert all(line.startswith("    # ") for line in lines)
    assert read_yaml("\n".join([*lines, "key: 1"])).value == {"key": 1}


def test_export_names_are_unique_even_without_case() -> None:
    """A name of two schemas gets its schema; names that become alike are numbered."""
    tables = [
        ("public", "orders"), ("sales", "orders"), ("public", "Order Items"), ("public", "order_items"),
        ("public", "日本"), ("public", "中国"), ("public", "Größe"),
    ]  # fmt: skip

    assert export_names(tables) == [
        "public_orders", "sales_orders", "order_items", "order_items_2", "table", "table_2", "grosse",
    ]  # fmt: skip


def test_plain_names_are_written_plain() -> None:
    """Quotes stand only where SQL needs them."""
    assert table_key("public", "orders") == "public.orders"
    assert table_key("", "Orders") == "Orders"
    assert table_key("a.b", 'x"y') == '"a.b"."x""y"'


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", True), ("Orders", True), ("public.Orders", True), ("Ord*", True), ("public.*", True), ("p*.O*", True),
        ('"Orders"', True), ('public."Orders"', True), ("p*", False), ("orders", False),
        ("sales.*", False), ("sales.Orders", False),
    ],
)  # fmt: skip
def test_pattern_means_a_name_with_or_without_schema_or_a_glob(pattern: str, expected: bool) -> None:
    """Exact case, as quoted in SQL, or a glob."""
    assert is_meant(pattern, "public", "Orders") is expected


def test_pattern_tells_which_schema_it_asks_for() -> None:
    """Only a schema that is written out; a glob of schemas asks for all."""
    assert schema_asked("sales.orders") == "sales"
    assert schema_asked("sales.*") == "sales"
    assert schema_asked("s*.orders") is None
    assert schema_asked("orders") is None
    assert schema_asked("") is None


def test_snake_case_is_one_spelling_for_all() -> None:
    """Camel, upper and dashed names become words."""
    assert [snake(text) for text in ("UpdatedAt", "updatedAt", "UPDATED-AT", "HTTPStatus")] == [
        "updated_at", "updated_at", "updated_at", "http_status",
    ]  # fmt: skip


# --- where from and where to ---

DESTINATIONS = {
    "lake": {"type": "local", "path": "lake"},
    "/srv/lake": {"type": "local", "path": "/srv/lake"},
    "s3://bucket/a/b/": {"type": "s3", "bucket": "bucket", "prefix": "a/b"},
    "s3://bucket": {"type": "s3", "bucket": "bucket"},
    "gs://bucket/a": {"type": "gcs", "bucket": "bucket", "prefix": "a"},
    "abfss://lake@shop.dfs.core.windows.net/a": {
        "type": "azure",
        "account": "shop",
        "container": "lake",
        "prefix": "a",
    },
    "abfs://lake@shop": {"type": "azure", "account": "shop", "container": "lake"},
    "az://shop.blob.core.windows.net/lake/a/b": {
        "type": "azure",
        "account": "shop",
        "container": "lake",
        "prefix": "a/b",
    },
}


@pytest.mark.parametrize(("text", "block"), DESTINATIONS.items(), ids=DESTINATIONS)
def test_destination_is_a_path_or_a_bucket(text: str, block: dict[str, str]) -> None:
    """A scheme names the store; the block loads."""
    assert destination_block(text) == block
    frame = scaffold(destination=destination_block(text))
    (export,) = load_text(render(frame, [propose(table(ID), engine=POSTGRES)]), file=Path("x.yaml")).exports
    assert export.destination.type == block["type"]


@pytest.mark.parametrize("text", ["ftp://host/x", "s3:///prefix", "az://lake/prefix", "abfss://@shop/x"])
def test_destination_of_another_kind_is_refused(text: str) -> None:
    """The message says what is allowed."""
    with pytest.raises(ConfigError, match="neither a path nor s3"):
        destination_block(text)


ENGINES = {
    "postgresql://u:p@localhost/shop": ("postgres", "SHOP_URL"),
    "postgres://u:p@[::1]:5432/shop": ("postgres", "SHOP_URL"),
    "postgresql:///shop?host=/var/run/postgresql": ("postgres", "SHOP_URL"),
    "mysql://u:p@127.0.0.1/web-shop": ("mysql", "WEB_SHOP_URL"),
    "mariadb://u:p@localhost/": ("mariadb", "SOURCE_URL"),
    "mssql://u:p@localhost:1433/Shop": ("sqlserver", "SHOP_URL"),
}


@pytest.mark.parametrize(("url", "expected"), ENGINES.items(), ids=ENGINES)
def test_scheme_names_the_engine_and_the_database_the_variable(url: str, expected: tuple[str, str]) -> None:
    """The block holds a reference; this machine needs no `tls:`, and is read at full speed, as a note says."""
    found = point(url=url, env=None, file=None)

    assert dict(found.block) == {"type": expected[0], "url_env": expected[1], "environment": "local"}
    assert pace(found.source.tuning, None).profile == "fast"
    assert any("tunnel" in note for note in found.notes)


FAR = (
    "postgresql://u:p@db.example.com/shop", "postgresql://u:p@localhost,db.example.com:5433/shop",
    "postgresql:///shop?host=db.example.com", "mysql://u:p%40x@10.0.0.7:3306/shop", "mssql://u:p@[2001:db8::1]/shop",
)  # fmt: skip


@pytest.mark.parametrize("url", FAR)
def test_every_host_of_a_url_counts_for_protection(url: str) -> None:
    """One host that is not this machine is enough for `tls:`, wherever the URL names it."""
    found = point(url=url, env=None, file=None)

    assert found.block["tls"] == {"mode": "verify-full"}
    assert "environment" not in found.block
    assert pace(found.source.tuning, None).profile == "balanced"


def test_sqlite_file_is_named_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path is no secret; one in a variable stays there."""
    monkeypatch.setenv("SHOP_DB", "data/shop.db")
    assert dict(point(url="data/shop.db", env=None, file=None).block) == {"type": "sqlite", "path": "data/shop.db"}
    assert dict(point(url="sqlite:///data/a%20b.db", env=None, file=None).block)["path"] == "data/a b.db"
    assert dict(point(url=None, env="SHOP_DB", file=None).block) == {"type": "sqlite", "path_env": "SHOP_DB"}


def test_made_up_rows_are_listed_as_one_table() -> None:
    """datagen has one stream with the columns of its pattern, and a key."""
    (proposal,) = look(Datagen(pattern="orders", max_events=7, stream_name="sales"), ())

    assert (proposal.facts.schema, proposal.facts.name, proposal.rows) == ("datagen", "sales", 7)
    assert proposal.facts.key == ("_sequence",)
    assert look(Datagen(pattern="orders"), ())[0].mode == "incremental"


# --- the whole file ------------------------------------------------------------------------------


def test_component_and_file_say_the_same() -> None:
    """defs.yaml holds the same blocks below `attributes:`."""
    proposals = [propose(table(ID), engine=POSTGRES)]

    component = read_yaml(render(scaffold(), proposals, as_component=True)).value

    assert component["type"] == "rivet_assets.Exports"
    assert component["attributes"] == read_yaml(render(scaffold(), proposals)).value


def test_hidden_columns_are_read_around_by_a_query() -> None:
    """A table of which some columns may not be read is a query of the others."""
    facts = table(ID, column("Odd name"), hidden="secret")

    (export,) = load_text(render(scaffold(), [propose(facts, engine=POSTGRES)]), file=Path("x.yaml")).exports

    assert export.query == 'SELECT "id", "Odd name" FROM "public"."orders"'


def test_catalogue_knows_every_family_but_json() -> None:
    """JSON is any value; every other family has a type in JSON Schema."""
    assert set(JSON_TYPES) == set(Family.__args__) - {"json"}  # type: ignore[attr-defined]


def test_names_in_the_catalogue_are_those_of_the_file() -> None:
    """`discover` and `init` call an export alike."""
    proposals = [propose(table(ID, name=name), engine=POSTGRES) for name in ("Order Items", "order_items")]

    exports = load_text(render(scaffold(), proposals), file=Path("x.yaml")).exports

    assert [name for name, _ in name_proposals(proposals)] == [export.name for export in exports]
