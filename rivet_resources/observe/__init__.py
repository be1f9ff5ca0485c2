"""Sending what is told of runs to Prometheus, OpenTelemetry and OpenLineage, each by its own client, an extra."""
