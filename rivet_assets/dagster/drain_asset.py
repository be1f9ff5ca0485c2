"""A change export as Dagster assets: one drain that feeds an asset per table.

Belongs here: what Dagster is told of a drain, and when. Not here: the drain (`run/drain.py`), tables kept beside the
changes (`table_asset.py`), sensors (`drain_sensor.py`).
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

import dagster as dg
import pyarrow as pa

from rivet_assets.config.load import RivetConfig
from rivet_assets.dagster.around import Around, surround
from rivet_assets.dagster.checks.check_events import BY_HAND, COLUMNS, join_column_verdicts, result
from rivet_assets.dagster.checks.drain_checks import change_check_specs, change_results
from rivet_assets.dagster.checks.drain_proofs import prerequisites_of
from rivet_assets.dagster.checks.on_demand import answer_or_make, on_demand_specs, provable
from rivet_assets.dagster.op_options import step_options
from rivet_assets.dagster.pages.lineage import column_lineage
from rivet_assets.dagster.pages.metadata import (
    OUR_COLUMNS,
    files_text,
    megabytes,
    seconds_text,
    special_values_count,
    table_schema,
)
from rivet_assets.dagster.pages.page import DETAILS, SUMMARY, details, summary
from rivet_assets.dagster.pages.source_tables import table_observation
from rivet_assets.dagster.pages.specs import columns_description
from rivet_assets.dagster.resources import exporter_of, run_resource
from rivet_assets.dagster.run_config import RUN_CONFIG, AskedRun, asked_of, refuse_disproved
from rivet_assets.dagster.run_tags import tag_run
from rivet_assets.dagster.tell_success import tell_success
from rivet_assets.dagster.translator import SpecOf
from rivet_assets.modes.cdc import Cdc
from rivet_assets.observe.observe import observers_of
from rivet_assets.run import interruption
from rivet_assets.run.actor import actor_of_run
from rivet_assets.run.admit.admission import ADOPT
from rivet_assets.run.admit.scope import state_of
from rivet_assets.run.drain import NO_LAG, DrainSite, run_drain, warnings_of
from rivet_assets.run.drift import Drift
from rivet_assets.run.judge.drain_verdicts import lag_text, lag_verdict, sequence_verdict, slot_verdict
from rivet_assets.run.judge.quality import schema_drift, special_values
from rivet_assets.run.progress import Reporter
from rivet_assets.run.schema_agreement import schema_gate
from rivet_resources.contracts.change_log import Lag, LogSource
from rivet_resources.contracts.extract import Staged
from rivet_resources.contracts.settings import pace
from rivet_resources.dagster.errors import translated
from rivet_resources.dagster.preview import preview
from rivet_resources.drain.plan import Drained

LAG_BUDGET = "rivet/lag_budget"
ENVELOPE_WORDS = {
    "__op": "insert, update, delete or truncate",
    "__pos": "position of the commit in the source's log; sorts as text",
    "__seq": "order of the change inside its commit",
    "__ts": "when it was committed, by the source's clock; NULL in a first copy",
    "__unchanged": "columns the log did not carry; their cell means: as before",
    "__before": "the row as it was, where the log has it",
}


def build_drain(
    export: Cdc, *, config: RivetConfig, spec_of: SpecOf, around: Around | None = None
) -> dg.AssetsDefinition:
    """Return the drain of an export; nothing is opened before it runs."""
    source_name, source = config.source_of(export)
    specs = {table: spec_of(export.of_table(table)) for table in export.captured}
    prerequisites = prerequisites_of(export, config=config)
    proofs = {spec.key: prerequisites for spec in specs.values()}

    def events(context: dg.AssetExecutionContext) -> Iterator[Any]:
        wait = pace(source.tuning, export.tuning).retry_backoff_ms / 1000
        with translated(retry_number=context.retry_number, seconds_to_wait=wait):
            asked = asked_of(context, export, config=config)
            site = _site(asked)
            drained = _drain(site)
            for table, spec in specs.items():
                if spec.key in context.selected_asset_keys:
                    yield from _table_events(site, spec, table, drained)
                elif drained.tables[table].last is not None:
                    # Drained along with those that were asked for.
                    yield dg.AssetMaterialization(spec.key, metadata=_facts(site, table, drained))
            run_ids = [run.run_id for run in site.state.runs(export.name, last=1)]
            refuse_disproved(export, asked.prove(run_ids, site.state))
            tell_success(config, export.name, next(iter(specs.values())).key, site.state, context)

    body = surround(around, export, events)

    @dg.multi_asset(
        name=spec_of(export).key.to_python_identifier(),
        specs=list(specs.values()),
        # So that an idle drain need not tell of every check.
        can_subset=True,
        check_specs=[
            *(check for spec in specs.values() for check in _checks(export, spec.key)),
            *on_demand_specs(proofs),
        ],
        config_schema=RUN_CONFIG,
        **step_options(export, config=config, around=around),
        description=f"Drains the change log of {source_name} for {', '.join(export.captured)}.",
    )
    def changes(context: dg.AssetExecutionContext) -> Iterator[Any]:
        yield from answer_or_make(context, proofs, body)

    return provable(changes)


def _drain(site: DrainSite) -> Drained:
    """Drain; without an end, until a signal asks for one: the window is finished then, and all is well."""
    if site.export.cdc.until_current:
        return run_drain(site)
    with interruption.gently() as end:
        return run_drain(replace(site, is_asked_to_end=end.is_asked, end_within=end.within))


def _checks(export: Cdc, key: dg.AssetKey) -> list[dg.AssetCheckSpec]:
    columns = dg.AssetCheckSpec(
        COLUMNS, asset=key, description=columns_description(export), automation_condition=BY_HAND
    )
    return [columns, *change_check_specs(key)]


def _site(asked: AskedRun) -> DrainSite:
    """Open what the drain needs; Spark starts only for a first copy."""
    config, context, export = asked.config, asked.context, cast(Cdc, asked.export)
    name, source = config.source_of(export)
    tag_run(context, export, source_name=name, source=source)
    state = state_of(config, rivet=run_resource(context)).used_by(actor_of_run(context.run.tags))
    return DrainSite(
        export=export,
        source_name=name,
        # The configuration refuses the mode for all others.
        source=cast(LogSource, source),
        exporter=partial(exporter_of, context, config, state, begin=False),
        state=state,
        folder=config.folder,
        tell=context.log.info,
        progress=Reporter(context.log.info),
        is_adopting=context.run.tags.get(ADOPT) == "true",
        begin_anew=asked.begin(state),
        asked=asked.options.sentence,
        observer=observers_of(config, lambda line: context.log.warning(f"{export.name}: {line}")),
        schemas=lambda one: schema_gate(config, one, state),
    )


def _table_events(site: DrainSite, spec: dg.AssetSpec, table: str, drained: Drained) -> Iterator[Any]:
    """Yield one table's event: a materialization where windows were committed, else an observation of the lag."""
    mine = drained.tables[table]
    results = [*_results(site, spec, table, drained)]
    # Later drains come every half minute.
    if mine.last is not None and drained.started_from is None:
        relation, export = mine.last.extract.relation, site.export.of_table(table)
        seen = table_observation(export, relation, source_name=site.source_name, source=site.source)
        if seen is not None:
            yield seen
    if mine.last is None:
        yield dg.AssetObservation(spec.key, metadata=_position(drained))
        yield from results
        return
    yield dg.MaterializeResult(
        asset_key=spec.key,
        metadata=_facts(site, table, drained),
        data_version=dg.DataVersion(f"{drained.position.key}-{mine.last.extract.run_id[-6:]}"),
        check_results=results,
    )


