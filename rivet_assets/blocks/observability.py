"""The YAML block `observability:`: which tools hear of runs.

Belongs here: the keys and their rules. Not here: what they are told (`observe/`), sending
(`rivet_resources/observe/`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from rivet_assets.blocks.export_values import rule_broken
from rivet_resources.contracts.settings import Settings
from rivet_resources.extras import OPENLINEAGE, OPENTELEMETRY, PROMETHEUS, Extra

CODE = "RIVET_CONFIG_OBSERVABILITY"


def _address(url: str | None, key: str) -> str | None:
    """Refuse what is no address, and one that holds a password.

    Raises:
        ValueError
    """
    parts = urlsplit(url) if url is not None else None
    if parts is not None and (parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc):
        raise rule_broken(CODE, f"{key} is not http(s)://host without user and password; write it like that")
    return url


class PrometheusMetrics(Settings):
    """Metrics of each run: runs are short, so they are left where Prometheus finds them afterwards."""

    textfile_dir: Path | None = Field(
        None, description="folder of node_exporter's textfile collector: one file per export"
    )
    pushgateway: str | None = Field(None, description="address of a Pushgateway, such as http://push:9091")
    job: str = Field("rivet", min_length=1, description="label `job` of what is pushed")

    @model_validator(mode="after")
    def somewhere(self) -> Self:
        """Refuse metrics that nobody could find."""
        if self.textfile_dir is None and self.pushgateway is None:
            raise rule_broken(CODE, "prometheus names neither textfile_dir nor pushgateway; set one, or both")
        _address(self.pushgateway, "pushgateway")
        return self


class OpenTelemetryTraces(Settings):
    """A trace of each run, sent by OTLP over HTTP to where the standard OTEL_* variables say."""

    service_name: str | None = Field(None, description="default: OTEL_SERVICE_NAME, else rivet")


class OpenLineageEvents(Settings):
    """START and COMPLETE or FAIL of each run, with schema, column lineage and statistics."""

    url: str | None = Field(None, description="default: what OPENLINEAGE_* variables or openlineage.yml say")
    namespace: str = Field("rivet", min_length=1, description="of the jobs")
    api_key_env: str | None = Field(None, description="environment variable that holds the API key, for `url`")

    @field_validator("url")
    @classmethod
    def plain_address(cls, url: str | None) -> str | None:
        """Refuse what is no address."""
        return _address(url, "openlineage.url")


class Observability(Settings):
    """Which tools hear of runs; nothing is sent without a block of theirs."""

    prometheus: PrometheusMetrics | None = Field(None, description="metrics; needs the extra `prometheus`")
    opentelemetry: OpenTelemetryTraces | None = Field(None, description="traces; needs the extra `opentelemetry`")
    openlineage: OpenLineageEvents | None = Field(None, description="lineage; needs the extra `openlineage`")

    @property
    def extras(self) -> tuple[Extra, ...]:
        """Return what they need to be installed."""
        asked = ((self.prometheus, PROMETHEUS), (self.opentelemetry, OPENTELEMETRY), (self.openlineage, OPENLINEAGE))
        return tuple(extra for block, extra in asked if block is not None)
