"""What `rivet validate` sees of real exports: every engine, drains, polls, tables kept beside changes, the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from rivet_assets.cli.commands.validate import validate_command
from rivet_assets.config.load import load_config
from rivet_assets.launch.run_exports import run_exports
from rivet_assets.prove import validate_report
from rivet_assets.prove.validate import validate_export
from rivet_assets.run.admit.scope import state_of
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.commit.publish import publish
from rivet_resources.destinations.local import Local
from rivet_resources.errors import ConfigError
from rivet_resources.prove.validate import validate
from rivet_resources.state.store import default_url, open_state
from rivet_resources.tables.history import stage_history
from rivet_resources.tables.mirror import stage_mirror
from tests.applying import Lake, position
from tests.lab import Lab
from tests.lab_engines import ENGINES, Engine
from tests.published import closing, flipped
from tests.servers.logical import logical_database

pytestmark = pytest.mark.wide


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Engine:
    """The engine a test runs on."""
    return ENGINES[request.param]


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
@pytest.mark.parametrize("form", ["parquet", "avro", "ndjson", "csv"])
def test_export_of_every_engine_validates(
    engine: Engine, form: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a real table, with meta columns, pass at full depth, and the store remembers it."""
    lab = Lab(tmp_path, request.getfixturevalue(engine.fixture), engine)
    monkeypatch.setenv("LAB_URL", lab.url)
    monkeypatch.chdir(tmp_path)
    lab.create("orders", {"id": "whole", "at": "instant", "day": "day", "amount": "amount", "note": "note"})
    first = datetime(2026, 1, 1, tzinfo=UTC)
    lab.insert("orders", [
        {"id": n, "at": first, "day": first.date(), "amount": Decimal(n), "note": None if n % 2 else f"note {n}"}
        for n in range(60)
    ])  # fmt: skip
    meta = "meta_columns: {exported_at: true, row_hash: true}"
    block = f"{{name: orders, table: orders, mode: chunked, chunk_column: id, chunk_size: 20, format: {form}, {meta}}}"
    assert lab.export(block).success

    config = lab.config(block)
    with closing(lab.state) as state:
        (found,) = validate_export(config.export("orders"), state=state)
        (kept,) = state.verifications("orders", "validate")

    assert () == found.all_flaws
    assert ["id", "at", "day", "amount", "note", "_rivet_row_hash"] == [*found.windows[0].compared]
    assert ("match", "all", 60) == (kept.verdict, kept.window, kept.detail["rows"])


def test_boundary_of_an_incremental_export_is_compared(desk: Desk) -> None:
    """The store says where the chain of windows ends; where it says something else, the manifests are right."""
    block = "{name: orders, table: orders, mode: incremental, cursor_column: id}"
    assert desk.lab.export(block).success
    desk.lab.insert("orders", [{"id": 20 + n, "at": datetime(2026, 1, 5, tzinfo=UTC)} for n in range(5)])
    assert desk.lab.export(block).success

    agreed = desk.rivet()
    with closing(desk.lab.state) as state:
        cursor = state.cursor("orders")
        assert cursor is not None
        state.advance_cursor("orders", "99", expected=cursor.value)
    differing = desk.rivet()

    assert (0, True) == (agreed[0], agreed[1].startswith("orders  ok: 2 windows, 2 parts, 25 rows"))
    assert 0 == differing[0]
    assert "RIVET_VERIFY_BOUNDARY_DIFFERS" in differing[1]
    assert "`rivet state rebuild -e orders`" in differing[1]


