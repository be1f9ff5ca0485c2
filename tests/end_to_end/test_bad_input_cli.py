"""What goes wrong, as a user of the command line meets it: a stable code, an exit code, the next step, no traceback.

Belongs here: one table per kind of trouble, and the commands that it touches. Not here: what is wrong inside
(`tests/engines`, `tests/faults`). Every answer of this file is read by `told`, which holds it to the rules of all.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import psycopg
import pytest
import yaml

from rivet_assets.cli import main as cli
from tests.servers import own as servers_own
from tests.servers.own import PASSWORD, Own
from tests.servers.postgres import ObjectStore

pytestmark = pytest.mark.xdist_group("bad_input")  # one set of servers; a second one for what is slow
apart = pytest.mark.xdist_group("apart")

WRONG = "open-sesame"
CANARY = "canary in a coal mine"  # stands in every row
ROWS, TEN_MILLION = 240, 10_000_000
TABLES = (
    f"CREATE ROLE rivet LOGIN PASSWORD '{PASSWORD}'",
    "GRANT pg_read_all_stats TO rivet",
    "CREATE TABLE orders (id bigint PRIMARY KEY, at timestamptz NOT NULL, note text)",
    "CREATE INDEX ON orders (at)",
    f"INSERT INTO orders SELECT g, timestamptz '2026-01-01Z' + g * interval '1 h', '{CANARY} ' || g "
    f"FROM generate_series(0, {ROWS - 1}) AS g",
    "CREATE TABLE big (id bigint NOT NULL, at timestamptz NOT NULL)",
    "INSERT INTO big VALUES (1, '2026-01-01Z')",
    "ANALYZE",
    # Real rows would take 15 s; what the catalog says of them is all that a check looks at.
    f"UPDATE pg_class SET reltuples = {TEN_MILLION} WHERE relname = 'big'",
    "CREATE VIEW slow AS SELECT id, note FROM orders",
    "GRANT SELECT ON orders, big, slow TO rivet",
)
SLOWED = "CREATE OR REPLACE VIEW slow AS SELECT id, note FROM orders WHERE pg_sleep(0.02) IS NOT NULL"
CHUNKED = {"name": "orders", "table": "orders", "mode": "chunked", "chunk_column": "id", "chunk_size": 100}
SLOW = {"name": "slow", "table": "slow", "tuning": {"statement_timeout_s": 1, "max_retries": 0}}


# --- the servers, and a project over them --------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What a command left on the terminal."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """Return all of it, as the eye sees it."""
        return self.out + self.err

    @property
    def document(self) -> Any:
        """Read stdout, which is one JSON document."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, str]:
        """Read the last line of stderr, as a script does; {} after a success."""
        lines = self.err.splitlines()
        return json.loads(lines[-1]) if self.code and lines and lines[-1].startswith("{") else {}

    @property
    def codes(self) -> set[str]:
        """Collect the codes that were told: in the line of the error, and anywhere in the document."""
        found = {self.error.get("code", "")}
        pending = [self.document] if self.out.startswith("{") else []
        while pending:
            value = pending.pop()
            pending += list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
            found |= {value["code"]} if isinstance(value, dict) and value.get("code") else set()
        return found - {""}


@dataclass(frozen=True)
class Project:
    """A folder with files of exports, and the environment that names the source."""

    folder: Path
    url: str

    def configure(self, *exports: Mapping[str, Any], file: str = "rivet.yaml", **source: Any) -> None:
        """Write a file of these exports, as Parquet into ./lake."""
        tuning = {"max_retries": 0, "throttle_ms": 0}
        head = {"source": {"type": "postgres", "url_env": "SHOP_URL", "tuning": tuning, **source}, "spark": "inline"}
        common = {"format": "parquet", "destination": {"type": "local", "path": "lake"}}
        document = head | {"exports": [common | dict(export) for export in exports]}
        (self.folder / file).write_text(yaml.safe_dump(document, sort_keys=False))

    def told(self, command: str, *, url: str = "") -> Answer:
        """Run `rivet --json-errors …`, and hold its answer to what is promised of all answers."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.chdir(self.folder)
            patch.setenv("SHOP_URL", url or self.url)
            patch.setattr(sys, "argv", ["rivet", "--json-errors", *shlex.split(command)])
            with pytest.raises(SystemExit) as ended:
                cli.main()
        answer = Answer(int(ended.value.code or 0), out.getvalue(), err.getvalue())
        for never in ("Traceback", 'File "', "psycopg.", WRONG, PASSWORD, CANARY):
            assert never not in answer.text, f"{never} in: {answer.text}"
        if answer.code:
            assert {"error", "code", "exit_class"} == set(answer.error), answer.err
        if "--json" in command and answer.out:
            assert isinstance(answer.document, dict)
        return answer

    @property
    def lake(self) -> Path:
        """Where the export's files are."""
        return self.folder / "lake/orders"

    def part(self) -> Path:
        """Choose one of several parts."""
        return sorted(self.lake.glob("*.parquet"))[1]


