"""Tables kept beside the changes, as Dagster assets: the current state and the history of each drained table.

Belongs here: what Dagster is told of them, and when. Not here: making a version (`run/table_version.py`).
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import dagster as dg
import pyarrow as pa

from rivet_assets.blocks.export import Export
from rivet_assets.config.load import RivetConfig
from rivet_assets.dagster.checks.check_events import join_column_verdicts, result
from rivet_assets.dagster.checks.drain_proofs import mirror_proof
from rivet_assets.dagster.checks.on_demand import answer_or_make, on_demand_specs, provable
from rivet_assets.dagster.op_options import step_options
from rivet_assets.dagster.pages.metadata import data_version, files_text, megabytes, seconds_text, table_schema
from rivet_assets.dagster.pages.page import DETAILS, SUMMARY, details, summary
from rivet_assets.dagster.pages.specs import check_specs
from rivet_assets.dagster.resources import exporter_of, run_resource
from rivet_assets.dagster.run_config import TABLE_RUN_CONFIG
from rivet_assets.dagster.run_tags import tag_run
from rivet_assets.modes.cdc import Cdc
from rivet_assets.run.actor import actor_of_run
from rivet_assets.run.admit.scope import state_of
from rivet_assets.run.attempt import Site
from rivet_assets.run.judge.quality import refusal
from rivet_assets.run.run_options import TableRunOptions
from rivet_assets.run.table_version import Kind, next_version
from rivet_resources.contracts.extract import Staged
from rivet_resources.contracts.settings import pace
from rivet_resources.dagster.errors import translated
from rivet_resources.dagster.io_manager import StagedOutput
from rivet_resources.errors import GateRefused

TOLD = {
    "mirror": "The table as it is at the source, as far as its changes are drained.",
    "history": "Every version of every row, with when it began and ended (slowly changing dimension, type 2).",
}


def build_applied(
    export: Cdc, *, config: RivetConfig, spec_of: Callable[[Export], dg.AssetSpec]
) -> list[dg.AssetsDefinition]:
    """Return the assets that `apply:` asks for; nothing is opened before they run."""
    return [_applied(export, table, kind, config, spec_of) for table in export.captured for kind in export.apply]


def applied_spec(export: Cdc, table: str, kind: Kind, *, spec_of: Callable[[Export], dg.AssetSpec]) -> dg.AssetSpec:
    """Describe one of them: downstream of the changes, made anew whenever they grew."""
    changes = spec_of(export.of_table(table))
    own = spec_of(export.export_beside(table, kind))
    return own.replace_attributes(
        deps=[dg.AssetDep(changes.key)],
        description=TOLD[kind],
        # After each drain that brought something: a drain without changes materializes nothing, and wakes nobody.
        automation_condition=dg.AutomationCondition.eager(),
        tags={**own.tags, "mode": kind},
        kinds={*own.kinds, "spark"},
    )


def _applied(
    export: Cdc, table: str, kind: Kind, config: RivetConfig, spec_of: Callable[[Export], dg.AssetSpec]
) -> dg.AssetsDefinition:
    spec = applied_spec(export, table, kind, spec_of=spec_of)
    # A history holds what was, also what breaks a rule today: no rule may keep it back.
    judged = export if kind == "mirror" else export.model_copy(update={"quality": None})
    # Drift is judged by the drain, which reads the source; here it would be told a second time.
    checks = check_specs(judged.model_copy(update={"on_schema_drift": "continue"}), spec.key)
    open_site = partial(site_of, export, table, kind, config)
    proofs = {spec.key: mirror_proof(table, open_site) if kind == "mirror" else {}}

    def events(context: dg.AssetExecutionContext) -> Iterator[Any]:
        _, source = config.source_of(export)
        wait = pace(source.tuning, export.tuning).retry_backoff_ms / 1000
        with translated(retry_number=context.retry_number, seconds_to_wait=wait):
            site = site_of(export, table, kind, config, context)
            tag_run(context, export, source_name=site.source_name, source=source)
            options = TableRunOptions.model_validate(context.op_execution_context.op_config or {})
            with next_version(site, table, kind, anew=options.full_refresh) as made:
                if made is None:
                    context.log.info(f"{spec.key.to_user_string()}: holds every change already.")
                    return
                results = [
                    result(spec.key, verdict) for verdict in join_column_verdicts(made.verdicts, has_drift=False)
                ]
                if made.is_refused:
                    yield from results
                    raise GateRefused(refusal(site.root.uri, "all", made.verdicts))
                offer = StagedOutput(made.staged, site.root, site.state, made.lease, preview_rows=export.preview)
                _, published = offer.publish()
                yield dg.MaterializeResult(
                    asset_key=spec.key,
                    metadata={**_metadata(made.staged, site), **published},
                    data_version=data_version(made.staged),
                    check_results=results,
                )

    @dg.multi_asset(
        name=spec.key.to_python_identifier(),
        specs=[spec],
        # So that nothing need be told where nothing is new.
        can_subset=True,
        check_specs=[*checks, *on_demand_specs(proofs)],
        config_schema=TABLE_RUN_CONFIG,
        **step_options(export, config=config),
    )
    def applied(context: dg.AssetExecutionContext) -> Iterator[Any]:
        yield from answer_or_make(context, proofs, events)

    return provable(applied)


def site_of(export: Cdc, table: str, kind: Kind, config: RivetConfig, context: dg.AssetExecutionContext | Any) -> Site:
    """Open what making a version needs."""
    name, source = config.source_of(export)
    state = state_of(config, rivet=run_resource(context)).used_by(actor_of_run(context.run.tags))
    exporter = exporter_of(context, config, state, begin=False)  # Spark waits for something to apply
    root = export.destination.root(export.table_beside(table, kind))
    return Site(export, name, source, exporter, state, root, context.log.info)


def _metadata(staged: Staged, site: Site) -> dict[str, Any]:
    measures, applied = staged.measures, staged.extract.applied
    schema = pa.ipc.read_schema(pa.BufferReader(staged.schema_ipc))
    size, took = sum(part.size_bytes for part in staged.parts), sum(staged.seconds.values())
    newest = applied.newest if applied else ""
    lead = {"Rows": measures.rows, "Files": files_text(len(staged.parts), size), "Took": seconds_text(took)}
    figures = {
        "run_id": staged.extract.run_id,
        "position_key": newest,
        **{f"seconds_{step}": round(seconds, 3) for step, seconds in staged.seconds.items()},
    }
    return {
        SUMMARY: summary({**lead, "Changes up to": newest}),
        "dagster/row_count": measures.rows,
        "rivet/size_mb": megabytes(size),
        "rivet/seconds": round(took, 3),
        "dagster/uri": site.root.uri,
        "dagster/column_schema": table_schema(schema, {}),
        DETAILS: details(figures, cost={}, staged=staged),
    }
