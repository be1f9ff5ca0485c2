"""The badge of a check of a partitioned export: a window that failed it in this run, whatever passed after it.

Belongs here: which stored verdict of a check is its latest. Not here: the verdicts (`check_events.py`), what a plan of
checks does to them (`on_demand.py`).

Decisions, on facts of dagster 1.13.27:
* A refused window is told at once, so that a run that is killed later has said so.
* Dagster's badge is the check's row with the highest number, and a verdict that is told twice in a run stays in its
  row (`sql_event_log.py`, `_update_asset_check_evaluation`). So the row of the refused window is written anew after
  each window that passes; held back to the end of the run, as it once was, a kill would lose it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dagster as dg
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable  # not exported, as the next
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage

Light = tuple[dg.AssetKey, str]  # asset, check


class RedLights:
    """The failed verdicts of a run, errors and warnings, one for each check: the last one."""

    def __init__(self, context: dg.AssetExecutionContext) -> None:
        self.context = context
        self.partitions: dict[Light, str] = {}

    def kept_latest(self, events: Iterator[Any]) -> Iterator[Any]:
        """Yield events of one window; then make failed verdicts of earlier windows the latest again."""
        passed: list[Light] = []
        try:
            for event in events:
                yield event
                if not isinstance(event, dg.AssetCheckEvaluation):
                    continue
                light = (event.asset_key, event.check_name)
                if not event.passed:
                    self.partitions[light] = str(event.partition)
                elif light in self.partitions:
                    passed.append(light)
        finally:  # a window that another check refused, too
            for light in passed:
                self._write_anew(light)

    def _write_anew(self, light: Light) -> None:
        """Move the row of a verdict to the end; a storage that is not Dagster's own SQL keeps it where it is."""
        storage, table = self.context.instance.event_log_storage, AssetCheckExecutionsTable
        if not isinstance(storage, SqlEventLogStorage):
            return
        key, check = light
        row = (
            (table.c.run_id == self.context.run_id)
            & (table.c.asset_key == key.to_string())
            & (table.c.check_name == check)
            & (table.c.partition == self.partitions[light])
        )
        try:
            with storage.index_transaction() as connection:
                found = connection.execute(table.select().where(row)).mappings().first()
                if found is not None:
                    # Deleted and inserted, not updated: the row gets a number above that of the window that passed, and
                    # the badge is the row with the highest.
                    connection.execute(table.delete().where(row))
                    connection.execute(table.insert().values({k: v for k, v in found.items() if k != "id"}))
        except Exception as error:
            # As in `on_demand`: a busy event log must not end an export.
            self.context.log.warning(f"The badge of {check} may be green ({type(error).__name__}).")