@pytest.fixture(scope="module")
def server(server_folder: Path) -> Iterator[Own]:
    """A PostgreSQL 15 with TLS by a certificate that has expired, and twenty connections."""
    if not servers_own.is_there():
        pytest.skip("no PostgreSQL 15: apt-get install postgresql-15")
    folder = server_folder / "bad-input"
    servers_own.make_certificates(folder / "tls")
    data = servers_own.initialise(folder)
    for kind, name in (("pem", "server.crt"), ("key", "server.key")):
        servers_own.hand_over(folder / f"tls/expired.{kind}", data / name)
    with servers_own.postgres(data, ssl="on", max_connections="20") as own:
        own.run(*TABLES)
        yield own


@pytest.fixture(scope="module")
def project(server: Own, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a commit of both exports and a plan; troubles at the source leave it as it is."""
    made = Project(tmp_path_factory.mktemp("bad-input"), server.url(user="rivet"))
    made.configure(CHUNKED)
    made.configure(SLOW, file="slow.yaml")
    authority = str(server.data.parent / "tls/ours.pem")
    made.configure(CHUNKED, file="tls.yaml", tls={"mode": "verify-full", "ca_file": authority})
    assert [0, 0, 0] == [made.told(line).code for line in ("run", "run -c slow.yaml", "plan -o good.json")]
    return made


@pytest.fixture
def fresh(server: Own, tmp_path: Path) -> Project:
    """A project of its own, with three committed parts and a plan of the next run."""
    made = Project(tmp_path, server.url(user="rivet"))
    made.configure(CHUNKED)
    assert 0 == made.told("run -q").code
    return made


# --- troubles at the source ----------------------------------------------------------------------


@contextmanager
def nothing(server: Own) -> Iterator[None]:
    """Change nothing there."""
    yield


@contextmanager
def revoked(server: Own) -> Iterator[None]:
    """Take the grant away for a while."""
    server.run("REVOKE SELECT ON orders FROM rivet")
    yield
    server.run("GRANT SELECT ON orders TO rivet")


@contextmanager
def full(server: Own) -> Iterator[None]:
    """Leave no connection to a user."""
    opened = []
    try:
        while True:
            opened.append(psycopg.connect(server.url(user="rivet")))
    except psycopg.OperationalError:
        yield
    finally:
        for connection in opened:
            connection.close()


@contextmanager
def slowed(server: Own) -> Iterator[None]:
    """Make a view too slow for its limit."""
    server.run(SLOWED)
    yield
    server.run("CREATE OR REPLACE VIEW slow AS SELECT id, note FROM orders")


LOOKS = {"check --json": 1, "doctor --json": 1}  # they found something: always 1
WORK = ("plan --json", "run --json -q", "reconcile --json", "repair --json", "repair --execute --json")
ASKING = ("discover --json", "init --source-env SHOP_URL --force -o new.yaml")
APPLY = "apply good.json --json"


@dataclass(frozen=True)
class Trouble:
    """What is wrong at a source, and what every command says of it."""

    code: str
    words: str  # what is wrong
    step: str  # what to do
    commands: Mapping[str, int]  # command → exit code
    during: Callable[[Own], Any] = nothing
    password: str = PASSWORD
    file: str = "rivet.yaml"


TROUBLES = {
    "wrong password": Trouble(
        "RIVET_SOURCE_AUTH", 'password authentication failed for user "rivet"', "Check `user`, the password reference",
        LOOKS | dict.fromkeys([*WORK, *ASKING, APPLY], 1), password=WRONG,
    ),
    "expired certificate": Trouble(
        "RIVET_SOURCE_TLS", "its certificate has expired", "Let the server's administrator renew it",
        LOOKS | dict.fromkeys([*WORK, ASKING[0]], 1), file="tls.yaml",
    ),
    "revoked grant": Trouble(
        "RIVET_SOURCE_PERMISSION", "may not read", "GRANT SELECT ON",
        LOOKS | dict.fromkeys([*WORK, APPLY], 1), during=revoked,
    ),
    "no connection left": Trouble(
        "RIVET_SOURCE_LOST", "remaining connection slots are reserved", "run again when some are free",
        LOOKS | dict.fromkeys([*WORK, *ASKING, APPLY], 2), during=full,
    ),
    "statement timeout": Trouble(
        "RIVET_SOURCE_STATEMENT_TIMEOUT", "ran into `tuning.statement_timeout_s`", "raise that limit",
        dict.fromkeys(["run --json -q", "reconcile --json", "repair --json"], 1), during=slowed, file="slow.yaml",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TROUBLES)
def test_trouble_at_the_source_has_one_code_and_one_next_step_in_every_command(
    project: Project, server: Own, name: str
) -> None:
    """Whatever the command, the cause is named with what to do; what was published stays as it was."""
    trouble = TROUBLES[name]
    url = server.url(user="rivet", password=trouble.password)
    wrong = {}

    with trouble.during(server):
        for command, exit_code in trouble.commands.items():
            own_file = command.startswith(("init", "apply"))
            answer = project.told(command if own_file else f"{command} -c {trouble.file}", url=url)
            said = [answer.code == exit_code, trouble.code in answer.codes]
            said += [words in answer.text.replace('\\"', '"') for words in (trouble.words, trouble.step)]
            if not all(said):
                wrong[command] = (said, answer)

    assert {} == wrong
    assert 0 == project.told(f"validate -c {trouble.file}").code


def test_command_that_someone_waits_for_is_not_tried_again_in_silence(
    project: Project, server: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`init`, `discover` and `plan` answer at once, whatever `max_retries` says; a run would wait."""
    project.configure(CHUNKED, file="patient.yaml", tuning={"max_retries": 9})
    sleep = "rivet_resources.retry.time.sleep"
    monkeypatch.setattr(sleep, lambda seconds: pytest.fail(f"waits for {seconds} s"))

    with full(server):
        codes = [project.told(f"{command} -c patient.yaml").code for command in ("discover", "plan")]
        codes.append(project.told(ASKING[1]).code)

    assert [2, 2, 2] == codes


def test_table_that_may_not_be_read_is_not_there_for_discover_and_init(project: Project, server: Own) -> None:
    """They name what there is."""
    with revoked(server):
        answers = [project.told(f"{command} --table orders") for command in ASKING]

    assert [(1, {"RIVET_SOURCE_UNKNOWN_TABLE"})] * 2 == [(answer.code, answer.codes) for answer in answers]
    assert all("No table that this user may read is called 'orders'; there are big" in each.err for each in answers)


def test_missing_index_on_ten_million_rows_is_told_with_the_index(project: Project) -> None:
    """By check, plan and, with --strict, the exit code; no command reads the table."""
    window = {"mode": "time_window", "time_column": "at", "start": "2026-01-01"}
    blocks = {
        "inc": {"mode": "incremental", "cursor_column": "at"},
        "cut": {"mode": "chunked", "chunk_column": "id", "chunk_count": 10},
        "day": window,
    }
    project.configure(*({"name": name, "table": "big", **block} for name, block in blocks.items()), file="big.yaml")

    checked = project.told("check -c big.yaml --json")
    planned = project.told("plan -c big.yaml -e inc")

    assert ["DEGRADED", "UNSAFE", "UNSAFE"] == [each["verdict"] for each in checked.document["exports"]]
    assert 3 == checked.out.count("about 10,000,000 rows")
    for column in ("at", "id"):
        assert f'CREATE INDEX CONCURRENTLY ON \\"public\\".\\"big\\" (\\"{column}\\");' in checked.out
    told = re.search(r'advice +CREATE INDEX CONCURRENTLY ON "public"."big" \("at"\);', planned.out)
    assert (0, True) == (planned.code, told is not None), planned.out
    assert (0, 1) == (checked.code, project.told("check -c big.yaml --strict --json").code)


def test_connections_that_are_nearly_used_up_are_told_before_they_are(project: Project, server: Own) -> None:
    """Doctor fails and check warns for an export that would need more than there are."""
    project.configure({**CHUNKED, "chunk_size": 10, "parallel": 8}, file="wide.yaml")
    with ExitStack() as opened:
        for _ in range(14):
            opened.enter_context(psycopg.connect(server.url()))
        examined, checked = (project.told(f"{command} -c wide.yaml --json") for command in ("doctor", "check"))

    (finding,) = [row for row in examined.document["checks"] if row["name"] == "connections"]
    assert (1, "fail", True) == (examined.code, finding["status"], "max_connections" in finding["hint"])
    assert "of 20 connections are in use" in checked.out
    assert 0 == checked.code


@apart
@pytest.mark.parametrize(("place", "warning"), [("standby", "a read-only standby"), ("pooler", "a pooler")])
def test_standby_and_pooler_are_named_and_read_from(
    server: Own, server_folder: Path, tmp_path: Path, place: str, warning: str
) -> None:
    """Doctor says what they cannot do, and how to have it; a run over four connections, and its proofs, succeed."""
    with ExitStack() as stack:
        if place == "standby":
            data = servers_own.standby_of(server, server_folder / "bad-input-standby")
            port = stack.enter_context(servers_own.postgres(data, max_connections="20")).port
        else:
            port = stack.enter_context(servers_own.pgbouncer(server, server_folder / "bad-pool", users=["rivet"]))
        made = Project(tmp_path, f"postgresql://rivet:{PASSWORD}@127.0.0.1:{port}/postgres")
        made.configure({**CHUNKED, "parallel": 4, "chunk_size": 50})
        commands = ("check --json", "doctor --json", "plan --json -o p.json", "apply p.json --json", "validate --json")
        answers = [made.told(command) for command in (*commands, "reconcile --depth rows --json", "repair --json")]

    (finding,) = [row for row in answers[1].document["checks"] if row["name"] == place]
    assert [0] * 7 == [answer.code for answer in answers]
    assert ("warn", True) == (finding["status"], finding["detail"].startswith(warning))
    assert finding["hint"]
    assert ROWS == answers[3].document["rows"]


# --- damage at the destination -------------------------------------------------------------------


def flip(project: Project) -> None:
    """Change a byte, not the size."""
    content = bytearray(project.part().read_bytes())
    content[len(content) // 2] ^= 0xFF
    project.part().write_bytes(content)


def edit(**changes: Any) -> Callable[[Project], None]:
    """Change fields of the manifest that readers go by; those of its first part by `part_…`."""

    def work(project: Project) -> None:
        path = project.lake / "_rivet/all.json"
        document = json.loads(path.read_text())
        for name, value in changes.items():
            place = document["parts"][0] if name.startswith("part_") else document
            place[name.removeprefix("part_")] = value
        path.write_text(json.dumps(document))

    return work


@dataclass(frozen=True)
class Damage:
    """What is wrong in an export's folder: what validate says, and how repair ends it."""

    make: Callable[[Project], object]
    code: str
    exit_code: int = 3
    repair: str = "repaired"  # '' where it refuses, and says what helps


DAMAGES = {
    "corrupted part": Damage(flip, "PART_CHECKSUM_MISMATCH"),
    "truncated part": Damage(lambda p: p.part().write_bytes(p.part().read_bytes()[:99]), "PART_SIZE_MISMATCH"),
    "missing part": Damage(lambda p: p.part().unlink(), "PART_MISSING"),
    "stale _SUCCESS": Damage(
        lambda p: (p.lake / "_SUCCESS").write_text("xxh3:0123456789abcdef\n"), "SUCCESS_STALE"
    ),
    "missing _SUCCESS": Damage(lambda p: (p.lake / "_SUCCESS").unlink(), "SUCCESS_STALE"),
    "edited copy": Damage(lambda p: (p.lake / "manifest.json").write_text("{}"), "SUCCESS_STALE"),
    "edited counts": Damage(edit(row_count=ROWS + 1, part_rows=101), "MANIFEST_INCONSISTENT"),
    "part elsewhere": Damage(edit(part_path="../../rivet.yaml"), "MANIFEST_INCONSISTENT", repair=""),
    "folder elsewhere": Damage(edit(window_folder="../.."), "MANIFEST_INCONSISTENT", repair=""),
    "window that is SQL": Damage(edit(window="'; DROP TABLE orders; --"), "MANIFEST_INCONSISTENT", repair="stale"),
    "edited total": Damage(edit(row_count=999), "MANIFEST_INCONSISTENT", repair=""),
    "half a manifest": Damage(
        lambda p: (p.lake / "_rivet/all.json").write_text('{"half":'), "MANIFEST_READ_ERROR", 1, repair=""
    ),
}  # fmt: skip


@apart
@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_by_validate_and_its_next_step_ends_it(fresh: Project, name: str) -> None:
    """The step that is printed is the one that helps: what repair can mend it mends, else it says what to do."""
    damage = DAMAGES[name]
    damage.make(fresh)

    found, told = fresh.told("validate --json"), fresh.told("validate")
    planned, repaired = fresh.told("repair --json"), fresh.told("repair --execute --json")

    assert (damage.exit_code, True) == (found.code, f"RIVET_VERIFY_{damage.code}" in found.codes), found.out
    assert "checksums not recomputed" not in told.out
    steps = {each["next_step"] for each in found.document["exports"][0]["findings"] if each["kind"] != "advisory"}
    restore = any("restore _rivet/all.json; or remove it" in step for step in steps)
    assert restore == (damage.repair != "repaired")
    if damage.repair == "repaired":
        assert {"`rivet repair -e orders` names what it would read again; with --execute it does"} == steps
        assert "planned" == planned.document["exports"][0]["windows"][0]["status"]
    if damage.repair:
        assert damage.repair == repaired.document["exports"][0]["windows"][0]["status"]
    else:
        assert {(1, "RIVET_MANIFEST_UNREADABLE")} == {(each.code, each.error["code"]) for each in (planned, repaired)}
        assert "Restore it from a copy; or remove it and run its window again" in repaired.err
    if damage.repair != "repaired":
        (fresh.lake / "_rivet/all.json").unlink()
        assert 0 == fresh.told("run -q").code
    assert 0 == fresh.told("validate --json").code
    assert ROWS == sum(part["rows"] for part in json.loads((fresh.lake / "_rivet/all.json").read_text())["parts"])
    assert (fresh.folder / "rivet.yaml").exists()


@apart
def test_missing_object_of_a_bucket_is_found_and_exported_again(
    s3_server: ObjectStore, server: Own, tmp_path: Path
) -> None:
    """As on a local disk; a bucket that is not there is an error with what to do."""
    made = Project(tmp_path, server.url(user="rivet"))
    place = {"type": "s3", "endpoint": s3_server.endpoint, "region": "us-east-1", "prefix": "bad-input"}
    made.configure({**CHUNKED, "destination": {**place, "bucket": s3_server.bucket}})
    made.configure({**CHUNKED, "destination": {**place, "bucket": "no-such-bucket"}}, file="none.yaml")
    assert 0 == made.told("run -q").code
    client = boto3.client("s3", endpoint_url=s3_server.endpoint, region_name="us-east-1")
    listed = client.list_objects_v2(Bucket=s3_server.bucket, Prefix="bad-input/orders/")["Contents"]
    client.delete_object(Bucket=s3_server.bucket, Key=next(e["Key"] for e in listed if e["Key"].endswith("parquet")))

    found, mended = made.told("validate --json"), made.told("repair --execute --json")

    assert (3, {"RIVET_VERIFY_PART_MISSING"}) == (found.code, found.codes - {"RIVET_FINDINGS"})
    assert (0, 0) == (mended.code, made.told("validate --json").code)
    for command in ("run --json -q", "doctor --json", "validate --json", "reconcile --json", "plan --json"):
        answer = made.told(f"{command} -c none.yaml")
        code = "RIVET_VERIFY_LIST_ERROR" if command.startswith("validate") else "RIVET_DESTINATION_BUCKET_MISSING"
        assert (1, True) == (answer.code, code in answer.codes), (command, answer)
        assert "bucket no-such-bucket does not exist" in answer.text


# --- names ---------------------------------------------------------------------------------------

SQL, QUOTED = "'; DROP TABLE orders; --", 'x"; DROP TABLE orders; --'
COMMANDS_OF_NAMES = ("check", "doctor", "plan", "run", "validate", "reconcile", "repair", "state reset", "journal")


@pytest.mark.matrix
@pytest.mark.parametrize("command", COMMANDS_OF_NAMES)
@pytest.mark.parametrize(("name", "hint"), [("ordres", "Did you mean orders?"), (SQL, "there are orders")])
def test_unknown_export_is_refused_with_those_there_are(project: Project, command: str, name: str, hint: str) -> None:
    """By every command that takes a name."""
    answer = project.told(f"{command} -e {shlex.quote(name)}")

    assert (1, {"RIVET_CONFIG_INVALID"}, True) == (answer.code, answer.codes, hint in answer.err)


# Key → the export, and what is said of it.
CONFIGURED: Mapping[str, tuple[dict[str, Any], str]] = {
    "table": ({"table": QUOTED}, "RIVET_CONFIG_INVALID"),
    "cursor_column": ({"mode": "incremental", "cursor_column": QUOTED}, "RIVET_SOURCE_UNKNOWN_COLUMN"),
    "chunk_column": ({"mode": "chunked", "chunk_column": QUOTED}, "RIVET_SOURCE_UNKNOWN_COLUMN"),
    "time_column": ({"mode": "time_window", "start": "2026-01-01", "time_column": QUOTED},
                    "RIVET_SOURCE_UNKNOWN_COLUMN"),
    "updated_at_column": ({"mode": "poll", "updated_at_column": QUOTED}, "RIVET_SOURCE_UNKNOWN_COLUMN"),
    "columns": ({"columns": {QUOTED: "text"}}, "RIVET_SOURCE_UNKNOWN_COLUMN"),
    "unique_columns": ({"quality": {"unique_columns": [QUOTED]}}, "RIVET_SOURCE_UNKNOWN_COLUMN"),
    "slot": ({"mode": "cdc", "cdc": {"slot": SQL}}, "RIVET_CONFIG_INVALID"),
    "two statements": ({"table": None, "query": "SELECT 1 AS id; DROP TABLE orders"}, "RIVET_SOURCE_REFUSED"),
}  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize("key", CONFIGURED)
def test_sql_in_a_configured_name_is_a_name(server: Own, tmp_path: Path, key: str) -> None:
    """Check, plan and run refuse it by its class, and execute nothing."""
    block, code = CONFIGURED[key]
    made = Project(tmp_path, server.url(user="postgres"))  # who could drop the table
    export = {"name": "orders", "table": "orders"} | block
    made.configure({name: value for name, value in export.items() if value is not None})

    answers = [made.told(command) for command in ("check --json", "plan --json", "run --json -q")]

    assert [(1, True)] * 3 == [(answer.code, code in answer.codes) for answer in answers], answers
    assert [(ROWS,)] == server.run("SELECT count(*) FROM orders")


def test_sql_in_parameters_and_names_of_exports_is_text(server: Own, tmp_path: Path) -> None:
    """A parameter is bound, and a name is a name: both exports run, and are proved."""
    made = Project(tmp_path, server.url(user="postgres"))
    made.configure(
        {"name": "bound", "query": "SELECT id FROM orders WHERE note = :note", "params": {"note": SQL}},
        {"name": QUOTED, "table": "orders"},
    )

    answers = [made.told(f"{command} --json") for command in ("check", "run -q", "validate", "reconcile", "repair")]

    assert [0] * 5 == [answer.code for answer in answers]
    assert ROWS == answers[1].document["rows"]


EVIL = (SQL, QUOTED, "../../etc/passwd")
ARGUMENTS = {
    "validate --window": "has no committed window", "reconcile --window": "has no committed window",
    "repair --execute --window": "has no committed window", "validate --run-id": "no committed window of run",
    "run --partition": "No export has mode time_window", "plan --partition": "No export has mode time_window",
    "discover --table": "No table that this user may read is called",
    "init --source-env SHOP_URL -o other.yaml --table": "No table that this user may read is called",
    "discover --source": "There is no source", "init --source-env": "is not set",
    "apply": "cannot be read", "repair --report": "cannot be read",
}  # fmt: skip


@pytest.mark.parametrize("command", ARGUMENTS)
def test_sql_in_an_argument_is_a_name_that_is_not_there(project: Project, server: Own, command: str) -> None:
    """Whatever it is, it is told with what is allowed, and executed nowhere."""
    answers = [project.told(f"{command} {shlex.quote(evil)}", url=server.url()) for evil in EVIL]

    assert [1] * len(EVIL) == [answer.code for answer in answers]
    assert all(ARGUMENTS[command] in answer.err for answer in answers), answers
    assert [(ROWS,)] == server.run("SELECT count(*) FROM orders")
    assert not (project.folder / "other.yaml").exists()


def test_partition_that_is_no_window_is_refused(server: Own, tmp_path: Path) -> None:
    """By run and plan of an export that has windows."""
    made = Project(tmp_path, server.url())
    made.configure(
        {"name": "days", "table": "orders", "mode": "time_window", "time_column": "at", "start": "2026-01-01"}
    )

    answers = [made.told(f"{command} --partition {shlex.quote(SQL)}") for command in ("run", "plan")]

    assert [(1, {"RIVET_CONFIG_INVALID"})] * 2 == [(answer.code, answer.codes) for answer in answers], answers
    assert [(ROWS,)] == server.run("SELECT count(*) FROM orders")
