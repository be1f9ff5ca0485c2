"""`mask_tags`: columns are masked because their comment, or the contract, says so, and never unmasked in silence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rivet_assets.cli.main import commands
from rivet_assets.launch.apply_plan import PlanStale
from rivet_assets.prove.quarantine import dead_letters
from rivet_resources.commit.manifest import Manifest
from tests.lab import Lab, lab_in, store_of
from tests.lab_engines import ENGINES, Engine

PLAIN = "ann@example.com"
RULES = "{'pii: email': {method: hash, key: k1, length: 12}, pii: {method: redact}}"
PEOPLE = f"name: people\ntable: people\nmask_tags: {RULES}\n"
HASHED = "dc3163f1182c"


def postgres_comment(lab: Lab, column: str, text: str) -> None:
    lab.sql(f"COMMENT ON COLUMN people.{column} IS '{text}'")


def mysql_comment(lab: Lab, column: str, text: str) -> None:
    lab.sql(f"ALTER TABLE people MODIFY {column} {lab.engine.types['note']} COMMENT '{text}'")


COMMENTS: Mapping[str, Callable[[Lab, str, str], None]] = {
    "postgres": postgres_comment,
    "mariadb": mysql_comment,
    "mysql": mysql_comment,
}
commented = pytest.mark.parametrize("engine", COMMENTS, indirect=True)


@pytest.fixture(params=["postgres"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The engine a test runs on; PostgreSQL where the engine does not matter."""
    return ENGINES[request.param]


