"""`on_error`: every row of the source is in the export or in the quarantine, once, whatever mode, engine and re-run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rivet_assets.cli.main import commands
from rivet_assets.config.load import load_config
from rivet_assets.prove.quarantine import dead_letters
from rivet_assets.prove.reconcile import reconcile_export
from rivet_assets.prove.validate import ValidationScope, validate_export
from rivet_resources.commit.manifest import Manifest
from rivet_resources.prove.flaws import Flaw
from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES, Engine

CAST = "transforms: [{type: cast, columns: {note: int8}}]"
MODES = {
    "full": "mode: full",
    "blocks": "mode: full\nparallel: 2",
    "chunked": "mode: chunked\nchunk_column: id\nchunk_size: 7\nparallel: 2",
    "incremental": "mode: incremental\ncursor_column: id",
    "time_window": "mode: time_window\ntime_column: at\ngranularity: month\nstart: 2026-01-01\nend: 2026-03-01",
}
# A column, and a value of it that its type in the file cannot hold.
UNFIT: Mapping[str, tuple[str, Sequence[str], str]] = {
    "postgres": ("numeric(10,2)", ["{} 'NaN'{}"], "1.50"),
    "mariadb": ("date", ["SET SESSION sql_mode = ''", "{} '0000-00-00'{}"], "'2026-01-01'"),
    "mysql": ("date", ["SET SESSION sql_mode = ''", "{} '0000-00-00'{}"], "'2026-01-01'"),
    "sqlserver": (
        "datetime2(7)", ["{} '2026-01-01T00:00:00.1234567'{}"], "'2026-01-01T00:00:00'",
    ),
    "sqlite": ("integer", ["{} 'much'{}"], "7"),
}  # fmt: skip
BAD = (3, 10, 17, 31)


@pytest.fixture(params=["sqlite"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The engine a test runs on; SQLite where the engine does not matter."""
    return ENGINES[request.param]


