"""Compaction and retention as Dagster runs: the jobs `rivet_compact` and `rivet_retain`, with a schedule each.

Belongs here: the jobs, their configuration and schedules, what they tell. Not here: joining and dropping
(`upkeep/compact.py`, `upkeep/retain.py`).

The schedules are off until somebody turns them on in the UI: a job that removes files does not begin by itself.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, Self

import dagster as dg
from pydantic import Field

from rivet_assets.blocks.export import Export
from rivet_assets.config.load import RivetConfig
from rivet_assets.dagster.translator import SpecOf
from rivet_assets.run.actor import actor_of_run
from rivet_assets.run.admit.scope import state_of
from rivet_resources.dagster.errors import translated
from rivet_resources.dagster.resource import Rivet
from rivet_resources.errors import ConfigError, RivetError
from rivet_resources.state.store import State

Kind = Literal["compact", "retain"]

ABOUT: Mapping[Kind, str] = {
    "compact": "Joins small parts and windows of the exports that have `compact:`; readers see the same rows.",
    "retain": "Drops windows that are older than the `keep:` of their exports; the newest always stays.",
}
NIGHTLY: Mapping[Kind, str] = {"compact": "17 3 * * *", "retain": "47 3 * * *"}


class UpkeepConfig(dg.Config):
    """What to look after."""

    assets: list[str] = Field(default_factory=list, description="asset keys, such as shop/orders; none: all")
    dry_run: bool = Field(False, description="true: only say what would happen")


@dataclass(frozen=True)
class LookedAfter:
    """One export with `compact:` or `keep:`."""

    export: Export
    config: RivetConfig
    spec: dg.AssetSpec


class UpkeepJob(dg.JobDefinition):
    """The job `rivet_compact` or `rivet_retain` for these exports."""

    def __init__(self, kind: Kind, targets: Mapping[str, LookedAfter], suffix: str = "") -> None:
        self.kind, self.targets, self.suffix = kind, targets, suffix
        super().__init__(
            graph_def=dg.GraphDefinition(f"rivet_{kind}{suffix}", node_defs=[_op(kind, targets, suffix)]),
            executor_def=dg.in_process_executor,
            description=ABOUT[kind],
        )

    def joined_with(self, other: Self) -> "UpkeepJob":
        """Return one job for the exports of both."""
        return UpkeepJob(self.kind, {**self.targets, **other.targets}, self.suffix)


class UpkeepSchedule(dg.ScheduleDefinition):
    """The nightly tick of such a job, off until it is turned on."""

    def __init__(self, kind: Kind, suffix: str = "") -> None:
        super().__init__(
            name=f"rivet_{kind}{suffix}_nightly",
            job_name=f"rivet_{kind}{suffix}",
            # Off until somebody turns it on: a job that removes files does not begin by itself.
            cron_schedule=NIGHTLY[kind],
            description=ABOUT[kind],
        )

    def joined_with(self, other: Self) -> Self:
        """Return one of two that are alike."""
        return self


def upkeep_jobs(config: RivetConfig, *, spec_of: SpecOf, suffix: str = "") -> Iterator[UpkeepJob]:
    """Yield the jobs that look after the exports of a configuration; none where no export asks for it."""
    kinds: tuple[tuple[Kind, str], ...] = (("compact", "compact"), ("retain", "keep"))
    for kind, key in kinds:
        found = [LookedAfter(each, config, spec_of(each)) for each in config.exports if getattr(each, key) is not None]
        if found:
            yield UpkeepJob(kind, {each.spec.key.to_user_string(): each for each in found}, suffix)


def upkeep_schedules(config: RivetConfig, *, spec_of: SpecOf, suffix: str = "") -> Iterator[UpkeepSchedule]:
    """Yield the schedule of each of these jobs."""
    for job in upkeep_jobs(config, spec_of=spec_of, suffix=suffix):
        yield UpkeepSchedule(job.kind, suffix)


def _op(kind: Kind, targets: Mapping[str, LookedAfter], suffix: str) -> dg.OpDefinition:
    @dg.op(name=f"{kind}_windows{suffix}", description=ABOUT[kind], out=dg.Out(dg.Nothing))
    def look_after(context: dg.OpExecutionContext, config: UpkeepConfig) -> None:
        chosen = [_target(targets, asset) for asset in config.assets] or list(targets.values())
        told: list[str] = []
        totals = {"windows": 0, "parts": 0, "bytes": 0, "removed_files": 0, "waiting_files": 0}
        faults: list[RivetError | dg.Failure] = []
        with closing(Rivet()) as rivet:

            def state_for(target: LookedAfter) -> State:
                return state_of(target.config, rivet=rivet).used_by(actor_of_run(context.run.tags))

            for target in chosen:

                def tell(line: str) -> None:
                    told.append(f"- {line}")
                    context.log.info(line)

                try:
                    done = _RUN[kind](target, config.dry_run, state_for(target), tell)
                except (RivetError, dg.Failure) as error:  # one export that is busy, or fails, stops no other
                    text = error.description if isinstance(error, dg.Failure) else error
                    tell(f"{target.export.name}: {text}")
                    faults.append(error)
                    continue
                for name, value in done.items():
                    totals[name] += value
        facts: dict[str, Any] = {f"rivet/{name}": value for name, value in totals.items()}
        facts |= {"rivet/dry_run": config.dry_run, "rivet/report": dg.MetadataValue.md("\n".join(told) or "nothing")}
        context.add_output_metadata(facts)
        if faults:
            # At the end, so that the others are looked after first; never tried again, as the next night comes.
            if isinstance(faults[0], dg.Failure):
                # A failed step has no output that could carry them.
                raise dg.Failure(faults[0].description, metadata=facts, allow_retries=False)
            with translated(retry_number=1, seconds_to_wait=60):
                raise faults[0]

    return look_after


def _target(targets: Mapping[str, LookedAfter], asset: str) -> LookedAfter:
    """Find an export by its asset key.

    Raises:
        ConfigError: there is none; the message lists those there are.
    """
    if asset not in targets:
        raise ConfigError(f"No export with the asset key {asset!r} is looked after here; there are "
                          f"{', '.join(targets)}.")  # fmt: skip
    return targets[asset]


def _compact(target: LookedAfter, is_dry: bool, state: State, tell: Callable[[str], None]) -> dict[str, int]:
    from rivet_assets.upkeep.compact import compact_export  # start

    done = compact_export(target.export, state=state, tell=tell, is_dry=is_dry)
    failed = [each for each in done.joins if each.status == "failed"]
    if failed:
        raise dg.Failure(f"{len(failed)} of {len(done.joins)} joins failed: {failed[0].text}", allow_retries=False)
    joined = [each for each in done.joins if each.status in ("joined", "planned")]
    return {
        "windows": sum(each.windows for each in joined), "parts": sum(each.parts for each in joined),
        "bytes": sum(each.bytes for each in joined), "removed_files": done.removed, "waiting_files": done.waiting,
    }  # fmt: skip


def _retain(target: LookedAfter, is_dry: bool, state: State, tell: Callable[[str], None]) -> dict[str, int]:
    from rivet_assets.upkeep.retain import retain_export  # start

    done = retain_export(target.export, state=state, tell=tell, is_dry=is_dry)
    # Of a dry run nothing is dropped: what it counts is what would be.
    gone = [each for each in done.windows if each.is_dropped or (is_dry and not each.code)]
    if failed := [each for each in done.windows if each.exit_code]:
        raise dg.Failure(f"{len(failed)} windows could not be dropped: {failed[0].text}", allow_retries=False)
    return {
        "windows": len(gone), "parts": sum(each.parts for each in gone), "bytes": sum(each.bytes for each in gone),
        "removed_files": done.removed, "waiting_files": done.waiting,
    }  # fmt: skip


_RUN: Mapping[Kind, Callable[[LookedAfter, bool, State, Callable[[str], None]], dict[str, int]]] = {
    "compact": _compact,
    "retain": _retain,
}