def _results(site: DrainSite, spec: dg.AssetSpec, table: str, drained: Drained) -> Iterator[dg.AssetCheckResult]:
    """Judge what this drain brought; one that brought nothing judges the lag alone, and reads no manifest."""
    mine = drained.tables[table]
    lag = drained.lag
    lags = [] if lag is None else [lag_verdict(lag, rows=mine.rows), slot_verdict(lag, rows=mine.rows)]
    if mine.last is None:
        yield from change_results(spec.key, lags)
        return
    accepted = site.export.on_schema_drift == "evolve"  # what is left then are added columns
    drift = schema_drift(site.drifts.get(table, Drift((), (), ())), accepted=accepted, rows=mine.rows)
    has_drift = site.export.on_schema_drift != "continue"
    for verdict in join_column_verdicts([special_values(mine.measures), drift], has_drift=has_drift):
        yield result(spec.key, verdict)
    # Of this drain and the window it follows: `rivet validate` reads all manifests, and proves the whole chain.
    sequence = sequence_verdict(mine.links, disorder=drained.disorder, rows=mine.rows)
    yield from change_results(spec.key, [*lags, sequence])


def _facts(site: DrainSite, table: str, drained: Drained) -> dict[str, Any]:
    """Return the metadata of one table's windows: few entries, each once, what leads the page first."""
    mine = drained.tables[table]
    assert mine.last is not None
    lag, took = drained.lag or NO_LAG, sum(drained.seconds.values())
    notes = warnings_of(drained)
    lead = {
        "Changes": mine.rows,
        "Windows": mine.windows,
        "Files": files_text(mine.files, mine.size_bytes),
        "Took": seconds_text(took),
        "Left unread": lag_text(lag),
        "Position": drained.position.text,
        "Asked for": site.asked,
    }
    figures = {
        "run_id": mine.last.extract.run_id,
        "last window": mine.last.extract.window.key,
        "position_key": drained.position.key,
        "last commit": drained.commit_at.isoformat() if drained.commit_at is not None else None,
        **{f"seconds_{step}": round(seconds, 3) for step, seconds in drained.seconds.items()},
        "cpu_seconds": round(mine.measures.cpu_seconds, 3),
        "peak_mb": round(mine.measures.peak_mb, 1),
        "special_values": special_values_count(mine.measures),
        "lag_budget": lag.budget,  # the check `slot_budget` plots it
    }
    return {
        SUMMARY: summary(lead, notes),
        "rivet/rows": mine.rows,
        "rivet/size_mb": megabytes(mine.size_bytes),
        "rivet/seconds": round(took, 3),
        **{name: number for name, number in lag_metadata(lag).items() if name != LAG_BUDGET},
        "dagster/uri": site.roots[table].uri,
        **_columns(site, table, mine.last),
        DETAILS: details(figures, cost={}, staged=mine.last, notes=notes),
        **preview(site.roots[table], mine.manifest, rows=site.export.preview),
    }


