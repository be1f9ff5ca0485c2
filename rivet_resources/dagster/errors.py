"""The one translation of Rivet's errors into Dagster's: try the step again, or fail for good.

Belongs here: that decision and the metadata of a Failure. Not here: retries of pages and tasks, which came before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg

from rivet_resources.errors import BudgetReached, ReadWindowClosed, RivetError, WindowBusy

# A page was tried `max_retries` times and a task three times before the step hears of it.
STEP_RETRIES = 1


@contextmanager
def translated(*, retry_number: int, seconds_to_wait: float) -> Iterator[None]:
    """Let a RivetError leave the block as Dagster's own.

    Raises:
        RetryRequested: the same run may succeed later and the step has a try left.
        Failure: otherwise; never retried, with `rivet/code` and `rivet/exit_code` as metadata.
    """
    try:
        yield
    except RivetError as error:
        if error.retry and retry_number < STEP_RETRIES and not isinstance(error, WindowBusy):
            raise dg.RetryRequested(max_retries=STEP_RETRIES, seconds_to_wait=seconds_to_wait) from error
        raise failure(error) from error


def failure(error: RivetError, *, text: str | None = None, facts: Mapping[str, Any] | None = None) -> dg.Failure:
    """Return the Failure that tells people what `error` tells, or `text` where there is more to say."""
    return dg.Failure(
        text or str(error),
        metadata={"rivet/code": error.code, "rivet/exit_code": error.exit_code, **_not_before(error), **(facts or {})},
        allow_retries=False,
    )


def _not_before(error: RivetError) -> dict[str, Any]:
    """Return when the same may be tried again, in unix seconds, where a limit of the source says so."""
    if not isinstance(error, ReadWindowClosed | BudgetReached):
        return {}
    return {"rivet/not_before": dg.MetadataValue.timestamp(error.not_before)}
