"""Traces by OTLP over HTTP, by OpenTelemetry's own SDK.

Belongs here: sending spans that are over. Not here: which spans (`rivet_assets/observe/spans.py`). Where to, and with
which headers, say the standard variables: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS, …
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rivet_resources.extras import OPENTELEMETRY
from rivet_resources.observe.bounded import ReceiverRefused

TIMEOUT_SECONDS = 4.0  # below the patience with receivers


@dataclass(frozen=True)
class TraceSpan:
    """One span; the first of a trace is the parent of the others."""

    name: str
    start: datetime
    end: datetime
    attributes: Mapping[str, str | float]
    fault: str  # '': all is well


class TraceExporter:
    """Sends traces. Making one loads the SDK, which takes a second, and sends nothing."""

    def __init__(self, service_name: str | None) -> None:
        """Load what sends.

        Raises:
            ExtraMissing
        """
        OPENTELEMETRY.require()
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # driver

        # It logs addresses; we say the rest.
        logging.getLogger(OTLPSpanExporter.__module__).setLevel(logging.CRITICAL)
        self._service_name = service_name or os.environ.get("OTEL_SERVICE_NAME") or "rivet"
        self._exporter = OTLPSpanExporter(timeout=TIMEOUT_SECONDS)

    def export(self, spans: Sequence[TraceSpan]) -> None:
        """Send one trace.

        Raises:
            ReceiverRefused
        """
        from opentelemetry.sdk.trace.export import SpanExportResult  # driver

        if self._exporter.export(_finished(spans, self._service_name)) is not SpanExportResult.SUCCESS:
            raise ReceiverRefused("the collector did not take the trace; look at OTEL_EXPORTER_OTLP_ENDPOINT")


def _finished(spans: Sequence[TraceSpan], service_name: str) -> list[Any]:
    """Return the spans as the SDK has them."""
    from opentelemetry import trace  # driver
    from opentelemetry.sdk.resources import Resource  # driver
    from opentelemetry.sdk.trace import TracerProvider  # driver

    # A provider of our own: the process's belongs to whoever set it up.
    provider = TracerProvider(resource=Resource.create({"service.name": service_name}), shutdown_on_exit=False)
    tracer = provider.get_tracer("rivet")
    made: list[Any] = []
    for each in spans:
        parent = trace.set_span_in_context(made[0]) if made else None
        span = tracer.start_span(
            each.name, context=parent, start_time=_nanoseconds(each.start), attributes=dict(each.attributes)
        )
        if each.fault:
            span.set_status(trace.Status(trace.StatusCode.ERROR, each.fault))
        made.append(span)
    for each, span in zip(spans, made, strict=True):
        span.end(_nanoseconds(each.end))
    return made


def _nanoseconds(instant: datetime) -> int:
    # A float of unix seconds tells microseconds, as a datetime does, but has no digits for nanoseconds.
    return round(instant.timestamp() * 1_000_000) * 1000
