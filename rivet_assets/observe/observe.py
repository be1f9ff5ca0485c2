"""Telling the tools of `observability:` of runs: whom, and what is done when one does not answer.

Belongs here: that order. Not here: what is told (`samples.py`, `spans.py`, `lineage_events.py`), how it is sent
(`rivet_resources/observe/`).

Nothing here can fail a run. A receiver has `PATIENCE_SECONDS` for an answer; one that has none, or refuses, is told of
in one warning and is not asked again by this step, so that a backfill of a year does not wait for it 365 times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rivet_assets.observe.lineage_events import event_of
from rivet_assets.observe.samples import labels_of, samples_of
from rivet_assets.observe.spans import spans_of
from rivet_assets.run.observation import ObservedRun
from rivet_resources.errors import RivetError
from rivet_resources.observe.bounded import PATIENCE_SECONDS, within
from rivet_resources.observe.openlineage import LineageClient
from rivet_resources.observe.opentelemetry import TraceExporter
from rivet_resources.observe.prometheus import load, push, write_textfile
from rivet_resources.secrets import read_variable

if TYPE_CHECKING:
    from rivet_assets.blocks.observability import (
        Observability,
        OpenLineageEvents,
        OpenTelemetryTraces,
        PrometheusMetrics,
    )
    from rivet_assets.config.load import RivetConfig

Tell = Callable[[str], None]
Send = Callable[[ObservedRun], None]


@dataclass
class Observers:
    """The receivers of a configuration, for one step; see `run/observation.py`."""

    at_start: Mapping[str, Send]
    at_end: Mapping[str, Send]
    tell: Tell
    patience_seconds: float = PATIENCE_SECONDS
    _given_up: set[str] = field(default_factory=set)

    def began(self, run: ObservedRun) -> None:
        """Send what is told of a run that begins."""
        self._send(self.at_start, run)

    def ended(self, run: ObservedRun) -> None:
        """Send what is told of a run that ended."""
        self._send(self.at_end, run)

    def _send(self, receivers: Mapping[str, Send], run: ObservedRun) -> None:
        asked = {name: partial(send, run) for name, send in receivers.items() if name not in self._given_up}
        for name, trouble in within(self.patience_seconds, asked).items():
            if name not in self._given_up:
                self._given_up.add(name)
                self.tell(f"observability.{name} {trouble}; this step does not ask it again")


def observers_of(config: RivetConfig, tell: Tell) -> Observers | None:
    """Return the receivers of a configuration; None: it has none.

    Their clients are loaded here, so that no patience with a receiver is spent on imports.
    """
    block = config.observability
    if block is None:
        return None
    at_start: dict[str, Send] = {}
    at_end: dict[str, Send] = {}
    for name, make in _makers(block, config.folder):
        try:
            senders = make()
        except RivetError as error:
            tell(f"observability.{name} is not told: {error}")
        except Exception as error:  # of its own configuration, which may hold a key
            tell(f"observability.{name} is not told, as its client cannot be used ({type(error).__name__})")
        else:
            at_end |= senders
            at_start |= senders if name == "openlineage" else {}
    return Observers(at_start, at_end, tell)


def _makers(block: Observability, folder: Path) -> Iterator[tuple[str, Callable[[], dict[str, Send]]]]:
    if block.prometheus is not None:
        yield "prometheus", partial(_prometheus, block.prometheus, folder)
    if block.opentelemetry is not None:
        yield "opentelemetry", partial(_opentelemetry, block.opentelemetry)
    if block.openlineage is not None:
        yield "openlineage", partial(_openlineage, block.openlineage)


def _prometheus(block: PrometheusMetrics, folder: Path) -> dict[str, Send]:
    load()
    found: dict[str, Send] = {}
    if (files := block.textfile_dir) is not None:
        found["prometheus.textfile_dir"] = lambda run: write_textfile(
            folder / files, labels=labels_of(run), samples=[*samples_of(run)]
        )
    if (url := block.pushgateway) is not None:
        found["prometheus.pushgateway"] = lambda run: push(
            url, job=block.job, labels=labels_of(run), samples=[*samples_of(run)]
        )
    return found


def _opentelemetry(block: OpenTelemetryTraces) -> dict[str, Send]:
    exporter = TraceExporter(block.service_name)
    return {"opentelemetry": lambda run: exporter.export(spans_of(run))}


def _openlineage(block: OpenLineageEvents) -> dict[str, Send]:
    key = (read_variable(block.api_key_env) or "") if block.api_key_env else ""
    client = LineageClient(block.url, key)
    return {"openlineage": lambda run: client.emit(event_of(run, namespace=block.namespace))}
