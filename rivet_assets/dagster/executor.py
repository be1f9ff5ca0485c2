"""How the runs of a project are executed that has exports among its assets: exports in one process, the rest as ever.

Belongs here: that choice, run by run. Not here: Rivet's own location, where every run is one process
(`definitions.py`).

A run that has any step of the project's own is left to Dagster's default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._core.executor.in_process import InProcessExecutor  # not exported; what `in_process_executor` makes

if TYPE_CHECKING:
    from dagster._core.execution.plan.plan import ExecutionPlan

OURS = "rivet/step"  # op tag


class ExportsInProcess(dg.Executor):
    """Executes a run of exports alone in this process, any other as `usual` does."""

    def __init__(self, usual: dg.Executor) -> None:
        self.usual = usual
        self.in_process = InProcessExecutor(usual.retries, usual.step_dependency_config)

    @property
    def retries(self) -> Any:
        """Return how steps are tried again: the same either way."""
        return self.usual.retries

    @property
    def step_dependency_config(self) -> Any:
        """Return when a step may begin: the same either way."""
        return self.usual.step_dependency_config

    def execute(self, plan_context: Any, execution_plan: ExecutionPlan) -> Iterator[dg.DagsterEvent]:
        """Execute the steps of a plan."""
        # A process of its own for each step would start a JVM and a Python per export, which most exports are shorter
        # than (dagster.md, section 6).
        is_ours = all(OURS in step.tags for step in execution_plan.get_steps_to_execute_in_topo_order())
        yield from (self.in_process if is_ours else self.usual).execute(plan_context, execution_plan)


@dg.executor(
    name="rivet_or_multiprocess",
    config_schema=dg.multi_or_in_process_executor.config_schema.as_field(),
    requirements=dg.multi_or_in_process_executor.get_requirements,
)
def project_executor(init_context: dg.InitExecutorContext) -> dg.Executor:
    """Return Dagster's default executor, with runs of exports alone in one process; it takes the same run config."""
    make = dg.multi_or_in_process_executor.executor_creation_fn
    assert make is not None
    return ExportsInProcess(make(init_context))
