"""Who asks for something: a person at a command line, or Dagster for a person, a schedule or a sensor.

Belongs here: the words that the audit log keeps (`rivet_resources/state/audit.py`). Not here: who may do what; that is
the business of the source, the destination and the state store.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping

# Dagster's own tags of a run, and what they say of who asked. `user` is Dagster+'s; the open UI knows no users.
# Source: dagster 1.13, `dagster/_core/storage/tags.py`.
TAGS: Mapping[str, str] = {
    "user": "user {}",
    "dagster/schedule_name": "schedule {}",
    "dagster/sensor_name": "sensor {}",
    "dagster/auto_materialize": "automation",
    "dagster/backfill": "backfill {}",
}
# Tag of runs that a command started: whoever typed it.
RIVET_ACTOR = "rivet/actor"


def command_line() -> str:
    """Return the user of this process and its host: `anna@build-7`; a container's user may have a number only."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def actor_of_run(tags: Mapping[str, str]) -> str:
    """Return who asked for a Dagster run, by its tags, and which process works for them."""
    if (typed := tags.get(RIVET_ACTOR)) is not None:
        return typed
    asked = [text.format(tags[tag]) for tag, text in TAGS.items() if tag in tags]
    return f"Dagster, {', '.join(asked) or 'by hand'} ({command_line()})"
