"""Who is told what happened, by a package (`rivet.notifiers`): the protocol that `notifications.others` asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Notifier(Protocol):
    """One entry of `notifications.others`; a block of YAML. Secrets it reads itself, when it sends."""

    @property
    def type(self) -> str:
        """Name it, as in YAML."""

    @property
    def on(self) -> tuple[str, ...]:
        """Return the events that are told: failure, schema_change, degraded, recovered."""

    def send(self, body: Mapping[str, Any]) -> None:
        """Pass one event on; `body` is what a webhook would get (docs/reference/yaml.md, `notifications.webhook`).

        Called in a thread of its own; what takes longer than 25 s counts as not told, and the run goes on.

        Raises:
            Exception: nobody was told; the name of its class is shown, its text is not, as it may hold an address.
        """
