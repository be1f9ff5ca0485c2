"""Metrics of a run that is over, where Prometheus finds them: a file for node_exporter, or a Pushgateway.

Belongs here: writing and pushing. Not here: which metrics (`rivet_assets/observe/samples.py`). An endpoint to be
scraped is no choice: most runs are over before a scrape.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from rivet_resources.extras import PROMETHEUS

TIMEOUT_SECONDS = 4.0  # below the patience with receivers


@dataclass(frozen=True)
class Sample:
    """One number."""

    name: str
    text: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def load() -> None:
    """Load the client.

    Raises:
        ExtraMissing
    """
    PROMETHEUS.require()
    import_module("prometheus_client")


def write_textfile(folder: Path, *, labels: Mapping[str, str], samples: Sequence[Sample]) -> None:
    """Replace the file of these labels; metrics that are not among `samples` stay in it as they were.

    Raises:
        OSError
    """
    from prometheus_client import generate_latest  # driver
    from prometheus_client.parser import text_string_to_metric_families  # driver

    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256("\0".join(labels.values()).encode()).hexdigest()[:8]
    word = re.sub(r"[^A-Za-z0-9_-]", "_", labels["export"])[:80]
    # Two exports may be one word.
    path = folder / f"rivet_{word}_{digest}.prom"
    families = {}
    if path.exists():
        families = {each.name: each for each in text_string_to_metric_families(path.read_text())}
    families |= _families(samples, labels)

    class Kept:
        def collect(self) -> Any:
            yield from families.values()

    # The collector reads *.prom only, and whole files.
    beside = path.with_suffix(f".{os.getpid()}.tmp")
    beside.write_bytes(generate_latest(Kept()))
    beside.replace(path)


def push(url: str, *, job: str, labels: Mapping[str, str], samples: Sequence[Sample]) -> None:
    """Push to the group of these labels; metrics that are not among `samples` stay in it as they were.

    Raises:
        OSError
    """
    from prometheus_client import CollectorRegistry, pushadd_to_gateway  # driver

    families = _families(samples, {})  # the gateway adds the labels of the group

    class Pushed:
        def collect(self) -> Any:
            yield from families.values()

    registry = CollectorRegistry()
    registry.register(Pushed())
    pushadd_to_gateway(url, job=job, registry=registry, grouping_key=dict(labels), timeout=TIMEOUT_SECONDS)


def _families(samples: Sequence[Sample], labels: Mapping[str, str]) -> dict[str, Any]:
    from prometheus_client.core import GaugeMetricFamily  # driver

    found: dict[str, Any] = {}
    for each in samples:
        names = [*labels, *each.labels]
        family = found.setdefault(each.name, GaugeMetricFamily(each.name, each.text, labels=names))
        family.add_metric([*labels.values(), *each.labels.values()], each.value)
    return found
