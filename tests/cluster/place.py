"""Both ends of an export as hosts of a cluster reach them, and `rivet` beside its configuration.

Belongs here: what tests of clusters share. Not here: the cluster (`servers/spark_cluster.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import yaml

from rivet_resources.conformance.lines import Proxy
from tests.processes import Process
from tests.servers.kubernetes_cluster import Kubernetes
from tests.servers.spark_cluster import Cluster, network, unmakeable
from tests.servers.yarn_cluster import YarnCluster

MARKS = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.xdist_group("cluster"),  # one network per process
    pytest.mark.skipif(bool(unmakeable()), reason=unmakeable() or "it can be made"),
]

ROWS = 20_000
KEYS = {"LAKE_KEY": "test", "LAKE_SECRET": "s3cr3t-of-the-lake", "SHOP_PASSWORD": "correct-horse"}


@contextmanager
def seen_by_hosts(host: str, port: int) -> Iterator[int]:
    """Serve what listens on this machine only at the address that the hosts reach; the port."""
    proxy = Proxy(host, port, at=network().driver)
    proxy.up()
    try:
        yield proxy.front
    finally:
        proxy.end()


@dataclass
class Place:
    """A cluster, and both ends of an export as its hosts reach them."""

    cluster: Cluster | YarnCluster | Kubernetes
    source: str
    endpoint: str
    folder: Path

    def connections(self) -> int:
        """Count the connections of Rivet at the source."""
        with psycopg.connect(self.source) as connection:
            counted = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'rivet:%'"
            ).fetchone()
        return int(counted[0]) if counted else 0

    def config(
        self,
        *,
        password_env: str = "SHOP_PASSWORD",
        conf: dict[str, str] | None = None,
        shared: dict[str, str] | None = None,
        prefix: str = "",
        cap: int | None = None,
        **export: Any,
    ) -> None:
        """Write the configuration: a table of 20,000 rows, four chunks of it at once.

        Args:
            shared: the project and its state store, where another machine is to go on.
            prefix: of the lake; default: this folder's own.
            cap: `max_connections` of the source.
            export: keys in place of these, or beside them; None takes one away.
        """
        there = urlsplit(self.source)
        source: dict[str, Any] = {
            "host": there.hostname,
            "port": there.port,
            "user": there.username,
            "database": there.path[1:],
        }
        if cap is not None:
            source["max_connections"] = cap
        block = {"name": "orders", "table": "orders", "format": "parquet", "mode": "chunked", "chunk_size": 2_000}
        keys = {"access_key_env": "LAKE_KEY", "secret_key_env": "LAKE_SECRET", "allow_insecure_endpoint": True}
        lake = {"type": "s3", "bucket": "lake", "prefix": prefix or self.folder.name, "region": "us-east-1"}
        whole = {**block, "parallel": 4, "destination": {**lake, **keys, "endpoint": self.endpoint}}
        document = {
            **(shared or {}),
            "source": {"type": "postgres", **source, "password_env": password_env, "tls": {"mode": "disable"}},
            "spark": {"master": self.cluster.master, "conf": {**self.cluster.conf, **(conf or {})}},
            "exports": [{name: value for name, value in (whole | export).items() if value is not None}],
        }
        (self.folder / "rivet.yaml").write_text(yaml.safe_dump(document))

    def begin(self, *arguments: str) -> Process:
        """Start `rivet` beside the configuration, where every variable is set."""
        environment = {**os.environ, **self.cluster.environment, **KEYS, "HIDDEN_PASSWORD": KEYS["SHOP_PASSWORD"]}
        return Process("rivet_assets.cli.main", *arguments, cwd=self.folder, env=environment)

    def rivet(self, *arguments: str) -> tuple[int, str]:
        """Run `rivet`; exit code and all it wrote."""
        process = self.begin(*arguments)
        out, err = process.communicate(timeout=240)
        return process.wait(), out + err

    def is_proved(self) -> bool:
        """Compare every cell that is published with the source, and every file with its manifest."""
        ends = [self.rivet("reconcile", "--depth", "rows"), self.rivet("validate", "--depth", "full")]
        assert [0, 0] == [code for code, _ in ends], ends
        return True
