"""A look at an export's change log from outside a drain: where it stands, how far behind we are.

Belongs here: which exports have a log, where their checkpoint is, one short look. Not here: draining
(`rivet_resources/drain/drain.py`), what Dagster or `rivet doctor` make of a look (`dagster/sensors/drain_sensor.py`,
`doctor/examine.py`).
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from rivet_assets.modes.cdc import Cdc, drain_of
from rivet_resources.contracts.change_log import Lag, Log, LogSource, Position, Survey
from rivet_resources.contracts.settings import pace
from rivet_resources.drain.checkpoint_book import DRAINING, position_of
from rivet_resources.errors import LogSetup, PositionLost
from rivet_resources.state.checkpoints.stores import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rivet_assets.config.load import RivetConfig

# A look waits for nothing: what is busy now is looked at again half a minute later.
INTERACTIVE_LIMITS = {"max_retries": 0, "statement_timeout_s": 10, "lock_timeout_s": 5}


@dataclass(frozen=True)
class LogLook:
    """What one look at a log tells."""

    survey: Survey
    lag: Lag
    checkpoint: Checkpoint | None
    lost: PositionLost | None = None
    holder: str = ""  # the run that drains right now, by its lease in the state store

    @property
    def position(self) -> Position | None:
        """Return the committed position; None also while the first run has not come to its first window."""
        return read_position(self.checkpoint)

    @property
    def has_unread(self) -> bool:
        """Return whether a drain would find something; in doubt, yes."""
        if self.position is None:
            return True
        for unread in (self.lag.unread_changes, self.lag.unread_bytes):
            if unread is not None:
                return unread > 0
        return self.survey.target.key > self.position.key


def capture_exports(config: RivetConfig) -> tuple[Cdc, ...]:
    """List the exports that drain a change log, in the order of the file."""
    return tuple(drain for export in config.exports if (drain := drain_of(export)) is not None)


def read_position(checkpoint: Checkpoint | None) -> Position | None:
    """Return the position up to which everything is committed; None before the first window."""
    if checkpoint is None or checkpoint.metadata.get("state", DRAINING) != DRAINING:
        return None
    return position_of(checkpoint)


def look(log: Log, checkpoint: Checkpoint | None) -> LogLook:
    """Look at an open log from where we stand; reads no change, and changes nothing.

    Raises:
        LogBusy: another reader holds it.
        SourceError and its kin.
    """
    survey, position = log.survey(), read_position(checkpoint)
    lag = log.lag(position)
    if position is not None:
        try:
            log.refuse_lost(position, survey)
        except PositionLost as lost:
            return LogLook(survey, lag, checkpoint, lost)
    return LogLook(survey, lag, checkpoint)


@contextmanager
def open_for_look(export: Cdc, source: Any, *, deployment: str) -> Iterator[Log]:
    """Open an export's log for a look: no retries, short waits.

    Raises:
        LogSetup: the engine has no log that Rivet reads.
        SourceUnreachable, SourceAuth, SourceError, ConfigError
    """
    if not hasattr(source, "open_log"):
        raise LogSetup(f"A source of type {source.type} has no change log; use `mode: poll` for {export.name}.")
    hasty = pace(source.tuning, export.tuning).model_copy(update=INTERACTIVE_LIMITS)
    with cast(LogSource, source).open_log(
        export.capture(deployment=deployment), application=f"rivet look {export.name}", pace=hasty
    ) as log:
        yield log
