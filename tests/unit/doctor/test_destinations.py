"""Where credentials come from, and what destinations prove: told without a secret, each trouble with its fix."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rivet_assets.config.load import load_text
from rivet_assets.doctor.examine import examine
from rivet_assets.doctor.report import document, render
from rivet_resources.contracts.evidence import Finding
from rivet_resources.destinations import azure_client, azure_credentials, gcs_client, gcs_credentials, s3_credentials
from rivet_resources.destinations import probe as probing
from rivet_resources.destinations.gcs import Gcs
from rivet_resources.destinations.probe import probe
from rivet_resources.destinations.s3 import S3
from rivet_resources.destinations.s3_client import refusal
from rivet_resources.engines.mysql.source import MySql
from rivet_resources.engines.postgres.source import Postgres
from rivet_resources.engines.shared.credentials import findings
from rivet_resources.engines.shared.preflight import connections_finding, line_finding, version_finding
from rivet_resources.errors import (
    BucketMissing,
    DestinationAuth,
    DestinationError,
    DestinationPermission,
    DestinationUnreachable,
    WindowTaken,
)

SECRET = "canary-in-a-coal-mine"
AZURE = azure_client.AzureLocation("shop", "lake")
HERE = {"host": "localhost", "user": "u", "database": "d"}


@pytest.fixture(autouse=True)
def nobody_is_signed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither this machine's cloud credentials nor its home are seen."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION",
                 "AWS_DEFAULT_REGION", "GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST", "PGPASSWORD",
                 "PGPASSFILE"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


# --- sources -------------------------------------------------------------------------------------

# Block, variables, whether a secret is written in the file; status and words of the answer.
SOURCES: list[tuple[dict[str, Any], dict[str, str], bool, str, str]] = [
    ({"url_env": "DSN"}, {"DSN": f"postgresql://u:{SECRET}@h/d"}, False, "ok", "the variable DSN (from url_env), set"),
    ({"url_env": "DSN"}, {}, False, "fail", "the variable DSN (from url_env) is not set"),
    ({"url_env": "DSN"}, {"DSN": ""}, False, "warn", "is set, but empty"),
    ({"url": f"postgresql://u:{SECRET}@h/d"}, {}, True, "warn", "url stands in the file"),
    ({"url": f"postgresql://u:{SECRET}@h/d"}, {}, False, "ok", "filled in from a variable"),
    ({**HERE, "password": SECRET}, {}, True, "warn", "password stands in the file"),
    ({**HERE, "password_env": "PW"}, {"PW": SECRET}, False, "ok", "the variable PW (from password_env), set"),
    ({**HERE, "password_env": "PW"}, {}, False, "fail", "the variable PW (from password_env) is not set"),
    (HERE, {}, False, "ok", "none in PGPASSWORD or ~/.pgpass"),
    (HERE, {"PGPASSWORD": SECRET}, False, "ok", "libpq takes PGPASSWORD"),
    ({"url_file": "/no/such/file"}, {}, False, "fail", "cannot be read"),
]


@pytest.mark.parametrize(("block", "variables", "is_written", "status", "words"), SOURCES)
def test_sources_tell_where_their_secret_comes_from(
    block: dict[str, Any], variables: dict[str, str], is_written: bool, status: str, words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The first that is given counts, and is named; never what it holds."""
    monkeypatch.delenv("DSN", raising=False)
    monkeypatch.delenv("PW", raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)

    (found,) = findings(Postgres(**block), is_written=is_written)

    assert (status, True) == (found.status, words in found.text)
    assert SECRET not in found.text + found.fix


@pytest.mark.parametrize(("mode", "status"), [(0o644, "warn"), (0o600, "ok")])
def test_file_of_a_secret_that_others_may_read_is_a_warning(tmp_path: Path, mode: int, status: str) -> None:
    """The fix closes it."""
    file = tmp_path / "url"
    file.write_text(f"mysql://u:{SECRET}@h/d")
    file.chmod(mode)

    (found,) = findings(MySql(url_file=file), is_written=False)

    assert (status, f"chmod 600 {file}" if status == "warn" else "") == (found.status, found.fix)