@pytest.fixture
def lab(tmp_path: Path, engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Two people, with an address and a nickname."""
    laboratory = lab_in(tmp_path, engine, request, monkeypatch)
    laboratory.create("people", {"id": "whole", "email": "note", "nick": "note"})
    laboratory.insert("people", [{"id": 1, "email": PLAIN, "nick": "7"}, {"id": 2, "email": None, "nick": "x"}])
    return laboratory


def comment(lab: Lab, column: str, text: str) -> None:
    """Set the comment of a column."""
    COMMENTS[lab.engine.name](lab, column, text)


def rivet(*arguments: str) -> Result:
    """Run a command with the lab's file, in whose folder the test works."""
    return CliRunner().invoke(commands, arguments, standalone_mode=False)


def emails(lab: Lab, export: str = "people") -> list[object]:
    """Return the published addresses in the order of ids."""
    return [row["email"] for row in lab.rows(export)]


def manifest_of(lab: Lab, export: str = "people") -> Manifest:
    """Return the one manifest of an export."""
    (found,) = lab.manifests(export).values()
    return found


@commented
def test_a_column_whose_comment_has_the_tag_is_masked(lab: Lab) -> None:
    """The closest rule masks it; a column without a tag stays; the manifest names what was masked, and by which tag."""
    comment(lab, "email", "Address of the customer. PII:  Email.")

    outcome = lab.export(PEOPLE)

    assert (True, [HASHED, None]) == (outcome.success, emails(lab))
    assert ["7", "x"] == [row["nick"] for row in lab.rows("people")]
    assert {"email": "pii: email"} == manifest_of(lab).masked


@commented
def test_a_column_that_lost_its_tag_is_refused_until_the_yaml_says_it_may_be_plain(lab: Lab) -> None:
    """Exit code 4, and the published rows as they were; a reset does not forget it, `unmasked` lets it pass."""
    comment(lab, "email", "pii: email")
    lab.export(PEOPLE)
    comment(lab, "email", "Address of the customer")
    before = emails(lab)

    refused = rivet("run")
    checked = rivet("check")
    rivet("state", "reset", "-e", "people")
    still = lab.export(PEOPLE)

    assert 4 == refused.return_value
    assert "'email' (tag 'pii: email')" in refused.output
    assert (1, True) == (checked.return_value, "mask_tags" in checked.output)
    assert (False, [HASHED, None]) == (still.success, before)
    assert lab.export(PEOPLE + "unmasked: [email]").success
    assert [PLAIN, None] == emails(lab)


def test_the_tag_is_remembered_where_the_store_is_lost(lab: Lab) -> None:
    """The manifests say what was masked."""
    comment(lab, "email", "pii")
    lab.export(PEOPLE)
    comment(lab, "email", "")
    for file in lab.folder.glob(".rivet_state.db*"):
        file.unlink()

    outcome = lab.export(PEOPLE)

    assert (False, "RIVET_DRIFT_REFUSED") == (outcome.success, outcome.code)


def test_a_steps_own_word_on_refused_rows_holds_beside_masks(lab: Lab) -> None:
    """The masks have none, and take no step's place."""
    comment(lab, "email", "pii")
    steps = "transforms: [{type: cast, columns: {nick: int8}, on_error: stop}, {type: lower, columns: [email]}]"

    outcome = lab.export(PEOPLE + f"on_error: dead_letter\n{steps}")

    assert (False, "RIVET_TRANSFORM_ROW") == (outcome.success, outcome.code), outcome.message


def test_a_polled_column_is_masked(lab: Lab) -> None:
    """Mode poll is planned from a table too; deletes that it finds by comparing carry keys alone."""
    lab.sql("ALTER TABLE people ADD at timestamptz NOT NULL DEFAULT now() - interval '1 day'")
    comment(lab, "email", "pii")

    outcome = lab.export(PEOPLE + "mode: poll\nupdated_at_column: at\nprimary_key: [id]")

    assert (True, ["[REDACTED]", None]) == (outcome.success, emails(lab)), outcome.message


@pytest.mark.parametrize("engine", ["sqlserver"], indirect=True)
def test_a_table_of_sql_server_has_comments_and_a_view_has_its_own(lab: Lab) -> None:
    """The emulator keeps no MS_Description, so no column has a tag; the contract's count beside them."""
    lab.sql("CREATE VIEW seen AS SELECT id, email, nick FROM people")

    plain = lab.export(PEOPLE)
    tagged = lab.export(PEOPLE + "contract: {columns: {email: {tags: [pii]}}}")
    view = lab.export(f"name: seen\ntable: seen\nmask_tags: {RULES}")

    assert (True, True, ["[REDACTED]", None]) == (plain.success, tagged.success, emails(lab)), tagged.message
    assert (False, "RIVET_COLUMN_TAG_REFUSED") == (view.success, view.code)


def test_a_tag_that_comes_later_masks_from_then_on_and_is_told(lab: Lab) -> None:
    """The run says which column, and that older windows keep what they have."""
    export = "name: people\ntable: people\nmode: incremental\ncursor_column: id\n" + f"mask_tags: {RULES}"
    lab.export(export)
    comment(lab, "email", "pii")
    lab.insert("people", [{"id": 3, "email": "zoe@example.com", "nick": "z"}])

    lab.config(export)
    told = rivet("run")

    assert [PLAIN, None, "[REDACTED]"] == emails(lab)
    assert "masked from this run on: column email, by its tag 'pii'" in told.output
    assert "rivet state reset -e people" in told.output


def test_a_mask_of_the_steps_stands_in_for_a_tag_that_went(lab: Lab) -> None:
    """What is masked by name needs no tag."""
    comment(lab, "email", "pii")
    lab.export(PEOPLE)
    comment(lab, "email", "")

    outcome = lab.export(PEOPLE + "transforms: [{type: mask, fields: [email], method: redact}]")

    assert (True, ["[REDACTED]", None]) == (outcome.success, emails(lab))


def test_steps_see_the_mask_and_keep_their_numbers(lab: Lab) -> None:
    """The masks come first, and the first step of the YAML is still step 1."""
    comment(lab, "email", "pii")

    shown = lab.export(PEOPLE + "transforms: [{type: compute, columns: {copy: upper(email)}}]")
    refused = lab.export(PEOPLE + "transforms: [{type: cast, columns: {nick: int8}}]")

    assert shown.success
    assert "step 1 (cast)" in refused.message


def test_a_masked_column_is_in_no_dead_letter_and_no_profile(lab: Lab) -> None:
    """Rows that are set aside show no plain value, nor does a profile."""
    comment(lab, "email", "pii")
    steps = "transforms: [{type: filter, field: id, op: '>', value: 1}, {type: cast, columns: {nick: int8}}]"
    export = PEOPLE + f"on_error: dead_letter\nprofile: true\n{steps}"

    assert lab.export(export).success

    (letter,) = dead_letters(lab.config(export).export("people"))
    assert ("step 2 (cast)", []) == (letter["where"], lab.rows("people"))
    profile = {column.name: column for column in manifest_of(lab).profile.columns}
    assert {"id": 2, "nick": "x"} == letter["row"]
    assert profile["email"].is_masked


@pytest.mark.parametrize(
    ("mode", "column"),
    [("mode: incremental\ncursor_column: nick", "nick"), ("mode: chunked\nchunk_column: id\nchunk_size: 1", "id")],
)
def test_a_tagged_column_decides_no_rows(lab: Lab, mode: str, column: str) -> None:
    """As for `type: mask`: its values would stand in the state store and in manifests."""
    comment(lab, column, "pii")

    outcome = lab.export(PEOPLE + mode)

    assert (False, True) == (outcome.success, f"column '{column}' is masked" in outcome.message)


def test_a_plan_is_refused_when_a_column_is_masked_since(lab: Lab) -> None:
    """What a plan says of the columns holds, or nothing is applied."""
    lab.config(PEOPLE)
    planned = rivet("plan", "-o", "plan.json")
    comment(lab, "email", "pii: email")

    applied = rivet("apply", "plan.json")

    assert 0 == planned.return_value
    assert isinstance(applied.exception, PlanStale)
    assert "masked by 'pii: email'" in str(applied.exception)


def test_a_plan_is_refused_when_a_tag_came_that_no_rule_is_for(lab: Lab) -> None:
    """What it reads is not there as planned, and the tag is named."""
    lab.config("name: people\ntable: people\nmask_tags: {'pii: email': {method: redact}}")
    rivet("plan", "-o", "plan.json")
    comment(lab, "email", "pii: fax")

    applied = rivet("apply", "plan.json")

    assert isinstance(applied.exception, PlanStale)
    assert "tag 'pii: fax', and no rule is for it" in str(applied.exception)


def test_check_shows_what_is_masked_and_by_which_tag(lab: Lab) -> None:
    """One line for each column."""
    comment(lab, "email", "pii: email")
    lab.config(PEOPLE)

    assert "email: pii: email (rule 'pii: email')" in rivet("check").output


def test_views_and_queries_are_refused_unless_tags_are_known(lab: Lab) -> None:
    """A view's column without a comment may have one at its table; a contract, or a comment of its own, settles it."""
    comment(lab, "email", "pii: email")
    lab.sql("CREATE VIEW seen AS SELECT id, email FROM people")
    view = f"name: people\ntable: seen\nmask_tags: {RULES}\n"
    query = f"name: people\nquery: select id, email as mail from people\nmask_tags: {RULES}\n"

    assert "column 'id' of public.seen" in lab.export(view).message
    assert "of a query" in lab.export(query).message
    lab.sql("COMMENT ON COLUMN seen.id IS 'key'", "COMMENT ON COLUMN seen.email IS 'pii'")
    assert lab.export(view).success
    assert ["[REDACTED]", None] == emails(lab)


def test_a_partition_does_not_have_the_comments_of_its_table(lab: Lab) -> None:
    """PostgreSQL keeps comments of the parent there; a part read alone is refused, and not plain."""
    lab.sql(
        "CREATE TABLE whole (id int PRIMARY KEY, email text) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF whole FOR VALUES FROM (0) TO (10)",
        "COMMENT ON COLUMN whole.email IS 'pii'",
        f"INSERT INTO whole VALUES (1, '{PLAIN}')",
    )

    part = lab.export(f"name: people\ntable: part\nmask_tags: {RULES}")
    whole = lab.export(f"name: people\ntable: whole\nmask_tags: {RULES}")

    assert (False, "RIVET_COLUMN_TAG_REFUSED") == (part.success, part.code)
    assert (True, ["[REDACTED]"]) == (whole.success, emails(lab))


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_tags_of_a_contract_mask_where_there_are_no_comments(lab: Lab) -> None:
    """A renamed column leads to the source's; one that the contract does not name is refused."""
    contract = "{columns: {id: {}, mail: {tags: ['pii: email']}, nick: {}}}"
    rename = "transforms: [{type: rename, columns: {email: mail}}]\n"

    assert "keeps no comments" in lab.export(PEOPLE).message
    outcome = lab.export(PEOPLE + rename + f"contract: {contract}")

    assert (True, [HASHED, None]) == (outcome.success, [row["mail"] for row in lab.rows("people")])


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_a_standard_contract_masks_by_tags_and_classification(lab: Lab) -> None:
    """`tags` and `classification` of an ODCS file are tags."""
    (lab.folder / "people.odcs.yaml").write_text(
        "apiVersion: v3.0.2\nkind: DataContract\nschema:\n- name: people\n  properties:\n  - name: id\n"
        "  - {name: email, tags: [pii:email]}\n  - {name: nick, classification: restricted}\n"
    )
    rules = RULES[:-1] + ", restricted: {method: 'null'}}"

    outcome = lab.export(f"name: people\ntable: people\ncontract: people.odcs.yaml\nmask_tags: {rules}")

    assert (True, [HASHED, None]) == (outcome.success, emails(lab))
    assert [None, None] == [row["nick"] for row in lab.rows("people")]


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_a_chunk_that_is_read_again_is_masked_by_the_whole_contract(lab: Lab) -> None:
    """A repair of chunks judges by a part of the contract; its tags count all the same."""
    contract = "contract: {columns: {id: {}, email: {tags: [pii]}, nick: {}}}\n"
    export = PEOPLE + contract + "mode: chunked\nchunk_column: id\nchunk_size: 1\non_error: dead_letter\n"
    lab.export(export + "transforms: [{type: cast, columns: {nick: int8}}]")
    lab.sql("UPDATE people SET nick = '8', email = 'bob@example.com' WHERE id = 2")

    replayed = rivet("quarantine", "replay", "--execute")

    assert 0 == replayed.return_value, replayed.output
    assert ["[REDACTED]", "[REDACTED]"] == emails(lab)


def test_the_store_keeps_tags(tmp_path: Path) -> None:
    """None before anybody looked; columns are added, never lost; the last tag counts."""
    state = store_of(tmp_path)

    assert state.masked_columns("people") is None
    state.remember_masks("people", {})
    assert {} == state.masked_columns("people")
    state.remember_masks("people", {"email": "pii"})
    state.remember_masks("people", {"email": "pii: email", "nick": "pii"})
    assert {"email": "pii: email", "nick": "pii"} == state.masked_columns("people")