@pytest.mark.parametrize("detection", ["soft_delete", "full_diff"])
def test_polled_changes_validate(
    detection: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows of a poll, with deletes that it found, are compared like any other."""
    engine = ENGINES["sqlite"]
    lab = Lab(tmp_path, request.getfixturevalue(engine.fixture), engine)
    monkeypatch.setenv("LAB_URL", lab.url)
    monkeypatch.chdir(tmp_path)
    lab.create("notes", {"id": "whole", "changed": "instant", "gone": "instant"}, index=["changed"])
    at = [datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC) for second in range(40)]
    lab.insert("notes", [{"id": n, "changed": at[n], "gone": None} for n in range(30)])
    found = {"type": detection} | ({"column": "gone"} if detection == "soft_delete" else {"max_delete_ratio": 0.5})
    block = yaml.safe_dump(
        {"name": "notes", "table": "notes", "mode": "poll", "updated_at_column": "changed", "delete_detection": found}
    )
    first = lab.export(block)
    gone = {
        "soft_delete": f"UPDATE notes SET changed = {lab.literal(at[35])}, gone = {lab.literal(at[35])} WHERE id = 3"
    }
    lab.sql(gone.get(detection, "DELETE FROM notes WHERE id = 3"))
    second = lab.export(block)

    with closing(lab.state) as state:
        (folder,) = validate_export(lab.config(block).export("notes"), state=state)

    assert ("", "") == (first.message, second.message)
    assert () == folder.all_flaws
    assert len(folder.windows) > 1
    assert all({"__op", "id"} <= {*window.compared} for window in folder.windows if window.rows)


# --- drains and the tables kept beside them ------------------------------------------------------

DRAINED = """
source: {type: postgres, url_env: SHOP_URL}
spark: inline
exports:
  - name: shop
    mode: cdc
    tables: [orders, lines]
    format: parquet
    cdc: {accept_untold: [columns], slot: validated, initial: snapshot}
    destination: {type: local, path: lake}
"""


def test_drained_tables_validate(tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies and changes of several tables, one of them altered inside a window; damage names the way out."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rivet.yaml").write_text(DRAINED)
    with logical_database(postgres_url) as url:
        monkeypatch.setenv("SHOP_URL", url)
        run_sql(
            url,
            "CREATE TABLE orders (id bigint PRIMARY KEY, total numeric(12,2), note text)",
            "CREATE TABLE lines (id bigint PRIMARY KEY, sku text)",
            "INSERT INTO orders SELECT n, n * 1.5, nullif('note ' || n, 'note 7') FROM generate_series(1, 50) n",
        )
        config = load_config(tmp_path / "rivet.yaml")
        first = run_exports(config)
        run_sql(
            url,
            "UPDATE orders SET total = 0 WHERE id < 10",
            "ALTER TABLE orders ADD COLUMN extra integer",
            "INSERT INTO orders VALUES (51, 1, 'x', 7)",
            "ALTER TABLE orders ALTER COLUMN extra TYPE bigint",
            "UPDATE orders SET extra = 8 WHERE id = 51",
            "DELETE FROM orders WHERE id = 3",
            "INSERT INTO lines VALUES (1, 'a')",
        )
        second = run_exports(config)

    assert ["success"] * 2 == [outcome.status for outcome in (*first, *second)]
    with closing(state_of(config)) as state:
        export = config.exports[0]
        orders, lines = validate_export(export, state=state)
        manifests = current_manifests(export.destination.root("shop/orders"))
        altered = [part for manifest in manifests.values() for part in manifest.parts if part.schema_ipc]
        (last,) = [each for each in manifests.values() if each.window != "after=start"]
        Path("lake/shop/orders", last.parts[0].path).unlink()
        broken = validate_export(export, state=state)

    assert ["shop/orders", "shop/lines"] == export.all_folders()
    assert ((), ()) == (orders.all_flaws, lines.all_flaws)
    assert altered
    assert all({"__op", "__pos", "id", "total"} <= {*window.compared} for window in orders.windows if window.rows)
    assert ["PART_MISSING"] == [flaw.short for each in broken for flaw in each.all_flaws]
    assert "`rivet state reset -e shop`" in str(validate_report.render([(export, broken)]))


def run_sql(url: str, *statements: str) -> None:
    """Run statements, each in its own transaction."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in ("SET synchronous_commit = on", *statements):
            connection.execute(statement.encode())


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["mirror", "history"])
def test_tables_kept_beside_changes_validate(tmp_path: Path, kind: str, spark_runtime: Any) -> None:
    """A mirror and a history are written by Spark's tasks, and have checksums like any export."""
    stages: dict[str, Callable[..., Any]] = {"mirror": stage_mirror, "history": stage_history}
    with closing(open_state(default_url(tmp_path))) as state:
        lake = Lake(Local(path=str(tmp_path / "lake")), state)  # type: ignore[arg-type]
        lake.copy([{"id": n, "area": "n", "note": f"note {n}", "paid": None} for n in range(40)])
        row = {"id": 3, "area": "n", "note": "later", "paid": None}
        change = {"__op": "update", "__pos": position(3), "__seq": 1, "__ts": None, "__unchanged": None}
        lake.drain([{**change, **row}], high=position(4))
        derived = lake.derived(kind)
        staged = stages[kind](derived, spark=spark_runtime)
        assert publish(staged, root=derived.root, state=state)

        found = validate(derived.root, export=derived.export, state=state)

    assert found.windows[0].parts >= 1
    assert () == found.all_flaws
    assert {"id", "note"} <= {*found.windows[0].compared}


