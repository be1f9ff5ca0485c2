"""OpenLineage events, by the client of that project.

Belongs here: events as the client has them, and sending. Not here: names of jobs and datasets
(`rivet_assets/observe/lineage_events.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from rivet_resources.extras import OPENLINEAGE

TIMEOUT_SECONDS = 4.0  # below the patience with receivers
PRODUCER = "https://pypi.org/project/rivet"
RUNS = uuid.uuid5(uuid.NAMESPACE_URL, PRODUCER)  # of run ids: the events of a run share one, as the format wants it


@dataclass(frozen=True)
class LineageDataset:
    """What was read or written; `origins` and `counts` are of outputs."""

    namespace: str
    name: str
    columns: tuple[tuple[str, str], ...] = ()
    origins: Mapping[str, tuple[tuple[str, str, str], ...]] = field(default_factory=dict)  # (namespace, name, column)
    counts: tuple[int, int, int] | None = None  # rows, bytes, files


@dataclass(frozen=True)
class LineageEvent:
    """A run that begins or ended."""

    state: Literal["START", "COMPLETE", "FAIL", "ABORT"]
    at: datetime
    run_id: str
    namespace: str
    job: str
    inputs: tuple[LineageDataset, ...]
    outputs: tuple[LineageDataset, ...]
    error: str = ""


class LineageClient:
    """Sends events. Making one loads the client, which takes a second, and sends nothing."""

    def __init__(self, url: str | None, api_key: str) -> None:
        """Load what sends.

        Raises:
            ExtraMissing; whatever the client says of its own configuration.
        """
        OPENLINEAGE.require()
        from openlineage.client import OpenLineageClient  # driver

        self._client = OpenLineageClient(config=_config(url, api_key)) if url else OpenLineageClient()

    def emit(self, event: LineageEvent) -> None:
        """Send one event; raises whatever the client raises."""
        self._client.emit(run_event(event))


def _config(url: str, api_key: str) -> dict[str, Any]:
    # No retry: a receiver that is away must not hold up the run that it is told of.
    transport: dict[str, Any] = {"type": "http", "url": url, "timeout": TIMEOUT_SECONDS, "retry": {"total": 0}}
    if api_key:
        transport["auth"] = {"type": "api_key", "apiKey": api_key}
    return {"transport": transport}


def run_event(event: LineageEvent) -> Any:
    """Return the event as the client has it."""
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState  # driver
    from openlineage.client.facet_v2 import error_message_run  # driver

    facets: dict[str, Any] = {}
    if event.error and event.state != "START":
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(event.error, "python")
    return RunEvent(
        eventType=RunState[event.state],
        eventTime=event.at.isoformat(),
        # Made of the run's id, not drawn: START and COMPLETE are sent by calls that share nothing else.
        run=Run(str(uuid.uuid5(RUNS, event.run_id)), facets),
        job=Job(event.namespace, event.job),
        inputs=[InputDataset(each.namespace, each.name, facets=_facets(each)) for each in event.inputs],
        outputs=[
            OutputDataset(each.namespace, each.name, facets=_facets(each), outputFacets=_statistics(each))
            for each in event.outputs
        ],
        producer=PRODUCER,
    )


def _facets(dataset: LineageDataset) -> dict[str, Any]:
    from openlineage.client.facet_v2 import column_lineage_dataset, schema_dataset  # driver

    facets: dict[str, Any] = {}
    if dataset.columns:
        fields = [schema_dataset.SchemaDatasetFacetFields(name, kind) for name, kind in dataset.columns]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields)
    if dataset.origins:
        made = {
            column: column_lineage_dataset.Fields([column_lineage_dataset.InputField(*each) for each in origins])
            for column, origins in dataset.origins.items()
        }
        facets["columnLineage"] = column_lineage_dataset.ColumnLineageDatasetFacet(made)
    return facets


def _statistics(dataset: LineageDataset) -> dict[str, Any]:
    if dataset.counts is None:
        return {}
    from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics  # driver

    rows, size_bytes, files = dataset.counts
    return {"outputStatistics": statistics.OutputStatisticsOutputDatasetFacet(rows, size_bytes, files)}
