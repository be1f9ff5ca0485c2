"""Repair as a Dagster run: the job `rivet_repair`, which exports again the windows of one asset that are wrong.

Belongs here: the job, its configuration, what it tells. Not here: finding windows (`prove/flagged_windows.py`),
repairing (`prove/repair.py`).
"""

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

import dagster as dg
from pydantic import Field

from rivet_assets.blocks.export import Export
from rivet_assets.config.load import RivetConfig
from rivet_assets.dagster.checks.drain_checks import change_evaluations
from rivet_assets.dagster.checks.proof_checks import EQUALS_SOURCE, is_close_enough
from rivet_assets.dagster.resources import project_keys, project_session
from rivet_assets.dagster.run_tags import tag_run
from rivet_assets.dagster.translator import SpecOf
from rivet_assets.modes.by_shard import IN_CHAIN
from rivet_assets.modes.partitions import dimension_tags, partitions_of
from rivet_assets.prove.reconcile_result import Depth as HowClosely
from rivet_assets.prove.reconcile_result import Reconciled
from rivet_assets.prove.repair import Repaired, RepairedWindow, repair_export
from rivet_assets.run.actor import actor_of_run
from rivet_assets.run.admit.scope import state_of
from rivet_resources.contracts.extract import Window
from rivet_resources.dagster.errors import translated
from rivet_resources.dagster.resource import Rivet
from rivet_resources.errors import ConfigError

ABOUT = """Exports again the windows of one asset that are wrong, and nothing else: rows that are not the source's any
more, files that are not as they were committed. Run it as it is first, and it says what it would read; then with
`execute: true`."""


class Depth(Enum):
    """How closely windows are compared before they are repaired; as of `rivet reconcile`."""

    counts = "counts"
    checksums = "checksums"


class RepairConfig(dg.Config):
    """What to repair."""

    asset: str = Field(description="asset key of the export, such as shop/orders")
    windows: list[str] = Field(default_factory=list, description="only these windows; none: all")
    depth: Depth = Field(Depth.counts, description="counts: rows counted; checksums: the source is read again")
    execute: bool = Field(False, description="false: only say what would be read again")


@dataclass(frozen=True)
class Target:
    """One export that can be repaired."""

    export: Export
    config: RivetConfig
    spec: dg.AssetSpec


# A job and not a setting of the asset: a repair judges windows that were committed long ago, and an asset's step must
# answer for each of its checks.
class RepairJob(dg.JobDefinition):
    """The job `rivet_repair` for these exports."""

    def __init__(self, targets: Mapping[str, Target], suffix: str = "") -> None:
        self.targets, self.suffix = targets, suffix
        super().__init__(
            graph_def=dg.GraphDefinition(f"rivet_repair{suffix}", node_defs=[_op(targets, suffix)]),
            # A process of its own would start a second JVM for a few windows.
            executor_def=dg.in_process_executor,
            description=ABOUT,
        )

    def joined_with(self, other: Self) -> "RepairJob":
        """Return one job for the exports of both."""
        return RepairJob({**self.targets, **other.targets}, self.suffix)


def repair_jobs(config: RivetConfig, *, spec_of: SpecOf, suffix: str = "") -> list[RepairJob]:
    """Return the job that repairs the exports of a configuration; none where nothing can be repaired."""
    targets = [Target(each, config, spec_of(each)) for each in config.exports if not each.answers.no_repair]
    return [RepairJob({target.spec.key.to_user_string(): target for target in targets}, suffix)] if targets else []


def _op(targets: Mapping[str, Target], suffix: str) -> dg.OpDefinition:
    @dg.op(
        name=f"repair_windows{suffix}",
        description="Exports again the windows of one asset that are wrong, and nothing else.",
        required_resource_keys={key for target in targets.values() for key in project_keys(target.config)},
        out=dg.Out(dg.Nothing),
    )
    def repair_windows(context: dg.OpExecutionContext, config: RepairConfig) -> None:
        with translated(retry_number=1, seconds_to_wait=1):
            target = _target(targets, config.asset)
            name, source = target.config.source_of(target.export)
            tag_run(context, target.export, source_name=name, source=source)
            seen: list[Reconciled] = []
            # Resources are bound to the assets (`resources.py`), so a job brings its own.
            with closing(Rivet()) as rivet:
                done = _repair(target, config, context, rivet, seen)
            if not done.execute:  # what was repaired is not what was seen
                _show(target, config, seen[0], context.instance)
            for event in _events(target, done):
                context.log_event(event)
            context.add_output_metadata(_facts(done))
            _refuse_failed(done)

    return repair_windows


