"""Rows shaped on their way, seen from outside: a YAML block in, the union of the manifests out."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rivet_resources.shape.rowhash.hash import row_hashes
from tests import processes
from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES

PLAIN = "plain-canary-value"
PEOPLE = f"""
CREATE TABLE people (id bigint PRIMARY KEY, email text, country text, paid numeric(10,2), seen timestamptz);
INSERT INTO people SELECT n, '{PLAIN}-' || n || '@example.org', CASE n % 3 WHEN 0 THEN 'cz' WHEN 1 THEN 'de' END,
       n * 1.5, timestamptz '2026-01-01Z' + n * interval '1 hour' FROM generate_series(1, 99) n;
"""
STEPS = """
  - {type: filter, field: country, op: is_not_null}
  - {type: mask, fields: [email], method: hash, key_env: MASK_KEY}
  - {type: rename, columns: {paid: amount}}
  - {type: compute, columns: {gross: "amount * 2"}}
"""


@pytest.fixture
def lab(tmp_path: Path, fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with 99 people, a third of them without a country."""
    monkeypatch.setenv("LAB_URL", fresh_database)
    monkeypatch.setenv("MASK_KEY", "k1")
    monkeypatch.chdir(tmp_path)
    laboratory = Lab(tmp_path, fresh_database)
    laboratory.sql(*filter(str.strip, PEOPLE.split(";\n")))
    return laboratory


MODES = {
    "full": "mode: full",
    "incremental": "mode: incremental\ncursor_column: id",
    "chunked": "mode: chunked\nchunk_column: id\nchunk_size: 20\nparallel: 2",
}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_rows_are_shaped_in_every_mode_alike(lab: Lab, mode: str) -> None:
    """Filtered rows are gone, masked, renamed and computed columns are as declared, whatever the mode."""
    outcome = lab.export(f"name: people\ntable: people\n{mode}\ntransforms:{STEPS}")

    assert outcome.success, outcome.message
    rows = lab.rows("people")
    assert [n for n in range(1, 100) if n % 3 != 2] == [row["id"] for row in rows]
    assert ["id", "email", "country", "amount", "seen", "gross"] == list(rows[0])
    assert all(row["gross"] == row["amount"] * 2 and len(row["email"]) == 64 for row in rows)


def test_rows_read_and_rows_kept_are_both_told(lab: Lab) -> None:
    """The manifest counts what left the source beside what was published."""
    lab.export(f"name: people\ntable: people\ntransforms:{STEPS}")

    (manifest,) = lab.manifests("people").values()
    assert (99, 66) == (manifest.source.extraction.source_row_count, manifest.row_count)


def test_named_steps_serve_several_exports(lab: Lab) -> None:
    """A step of the root's `transforms:` may stand by its name in any export."""
    config = lab.config("name: people\ntable: people")
    text = (lab.folder / "rivet.yaml").read_text()
    named = text.replace("exports:", "transforms: {no_mail: {type: drop, columns: [email]}}\nexports:")
    (lab.folder / "rivet.yaml").write_text(named.replace("name: people", "name: people\n  transforms: [no_mail]"))
    assert config.exports[0].steps == ()

    outcome = run_file(lab)

    assert outcome.returncode == 0, outcome.stderr
    assert "email" not in lab.rows("people")[0]


