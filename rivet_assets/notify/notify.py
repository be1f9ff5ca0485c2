"""Telling people: from how exports ended to messages at the addresses of `notifications:`.

Belongs here: picking what was asked for, finding addresses and secrets. Not here: what there is to tell
(`messages.py`), sending (`rivet_resources/webhooks.py`). Nothing here can fail a run: whatever is wrong is one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from rivet_assets.blocks.notifications import Webhook
from rivet_assets.notify.messages import Ended, slack_body, sum_up, triggers, webhook_body
from rivet_resources.errors import RivetError
from rivet_resources.secrets import read_variable
from rivet_resources.webhooks import Message, Unanswered, send_all

if TYPE_CHECKING:
    from pydantic import SecretStr

    from rivet_assets.blocks.notifications import Slack, Trigger
    from rivet_assets.config.load import RivetConfig
    from rivet_resources.contracts.notifier import Notifier
    from rivet_resources.state.store import State

Tell = Callable[[str], None]
RECORDS = 1000  # of one export in one run


@dataclass(frozen=True)
class Whereabouts:
    """Where people find an export and its run in Dagster; fields as of `Ended`."""

    asset_key: str = ""
    partition: str = ""
    dagster_run_id: str = ""


NOWHERE = Whereabouts()


class _Unset(Exception):
    """An environment variable that the block names is not set."""


def notify(config: RivetConfig, ends: Sequence[Ended], *, tell: Tell, unanswered: Unanswered | None = None) -> None:
    """Notify people of these endings, as far as `notifications:` asks for it; trouble goes to `tell`, line by line.

    Args:
        unanswered: receivers that the run does not wait for any more.
    """
    notify_all([(config, ends)], tell=tell, unanswered=unanswered)


def notify_all(
    told: Iterable[tuple[RivetConfig, Sequence[Ended]]], *, tell: Tell, unanswered: Unanswered | None = None
) -> None:
    """Notify the people of several configurations at once, with the patience of one; as `notify`."""
    messages = [message for config, ends in told for message in _messages(config, ends, tell)]
    for line in send_all(messages, unanswered=unanswered):
        tell(f"warning: notifications.{line}")


def wants(config: RivetConfig, *events: Trigger) -> bool:
    """Return whether anybody asked for one of these."""
    block = config.notifications
    told = (block.slack, block.webhook, *block.others) if block else ()
    asked = {event for each in told if each is not None for event in each.on}
    return any(event in asked for event in events)


def notify_success(
    config: RivetConfig, export: str, *, state: State, since: datetime, tell: Tell, where: Whereabouts = NOWHERE,
    unanswered: Unanswered | None = None,
) -> None:  # fmt: skip
    """Notify people of an export that just ended well in this process, by its records since then; never raises.

    Args:
        where: the export and the run as Dagster knows them.
        unanswered: receivers that the run does not wait for any more.
    """
    if not wants(config, "schema_change", "degraded", "recovered"):
        return
    try:
        kept = [name for each in config.exports if each.name == export for name in each.folders() if each.is_apart]
        found = [run for name in kept or [export] for run in state.runs(name, last=RECORDS)]
        runs = sorted(found, key=lambda run: run.started_at, reverse=True) if kept else found
    except Exception as error:  # what is told must not undo what is published
        tell(f"warning: notifications: nobody was told, as the state store did not answer ({type(error).__name__})")
        return
    records = [record for record in reversed(runs) if record.started_at >= since]
    before = next((record for record in runs if record.started_at < since), None)
    if any(record.status == "success" for record in records):
        end = replace(sum_up(export, records, before=before, status="success"), **asdict(where))
        notify(config, [end], tell=tell, unanswered=unanswered)


def _messages(config: RivetConfig, ends: Sequence[Ended], tell: Tell) -> Iterator[Message]:
    block = config.notifications
    if block is None:
        return
    for each in (block.slack, block.webhook):
        if each is None:
            continue
        asked = [end for end in ends if set(triggers(end)) & set(each.on)]
        try:
            for end in asked:
                if isinstance(each, Webhook):
                    yield from _for_webhook(each, end, webserver_url=block.webserver_url)
                else:
                    yield from _for_slack(each, end, webserver_url=block.webserver_url)
        except _Unset as unset:
            tell(f"warning: notifications.{'webhook' if isinstance(each, Webhook) else 'slack'} was not told: {unset}")
    for other in block.others:
        yield from _for_other(other, ends, webserver_url=block.webserver_url)


def _for_other(other: Notifier, ends: Sequence[Ended], *, webserver_url: str | None) -> Iterator[Message]:
    for end in ends:
        for event in triggers(end):
            if event in other.on:
                body = webhook_body(end, event, webserver_url=webserver_url)
                yield Message(f"others ({other.type})", "", body, by=other.send)


def _for_slack(block: Slack, end: Ended, *, webserver_url: str | None) -> Iterator[Message]:
    url = _secret(block.webhook_url, block.webhook_url_env, "webhook_url_env")
    yield Message("slack", url, slack_body(end, webserver_url=webserver_url))


def _for_webhook(block: Webhook, end: Ended, *, webserver_url: str | None) -> Iterator[Message]:
    url = _secret(block.url, block.url_env, "url_env")
    headers = {name: _variable(variable) for name, variable in block.headers_env.items()}
    secret = _variable(block.secret_env) if block.secret_env else None
    for event in triggers(end):
        if event in block.on:
            yield Message("webhook", url, webhook_body(end, event, webserver_url=webserver_url), headers, secret)


def _secret(value: SecretStr | None, variable: str | None, key: str) -> str:
    if value is not None:
        return value.get_secret_value()
    if variable is None:
        raise _Unset(f"it has no {key}")
    return _variable(variable)


def _variable(name: str) -> str:
    """Read a variable.

    Raises:
        _Unset: it is not set, or empty.
    """
    try:
        value = (read_variable(name) or "").strip()
    except RivetError as error:  # of a store of secrets
        raise _Unset(str(error)) from None
    if not value:
        raise _Unset(f"the environment variable {name} is not set")
    return value
