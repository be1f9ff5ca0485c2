"""One run of a table kept beside the changes: its lease, its record, the next version, its verdicts.

Belongs here: which changes and key a mirror or history is made of, and judging it. Not here: the Spark jobs
(`rivet_resources/tables/`), what Dagster is told (`dagster/table_asset.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from rivet_assets.run.attempt import Attempt, Site, figures, forget_after_failure, new_run_id, record_run
from rivet_assets.run.drift import Drift
from rivet_assets.run.judge.quality import Verdict, audit, rules_of, special_values
from rivet_assets.run.masked_keys import is_by_tag, refuse_merging
from rivet_resources.contracts.extract import Staged
from rivet_resources.contracts.settings import pace
from rivet_resources.errors import ConfigError
from rivet_resources.write.measures import count_duplicates

if TYPE_CHECKING:
    from rivet_assets.modes.cdc import Cdc
    from rivet_resources.tables.writing import Derived

Kind = Literal["mirror", "history"]


@contextmanager
def next_version(site: Site, table: str, kind: Kind, *, anew: bool = False) -> Iterator[Attempt | None]:
    """Stage and judge the next version; None when the last one holds every change.

    `site.export` is the change export, `site.root` the derived table's folder.

    Args:
        anew: make it of all changes, and not of the last version.

    Raises:
        WindowBusy: another run works on the table.
        ConfigError: no key identifies its rows.
        RivetError: whatever reading, applying and staging raise.
    """
    export: Cdc = site.export  # type: ignore[assignment]
    name = export.table_beside(table, kind)
    own = replace(site, export=export.model_copy(update={"name": name}))
    started_at = datetime.now(UTC)
    run_id = new_run_id(name.rpartition("/")[2], started_at)
    with site.state.lease(name, "all", run_id) as lease, record_run(own, run_id, "all", started_at) as outcome:
        staged = _stage(kind)(replace(_derive(site, export, table, name, run_id), anew=anew), spark=site.exporter.spark)
        if staged is None:
            outcome["status"] = "skipped"
            yield None
            return
        made = Attempt(staged, lease, _verdicts(export, site, staged, kind), Drift((), (), ()), None)
        outcome.update(figures(made))
        try:
            yield made
        except BaseException:
            forget_after_failure(own, made.staged)
            raise


def key_of(site: Site, export: Cdc, table: str) -> tuple[str, ...]:
    """Name the columns that identify a row: those of `key:`, else the table's own key at the source.

    Raises:
        ConfigError: there are none, or a mask makes different keys equal.
    """
    key, relation = export.key, None
    if not key or is_by_tag(export):
        planned = pace(site.source.tuning, export.tuning)
        with site.source.session(application=f"rivet:{export.name}", pace=planned, snapshot=False) as session:
            relation = session.describe(table=table, query=None, params={}, rules=export.type_rules())
        key = key or relation.key
    if not key:
        raise ConfigError(
            f"Export {export.name}: {table} has no primary key and no NOT NULL unique one, so nothing tells its rows "
            f"apart. Name columns that do with `key:`, or remove `apply:`."
        )
    refuse_merging(export, relation, key)
    return tuple(key)


def _stage(kind: Kind) -> Callable[..., Staged | None]:
    """Return the job of a kind; its module brings PySpark along, which definitions load without."""
    if kind == "mirror":
        from rivet_resources.tables.mirror import stage_mirror  # Spark

        return stage_mirror
    from rivet_resources.tables.history import stage_history  # Spark

    return stage_history


def _derive(site: Site, export: Cdc, table: str, name: str, run_id: str) -> Derived:
    from rivet_resources.tables.writing import Derived  # Spark

    return Derived(
        export=name,
        changes=export.destination.root(export.folder_of(table)),
        key=key_of(site, export, table),
        destination=export.destination,
        format=export.format_settings(),
        run_id=run_id,
        unique_columns=tuple(export.quality.unique_columns) if export.quality else (),
        max_file_bytes=export.max_file_size,
        # The table's own key is kept unique there. Where rows may go without a word in the log, a key that comes again
        # proves nothing.
        judges_key=bool(export.key) and not {"cascades", "partitions"}.intersection(export.cdc.accept_untold),
    )


def _verdicts(export: Cdc, site: Site, staged: Staged, kind: Kind) -> tuple[Verdict, ...]:
    """Judge a mirror by the export's rules; a history holds what was, which no rule may undo."""
    rules = rules_of(export.quality) if kind == "mirror" else ()
    duplicates = {column: 0 for column in staged.extract.unique_columns}
    duplicates |= {column: count_duplicates(site.root, files) for column, files in staged.measures.unique.items()}
    return (*audit(rules, staged.measures, duplicates), special_values(staged.measures))