def run_file(lab: Lab, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run rivet.yaml as a user does."""
    return processes.run(processes.RIVET, "run", "-v", "--json", cwd=lab.folder, env=os.environ | environment)


def test_plain_value_of_a_masked_column_is_nowhere(lab: Lab) -> None:
    """No file, state store, event log or terminal shows what a mask replaced."""
    home = lab.folder / "home"
    home.mkdir()
    lab.config(f"""
        name: people
        table: people
        mode: incremental
        cursor_column: id
        format: parquet
        compression: none
        quality: {{unique_columns: [email], null_ratio_max: {{email: 0}}}}
        meta_columns: {{row_hash: true, exported_at: true}}
        transforms: {json.dumps([{"type": "mask", "fields": ["email"], "method": "hash", "key_env": "MASK_KEY"}])}
    """)

    done = run_file(lab, DAGSTER_HOME=str(home))

    assert done.returncode == 0, done.stderr
    assert len(lab.rows("people")) == 99
    assert PLAIN not in done.stdout + done.stderr
    files = [path for path in lab.folder.rglob("*") if path.is_file()]
    assert [] == [path for path in files if PLAIN.encode() in path.read_bytes()]


def test_masked_column_cannot_be_the_cursor(lab: Lab) -> None:
    """Cursors and bounds stand in the state store and the manifests, so a mask on them is refused."""
    outcome = lab.export("""
        name: people
        table: people
        mode: incremental
        cursor_column: email
        transforms: [{type: mask, fields: [email], method: asterisk}]
    """)

    assert not outcome.success
    assert "column 'email' is masked, but it decides which rows are read" in outcome.message
    assert {} == lab.manifests("people")


COPIED = """
name: people
table: people
transforms:
  - {type: split, column: email, separator: "@", into: [user, domain]}
  - {type: drop, columns: [user]}
  - {type: mask, fields: [email]%s}
"""


def test_column_made_of_a_masked_one_is_refused_unless_the_mask_reveals_it(lab: Lab) -> None:
    """What was made of a column before its mask would publish it; a user may say that this part may stay."""
    refused, allowed = lab.export(COPIED % ""), lab.export(COPIED % ", reveals: [domain]")

    assert "column 'domain' is made of email before that is masked" in refused.message
    assert allowed.success, allowed.message
    assert {"example.org"} == {row["domain"] for row in lab.rows("people")}


BROKEN = {
    "missing column": ("{type: drop, columns: [emial]}", "no column 'emial'"),
    "cast that loses": ("{type: cast, columns: {paid: int8}}", "cast"),
    "failing expression": ('{type: compute, columns: {bad: "CAST(email AS INTEGER)"}}', "compute"),
}


@pytest.mark.parametrize(("step", "said"), BROKEN.values(), ids=BROKEN)
def test_step_that_cannot_be_done_publishes_nothing(lab: Lab, step: str, said: str) -> None:
    """One clear error that names the step, no value in it, nothing published; the next run without it is clean."""
    broken = lab.export(f"name: people\ntable: people\ntransforms: [{step}]")

    assert not broken.success
    assert "step 1" in broken.message
    assert said in broken.message
    assert PLAIN not in broken.message
    assert {} == lab.manifests("people")
    assert lab.export("name: people\ntable: people").success
    assert len(lab.rows("people")) == 99


def test_row_hash_covers_the_cells_of_the_part(lab: Lab) -> None:
    """The hash in a part is the recipe over that part's own cells, and the manifest says which and how."""
    lab.export(f"name: people\ntable: people\nmeta_columns: {{row_hash: [amount, id]}}\ntransforms:{STEPS}")

    (manifest,) = lab.manifests("people").values()
    table = pq.read_table(lab.folder / "lake/people" / manifest.parts[0].path)
    assert row_hashes(table, ["amount", "id"]).to_pylist() == table["_rivet_row_hash"].to_pylist()
    assert manifest.row_hash is not None
    assert ["amount", "id"] == manifest.row_hash["covered"]


def test_row_hash_of_an_unknown_column_is_refused(lab: Lab) -> None:
    """A listed column must be one of the part's."""
    outcome = lab.export("name: people\ntable: people\nmeta_columns: {row_hash: [nobody]}")

    assert "no column 'nobody'" in outcome.message


def test_quality_rules_judge_the_shaped_columns(lab: Lab) -> None:
    """A rule may name a column that only a transform makes."""
    outcome = lab.export(f"name: people\ntable: people\nquality: {{unique_columns: [gross]}}\ntransforms:{STEPS}")

    assert outcome.success, outcome.message


ADDED = {
    "changes": ("mode: poll, updated_at_column: at, columns: {at: timestamp}, format: parquet", "__op"),
    "parquet": ("meta_columns: {exported_at: true}, format: parquet", "_rivet_exported_at"),
    "csv": ("meta_columns: {exported_at: true}, format: csv", "_rivet_exported_at"),
    "hash": ("meta_columns: {row_hash: true}, format: csv", "_rivet_row_hash"),
}


@pytest.mark.parametrize("what", ADDED)
def test_column_that_is_called_as_one_that_rivet_adds_is_refused_until_it_is_renamed(
    what: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two columns of one name a reader takes either, and nobody is told which."""
    block, name = ADDED[what]
    lab = lab_in(tmp_path, ENGINES["sqlite"], request, monkeypatch)
    lab.sql(f"CREATE TABLE t (id INTEGER PRIMARY KEY, at TEXT, {name} TEXT)")
    lab.sql("INSERT INTO t VALUES (1, '2026-01-31 00:00:00', 'x')")

    refused = lab.export(f"{{name: t, table: t, {block}}}")
    renamed = lab.export(f"{{name: t, table: t, {block}, transforms: [{{type: rename, columns: {{{name}: own}}}}]}}")

    assert ("RIVET_SOURCE_UNSUPPORTED_COLUMN", True) == (refused.code, f"{name!r}" in refused.message)
    assert renamed.success, renamed.message
    assert ["x"] == [row["own"] for row in lab.rows("t")]
