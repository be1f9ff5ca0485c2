"""Compare what streams of changes amount to with their tables: polled tables, and mirrors of captured ones.

Belongs here: one verdict per stream, since no window of changes can be counted at the source. Not here: modes that read
rows (`reconcile.py`), the full diff of a poll (`rivet_resources/poll/full_diff.py`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from rivet_assets.modes.cdc import Cdc, drain_of
from rivet_assets.modes.poll import Poll
from rivet_assets.modes.poll_preconditions import refuse_hidden_keys
from rivet_assets.modes.protocol import Planning
from rivet_assets.prove.reconcile_result import Answer, Depth, Reconciled, WindowVerdict, stamp
from rivet_assets.run.attempt import Site, new_run_id
from rivet_resources.commit.chain import resolve_cursor
from rivet_resources.commit.manifest import Manifest, current_manifests, window_manifest
from rivet_resources.contracts.extract import Window
from rivet_resources.contracts.settings import pace
from rivet_resources.engines.shared.statements import conjunction
from rivet_resources.errors import ConfigError
from rivet_resources.poll.watermark import check_fits, parse
from rivet_resources.prove.compare_rows import RowDifferences
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import SparkRuntime

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_assets.run.attempt import Tell
    from rivet_resources.contracts.destination import Root
    from rivet_resources.contracts.source import Source
    from rivet_resources.state.store import State

NO_MIRROR = "changes are not rows, so only a mirror of them can be compared; add `apply: mirror` to the export"
QUIET = "changes that are not drained yet count as differences: compare after a drain, while the source is quiet"


def reconcile_stream(
    config: RivetConfig, export: Export, *, depth: Depth, state: State, tell: Tell
) -> Reconciled:  # fmt: skip
    """Compare a stream with its table, or each mirror of a capture; nothing is kept.

    Raises:
        RivetError: whatever asking the source and reading parts raise.
    """
    if (drain := drain_of(export)) is not None:
        found = tuple(_compare_mirror(config, drain, table, depth, state, tell) for table in drain.captured)
        return Reconciled(export.name, export.mode, depth, found)
    _, source = config.source_of(export)
    verdict = _compare_poll(cast(Poll, export), source, tell)
    return Reconciled(export.name, export.mode, depth, (verdict,) if verdict else ())


# --- polled tables -------------------------------------------------------------------------------


def _compare_poll(export: Poll, source: Source, tell: Tell) -> WindowVerdict | None:
    """Compare the latest state of each key with the table; None before the first run."""
    root = export.destination.on(datetime.now(UTC).date()).root(export.name)
    manifests = current_manifests(root) if root.keeps_manifests else {}
    if not manifests:
        return None
    newest = max(manifests.values(), key=lambda each: each.finished_at)
    if all(each.cursor is None or each.cursor.low is not None for each in manifests.values()):
        text = "the first windows were dropped (`keep:`), so the windows that are left do not amount to the table"
        return _verdict(newest, "unknown", text)
    if any(not each.file_format.is_parquet for each in manifests.values()):
        return _verdict(newest, "unknown", "only Parquet can be searched for the latest state of a key")
    with source.session(application=f"rivet:{export.name}", pace=pace(source.tuning, export.tuning)) as session:
        relation = session.describe(
            table=export.table, query=export.query, params=export.params, rules=export.type_rules()
        )
        now = datetime.now(UTC)
        planning = Planning(
            source=source, session=session, relation=relation, window=None, cursor=resolve_cursor(manifests),
            run_id=new_run_id(export.name, now), started_at=now, tasks=1,
        )  # fmt: skip
        found = _balance(export, planning, newest, root, list(manifests.values()))
    tell(f"{export.name}: {found.verdict}, {found.text}")
    return found


def _balance(
    export: Poll, planning: Planning, newest: Manifest, root: Root, manifests: list[Manifest]
) -> WindowVerdict:
    orders, held = export.orders(planning), parse(planning.cursor, export=export.name)
    if held.updated is None:
        return _verdict(newest, "unknown", "no row was delivered yet")
    try:
        refuse_hidden_keys(planning, orders[0], steps=export.steps, export=export.name)
    except ConfigError as error:
        return _verdict(newest, "unknown", str(error))
    count, changed = planning.session.count, 0
    for order, low in zip(orders, (held.updated, held.deleted), strict=False):
        check_fits(low, order.columns, export=export.name)
        changed += count(planning.relation, where=conjunction([order.where, order.after(low)]))
    here = count(planning.relation, where=orders[0].where)
    published = export.diff_of(planning, orders[0], held.updated).count_published(root=root, manifests=manifests)
    return _judge_counts(newest, here=here, published=published, changed=changed, detects=export.delete_detection.type)


def _judge_counts(newest: Manifest, *, here: int, published: int, changed: int, detects: str) -> WindowVerdict:
    """Judge two counts; rows changed since the last run may be new keys or old ones, so they leave a doubt."""
    off = abs(here - published)
    if off <= changed and changed:
        text = f"{changed} rows changed since the last run, so counts prove nothing; run the export, then compare again"
        return _verdict(newest, "unknown", text, here, published)
    if not off:
        return _verdict(newest, "match", f"the table has {here} rows, as the changes amount to", here, published)
    if published > here:
        why = "deletes are not noticed without `delete_detection`" if detects == "disabled" else "rows were deleted"
        text = f"{off} published rows are no longer in the table ({published} published, {here} now): {why}"
    else:
        text = f"{off} rows of the table are not published ({published} published, {here} now): they committed late"
    help_ = "a run with `delete_detection: {type: full_diff}` finds them, and so does `rivet state reset`"
    return _verdict(newest, "mismatch", f"{text}; {help_}", here, published)


def _verdict(
    manifest: Manifest, verdict: Answer, text: str, source_count: int | None = None, exported_rows: int | None = None
) -> WindowVerdict:
    return WindowVerdict(
        manifest.window, manifest.run_id, verdict, text, committed_at=manifest.finished_at, source_count=source_count,
        exported_rows=exported_rows,
    )  # fmt: skip


# --- captured tables -----------------------------------------------------------------------------

# Rows at the source, rows that differ where cells were read, whether anything differs, and how to say it.
_Looked = tuple[int, RowDifferences | None, bool, str]


def _compare_mirror(
    config: RivetConfig, export: Cdc, table: str, depth: Depth, state: State, tell: Tell
) -> WindowVerdict:  # fmt: skip
    """Compare a mirror with its table: by count, or by every cell where depth asks for more."""
    name = export.table_beside(table, "mirror")
    if "mirror" not in export.apply:
        return WindowVerdict(name, "", "unknown", f"{table}: {NO_MIRROR}")
    root = export.destination.on(datetime.now(UTC).date()).root(name)
    found = window_manifest(root, Window("all"))
    if found is None:
        return WindowVerdict(name, "", "unknown", f"{table}: there is no mirror yet; run the export first")
    source_name, source = config.source_of(export)
    site = Site(export, source_name, source, Exporter(SparkRuntime(config.spark), state), state, root, tell)
    here, rows, off, text = (
        _compare_counts(site, export, table, found[0]) if depth == "counts" else _compare_cells(site, table)
    )
    at = stamp(found[0].finished_at)
    verdict: Answer = "mismatch" if off else "match"
    told = f"{table}: {text} (mirror of {at})" + (f"; {QUIET}" if off else "")
    tell(f"{name}: {verdict}, {told}")
    return WindowVerdict(
        name, found[0].run_id, verdict, told, committed_at=found[0].finished_at, source_count=here,
        exported_rows=found[0].row_count, rows=rows,
    )  # fmt: skip


def _compare_counts(site: Site, export: Cdc, table: str, mirror: Manifest) -> _Looked:
    planned = pace(site.source.tuning, export.tuning)
    with site.source.session(application=f"rivet:{export.name}", pace=planned) as session:
        relation = session.describe(table=table, query=None, params={}, rules=export.type_rules())
        here = session.count(relation)
    return here, None, here != mirror.row_count, f"{here} rows at the source, {mirror.row_count} in the mirror"


def _compare_cells(site: Site, table: str) -> _Looked:
    from rivet_assets.prove.reconcile_mirror import compare_mirror  # start
    from rivet_assets.run.judge.drain_verdicts import mirror_verdict  # start

    try:
        found = compare_mirror(site, table)
    finally:
        site.exporter.spark.stop()
    rows = RowDifferences(found.missing, found.extra, found.different)
    return found.source_rows, rows, rows.is_any, mirror_verdict(found).text