def test_secret_in_the_file_is_told_of_the_source_that_has_it(tmp_path: Path) -> None:
    """One that is filled in by ${…} stands elsewhere; both run into nobody listening, and no secret is shown."""
    url = f"postgresql://u:{SECRET}@127.0.0.1:1/d"
    text = f"""
sources:
  written: {{type: postgres, url: "{url}"}}
  filled: {{type: postgres, url: "${{DSN}}"}}
spark: inline
exports:
  - {{name: a, source: written, table: a, format: csv, destination: {{type: local, path: {tmp_path}/lake}}}}
  - {{name: b, source: filled, table: b, format: csv, destination: {{type: local, path: {tmp_path}/lake}}}}
"""
    rows = examine(load_text(text, file=tmp_path / "rivet.yaml", params={"DSN": url}))

    assert {"source written": "warn", "source filled": "ok"} == {
        row.about: row.status for row in rows if row.name == "credentials"
    }
    assert SECRET not in str(render(rows)) + json.dumps(document(rows, config_path=None))


# --- what engines share --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "needed", "status"), [(1, 1, "ok"), (70, 1, "ok"), (80, 1, "warn"), (80, 16, "warn"), (80, 17, "fail")]
)
def test_connections_are_judged_by_what_is_left_for_us(used: int, needed: int, status: str) -> None:
    """Of 100, three are for administrators: 17 are left when 80 are used, and the doctor's own will be free again."""
    found = connections_finding(used, 100, reserved=3, needed=needed, fix="raise it")

    assert (status, "" if status == "ok" else "raise it") == (found.status, found.fix)


@pytest.mark.parametrize(("version", "status"), [((9, 6), "warn"), ((12, 0), "ok"), ((18, 1), "ok"), ((19, 0), "warn")])
def test_versions_outside_of_what_this_is_written_for_are_told(version: tuple[int, ...], status: str) -> None:
    """Too old and too new are warnings: most of it works."""
    assert status == version_finding("PostgreSQL", version, oldest=(12,), newest=18).status


@pytest.mark.parametrize(
    ("mode", "cipher", "is_near", "status"),
    [
        ("", "", True, "ok"), ("disable", "", False, "warn"), ("require", "TLSv1.3", False, "warn"),
        ("require", "TLSv1.3", True, "ok"), ("verify-ca", "TLSv1.3", False, "ok"),
        ("verify-full", "TLSv1.3", False, "ok"),
    ],
)  # fmt: skip
def test_lines_are_judged_by_who_could_listen(mode: str, cipher: str, is_near: bool, status: str) -> None:
    """On this machine nobody, elsewhere anybody between."""
    assert status == line_finding(mode, cipher=cipher, is_near=is_near).status


# --- S3 ------------------------------------------------------------------------------------------


def of(found: Any) -> dict[str, Finding]:
    """Return findings by name."""
    return {each.name: each for each in found}


def test_half_a_pair_of_variables_is_told() -> None:
    """The config names both, one is there."""
    place = S3(bucket="b", region="eu-west-1", access_key_env="HOME", secret_key_env="NOPE")
    found = of(s3_credentials.findings(place.location))

    assert ("fail", "export NOPE=…") == (found["credentials"].status, found["credentials"].fix)


def test_half_a_pair_in_the_default_chain_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boto refuses it, too; by this row nobody looks for a wrong permission."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", SECRET)

    found = of(s3_credentials.findings(S3(bucket="b", region="eu-west-1").location))

    assert ("fail", True, False) == (
        found["credentials"].status, "AWS_SECRET_ACCESS_KEY" in found["credentials"].text,
        SECRET in found["credentials"].text,
    )  # fmt: skip