# --- the command and the store -------------------------------------------------------------------

BLOCK = "{name: orders, table: orders, mode: full}"


@dataclass
class Desk:
    """A folder with a rivet.yaml, and the command."""

    lab: Lab
    capsys: pytest.CaptureFixture[str] = field(repr=False)

    def rivet(self, *arguments: str) -> tuple[int, str]:
        """Run `rivet validate`; its exit code and what it printed."""
        code = validate_command.main(["-c", str(self.lab.folder / "rivet.yaml"), *arguments], standalone_mode=False)
        return code, self.capsys.readouterr().out


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], request: Any) -> Desk:
    """Two exports of one table, the second one in windows of a day."""
    engine = ENGINES["sqlite"]
    lab = Lab(tmp_path, request.getfixturevalue(engine.fixture), engine)
    monkeypatch.setenv("LAB_URL", lab.url)
    monkeypatch.chdir(tmp_path)
    lab.create("orders", {"id": "whole", "at": "instant"})
    lab.insert("orders", [{"id": n, "at": datetime(2026, 1, 1 + n % 2, tzinfo=UTC)} for n in range(20)])
    return Desk(lab, capsys)


def test_command_tells_what_was_compared(desk: Desk) -> None:
    """A clean export: one line with counts, exit code 0."""
    assert desk.lab.export(BLOCK).success

    code, text = desk.rivet()

    assert 0 == code
    assert text.startswith("orders  ok: 1 window, 1 part, 20 rows, ")
    assert text.endswith("0 wrong, 0 could not be verified, 0 worth knowing\n")


def test_command_names_code_place_and_next_step(desk: Desk) -> None:
    """A damaged part: its code, its path, what was expected and found, and what to do; exit code 3."""
    assert desk.lab.export(BLOCK).success
    (part,) = desk.lab.parts("orders")
    part.write_bytes(flipped(part.read_bytes()))

    code, text = desk.rivet("-e", "orders")
    json_code, document = desk.rivet("--json")

    assert (3, 3) == (code, json_code)
    assert f"RIVET_VERIFY_PART_CHECKSUM_MISMATCH  window all, {part.name}: has " in text
    assert "→ `rivet repair -e orders`" in text
    (told,) = json.loads(document)["exports"]
    assert ("mismatch", "RIVET_VERIFY_PART_CHECKSUM_MISMATCH") == (told["verdict"], told["findings"][0]["code"])


def test_report_goes_to_a_file(desk: Desk) -> None:
    """-o FILE takes the report, --format json its shape; a file that cannot be written is a usage error."""
    assert desk.lab.export(BLOCK).success

    code, text = desk.rivet("--format", "json", "-o", "report.json", "--depth", "sample")

    assert (0, "") == (code, text)
    assert "sample" == json.loads(Path("report.json").read_text())["exports"][0]["depth"]
    with pytest.raises(ConfigError, match="cannot be written"):
        desk.rivet("-o", "no/such/folder/report.json")


