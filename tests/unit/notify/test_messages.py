"""What people are told of a run, and what never leaves the machine."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from rivet_assets.blocks.notifications import Notifications, Slack, Webhook
from rivet_assets.config.load import load_text
from rivet_assets.launch.outcome import Outcome
from rivet_assets.launch.outcome_of_run import end_of
from rivet_assets.notify.messages import FAILED, OTHERWISE, Ended, slack_body, sum_up, triggers, webhook_body
from rivet_assets.notify.notify import notify, notify_success, wants
from rivet_resources.state.runs import RunRecord
from rivet_resources.state.store import default_url, open_state
from tests.servers.receiver import receiver

AT = datetime(2026, 1, 31, 3, 15, tzinfo=UTC)
GOOD = Ended("orders", "success", "orders_20260131T031500.000_abcdef", AT, rows=42, duration_ms=1500)
BAD = replace(GOOD, status="failed", code="RIVET_SOURCE_LOST", error="The line to shop broke.")
CANARY = "4929-1234-canary"
UNSET = "webhook was not told: the environment variable NOWHERE is not set"
EXPORT = "exports:\n  - {name: orders, table: orders, format: parquet, destination: {type: local, path: lake}}\n"


def record(number: int = 0, **more: object) -> RunRecord:
    """Return the row of a run that took a second."""
    at = AT + timedelta(minutes=number)
    base = RunRecord(f"run{number}", "orders", "all", at, status="success", finished_at=at + timedelta(seconds=1))
    return replace(base, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (GOOD, ()),
        (BAD, ("failure",)),
        (replace(GOOD, schema_changed=True), ("schema_change",)),
        (replace(GOOD, degraded=True), ("degraded",)),
        (replace(GOOD, recovered=True), ("recovered",)),
        (replace(GOOD, schema_changed=True, degraded=True, recovered=True), ("schema_change", "degraded", "recovered")),
        (replace(BAD, schema_changed=True, degraded=True, recovered=True), ("failure", "schema_change")),
    ],
)
def test_each_thing_that_happened_is_named(end: Ended, expected: tuple[str, ...]) -> None:
    """An ordinary success is nothing to tell; a failure is neither degraded nor recovered."""
    assert expected == triggers(end)


@pytest.mark.parametrize(
    ("records", "before", "expected"),
    [
        ([record()], None, {"status": "success", "rows": 0, "degraded": False, "recovered": False}),
        ([record(total_rows=3), record(1, total_rows=4)], None, {"rows": 7, "run_id": "run1", "duration_ms": 61_000}),
        ([record(degraded=True)], None, {"degraded": True}),
        ([record(status="failed", total_rows=9), record(1, total_rows=4)], None, {"degraded": True, "rows": 4}),
        ([record()], record(-1, status="failed"), {"recovered": True}),
        ([record()], record(-1, status="interrupted"), {"recovered": True}),
        ([record()], record(-1), {"recovered": False}),
        ([record(status="skipped")], record(-1, status="failed"), {"status": "skipped", "recovered": False}),
        ([record(status="failed", error_code="X", error_message="why")], None, {"code": "X", "error": "why"}),
        ([record(status="failed", error_code="RIVET_DRIFT_REFUSED")], None, {"schema_changed": True}),
        ([record(schema_changed=True)], None, {"schema_changed": True}),
        ([], None, {"status": "skipped", "duration_ms": 0}),
    ],
)
def test_records_of_a_run_are_summed_up(
    records: list[RunRecord], before: RunRecord | None, expected: dict[str, object]
) -> None:
    """Windows add up; a try that failed before one that succeeded makes it degraded, not failed."""
    told = sum_up("orders", records, before=before)

    assert expected == {name: getattr(told, name) for name in expected}


def test_slack_gets_the_originals_attachment() -> None:
    """One attachment with colour, title and text, in the words of the contract."""
    (attachment,) = slack_body(replace(BAD, schema_changed=True))["attachments"]

    assert {"color", "title", "text"} == set(attachment)
    assert (FAILED, f"Rivet: {BAD.run_id}") == (attachment["color"], attachment["title"])
    assert attachment["text"].splitlines() == [
        "*Export:* orders",
        "*Status:* failed",
        "*Rows:* 42",
        "*Duration:* 1500 ms",
        "*Error:* The line to shop broke. [RIVET_SOURCE_LOST]",
        "*Schema changed*",
    ]


def test_slack_gets_no_line_that_does_not_apply() -> None:
    """Without error and drift there are four lines, in the other colour; how it succeeded stands beside the status."""
    (attachment,) = slack_body(replace(GOOD, degraded=True, recovered=True))["attachments"]

    assert OTHERWISE == attachment["color"]
    assert 4 == len(attachment["text"].splitlines())
    assert "*Status:* success (degraded, recovered)" in attachment["text"]


def test_slack_shows_angle_brackets_instead_of_obeying_them() -> None:
    """A name or an error cannot call a whole channel."""
    (attachment,) = slack_body(replace(BAD, export="<!channel>", error="a & b"))["attachments"]

    assert "&lt;!channel&gt;" in attachment["text"]
    assert "a &amp; b" in attachment["text"]


def test_webhook_gets_the_same_keys_whatever_happened() -> None:
    """A receiver can rely on fourteen keys; what does not apply is null."""
    good, bad = webhook_body(GOOD, "recovered"), webhook_body(BAD, "failure")

    assert list(good) == list(bad)
    assert list(good) == [
        "event", "export", "status", "run_id", "rows", "duration_ms", "code", "error", "schema_changed", "at",
        "asset_key", "partition", "dagster_run_id", "run_url",
    ]  # fmt: skip
    assert (None, None, "2026-01-31T03:15:00+00:00") == (good["code"], good["error"], good["at"])
    assert ("failure", "RIVET_SOURCE_LOST", BAD.error) == (bad["event"], bad["code"], bad["error"])


def test_messages_lead_to_the_run_where_its_page_is_known() -> None:
    """Asset, partition and a link; without an address of the webserver, or without a run of Dagster, no link."""
    known = replace(BAD, asset_key="shop/orders", partition="2026-01-31", dagster_run_id="0f-7")

    body = webhook_body(known, "failure", webserver_url="https://dagster.example.com/")
    (attachment,) = slack_body(known, webserver_url="https://dagster.example.com/")["attachments"]
    without = [
        webhook_body(known, "failure"),
        webhook_body(BAD, "failure", webserver_url="https://dagster.example.com"),
    ]

    link = "https://dagster.example.com/runs/0f-7"
    assert ("shop/orders", "2026-01-31", link) == (body["asset_key"], body["partition"], body["run_url"])
    assert "*Partition:* 2026-01-31" in attachment["text"]
    assert f"<{link}|Run in Dagster>" in attachment["text"]
    assert [None, None] == [each["run_url"] for each in without]


@pytest.mark.parametrize("url", ["dagster.example.com", "ftp://dagster", "https://me:secret@dagster", "https://"])
def test_address_of_the_webserver_holds_no_secret_and_is_an_address(url: str) -> None:
    """It is sent to people, so a password in it is refused, and not repeated."""
    with pytest.raises(ValidationError) as refused:
        Notifications.model_validate({"webserver_url": url})

    assert "webserver_url" in refused.value.errors()[0]["msg"]
    assert "secret" not in refused.value.errors()[0]["msg"]


def test_error_of_a_stranger_is_told_by_its_class() -> None:
    """A text that is not ours may hold a row value, so neither body has it; ours is told whole."""
    foreign = Outcome(
        "orders", "shop", "full", "failed", message=f"bad value {CANARY}", cause="ValueError", exit_code=1
    )
    ours = replace(foreign, code="RIVET_SOURCE_LOST", message="The line broke.", cause="")

    told = [json.dumps([slack_body(end_of(each)), webhook_body(end_of(each), "failure")]) for each in (foreign, ours)]

    assert CANARY not in told[0]
    assert told[0].count("ValueError") == 2
    assert told[1].count("The line broke.") == 2


# --- from the YAML to the receiver ---------------------------------------------------------------


def test_both_receivers_get_what_each_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slack gets one message per export, the webhook one per event; unasked events go to nobody."""
    with receiver() as slack, receiver() as hook:
        monkeypatch.setenv("SLACK", slack.url)
        monkeypatch.setenv("HOOK", hook.url)
        monkeypatch.setenv("TOKEN", "t0ken")
        monkeypatch.setenv("KEY", "hunter2")
        text = (
            "source: {type: postgres, url_env: SHOP_URL}\n"
            "notifications:\n"
            "  slack: {webhook_url_env: SLACK, on: [failure, schema_change]}\n"
            "  webhook: {url_env: HOOK, on: [schema_change, degraded],\n"
            "            headers_env: {X-Token: TOKEN}, secret_env: KEY}\n"
        )
        config = load_text(text + EXPORT, file=tmp_path / "rivet.yaml")
        told: list[str] = []

        notify(config, [BAD, replace(GOOD, schema_changed=True, degraded=True), GOOD], tell=told.append)

    assert [] == told
    assert [FAILED, OTHERWISE] == sorted(body["attachments"][0]["color"] for body in slack.bodies)
    assert ["degraded", "schema_change"] == sorted(body["event"] for body in hook.bodies)
    assert all("t0ken" == headers["X-Token"] for headers in hook.headers)
    assert all(headers["X-Rivet-Signature"].startswith("sha256=") for headers in hook.headers)
    assert "hunter2" not in b"".join(hook.raw).decode()


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("slack: {webhook_url_env: NOWHERE}", "slack was not told: the environment variable NOWHERE is not set"),
        ("slack: {}", "slack was not told: it has no webhook_url_env"),
        ("webhook: {url_env: HOOK, secret_env: NOWHERE}", UNSET),
        ("webhook: {url_env: HOOK, headers_env: {X: NOWHERE}}", UNSET),
        ("webhook: {url_env: HTTP}", "webhook was not told: its address is plain http to another machine, where "
                                     "everyone on the way could read it; write https://"),
    ],
)  # fmt: skip
def test_what_is_missing_is_one_warning(
    block: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing variable, or an address that gets nothing, is a line; no message goes out without its signature."""
    monkeypatch.delenv("NOWHERE", raising=False)
    monkeypatch.setenv("HTTP", "http://hooks.example.com/hunter2")
    head = f"source: {{type: postgres, url_env: SHOP_URL}}\nnotifications: {{{block}}}\n"
    config = load_text(head + EXPORT, file=tmp_path / "rivet.yaml")
    told: list[str] = []
    with receiver() as hook:
        monkeypatch.setenv("HOOK", hook.url)

        notify(config, [BAD], tell=told.append)

    assert [f"warning: notifications.{expected}"] == told
    assert [] == hook.raw


def test_nobody_is_asked_without_the_block(tmp_path: Path) -> None:
    """Without `notifications:` there is nothing to send and nothing to say."""
    config = load_text("source: {type: postgres, url_env: SHOP_URL}\n" + EXPORT, file=tmp_path / "rivet.yaml")
    told: list[str] = []

    notify(config, [BAD], tell=told.append)

    assert ([], False) == (told, wants(config, "failure"))


OF_SHARDS = EXPORT.replace("table: orders", "table: orders, mode: incremental, cursor_column: id, shards: {eu: X}")


@pytest.mark.parametrize(("text", "kept"), [(EXPORT, "orders"), (OF_SHARDS, "orders/shard=eu")])
def test_success_is_told_from_the_records_of_this_run(tmp_path: Path, text: str, kept: str) -> None:
    """A run after a failed one is a recovery; records from before it only decide that."""
    with receiver() as hook:
        block = f"notifications: {{webhook: {{url: '{hook.url}', on: [recovered]}}}}\n"
        head = f"source: {{type: postgres, url_env: X}}\n{block}"
        config = load_text(head + text, file=tmp_path / "rivet.yaml")
        state = open_state(default_url(tmp_path))
        told: list[str] = []
        for number, status in enumerate(("failed", "success", "success")):
            state.begin_run(replace(record(number), status="running", export=kept))
            state.finish_run(f"run{number}", status, total_rows=number)  # type: ignore[arg-type]
            notify_success(config, "orders", state=state, since=AT + timedelta(minutes=number), tell=told.append)
        state.close()

    assert [] == told
    assert [("recovered", "run1", 1)] == [(body["event"], body["run_id"], body["rows"]) for body in hook.bodies]


def test_blocks_default_to_failures_only() -> None:
    """Whoever names an address and nothing else hears of failures."""
    assert [("failure",), ("failure",)] == [Slack().on, Webhook().on]
    assert Notifications().slack is None