def test_provider_of_the_default_chain_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables come before files; each says so."""
    (tmp_path / "credentials").write_text(f"[default]\naws_access_key_id = A\naws_secret_access_key = {SECRET}\n")
    place = S3(bucket="b", region="eu-west-1")

    from_file = of(s3_credentials.findings(place.location))["credentials"].text
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "A")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    from_variables = of(s3_credentials.findings(place.location))["credentials"].text

    assert ("~/.aws/credentials" in from_file, "AWS_ACCESS_KEY_ID" in from_variables) == (True, True)
    assert SECRET not in from_file + from_variables


def test_nobody_signed_in_is_told_before_any_request() -> None:
    """The probe would only come to the same, after its retries."""
    found = of(s3_credentials.findings(S3(bucket="b", region="eu-west-1").location))

    assert ("fail", True) == (found["credentials"].status, "access_key_env" in found["credentials"].fix)


def test_profile_that_is_not_there_is_named() -> None:
    """With the command that makes it."""
    found = of(s3_credentials.findings(S3(bucket="b", region="eu-west-1", aws_profile="lake").location))

    assert ("fail", "aws configure --profile lake") == (found["credentials"].status, found["credentials"].fix)


def test_endpoint_and_region_are_those_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region that nobody named is a guess, and said to be one."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "A")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)

    named = of(s3_credentials.findings(S3(bucket="b", region="eu-west-1").location))["endpoint"]
    guessed = of(s3_credentials.findings(S3(bucket="b").location))["endpoint"]

    assert ("ok", "https://s3.eu-west-1.amazonaws.com, region eu-west-1") == (named.status, named.text)
    assert ("warn", True) == (guessed.status, "which nobody named" in guessed.text)


@pytest.mark.parametrize(
    ("code", "words"), [("ExpiredToken", "session token has expired"), ("RequestTimeTooSkewed", "15 minutes apart")]
)
def test_refusals_that_look_like_wrong_keys_say_what_they_are(code: str, words: str) -> None:
    """Neither is helped by looking for permissions."""
    error = refusal(code, bucket="b", where="s3://b: cannot write")

    assert (DestinationAuth, True) == (type(error), words in str(error))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (refusal("AccessDenied", bucket="b", where="s3://b"), DestinationPermission),
        (refusal("InvalidAccessKeyId", bucket="b", where="s3://b"), DestinationAuth),
        (refusal("SignatureDoesNotMatch", bucket="b", where="s3://b"), DestinationAuth),
        (refusal("NoSuchBucket", bucket="b", where="s3://b"), BucketMissing),
        (gcs_client.refusal(403, bucket="b", where="gs://b"), DestinationPermission),
        (gcs_client.refusal(401, bucket="b", where="gs://b"), DestinationAuth),
    ],
)
def test_who_signs_in_and_what_they_may_are_told_apart(error: DestinationError, expected: type) -> None:
    """One is helped by other keys, the other by a right."""
    assert expected is type(error)


# --- GCS -----------------------------------------------------------------------------------------


def test_key_file_is_told_by_who_it_is_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named in the config, or by Google's own variable."""
    file = tmp_path / "key.json"
    file.write_text(json.dumps({"type": "service_account", "client_email": "me@shop", "private_key": SECRET}))

    named = of(gcs_credentials.findings(Gcs(bucket="b", credentials_file=file).location))["credentials"]
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    by_variable = of(gcs_credentials.findings(Gcs(bucket="b").location))["credentials"]

    assert ["ok", "ok"] == [named.status, by_variable.status]
    assert ("credentials_file: service account me@shop" in named.text, SECRET in named.text) == (True, False)
    assert "the variable GOOGLE_APPLICATION_CREDENTIALS" in by_variable.text


def test_key_file_that_is_none_is_told(tmp_path: Path) -> None:
    """Before Google's client says it in its own words."""
    file = tmp_path / "key.json"
    file.write_text(SECRET)

    found = of(gcs_credentials.findings(Gcs(bucket="b", credentials_file=file).location))["credentials"]

    assert ("fail", False) == (found.status, SECRET in found.text)


def test_nobody_signed_in_to_google_is_told() -> None:
    """With the command that signs in."""
    found = of(gcs_credentials.findings(Gcs(bucket="b").location))["credentials"]

    assert ("fail", "gcloud auth application-default login") == (found.status, found.fix)