def _target(targets: Mapping[str, Target], asset: str) -> Target:
    """Find an export by its asset key.

    Raises:
        ConfigError: there is none; the message lists those that can be repaired.
    """
    if asset not in targets:
        raise ConfigError(
            f"No export that can be repaired has the asset key {asset!r}; there are {', '.join(targets)}."
        )
    return targets[asset]


def _repair(
    target: Target, asked: RepairConfig, context: dg.OpExecutionContext, rivet: Rivet, seen: list[Reconciled]
) -> Repaired:
    from rivet_assets.prove.flagged_windows import (  # start
        find_flagged,  # compares with sources and files, which no run of an export does
    )

    config, export = target.config, target.export
    state = state_of(config, rivet=rivet).used_by(actor_of_run(context.run.tags))
    depth: HowClosely = "checksums" if asked.depth is Depth.checksums else "counts"
    flagged = find_flagged(
        config,
        export,
        depth=depth,
        windows=asked.windows or None,
        state=state,
        tell=context.log.info,
        seen=seen.append,
    )
    # Spark is started only where something will be read: to say what is wrong needs none.
    begin, session_of = asked.execute and bool(flagged), project_session(context, config)
    exporter = rivet.exporter(spark=config.spark, state=state, begin=begin, session_of=session_of)
    return repair_export(
        config, export, flagged, execute=asked.execute, exporter=exporter, state=state, tell=context.log.info
    )


def _show(target: Target, asked: RepairConfig, found: Reconciled, instance: dg.DagsterInstance) -> None:
    """Set the light of `equals_source` to what this look saw, as the check itself would have."""
    from rivet_assets.dagster.checks.proof_verdicts import source_verdict  # start

    key = target.spec.key
    # A mismatch is one however it was found; that all is well only a look as close as the last one may say.
    if found.verdict == "mismatch" or (not asked.windows and is_close_enough(found, key, instance)):
        for evaluation in change_evaluations(key, [source_verdict(EQUALS_SOURCE, found)], instance=instance):
            # Outside of the run: this job is not the asset's own, and its events would count as of another step.
            instance.report_runless_asset_event(evaluation)


def _events(target: Target, done: Repaired) -> Iterable[dg.AssetMaterialization]:
    """Yield each window that was committed anew, as the asset's own run would."""
    is_partitioned = partitions_of(target.export) is not None
    for window in done.windows:
        if window.status == "repaired" and window.run_id:
            facts: dict[str, Any] = {
                "rivet/repaired": window.text, "rivet/window": window.window, "rivet/rows_read": window.rows,
                "rivet/bytes": window.bytes, "rivet/run_id": window.run_id,
            }  # fmt: skip
            # Of a shard's chain the partition is the shard.
            key = window.window.partition(IN_CHAIN)[0] if target.export.is_apart else window.window
            partition = Window(key).partition if is_partitioned else None
            tags = dimension_tags(target.export, Window(key))
            yield dg.AssetMaterialization(target.spec.key, partition=partition, metadata=facts, tags=tags)


def _facts(done: Repaired) -> dict[str, Any]:
    told = [f"- {each.window}: **{each.status}**, {each.text}" for each in done.windows]
    return {
        "rivet/windows_flagged": len(done.windows),
        "rivet/windows_repaired": sum(each.status == "repaired" for each in done.windows),
        "rivet/executed": done.execute,
        "rivet/report": dg.MetadataValue.md("\n".join(told) or "nothing to repair"),
    }


def _refuse_failed(done: Repaired) -> None:
    """End the run in a failure when a window could not be repaired; the others are.

    Raises:
        Failure
    """
    failed: list[RepairedWindow] = [each for each in done.windows if each.status == "failed"]
    if failed:
        told = "; ".join(f"{each.window}: {each.text}" for each in failed)
        raise dg.Failure(
            f"{len(failed)} of {len(done.windows)} windows could not be repaired: {told}",
            metadata={"rivet/code": failed[0].code, "rivet/exit_code": done.exit_code},
            allow_retries=False,
        )