@pytest.fixture
def lab(tmp_path: Path, engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A table of 40 orders, four of whose notes are no numbers."""
    laboratory = lab_in(tmp_path, engine, request, monkeypatch)
    laboratory.create("orders", {"id": "whole", "note": "note", "at": "instant"})
    laboratory.insert("orders", [row(number) for number in range(1, 41)])
    return laboratory


everywhere = pytest.mark.parametrize("engine", ENGINES, indirect=True)


def row(number: int) -> dict[str, object]:
    from datetime import UTC, datetime

    at = datetime(2026, 1 + number % 2, 1 + number % 27, tzinfo=UTC)
    return {"id": number, "note": "no number" if number in BAD else str(number), "at": at}


def block(mode: str = "mode: full", transforms: str = CAST, *, policy: str = "dead_letter", more: str = "") -> str:
    return f"name: orders\ntable: orders\n{mode}\non_error: {policy}\n{transforms}\n{more}"


def letters(lab: Lab) -> list[dict[str, Any]]:
    export = load_config(lab.folder / "rivet.yaml").exports[0]
    return [dict(each) for each in dead_letters(export)]


def dead_ids(lab: Lab) -> list[int]:
    return sorted(each["key"]["id"] for each in letters(lab))


def files(lab: Lab) -> set[str]:
    """List what lies in the export's folder, but for manifests and markers."""
    return {path for path in lab.root("orders").list() if path.endswith((".parquet", ".ndjson", ".csv"))}


def named(manifests: Mapping[str, Manifest]) -> set[str]:
    return {part.path for manifest in manifests.values() for part in manifest.files}


def rivet(*arguments: str) -> Result:
    return CliRunner().invoke(commands, arguments, standalone_mode=False)


def flaws(lab: Lab) -> list[Flaw]:
    export = load_config(lab.folder / "rivet.yaml").exports[0]
    found = validate_export(export, ValidationScope(depth="full"), state=lab.state)
    return [flaw for each in found for flaw in each.all_flaws]


def proved(lab: Lab) -> list[Any]:
    """Return what validating and reconciling find wrong."""
    config = load_config(lab.folder / "rivet.yaml")
    compared = reconcile_export(config, config.exports[0], depth="checksums", state=lab.state, tell=print)
    return [*flaws(lab), *(each for each in compared.windows if each.verdict != "match")]


# --- all rows, once ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_every_row_is_in_the_export_or_in_the_quarantine(lab: Lab, mode: str) -> None:
    """In each mode; the proofs hold, and a second run changes nothing for readers."""
    for _ in range(2):
        outcome = lab.export(block(mode), partitions=("2026-01-01", "2026-02-01") if "time_window" in mode else ())

        assert outcome.success, outcome.message
        assert [n for n in range(1, 41) if n not in BAD] == lab.ids("orders")
        assert list(BAD) == dead_ids(lab)
        assert files(lab) == named(lab.manifests("orders"))
    assert [] == proved(lab)


@everywhere
def test_value_that_its_type_cannot_hold_takes_its_row_alone(lab: Lab) -> None:
    """On each engine, beside cells that are NULL by right; the key and the reason are told, no schema changes."""
    ddl, statements, fits = UNFIT[lab.engine.name]
    lab.create("odd", {"id": "whole"}, ddl={"cell": ddl})
    for number in range(1, 30):
        if number == 5:
            lab.sql(*(each.format("INSERT INTO odd (id, cell) VALUES (5,", ")") for each in statements))
        else:
            lab.sql(f"INSERT INTO odd (id, cell) VALUES ({number}, {'NULL' if number == 6 else fits})")
    strict = lab.export("{name: odd, table: odd}")
    outcome = lab.export("{name: odd, table: odd, on_error: dead_letter}")

    assert strict.code == "RIVET_VALUE_DOES_NOT_FIT", strict
    assert outcome.success, outcome.message
    assert [n for n in range(1, 30) if n != 5] == lab.ids("odd")
    assert [n == 6 for n in range(1, 30) if n != 5] == [each["cell"] is None for each in lab.rows("odd")]
    [letter] = letters(lab)
    assert ({"id": 5}, "type", "cell") == (letter["key"], letter["where"], letter["column"])


def test_rows_of_the_last_cursor_value_are_set_aside_once(lab: Lab) -> None:
    """Rows with the boundary's value that come later: each is read once, the one that does not fit too."""
    mode = "mode: incremental\ncursor_column: at"
    lab.sql(f"UPDATE orders SET at = {lab.literal(row(1)['at'])}")
    assert lab.export(block(mode)).success
    lab.insert("orders", [{"id": n, "note": note, "at": row(1)["at"]} for n, note in ((41, "x"), (42, "42"))])
    for _ in range(2):
        assert lab.export(block(mode)).success

        assert [n for n in range(1, 43) if n not in (*BAD, 41)] == lab.ids("orders")
        assert [*BAD, 41] == dead_ids(lab)


def test_cells_without_place_keep_their_rows_among_ties(lab: Lab) -> None:
    """A row that its type refuses at the boundary is known there by its other cells, and never told twice."""
    lab.create("odd", {"id": "whole", "k": "whole"}, ddl={"cell": "integer"})
    lab.sql("INSERT INTO odd VALUES (1, 1, 1), (2, 1, 'much'), (3, 1, 3)")
    export = "{name: odd, table: odd, mode: incremental, cursor_column: k, on_error: dead_letter}"
    assert lab.export(export).success
    lab.sql("INSERT INTO odd VALUES (4, 1, 'more'), (5, 1, 5)")
    for _ in range(2):
        assert lab.export(export).success

        assert [1, 3, 5] == lab.ids("odd")
        assert [2, 4] == dead_ids(lab)


def test_window_of_dead_letters_alone_is_committed(lab: Lab) -> None:
    """`skip_empty` is about windows with nothing to tell; these rows would be read for ever."""
    lab.sql("DELETE FROM orders WHERE note <> 'no number'")
    outcome = lab.export(block("mode: incremental\ncursor_column: id", more="skip_empty: true"))

    assert outcome.success, outcome.message
    assert lab.state.cursor("orders").value == "31"
    assert len(letters(lab)) == len(BAD)


def test_chunks_of_a_dead_run_bring_their_letters(lab: Lab) -> None:
    """A run that fails in its last chunk: the next one uses the finished chunks, quarantine included."""
    mode = MODES["chunked"].replace("parallel: 2", "parallel: 1") + "\nchunk_checkpoint: true"
    lenient = "{type: cast, on_error: dead_letter, columns: {note: int8}}"
    steps = f"transforms: [{lenient}, {{type: compute, on_error: stop, columns: {{left: 'CAST(note AS INTEGER)'}}}}]"
    lab.sql("UPDATE orders SET note = '3000000000' WHERE id = 40")
    failed = lab.export(block(mode, steps))
    lab.sql("UPDATE orders SET note = '40' WHERE id = 40")
    outcome = lab.export(block(mode, steps))

    assert not failed.success
    assert outcome.success, outcome.message
    assert [n for n in range(1, 41) if n not in BAD] == lab.ids("orders")
    assert list(BAD) == dead_ids(lab)
    assert files(lab) == named(lab.manifests("orders"))


# --- policies and bounds -------------------------------------------------------------------------


def test_skipped_rows_are_counted_and_kept_nowhere(lab: Lab) -> None:
    """By reason, in manifest, summary and check."""
    outcome = lab.export(block(policy="skip"))

    [manifest] = lab.manifests("orders").values()
    assert manifest.quarantine is not None
    assert ({"step 1 (cast), note: cannot become int64": 4}, ()) == (
        manifest.quarantine.skipped,
        manifest.quarantine.parts,
    )
    assert any("4 rows left out" in warning for warning in outcome.warnings)
    assert (36, []) == (len(lab.ids("orders")), letters(lab))


@pytest.mark.parametrize(("bound", "passes"), [("4", True), ("3", False), ("10%", True), ("9.9%", False), ("0", False)])
def test_bound_of_errors_refuses_the_whole_window(lab: Lab, bound: str, passes: bool) -> None:
    """Above it nothing is published, no letter either, and the numbers say why."""
    outcome = lab.export(block(more=f"max_errors: {bound}"))

    assert outcome.success is passes
    assert bool(files(lab)) is passes
    if not passes:
        assert (3, "4 of 40 rows could not be exported") == (
            outcome.exit_code,
            outcome.message[outcome.message.index("4 of 40") :][:34],
        )


def test_export_without_errors_has_no_word_of_them(lab: Lab) -> None:
    """A manifest of today reads like one of before."""
    lab.export(block(transforms="", policy="stop"))

    [manifest] = lab.manifests("orders").values()
    assert b"quarantine" not in manifest.content


def test_letters_show_neither_masked_nor_dropped_columns(lab: Lab) -> None:
    """Nor a key that is masked."""
    steps = "transforms: [{type: mask, fields: [id]}, {type: cast, columns: {note: int8}}, {type: drop, columns: [at]}]"
    outcome = lab.export(block(transforms=steps))

    assert outcome.success, outcome.message
    assert [(None, {"note": "no number"})] * 4 == [(each["key"], each["row"]) for each in letters(lab)]


# --- commands ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["full", "chunked", "incremental"])
def test_replay_brings_rows_that_were_mended_and_forgets_those_that_went(lab: Lab, mode: str) -> None:
    """One mended, one deleted, two as they were; by their keys, but for windows of a cursor."""
    assert lab.export(block(MODES[mode])).success
    lab.sql("UPDATE orders SET note = '3' WHERE id = 3", "DELETE FROM orders WHERE id = 17")
    planned = rivet("quarantine", "replay")
    before = lab.manifests("orders")
    done = rivet("quarantine", "replay", "--execute")

    assert (0, 0) == (planned.return_value, done.return_value), done.output
    assert before == {} or "planned" in planned.output
    assert [n for n in range(1, 41) if n not in (10, 17, 31)] == lab.ids("orders")
    assert [10, 31] == dead_ids(lab)
    assert "2 dead letters left" in done.output
    assert files(lab) == named(lab.manifests("orders"))
    assert [] == proved(lab)
    assert ("all of it" if mode == "incremental" else "dead letters (4) by their keys") in done.output


def sums(manifest: Manifest) -> object:
    """Return all that a manifest counts."""
    quarantine, extraction = manifest.quarantine, manifest.source.extraction
    chunks = [
        (c.chunk, c.range, c.rows, c.source_row_count, c.column_checksums or (), c.measures and c.measures.nulls)
        for c in manifest.chunks
    ]
    return (
        manifest.row_count, manifest.measures, sorted(manifest.column_checksums or (), key=lambda each: each.name),
        chunks, extraction.source_row_count, quarantine and (quarantine.dead, quarantine.skipped),
        manifest.schema_ipc, manifest.masked,
    )  # fmt: skip


DAYS = ("2026-01-01", "2026-02-01")


@everywhere
@pytest.mark.parametrize("mode", ["full", "blocks", "chunked", "time_window"])
def test_replay_by_key_counts_what_an_export_anew_counts(lab: Lab, mode: str) -> None:
    """Every number of the manifest is that of the rows now; parts that were there stay where they are."""
    days = DAYS if mode == "time_window" else ()
    assert lab.export(block(MODES[mode]), partitions=days).success
    lab.sql("UPDATE orders SET note = NULL WHERE id = 3", "DELETE FROM orders WHERE id = 17")
    before = named(lab.manifests("orders")) - {part for part in files(lab) if "_quarantine" in part}

    done = rivet("quarantine", "replay", "--execute")
    by_key, rows, left = lab.manifests("orders"), lab.rows("orders"), dead_ids(lab)
    assert ([], files(lab)) == (proved(lab), named(by_key))

    assert lab.export(block(MODES[mode]), partitions=days).success
    assert "by their keys" in done.output
    assert before < named(by_key)
    assert (rows, left) == (lab.rows("orders"), dead_ids(lab))
    assert {key: sums(each) for key, each in by_key.items()} == {
        key: sums(each) for key, each in lab.manifests("orders").items()
    }


def test_a_row_that_left_its_window_is_told_and_leaves_it(lab: Lab) -> None:
    """By its time it belongs to another month, whose next run has it; its old window has it no more."""
    assert lab.export(block(MODES["time_window"]), partitions=DAYS).success
    moved = row(2)["at"]  # of the other month
    lab.sql(f"UPDATE orders SET note = '3', at = {lab.literal(moved)} WHERE id = 3")

    done = rivet("quarantine", "replay", "--execute")

    assert "1 of them is no longer a row of this window" in done.output
    assert 3 not in (*lab.ids("orders"), *dead_ids(lab))
    assert lab.export(block(MODES["time_window"]), partitions=DAYS).success
    assert 3 in lab.ids("orders")


# What makes a replay read whole windows: the change between export and replay, or what the export asks for.
WHOLE = {
    "another configuration": (
        block(),
        block(transforms=f"{CAST[:-1]}, {{type: filter, field: id, op: '>', value: 5}}]"),
    ),
    "rules that need all rows": (block(more="quality: {unique_columns: [id]}"),) * 2,
    "a profile": (block(more="profile: true"),) * 2,
    "a key that is not shown": (
        block(transforms="transforms: [{type: cast, columns: {note: int8}}, {type: mask, fields: [id]}]"),
    )
    * 2,
    "an older Rivet": (block(), block()),
}


@pytest.mark.parametrize(("before", "after"), WHOLE.values(), ids=WHOLE)
def test_windows_are_read_whole_where_keys_are_not_enough(
    lab: Lab, before: str, after: str, request: pytest.FixtureRequest
) -> None:
    """All rows are of one block, and judged; nobody has to choose."""
    assert lab.export(before).success
    lab.config(after)
    if "older" in request.node.callspec.id:
        [manifest] = lab.manifests("orders").values()
        assert manifest.quarantine is not None
        forgot = manifest.quarantine.model_copy(update={"block": ""})
        (lab.folder / "lake/orders" / manifest.path).write_bytes(
            manifest.model_copy(update={"quarantine": forgot}).content
        )

    done = rivet("quarantine", "replay", "--execute")

    assert (0, True) == (done.return_value, "all of it read again, 40 rows" in done.output), done.output


def test_keys_of_texts_and_of_several_columns_find_their_rows(lab: Lab) -> None:
    """With quotes in them."""
    lab.sql("CREATE TABLE pairs (a TEXT NOT NULL, b INTEGER NOT NULL, note TEXT, PRIMARY KEY (a, b))")
    lab.sql("INSERT INTO pairs VALUES ('it''s', 1, 'odd'), ('it''s', 2, '2'), ('x', 1, 'odd')")
    pairs = f"name: orders\ntable: pairs\non_error: dead_letter\n{CAST}\ncolumns: {{a: text}}"
    assert lab.export(pairs).success
    lab.sql("UPDATE pairs SET note = '7' WHERE a = 'it''s'")

    done = rivet("quarantine", "replay", "--execute")

    assert "dead letters (2) by their keys read again, 2 rows" in done.output
    assert {("it's", 1, 7), ("it's", 2, 2)} == {(each["a"], each["b"], each["note"]) for each in lab.rows("orders")}
    assert [{"a": "x", "b": 1}] == [each["key"] for each in letters(lab)]


def test_drop_takes_the_files_and_leaves_the_number(lab: Lab) -> None:
    """Rows of the export stay as they are; the window's proof holds."""
    assert lab.export(block()).success
    rows, told = lab.rows("orders"), rivet("quarantine", "drop")
    assert "nothing was changed" in told.stderr
    assert len(letters(lab)) == 4

    assert rivet("quarantine", "drop", "--execute").return_value == 0
    [manifest] = lab.manifests("orders").values()
    assert manifest.quarantine is not None
    assert (4, (), []) == (manifest.quarantine.dropped, manifest.quarantine.parts, letters(lab))
    assert rows == lab.rows("orders")
    assert files(lab) == named(lab.manifests("orders"))
    assert [] == proved(lab)


def test_list_counts_by_reason_and_show_prints_letters(lab: Lab) -> None:
    """JSON for programs; one object a line for eyes."""
    assert lab.export(block()).success

    assert [{"export": "orders", "window": "all", "rows": 4, "fate": "dead letter",
             "reason": "step 1 (cast), note: cannot become int64"}] == json.loads(
        rivet("quarantine", "list", "--json").stdout
    )  # fmt: skip
    shown = [json.loads(line) for line in rivet("quarantine", "show", "--limit", "3").stdout.splitlines()]
    assert [3, 10, 17] == [each["key"]["id"] for each in shown]
    assert all(each["reason"] == "cannot become int64" and each["row"]["note"] == "no number" for each in shown)


def test_lost_and_altered_letters_are_flaws(lab: Lab) -> None:
    """A quarantine is proved like the parts."""
    assert lab.export(block()).success
    [name] = [path for path in files(lab) if path.endswith(".ndjson")]
    letter = lab.folder / "lake" / "orders" / name
    content = letter.read_bytes()
    found = []
    for damaged in (content.replace(b"no number", b"mo number"), content[:-1], None):
        letter.unlink() if damaged is None else letter.write_bytes(damaged)
        export = load_config(lab.folder / "rivet.yaml").exports[0]
        [flaw] = [
            f
            for each in validate_export(export, ValidationScope(depth="full"), state=lab.state)
            for f in each.all_flaws
        ]
        found.append(flaw.short)

    assert ["PART_CHECKSUM_MISMATCH", "PART_SIZE_MISMATCH", "PART_MISSING"] == found


def test_quarantine_that_cannot_be_written_stops_the_window(lab: Lab) -> None:
    """No row is let go because its letter found no place."""
    assert lab.export(block(policy="stop", transforms="")).success
    (lab.folder / "lake" / "orders" / "_quarantine").write_text("a file is in the way")
    outcome = lab.export(block())

    assert not outcome.success
    assert list(range(1, 41)) == lab.ids("orders")


def test_list_element_that_does_not_fit_stops_all_the_same(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which row of the page it is in is not known there: refused by name, never guessed."""
    lab = lab_in(tmp_path, ENGINES["postgres"], request, monkeypatch)
    lab.sql(
        "CREATE TABLE odd (id int PRIMARY KEY, cells numeric(10,2)[])",
        "INSERT INTO odd VALUES (1, '{1,2}'), (2, '{NaN}'), (3, '{}')",
    )
    outcome = lab.export("{name: odd, table: odd, on_error: dead_letter}")

    assert outcome.code == "RIVET_VALUE_DOES_NOT_FIT", outcome
    assert "cells" in outcome.message
