"""A mirror compared with its table: the table is exported once more beside it, and both are read whole.

Belongs here: the copy and the comparison. Not here: the verdict (`run/judge/drain_verdicts.py`), windows that are no
mirror (`reconcile_window.py`).
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from rivet_assets.blocks.export import MetaColumnsBlock
from rivet_assets.modes.cdc import Cdc
from rivet_assets.modes.full import Full
from rivet_assets.modes.protocol import Planning
from rivet_assets.run.attempt import Site, new_run_id
from rivet_assets.run.judge.drain_verdicts import MirrorComparison
from rivet_assets.run.table_version import key_of
from rivet_resources.commit.manifest import Manifest, window_manifest
from rivet_resources.commit.publish import publish
from rivet_resources.commit.reader import read_parts
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.extract import Window
from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.rows.boundary import Boundary
from rivet_resources.contracts.settings import pace
from rivet_resources.errors import ManifestUnreadable
from rivet_resources.shape.transforms.mask_tags import unmasked_columns


def compare_mirror(site: Site, table: str) -> MirrorComparison:
    """Read the whole table as one more export, and compare it with the mirror by key and by every cell.

    What changed at the source after the mirror's position counts as a difference: run it after a drain, on a source
    that is quiet for the moment.

    Raises:
        ManifestUnreadable: there is no mirror yet.
        RivetError: whatever reading raises.
    """
    from rivet_resources.tables.frames import mirror_differences  # Spark

    export: Cdc = site.export  # type: ignore[assignment]
    found = window_manifest(site.root, Window("all"))
    if found is None:
        raise ManifestUnreadable(f"{site.root.uri} holds no mirror yet. Materialize it first.")
    session = site.exporter.spark.session()
    with _copy(site, export, table) as (copy, root):
        source = read_parts(session, root, [copy])
        mirror = read_parts(session, site.root, [found[0]])
        differences = mirror_differences(mirror, source, key_of(site, export, table))
        return MirrorComparison(
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
    started_at = datetime.now(UTC)
    root = export.destination.root(name)
    planned = pace(site.source.tuning, export.tuning)
    with site.source.session(application=f"rivet:{export.name}", pace=planned) as session:
        relation = session.describe(table=table, query=None, params={}, rules=export.type_rules())
        extract = _full(export, name, relation).extract(
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


def _full(export: Cdc, name: str, relation: Relation) -> Full:
    """Return the export of a table's rows as they are now."""
    # What is unmasked in other tables of the drain is no column of this one.
    unmasked = tuple(sorted(unmasked_columns(relation, export.unmasked or ())))
    return Full.model_construct(**{
        **{field: getattr(export, field) for field in Full.model_fields if hasattr(export, field)},
        "name": name, "mode": "full", "table": relation.name, "quality": None, "meta_columns": MetaColumnsBlock(),
        "unmasked": unmasked or None,
    })  # fmt: skip


class _NoLedger:
    """A ledger that forgets: the copy is nobody's export."""

    def advance_cursor(
        self, export: str, value: str, *, expected: str | None, visit: int = 0, boundary: Boundary | None = None
    ) -> None: ...

    def record_commit(self, manifest: Manifest) -> None: ...
    def live_runs(self, export: str) -> set[str]:
        return set()

    def resumable_runs(self, export: str) -> set[str]:
        return set()

    def known_runs(self, export: str) -> set[str]:
        return set()

    def failures_to_sweep(self, export: str, place: str) -> int | None:
        return None
