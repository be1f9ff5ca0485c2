"""An export as a Dagster asset: stage, audit, publish, in the one order in which data, cursor and UI are right.

Belongs here: what Dagster is told, and when. Not here: staging a window (`run/attempt.py`), the order of effects
(`commit/publish.py`), the words of metadata and checks.

An export without partitions yields its staged window to the IO manager, then its check results. One with partitions
walks its windows, and records each of them when it is committed: a bad window fails alone, and a crash loses only the
windows it was in.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing
from datetime import UTC, date, datetime
from typing import Any

import dagster as dg

from rivet_assets.blocks.export import Export
from rivet_assets.config.load import RivetConfig
from rivet_assets.dagster.around import Around, surround
from rivet_assets.dagster.checks.check_events import breaches, evaluations, join_column_verdicts, result, with_breaches
from rivet_assets.dagster.checks.on_demand import Proofs, answer_or_make, on_demand_specs, provable
from rivet_assets.dagster.checks.proof_checks import proofs_of
from rivet_assets.dagster.checks.red_lights import RedLights
from rivet_assets.dagster.checks.window_holes import windows_check
from rivet_assets.dagster.op_options import backfill_policy, pool_of, step_options
from rivet_assets.dagster.pages.metadata import data_version, describe
from rivet_assets.dagster.pages.source_tables import table_observation
from rivet_assets.dagster.pages.specs import asset_spec, check_specs
from rivet_assets.dagster.quarantine_asset import quarantine_event
from rivet_assets.dagster.resources import exporter_of, run_resource
from rivet_assets.dagster.run_config import RUN_CONFIG, AskedRun, asked_of, proof_evaluations, refuse_disproved
from rivet_assets.dagster.run_tags import tag_run
from rivet_assets.dagster.sample_run import sample_events
from rivet_assets.dagster.tell_success import tell_success
from rivet_assets.modes.partitions import add_partitions, dimension_tags, windows_of
from rivet_assets.observe.observe import observers_of
from rivet_assets.run.actor import actor_of_run
from rivet_assets.run.admit.admission import ADOPT, Admission
from rivet_assets.run.admit.scope import state_of
from rivet_assets.run.attempt import Attempt, Site, attempt
from rivet_assets.run.judge.quality import Verdict, refusal
from rivet_assets.run.other_values import look_at_values, refuse_other_layout
from rivet_assets.run.progress import Reporter
from rivet_assets.run.read_ahead import RefusedWindow, stage_ahead, summary
from rivet_assets.run.schema_agreement import schema_gate
from rivet_resources.contracts.settings import pace
from rivet_resources.dagster.errors import STEP_RETRIES, failure, translated
from rivet_resources.dagster.io_manager import LAKE, StagedOutput
from rivet_resources.errors import GateRefused, RivetError

DATA_VERSION_TAG = "dagster/data_version"
MOST_REASONS = 50  # of refused windows, told with a Failure


def build_export_asset(
    export: Export, *, config: RivetConfig, spec: dg.AssetSpec | None = None, around: Around | None = None
) -> dg.AssetsDefinition:
    """Return the asset of an export; nothing is opened before it runs.

    Args:
        spec: what the asset shows, when it is not `asset_spec(export)`; its key may differ too.
        around: a project's own function around the step.
    """
    spec = spec or asset_spec(export, config=config)
    proofs = {spec.key: {**proofs_of(export, spec.key, config=config), **windows_check(export, spec.key)}}
    # Two shapes, because Dagster has two (dagster.md, sections 4 and 5).
    shape = _whole if spec.partitions_def is None else _windows
    return provable(shape(export, config, spec, proofs, around))


def _whole(
    export: Export, config: RivetConfig, spec: dg.AssetSpec, proofs: Proofs, around: Around | None
) -> dg.AssetsDefinition:
    def events(context: dg.AssetExecutionContext) -> Iterator[Any]:
        with _in_dagster_words(export, config, context):
            asked = asked_of(context, export, config=config)
            site = _site(asked)
            if asked.options.limit is not None:
                yield from sample_events(asked, site, spec.key)
                return
            with attempt(site) as made:
                results = [result(spec.key, verdict) for verdict in _verdicts(export, made)]
                if made.is_refused:
                    # Stored before the raise; Dagster's own gate would come after publishing.
                    yield from results
                    raise GateRefused(refusal(export.name, made.window.key, made.verdicts))
                if made.is_skipped:
                    context.log.info(f"{export.name}: no rows, and skip_empty is set; nothing was written.")
                    yield from results
                    return
                yield dg.MaterializeResult(
                    asset_key=spec.key,
                    value=_offer(site, made),
                    metadata=describe(site, made),
                    data_version=data_version(made.staged),
                    # After the output, so that they point at this materialization.
                    check_results=results,
                )
                _observe_table(site, made, context)
                _tell_quarantine(site, made, spec.key, context)
            # Behind the attempt: a proof that fails must find the window published and its lease given back, for the
            # repair that follows.
            proved = asked.prove([made.staged.extract.run_id], site.state)
            yield from proof_evaluations(spec.key, proved, instance=context.instance)
            refuse_disproved(export, proved)
            tell_success(config, export.name, spec.key, site.state, context)

    body = surround(around, export, with_breaches(spec.key, events))

    @dg.multi_asset(
        name=spec.key.to_python_identifier(),
        # skip_empty, or refused.
        specs=[spec.replace_attributes(skippable=True).with_io_manager_key(LAKE)],
        can_subset=True,  # to answer for checks alone
        check_specs=[*check_specs(export, spec.key), *on_demand_specs(proofs)],
        config_schema=RUN_CONFIG,
        pool=pool_of(export, config=config),
        **step_options(export, config=config, around=around),
    )
    def whole(context: dg.AssetExecutionContext) -> Iterator[Any]:
        yield from answer_or_make(context, proofs, body)

    return whole


def _windows(
    export: Export, config: RivetConfig, spec: dg.AssetSpec, proofs: Proofs, around: Around | None
) -> dg.AssetsDefinition:
    def events(context: dg.AssetExecutionContext) -> Iterator[Any]:
        wanted, refused, tried = windows_of(export, context.partition_keys), [], 0
        runs, red = list[str](), RedLights(context)
        with _in_dagster_words(export, config, context):
            asked = asked_of(context, export, config=config)
            site = _site(asked)
            if asked.options.limit is not None:
                yield from sample_events(asked, site, spec.key, wanted)
                return
            # Before the first window: a value that is new has no partition yet, and its materialization would be of
            # nothing.
            add_partitions(export, look_at_values(site, wanted), context.instance)
            # Closed on every way out, or windows that were staged ahead would keep their leases and parts.
            with closing(stage_ahead(site, wanted)) as ready_windows:
                for ready in ready_windows:
                    tried += 1
                    try:
                        with ready.attempt() as made:
                            here = site.at(ready.window)
                            yield from red.kept_latest(_commit(here, spec, made, context.instance))
                            runs.append(made.staged.extract.run_id)
                            _tell_quarantine(here, made, spec.key, context)
                            if tried == 1:
                                _observe_table(site, made, context)
                    # A bad window fails alone: the others are recorded as they are committed, and only a fault that
                    # each would meet ends the walk.
                    except RivetError as error:
                        refused.append(RefusedWindow(ready.window.key, error, export.shards is not None))
                        told = evaluations(spec.key, breaches(error), ready.window.partition, instance=context.instance)
                        yield from red.kept_latest(told)
                        context.log.error(f"{export.name} {ready.window.key}: {error}")
                        if refused[-1].is_hopeless:
                            break
            proved = asked.prove(runs, site.state)
            yield from proof_evaluations(spec.key, proved, instance=context.instance)
            if not refused:
                refuse_disproved(export, proved)
                tell_success(config, export.name, spec.key, site.state, context)
        if refused:
            raise _failure_of(export, refused, of=len(wanted), tried=tried)

    body = surround(around, export, events)

    @dg.multi_asset(
        name=spec.key.to_python_identifier(),
        specs=[spec],
        can_subset=True,
        backfill_policy=backfill_policy(config),
        check_specs=[*check_specs(export, spec.key), *on_demand_specs(proofs)],
        config_schema=RUN_CONFIG,
        pool=pool_of(export, config=config),
        **step_options(export, config=config, around=around),
    )
    def windows(context: dg.AssetExecutionContext) -> Iterator[Any]:
        yield from answer_or_make(context, proofs, body)

    return windows


def _commit(site: Site, spec: dg.AssetSpec, made: Attempt, instance: dg.DagsterInstance) -> Iterator[Any]:
    """Publish one staged window and tell Dagster, its verdicts last, since they are tied to its materialization.

    Raises:
        GateRefused: nothing was published.
        RivetError: whatever publishing raises.
    """
    verdicts = _verdicts(site.export, made)
    if made.is_refused:
        yield from evaluations(spec.key, verdicts, made.partition, instance=instance)
        raise GateRefused(refusal(site.export.name, made.window.key, made.verdicts))
    if made.is_skipped:
        site.tell(f"{site.export.name} {made.window.key}: no rows, and skip_empty is set; nothing was written.")
    else:
        # Published, then told: an event of a window that is not there yet would wake whatever is downstream of it.
        _, published = _offer(site, made).publish()
        yield dg.AssetMaterialization(
            spec.key,
            partition=made.partition,
            metadata={**describe(site, made), **published},
            tags={DATA_VERSION_TAG: data_version(made.staged).value, **dimension_tags(site.export, made.window)},
        )
    yield from evaluations(spec.key, verdicts, made.partition, instance=instance)


def _site(asked: AskedRun) -> Site:
    """Open what the export needs.

    Raises:
        StateError, DestinationError: as they are opened.
    """
    config, export, context = asked.config, asked.export, asked.context
    name, source = config.source_of(export)
    tag_run(context, export, source_name=name, source=source)
    state = state_of(config, rivet=run_resource(context)).used_by(actor_of_run(context.run.tags))
    # `{date}` is the day the run started on, also after midnight.
    place = export.destination.on(date.min).root(export.name).uri
    export = export.model_copy(update={"destination": export.destination.on(datetime.now(UTC).date())})
    site = Site(
        export=export,
        source_name=name,
        source=source,
        exporter=exporter_of(context, config, state),
        state=state,
        root=export.destination.root(export.name),
        tell=context.log.info,
        warn=context.log.warning,
        progress=Reporter(context.log.info),
        place=place,
        admission=Admission(is_adopting=context.run.tags.get(ADOPT) == "true"),
        begin_anew=asked.begin(state),
        asked=asked.options.sentence,
        observer=observers_of(config, lambda line: context.log.warning(f"{export.name}: {line}")),
        schemas=schema_gate(config, export, state),
    )
    refuse_other_layout(site)
    return site


def _observe_table(site: Site, made: Attempt, context: dg.AssetExecutionContext) -> None:
    """Record what the source table looked like, once a run."""
    relation = made.staged.extract.relation
    seen = table_observation(site.export, relation, source_name=site.source_name, source=site.source)
    if seen is not None:
        context.log_event(seen)


def _tell_quarantine(site: Site, made: Attempt, key: dg.AssetKey, context: dg.AssetExecutionContext) -> None:
    """Record how many rows a window set aside, once it is published."""
    seen = quarantine_event(site, made, key)
    if seen is not None and not made.is_skipped:
        context.log_event(seen)


def _offer(site: Site, made: Attempt) -> StagedOutput:
    return StagedOutput(
        made.staged, site.root, site.state, made.lease, preview_rows=site.export.preview, seen=made.seen
    )


def _in_dagster_words(
    export: Export, config: RivetConfig, context: dg.AssetExecutionContext
) -> AbstractContextManager[None]:
    """Translate errors; a step over windows is never tried again, since it has told of some of them."""
    _, source = config.source_of(export)
    tried = STEP_RETRIES if context.assets_def.partitions_def else context.retry_number
    wait = pace(source.tuning, export.tuning).retry_backoff_ms / 1000
    return translated(retry_number=tried, seconds_to_wait=wait)


def _failure_of(export: Export, refused: Sequence[RefusedWindow], *, of: int, tried: int) -> dg.Failure:
    error, text = summary(export.name, refused, of=of, tried=tried)
    reasons = {each.window: str(each.error) for each in refused[:MOST_REASONS]}
    return failure(error, text=text, facts={"rivet/windows": dg.MetadataValue.json(reasons)})


def _verdicts(export: Export, made: Attempt) -> list[Verdict]:
    return join_column_verdicts(made.verdicts, has_drift=export.on_schema_drift != "continue")
