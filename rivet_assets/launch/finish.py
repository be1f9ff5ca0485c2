"""What follows the exports of a run, in this order: proofs, summary files, the summary on the terminal, messages.

Belongs here: `close` for the first two, `tell_people` for the last (`contract.md`, 3, I8). Not here: proving
(`prove_after_run.py`), the files (`summary_files.py`), deciding who hears of it (`notify/messages.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from rivet_assets.launch.outcome import Outcome
from rivet_assets.launch.outcome_of_run import end_of
from rivet_assets.launch.prove_after_run import proofs_of, proved
from rivet_assets.launch.summary_files import write_run_files
from rivet_assets.notify.notify import Tell, notify
from rivet_assets.prove.prove_run import Proofs

if TYPE_CHECKING:
    from rivet_assets.config.load import RivetConfig

NOTHING = Proofs()


def close(
    config: RivetConfig,
    outcomes: Sequence[Outcome],
    *,
    proofs: Proofs = NOTHING,
    context: Mapping[str, Any] | None = None,
    tell: Tell,
) -> list[Outcome]:
    """Prove what was asked for and write the summary files; the outcomes with what was proved.

    Args:
        context: of a `rivet apply`, for the summary files.
    """
    from rivet_assets.run.admit.scope import state_of  # start

    found = [*outcomes]
    committed = [config.export(outcome.export) for outcome in outcomes if outcome.status == "success"]
    if any(proofs_of(export, proofs) != NOTHING for export in committed):
        with closing(state_of(config)) as state:
            found = [proved(config, outcome, proofs, state=state, tell=tell) for outcome in outcomes]
    write_run_files(config, found, tell=tell, context=context)
    return found


def tell_people(config: RivetConfig, outcomes: Sequence[Outcome], *, tell: Tell) -> None:
    """Send the messages that `notifications:` asks for; takes half a minute at most, and never raises."""
    notify(config, [end_of(outcome) for outcome in outcomes], tell=tell)
