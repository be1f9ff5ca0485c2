"""Checks of change exports that people run from the UI, and nothing else does: they ask the source.

Belongs here: prerequisites of a log, and whether a mirror is its table. Not here: judging (`change_checks.py`), what
every drain checks by itself (`change_assets.py`).
"""

import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import dagster as dg

from rivet_assets.apply_assets import applied_spec, site_of
from rivet_assets.applying import key_of
from rivet_assets.attempt import Site, new_run_id
from rivet_assets.change_checks import (
    MIRROR,
    PREREQUISITES,
    ChangeVerdict,
    Comparison,
    mirror_verdict,
    prerequisites_verdict,
)
from rivet_assets.change_logs import opened
from rivet_assets.change_specs import BY_HAND, DESCRIBED, change_results
from rivet_assets.config import RivetConfig
from rivet_assets.export import Export, MetaColumnsBlock
from rivet_assets.modes.cdc import Cdc
from rivet_assets.modes.full import Full
from rivet_assets.modes.protocol import Planning
from rivet_resources.commit import publish
from rivet_resources.dagster_errors import translated
from rivet_resources.destinations.protocol import Root
from rivet_resources.errors import ManifestUnreadable
from rivet_resources.extract import Window
from rivet_resources.manifest import Manifest, window_manifest
from rivet_resources.reader import read_parts
from rivet_resources.settings import pace
from rivet_resources.state.store import state_url

Judged = Callable[[dg.AssetCheckExecutionContext], ChangeVerdict]
SpecOf = Callable[[Export], dg.AssetSpec]


def build_checks(export: Cdc, *, config: RivetConfig, spec_of: SpecOf) -> list[dg.AssetChecksDefinition]:
    """Give the checks that ask the source; nothing is opened before somebody runs them."""
    checks = [_prerequisites(export, table, config, spec_of) for table in export.captured]
    if "mirror" in export.apply:
        checks += [_mirror(export, table, config, spec_of) for table in export.captured]
    return checks


def _prerequisites(export: Cdc, table: str, config: RivetConfig, spec_of: SpecOf) -> dg.AssetChecksDefinition:
    key = spec_of(export.of_table(table)).key

    def judged(context: dg.AssetCheckExecutionContext) -> ChangeVerdict:
        _, source = config.source_of(export)
        state = context.resources.rivet.state(state_url(config.state_url, folder=config.folder))
        with opened(export, source, deployment=state.name) as log:
            return prerequisites_verdict(log.preflight())

    return _on_demand(key, PREREQUISITES, DESCRIBED[PREREQUISITES], judged)


def _mirror(export: Cdc, table: str, config: RivetConfig, spec_of: SpecOf) -> dg.AssetChecksDefinition:
    key = applied_spec(export, table, "mirror", spec_of=spec_of).key

    def judged(context: dg.AssetCheckExecutionContext) -> ChangeVerdict:
        return mirror_verdict(compared(site_of(export, table, "mirror", config, context), table))

    return _on_demand(key, MIRROR, "The mirror holds exactly the rows of its table; reads all of both.", judged)


def _on_demand(key: dg.AssetKey, name: str, description: str, judged: Judged) -> dg.AssetChecksDefinition:
    """Make a check that runs only when somebody asks for it by name.

    Dagster runs the checks of an asset along with it, which would read whole tables at every materialization; so
    in a run that also makes the asset this one says nothing.
    """

    @dg.multi_asset_check(
        name=f"{key.to_python_identifier()}__{name}",
        specs=[dg.AssetCheckSpec(name, asset=key, description=description, automation_condition=BY_HAND)],
        can_subset=True,  # or it would have to answer
        required_resource_keys={"rivet"},
    )
    def check(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        if not is_asked_for(context.run, key):
            context.log.info(f"{name} is not run along with {key.to_user_string()}; execute it by itself.")
            return
        with translated(retry_number=1, seconds_to_wait=1):
            yield from change_results(key, [judged(context)])

    return check


def is_asked_for(run: dg.DagsterRun, key: dg.AssetKey) -> bool:
    """Say whether a run is for checks of an asset only, and does not make it."""
    return run.asset_check_selection is not None and key not in (run.asset_selection or ())


def compared(site: Site, table: str) -> Comparison:
    """Read the whole table as one more export, and compare it with the mirror by key and by every cell.

    What changed at the source after the mirror's position counts as a difference: run it after a drain, on a source
    that is quiet for the moment.

    Raises:
        ManifestUnreadable: there is no mirror yet.
        RivetError: whatever reading raises.
    """
    from rivet_resources.apply.frames import mirror_differences

    export: Cdc = site.export  # type: ignore[assignment]
    found = window_manifest(site.root, Window("all"))
    if found is None:
        raise ManifestUnreadable(f"{site.root.uri} holds no mirror yet. Materialize it first.")
    session = site.exporter.spark.session()
    with _copy(site, export, table) as (copy, root):
        source = read_parts(session, root, [copy])
        mirror = read_parts(session, site.root, [found[0]])
        differences = mirror_differences(mirror, source, key_of(site, export, table))
        return Comparison(
            source_rows=copy.row_count,
            mirror_rows=found[0].row_count,
            missing=differences.missing,
            extra=differences.extra,
            different=differences.different,
            position=found[0].applied.newest if found[0].applied else "",
        )


@contextmanager
def _copy(site: Site, export: Cdc, table: str) -> Iterator[tuple[Manifest, Root]]:
    """Export the table as it is now beside the mirror, for as long as the block lasts."""
    name = f"{export.folder_of(table)}_check_{secrets.token_hex(3)}"
    full = Full.model_construct(**{
        **{field: getattr(export, field) for field in Full.model_fields if hasattr(export, field)},
        "name": name, "mode": "full", "table": table, "quality": None, "meta_columns": MetaColumnsBlock(),
    })  # fmt: skip
    started_at = datetime.now(UTC)
    root = export.destination.root(name)
    planned = pace(site.source.tuning, export.tuning)
    with site.source.session(application=f"rivet:{export.name}", pace=planned) as session:
        relation = session.describe(table=table, query=None, params={}, rules=export.type_rules())
        extract = full.extract(
            Planning(
                source=site.source, session=session, relation=relation, window=None, cursor=None,
                run_id=new_run_id(name.rpartition("/")[2], started_at), started_at=started_at,
                tasks=site.exporter.spark.parallelism,
            )
        )  # fmt: skip
        staged = site.exporter.stage(extract)
    try:
        manifest = publish(staged, root=root, state=_NoLedger())
        assert manifest is not None
        yield manifest, root
    finally:
        root.sweep(keep=())
        root.delete(list(root.list()))
        if "://" not in root.uri:  # empty folders of a disk
            shutil.rmtree(root.uri, ignore_errors=True)


class _NoLedger:
    """A ledger that forgets: the copy is nobody's export."""

    def advance_cursor(self, export: str, value: str, *, expected: str | None) -> None: ...
    def record_commit(self, manifest: Manifest) -> None: ...
    def live_runs(self, export: str) -> set[str]:
        return set()

    def resumable_runs(self, export: str) -> set[str]:
        return set()

    def known_runs(self, export: str) -> set[str]:
        return set()
