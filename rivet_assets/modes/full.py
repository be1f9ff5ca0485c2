"""Export a whole table or query each time (`mode: full`). A new run replaces the window: all, a value, or a day's.

Belongs here: the YAML keys of the mode and what it asks the source for. Not here: how the source
cuts a table into chunks (`rivet_resources/engines/`).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from rivet_assets.blocks.export import Export
from rivet_assets.blocks.export_values import rule_broken
from rivet_assets.modes.by_value import predicate_of, window_rows
from rivet_assets.modes.protocol import Planning, compose
from rivet_resources.commit.manifest import Manifest
from rivet_resources.contracts.extract import Extract, Window
from rivet_resources.contracts.mode_facts import ModeFacts
from rivet_resources.contracts.rows.value_windows import snapshot_day, snapshot_key
from rivet_resources.errors import SnapshotPast

CODE = "RIVET_CONFIG_SNAPSHOTS"


def snapshot_window(day: str) -> Window:
    """Return the window of a day's snapshot."""
    return Window(snapshot_key(day), folder=f"dt={day}")


class Full(Export):
    """Every row, as of one instant."""

    answers: ClassVar[ModeFacts] = ModeFacts(
        name="full",
        reads="all rows, each time anew",
        cuts=True,
        more_because="rows came after the export too count",
        fewer_because="rows were deleted",
        no_refresh="each run reads all rows and replaces what is published",
    )

    later_keys: ClassVar[tuple[str, ...]] = (*Export.later_keys, "snapshots", "start")
    mode: Literal["full"] = "full"
    snapshots: Literal["daily"] | None = Field(
        None, description="keep each day's copy as a window and partition of its own, instead of replacing the last"
    )
    start: date | None = Field(
        None,
        description="first day of snapshots, such as the day you write this; default 2020-01-01, and Dagster shows "
        "each day since as missing",
    )

    @model_validator(mode="after")
    def snapshots_stand_alone(self) -> Full:
        """Refuse keys that mean nothing without snapshots."""
        for key in ("keep", "start"):
            if getattr(self, key) is not None and self.snapshots is None:
                raise rule_broken(CODE, f"{key} belongs to `snapshots: daily`; add that, or remove it")
        return self

    @property
    def reads(self) -> str:
        """Return what a run reads."""
        if self.snapshots is None:
            return self.answers.reads
        beside = " and shard" if self.shards is not None else " and value" if self.by_value is not None else ""
        return f"all rows, a copy of each day{beside}"

    @property
    def first_snapshot(self) -> date | None:
        """Return the first day of snapshots; 2020-01-01 where none is set."""
        # Decision (2026-11): the file alone says where partitions begin, and `rivet check` asks for the line. To look
        # the first published day up while definitions load was rejected: a store that is away, or is lost, would move
        # the first partition, a backfill in flight fails when partitions change, and a location that is loaded where
        # no secret is (`dagster definitions validate`) would have other partitions than the one that runs.
        return None if self.snapshots is None else self.start or date(2020, 1, 1)

    @property
    def is_first_snapshot_assumed(self) -> bool:
        """Return whether snapshots have no `start`."""
        return self.snapshots is not None and self.start is None

    def extract(self, planning: Planning) -> Extract:
        """Describe all rows of the window, under one snapshot where the source can give it.

        Raises:
            UnknownColumn, SourceError: there is no such window (`by_value.py`).
            SnapshotPast: it is a snapshot of another day than today.
        """
        if self.snapshots is not None:
            planning = replace(planning, window=self._snapshot(planning))
        rows = window_rows(self, planning)
        chunks = planning.session.chunks(
            planning.relation, where=rows.where, order_by=rows.order_by, pieces=self.parallel
        )
        extract = compose(self, planning, window=rows.window, chunks=chunks, decisive=rows.decisive)
        return replace(extract, keep=self.keep if isinstance(self.keep, int) else None)

    def _snapshot(self, planning: Planning) -> Window | None:
        """Return the window of today's snapshot; None where a value has to be named, and none is.

        Raises:
            SnapshotPast
        """
        today = planning.started_at.astimezone(UTC).date().isoformat()
        window = planning.window or (None if self.has_values else snapshot_window(today))
        if window is not None and (day := snapshot_day(window.key)) != today:
            raise SnapshotPast(
                f"Export {self.name}: there can be no snapshot of {day} on {today} (UTC), since the "
                f"source has today's rows only; what is published of that day stays as it is. Run partition {today}."
            )
        return window

    def predicate(self, planning: Planning, manifest: Manifest) -> str:
        """Return which rows the window holds: all, or those of its value."""
        return predicate_of(self, planning, manifest)

    def shares(self, planning: Planning, manifest: Manifest) -> tuple[int, int]:
        """Return (0, 0): the predicate finds the window's rows, no more and no less."""
        return 0, 0

    def again(self, planning: Planning, manifest: Manifest) -> Extract:
        """Describe all rows once more."""
        return self.extract(planning)
