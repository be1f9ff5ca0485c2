"""The instance of commands: Dagster's own in memory, but for events and a mark that nobody reads."""

from __future__ import annotations

import dagster as dg
from dagster._core.storage.event_log import in_memory as events
from dagster._core.storage.runs import in_memory as runs

from rivet_assets.dagster.unrecorded import unrecorded_instance


@dg.asset(partitions_def=dg.StaticPartitionsDefinition(["a", "b"]))
def numbers() -> int:
    """Make a number."""
    return 1


def test_runs_and_partitions_are_kept_as_in_any_instance() -> None:
    """Runs and dynamic partitions are there to be asked for; events are not kept."""
    with unrecorded_instance() as instance:
        assert dg.materialize([numbers], partition_key="a", instance=instance).success
        instance.add_dynamic_partitions("days", ["2026-01-01"])

        assert instance.get_materialized_partitions(numbers.key) == set()
        assert [run.status for run in instance.get_runs()] == [dg.DagsterRunStatus.SUCCESS]
        assert instance.get_dynamic_partitions("days") == ["2026-01-01"]


def test_a_project_s_own_instances_stay_dagster_s() -> None:
    """What is left out is left out for one instance, also when making it fails."""
    before = events.stamp_alembic_rev, runs.stamp_alembic_rev

    with unrecorded_instance():
        assert before == (events.stamp_alembic_rev, runs.stamp_alembic_rev)