def test_emulator_is_told_as_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forgotten variable sends every row elsewhere."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")

    found = of(gcs_credentials.findings(Gcs(bucket="b", allow_anonymous=True).location))["endpoint"]

    assert "http://127.0.0.1:9 (STORAGE_EMULATOR_HOST)" == found.text


# --- Azure ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("ContainerNotFound", 404, BucketMissing),
        ("AuthenticationFailed", 403, DestinationAuth),
        ("NoAuthenticationInformation", 401, DestinationAuth),
        ("AuthorizationPermissionMismatch", 403, DestinationPermission),
        ("ServerBusy", 503, DestinationUnreachable),
        ("SomethingNew", 500, DestinationUnreachable),
        ("InvalidResourceName", 400, DestinationError),
    ],
)
def test_azure_code_becomes_an_error_one_can_act_on(code: str, status: int, expected: type) -> None:
    """Other keys, a right, a container, patience, or another configuration."""
    error = azure_client.refusal(code, status, location=AZURE, where="az://b")

    assert (expected, True) == (type(error), expected is BucketMissing or code in str(error))


def test_unset_variable_of_azure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, before anything is asked."""
    monkeypatch.delenv("LAKE_KEY", raising=False)

    found = of(azure_credentials.findings(replace(AZURE, account_key_env="LAKE_KEY")))

    assert ("fail", "export LAKE_KEY=…") == (found["credentials"].status, found["credentials"].fix)
    assert "https://shop.blob.core.windows.net" == found["endpoint"].text


def test_nobody_signed_in_to_azure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the ways there are; only the environment is asked, the machine's own identity is not."""
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    for name in ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_SECRET"):
        monkeypatch.delenv(name, raising=False)

    found = of(azure_credentials.findings(AZURE))["credentials"]

    assert ("fail", True) == (found.status, "az login" in str(found.fix))


# --- the probe -----------------------------------------------------------------------------------


class Store:
    """A place in memory; `honours` says whether swaps are conditional, `skew` how far its clock is off."""

    uri = "memory://lake/orders"
    keeps_manifests = True

    def __init__(self, *, honours: bool = True, refuses: bool = False, skew: float = 0.0) -> None:
        self.honours, self.refuses, self.skew = honours, refuses, skew
        self.held: dict[str, bytes] = {}

    def check(self) -> None:
        """All is well."""

    def swap(self, path: str, content: bytes, *, expected: str | None) -> str:
        """Write, if the version is the expected one, or whatever it is."""
        if self.refuses:
            raise DestinationError("the store does not know this request (NotImplemented).")
        current = self.held[path].decode() if path in self.held else None
        if self.honours and current != expected:
            raise WindowTaken("taken")
        self.held[path] = content
        return content.decode()

    def delete(self, paths: list[str]) -> None:
        """Forget."""
        for path in paths:
            self.held.pop(path, None)

    def now(self) -> datetime:
        """Return the time."""
        return datetime.now(UTC) + timedelta(seconds=self.skew)


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        (Store(), {"write": "ok", "conditional_write": "ok", "clock": "ok"}),
        (Store(honours=False), {"write": "ok", "conditional_write": "fail", "clock": "ok"}),
        (Store(refuses=True), {"write": "ok", "conditional_write": "fail", "clock": "ok"}),
        (Store(skew=-600), {"write": "ok", "conditional_write": "ok", "clock": "warn"}),
    ],
)
def test_store_is_proved_to_be_one_that_commits_can_rely_on(store: Store, expected: dict[str, str]) -> None:
    """A second writer must be refused, and signatures must not look old; nothing is left behind."""
    found = of(probe(store))  # type: ignore[arg-type]

    assert (expected, {}) == ({name: finding.status for name, finding in found.items()}, store.held)


def test_little_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the folder, or of the nearest one above that exists."""
    monkeypatch.setattr(probing, "SMALL_BYTES", 1 << 62)

    found = probing.space(str(tmp_path / "no" / "such"))

    assert ("warn", True) == (found.status, f"free in {tmp_path}" in found.text)