def _position(drained: Drained) -> dict[str, Any]:
    """Return where a drain that brought nothing stands, and how far that is behind."""
    facts: dict[str, Any] = {"rivet/position": drained.position.text, **lag_metadata(drained.lag or NO_LAG)}
    if warnings := warnings_of(drained):
        facts["rivet/warnings"] = dg.MetadataValue.md("\n".join(f"* {warning}" for warning in warnings))
    return facts


def lag_metadata(lag: Lag) -> dict[str, Any]:
    """Return a lag as numbers that Dagster plots."""
    numbers = {
        "rivet/lag_bytes": lag.unread_bytes,
        "rivet/lag_changes": lag.unread_changes,
        "rivet/lag_seconds": lag.seconds,
        "rivet/held_bytes": lag.held_bytes,
        LAG_BUDGET: lag.budget,
    }
    return {name: number for name, number in numbers.items() if number is not None}


def _columns(site: DrainSite, table: str, last: Staged) -> dict[str, Any]:
    """Return the columns of a table's changes, and which of the source's they are."""
    schema = pa.ipc.read_schema(pa.BufferReader(last.schema_ipc))
    columns = last.extract.relation.columns
    comments = {column.name: column.comment for column in columns}
    known = {column.name for column in columns}
    facts: dict[str, Any] = {
        "dagster/column_schema": table_schema(schema, {**comments, **OUR_COLUMNS, **ENVELOPE_WORDS})
    }
    lineage = column_lineage(
        site.export.of_table(table),
        {name: frozenset({name}) for name in schema.names if name in known},
        source_name=site.source_name,
        source=site.source,
    )
    return facts | ({"dagster/column_lineage": lineage} if lineage is not None else {})