def test_unknown_names_are_refused(desk: Desk) -> None:
    """An export, a window or a run that is not there: an answer about nothing would look like a good one."""
    assert desk.lab.export(BLOCK).success

    with pytest.raises(ConfigError, match=r"no export 'order'.*orders"):
        desk.rivet("-e", "order")
    with pytest.raises(ConfigError, match="no committed window '2026-01-01'"):
        desk.rivet("--window", "2026-01-01")
    with pytest.raises(ConfigError, match="no committed window of run nobody"):
        desk.rivet("--run-id", "nobody")


def test_only_the_windows_asked_for_are_judged(desk: Desk) -> None:
    """Damage in one day does not fail another; runs name their windows too."""
    daily = "{name: orders, table: orders, mode: time_window, time_column: at, start: 2026-01-01}"
    assert desk.lab.export(daily, partitions=("2026-01-01...2026-01-02",)).success
    manifests = desk.lab.manifests("orders")
    broken = manifests["2026-01-02"].parts[0].path
    (desk.lab.folder / "lake/orders" / broken).unlink()

    assert 0 == desk.rivet("--partition", "2026-01-01")[0]
    assert 3 == desk.rivet("--partition", "2026-01-02")[0]
    assert [0, 3] == [desk.rivet("--partition-range", f"2026-01-01...2026-01-0{last}")[0] for last in (1, 2)]
    assert 0 == desk.rivet("--run-id", manifests["2026-01-01"].run_id)[0]
    assert 3 == desk.rivet()[0]


def test_state_that_knows_a_run_requires_its_manifest(desk: Desk) -> None:
    """A folder that was emptied behind Rivet's back is no legacy folder; one that never was written to is."""
    config = desk.lab.config(BLOCK)
    with closing(desk.lab.state) as state:
        (before,) = validate_export(config.export("orders"), state=state)
    assert desk.lab.export(BLOCK).success
    for path in sorted((desk.lab.folder / "lake").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()

    code, text = desk.rivet()

    assert ("unknown", 0) == (before.verdict, before.exit_code)
    assert 3 == code
    assert "RIVET_VERIFY_MANIFEST_REQUIRED" in text


def test_prefix_and_date_name_another_place(desk: Desk) -> None:
    """A copy elsewhere is judged where it lies, and {date} is the day asked for."""
    dated = f"{{type: local, path: '{desk.lab.folder}/days/{{date}}'}}"
    assert desk.lab.export(f"{{name: orders, table: orders, mode: full, destination: {dated}}}").success
    (folder,) = (desk.lab.folder / "days").glob("*/orders")
    copy = desk.lab.folder / "copy"
    folder.rename(copy)

    today = datetime.now(UTC).date().isoformat()

    assert 0 == desk.rivet("--prefix", str(copy))[0]
    assert 3 == desk.rivet("--date", today)[0]
    assert 0 == desk.rivet("--date", "2020-01-01")[0]  # nothing is known of that day


def test_verdict_is_remembered_per_commit(desk: Desk) -> None:
    """A light look does not take back what a full one saw of the same commit; the next commit starts anew."""
    assert desk.lab.export(BLOCK).success
    (part,) = desk.lab.parts("orders")
    good = part.read_bytes()
    part.write_bytes(flipped(good))

    def verdict() -> tuple[str, str]:
        with closing(desk.lab.state) as state:
            (kept,) = state.verifications("orders", "validate")
        return kept.verdict, kept.detail["depth"]

    desk.rivet()
    seen = verdict()
    desk.rivet("--depth", "light")
    lighter = verdict()
    part.write_bytes(good)
    desk.rivet()
    healed = verdict()
    assert desk.lab.export(BLOCK).success
    desk.rivet("--depth", "light")

    assert ("mismatch", "full") == seen == lighter
    assert ("match", "full") == healed
    assert ("match", "light") == verdict()
