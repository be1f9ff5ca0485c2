"""What `rivet doctor` asks a change log: its checkpoint, its prerequisites, how far behind we are.

Belongs here: one change export. Not here: what one log demands (`rivet_resources/engines/*/log/`), judging a lag
(`run/judge/drain_verdicts.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rivet_assets.doctor.row import Row, Told, fault_row, spell_age
from rivet_assets.modes.cdc import Cdc
from rivet_assets.run.admit.provenance import read_of_drain
from rivet_assets.run.drain import LEASE, checkpoint_key, checkpoints_of
from rivet_assets.run.judge.drain_verdicts import ChangeVerdict, lag_verdict, slot_verdict
from rivet_assets.run.log_status import LogLook, look, open_for_look, read_position
from rivet_resources.contracts.source import Source
from rivet_resources.drain.checkpoint_book import DRAINING
from rivet_resources.errors import CheckpointUnusable, RivetError
from rivet_resources.state.checkpoints.stores import Checkpoint
from rivet_resources.state.store import State

if TYPE_CHECKING:
    from rivet_assets.config.load import RivetConfig


def log_rows(
    export: Cdc, source_name: str, source: Source, state: State, config: RivetConfig,
    tell: Told = lambda export, read: None,
) -> list[Row]:  # fmt: skip
    """Judge a checkpoint, then what the log demands, then how far behind it is.

    Args:
        tell: told whose changes a drain would read, once the log has said whose it is.
    """
    about = f"export {export.name}"
    checkpoints = checkpoints_of(export, state=state, folder=config.folder)
    rows: list[Row] = []
    checkpoint = None
    try:
        checkpoint = checkpoints.load(checkpoint_key(export, source_name))
        rows.append(_checkpoint(export, checkpoint, about))
    except CheckpointUnusable as error:
        rows.append(fault_row(about, "checkpoint", error))
    drains = [held.name for held in state.leases(export.name) if held.window == LEASE]
    if drains:
        rows.append(Row("drain", "ok", f"{drains[0]} drains it now", about=about))
    try:
        with open_for_look(export, source, deployment=state.name) as log:
            findings = log.preflight()
            rows += [Row(f.name, f.status, f.text, f.fix, about) for f in findings]
            is_ready = all(finding.status != "fail" for finding in findings)
            if is_ready or read_position(checkpoint) is not None:  # else the look would only repeat what is missing
                seen = look(log, checkpoint)
                tell(export, read_of_drain(
                    export, source, source_name, identity=seen.survey.identity, checkpoint=checkpoint
                ))  # fmt: skip
                rows += _position(seen, checkpoint, about)
    except RivetError as error:
        rows.append(fault_row(about, "log", error))
    return rows


def _checkpoint(export: Cdc, checkpoint: Checkpoint | None, about: str) -> Row:
    if checkpoint is None:
        first = "copies the tables, then follows the log" if export.cdc.initial else "begins where the log ends then"
        return Row("checkpoint", "ok", f"none yet: the first drain {first}", about=about)
    age = spell_age(checkpoint.age())
    if read_position(checkpoint) is None:
        phase = checkpoint.metadata.get("state", DRAINING)
        text = f"the first drain began {age} ago and has not come to its first window ({phase})"
        return Row("checkpoint", "warn", text, "Run it again: it goes on where it began.", about)
    return Row("checkpoint", "ok", f"saved {age} ago by run {checkpoint.run_id or '(unknown)'}", about=about)


def _position(seen: LogLook, checkpoint: Checkpoint | None, about: str) -> list[Row]:
    """Compare the checkpoint with the source, and judge the lag."""
    if checkpoint is not None and checkpoint.source_identity not in ("", seen.survey.identity):
        other = CheckpointUnusable(
            f"The checkpoint is of source {checkpoint.source_identity}, and this one is {seen.survey.identity}: it was "
            f"restored or replaced."
        )
        return [fault_row(about, "position", other)]
    if seen.lost is not None:
        return [fault_row(about, "position", seen.lost)]
    rows = (
        [] if seen.position is None else [Row("position", "ok", "the source still has the log behind it", about=about)]
    )
    if seen.position is not None:
        rows += [_row_of(verdict, about) for verdict in (lag_verdict(seen.lag), slot_verdict(seen.lag))]
    return rows


def _row_of(verdict: ChangeVerdict, about: str) -> Row:
    return Row(verdict.check, verdict.level, verdict.text, about=about)
