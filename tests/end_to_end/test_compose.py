"""docker-compose.yaml as far as it goes without Docker: its shape, its image's recipe, its services as processes.

Not proved here: that the images are there and start, that a volume is shared, and Docker's run launcher, in whose place
runs are processes of the code server.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import psycopg
import pytest
import yaml

from tests.servers import own
from tests.servers.postgres import DEBIAN_POSTGRES, ObjectStore, free_port, moto_s3

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yaml"
OURS = ("bucket", "user_code", "webserver", "daemon")
BINARIES = Path(sys.executable).parent
SECONDS = 240  # for anything to come true, beside other suites


def interpolated(text: str, env: Mapping[str, str]) -> str:
    """Put variables into a text as Compose does: `${NAME}`, `${NAME:-default}`, one within another; `$$` is a `$`."""
    inner = re.compile(r"(?<!\$)\$\{(\w+)(?::-([^${}]*))?\}")
    while inner.search(text):
        text = inner.sub(lambda found: env.get(found[1]) or found[2] or "", text)
    return text.replace("$$", "$")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The file as Compose reads it, with no variable set."""
    found: dict[str, Any] = yaml.safe_load(interpolated(FILE.read_text(), {"PWD": str(ROOT)}))
    return found


def test_file_is_what_compose_takes() -> None:
    """Judged by the Compose Specification's own schema, as `check-jsonschema` brings it."""
    command = [str(BINARIES / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(FILE)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)

    assert 0 == told.returncode, told.stdout + told.stderr


def test_image_is_built_as_its_linter_wants(compose: dict[str, Any], tmp_path: Path) -> None:
    """Every service of ours has the same recipe, and hadolint finds nothing in it."""
    recipes = {compose["services"][name]["build"]["dockerfile_inline"] for name in OURS}
    (tmp_path / "Dockerfile").write_text(*recipes)
    linted = subprocess.run(
        [BINARIES / "hadolint", tmp_path / "Dockerfile"], capture_output=True, text=True, check=False
    )

    assert (0, "") == (linted.returncode, linted.stdout)


def test_image_gets_what_it_is_built_from_and_no_secret() -> None:
    """All that pip needs and the example, and nothing that a checkout collects: data, keys, environments."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]

    def is_sent(path: str) -> bool:
        sent = True
        for rule in rules:  # the last that matches decides
            pattern = rule.removeprefix("!").removeprefix("**/")
            parts = [path, *map(str, Path(path).parents)]
            if any(fnmatch.fnmatch(each, pattern) or fnmatch.fnmatch(Path(each).name, pattern) for each in parts):
                sent = rule.startswith("!")
        return sent

    needed = ["pyproject.toml", "README.md", "LICENSE", "rivet_assets/definitions.py", "docs/examples/shop.yaml"]
    refused = [".env", ".git/config", ".venv/bin/python", "config/rivet.yaml", "rivet_demo/source.url"]
    refused += [".rivet_state.db", "rivet_assets/__pycache__/definitions.cpython-311.pyc"]
    assert ([True] * len(needed), [False] * len(refused)) == ([*map(is_sent, needed)], [*map(is_sent, refused)])


def test_runs_get_what_the_code_gets(compose: dict[str, Any]) -> None:
    """A run's container is told by name which variables it has, so none of them may be forgotten."""
    told = yaml.safe_load(compose["configs"]["dagster_yaml"]["content"])["run_launcher"]["config"]
    given = set(compose["services"]["user_code"]["environment"]) - {"DAGSTER_CURRENT_IMAGE"}

    assert given == set(told["env_vars"])
    for name in ("webserver", "daemon"):  # who starts and ends runs hands them on
        assert given == set(compose["services"][name]["environment"])
        assert any("docker.sock" in volume for volume in compose["services"][name]["volumes"])
    assert compose["networks"]["default"]["name"] == told["network"]
    named = {volume["name"] for volume in compose["volumes"].values() if volume}
    assert (
        {"rivet_logs", "rivet_lake"}
        == named
        == {each.partition(":")[0] for each in told["container_kwargs"]["volumes"][:2]}
    )


def test_services_come_back_and_say_how_they_are(compose: dict[str, Any]) -> None:
    """Each is restarted and asked for its health, and waits for the health of what it needs; images are pinned."""
    lasting = {name: each for name, each in compose["services"].items() if "profiles" not in each}
    for name, each in lasting.items():
        assert name == "bucket" or ("unless-stopped" == each["restart"] and "test" in each["healthcheck"]), name
        assert re.search(r":[\w.-]*\d|^rivet:local$", each["image"]), each["image"]
        for needed, wait in each.get("depends_on", {}).items():
            done = "service_completed_successfully" if needed == "bucket" else "service_healthy"
            assert done == wait["condition"]


def test_example_is_refused_by_no_rule_of_ours(compose: dict[str, Any], tmp_path: Path) -> None:
    """With its own names of hosts, which are other machines: what is missing here is the machines, nothing else."""
    env = compose["services"]["user_code"]["environment"]
    example = (ROOT / "docs/examples/shop.yaml").read_text()
    (tmp_path / "rivet.yaml").write_text(example)
    env = {**os.environ, **env, "RIVET_CONFIG": str(tmp_path / "rivet.yaml"), "PYTHONPATH": str(ROOT)}
    env["RIVET_STATE_URL"] = f"sqlite:///{tmp_path}/state.db"
    command = [sys.executable, "-m", "rivet_assets.cli.main", "check"]
    told = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    said = told.stdout + told.stderr
    assert "PostgreSQL at postgres:5432 cannot be reached" in said, said
    assert not any(word in said for word in ("tls", "endpoint", "Traceback")), said


# --- as processes --------------------------------------------------------------------------------


@dataclass
class Project:
    """The services of ours, each with a folder of its own in place of its container."""

    compose: dict[str, Any]
    folder: Path
    database: own.Own
    store: ObjectStore
    ports: dict[str, int] = field(default_factory=lambda: {"4000": free_port(), "3000": free_port()})
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def _here(self, text: str, service: str) -> str:
        """Name a service's hosts, ports and folders as they are on this machine."""
        here = {
            "@postgres:5432": f"@127.0.0.1:{self.database.port}",
            "http://minio:9000": self.store.endpoint,
            "/dagster_home": str(self.folder / service / "home"),
            "/logs": str(self.folder / "logs"),
            "/src/": f"{ROOT}/",
            "host: user_code": "host: 127.0.0.1",
            **{number: str(port) for number, port in self.ports.items()},
        }
        for there, ours in here.items():
            text = re.sub(rf"{re.escape(there)}(?!\d)", ours, text)
        return text

    def env(self, service: str) -> dict[str, str]:
        told = {
            name: self._here(str(text), service)
            for name, text in self.compose["services"][service]["environment"].items()
        }
        if "PGHOST" in told:
            told |= {"PGHOST": "127.0.0.1", "PGPORT": str(self.database.port)}
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("RIVET_", "DAGSTER_", "AWS_"))}
        return {**kept, **told, "PATH": f"{BINARIES}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}

    def command(self, service: str, command: str | list[str]) -> list[str]:
        words = shlex.split(command) if isinstance(command, str) else command
        return [self._here(word, service) for word in words]

    def prepare(self, service: str) -> None:
        """Write what the service's container would have: dagster.yaml, workspace.yaml."""
        (self.folder / service / "home").mkdir(parents=True, exist_ok=True)
        (self.folder / "logs").mkdir(exist_ok=True)
        for each in self.compose["services"][service].get("configs", ()):
            content = self.compose["configs"][each["source"]]["content"]
            if each["source"] == "dagster_yaml":
                settings = yaml.safe_load(content)
                settings.pop("run_launcher")  # Docker's; the default one makes processes
                content = yaml.safe_dump(settings)
            Path(self._here(each["target"], service)).write_text(self._here(content, service))

    def start(self, service: str) -> None:
        self.prepare(service)
        with open(self.folder / service / "output", "ab") as output:
            self.running[service] = subprocess.Popen(
                self.command(service, self.compose["services"][service]["command"]),
                cwd=self.folder / service, env=self.env(service), stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def stop(self, service: str, number: int = 9) -> None:
        process = self.running.pop(service)
        os.killpg(process.pid, number)
        process.wait(timeout=60)

    def is_healthy(self, service: str) -> bool:
        """Ask as Docker would."""
        test = self.compose["services"][service]["healthcheck"]["test"]
        assert "CMD" == test[0]
        asked = subprocess.run(
            self.command(service, test[1:]),
            env=self.env(service),
            cwd=self.folder / service,
            capture_output=True,
            check=False,
        )
        return 0 == asked.returncode

    def ask(self, query: str, **variables: Any) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        url = f"http://127.0.0.1:{self.ports['3000']}/graphql"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["data"]

    def output(self) -> str:
        return "\n".join(f"== {file.parent.name}\n{file.read_text()[-3000:]}" for file in self.folder.glob("*/output"))

    def until(self, what: Callable[[], object]) -> Any:
        """Wait until something is true; return it."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            try:
                if found := what():
                    return found
            except OSError:
                pass
            time.sleep(0.5)
        raise AssertionError(f"{what} did not come true\n{self.output()}")

    def run(self, *path: str) -> str:
        """Materialise an asset through the web server; return how the run ended."""
        launch = """mutation($path: [String!]!) { launchRun(executionParams: {mode: "default", selector: {
            repositoryLocationName: "rivet", repositoryName: "__repository__", pipelineName: "__ASSET_JOB",
            assetSelection: [{path: $path}]}}) {
                ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
        answer = self.ask(launch, path=list(path))["launchRun"]
        status = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"

        def ended() -> str:
            found: str = self.ask(status, id=answer["run"]["runId"])["runOrError"]["status"]
            return found if found in ("SUCCESS", "FAILURE", "CANCELED") else ""

        return str(self.until(ended))


@contextmanager
def serving(project: Project) -> Iterator[Project]:
    """Start the services in the order that the file says, each when what it needs is healthy."""
    try:
        for service in ("user_code", "webserver", "daemon"):
            project.start(service)
            project.until(lambda name=service: project.is_healthy(name))  # type: ignore[misc]
        yield project
    finally:
        for service in list(project.running):
            project.stop(service)


@pytest.fixture
def project(compose: dict[str, Any], tmp_path: Path, server_folder: Path) -> Iterator[Project]:
    """The project with its database, filled as the image of PostgreSQL does it, and its bucket made.

    The object store is its own: other tests write into a bucket `lake`, too.
    """
    if not own.is_there():
        pytest.skip("no PostgreSQL 15 from Debian")
    with moto_s3("another") as store, own.postgres(own.initialise(server_folder / "compose")) as database:
        made = compose["services"]["postgres"]["environment"]
        database.run(
            f"CREATE ROLE dagster SUPERUSER LOGIN PASSWORD '{made['POSTGRES_PASSWORD']}'", "CREATE DATABASE dagster"
        )
        place = ["-h", str(database.data.parent), "-p", str(database.port), "-U", "dagster", "-d", "dagster"]
        script = ROOT / "docs/examples/shop.sql"
        filled = [DEBIAN_POSTGRES / "psql", *place, "-v", "ON_ERROR_STOP=1", "-q", "-f", script]
        subprocess.run(filled, check=True, capture_output=True)
        project = Project(compose, tmp_path / "project", database, store)
        project.prepare("bucket")
        for _ in range(2):  # it is there at the second `up`
            command = project.command("bucket", compose["services"]["bucket"]["command"])
            subprocess.run(command, env=project.env("bucket"), check=True)
        yield project


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.rare
def test_services_work_together(project: Project) -> None:
    """Health, a run, its files in the bucket, its logs, Rivet's own tables, and a code server that is killed."""
    with serving(project):
        first = project.run("shop", "customers")
        project.stop("user_code")
        project.start("user_code")
        project.until(lambda: project.is_healthy("user_code"))
        second = project.run("shop", "orders")
        said = project.output()

    env = project.env("user_code")
    keys = {"aws_access_key_id": env["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": env["AWS_SECRET_ACCESS_KEY"]}
    listed = boto3.client("s3", endpoint_url=env["LAKE_ENDPOINT"], region_name="us-east-1", **keys).list_objects_v2(
        Bucket="lake"
    )
    folders = {each["Key"].partition("/")[0] for each in listed["Contents"] if each["Key"].endswith(".parquet")}
    assert (("SUCCESS", "SUCCESS"), {"customers", "orders"}) == ((first, second), folders), said
    assert [] != [file for file in (project.folder / "logs").rglob("*.err") if file.stat().st_size]
    with (
        psycopg.connect(env["RIVET_STATE_URL"]) as ours,
        psycopg.connect(project.database.url() + "", dbname="dagster") as theirs,
    ):
        tables = "SELECT count(*) FROM information_schema.tables WHERE table_name = 'run_journal'"
        assert ((1,), (0,)) == (ours.execute(tables).fetchone(), theirs.execute(tables).fetchone())
