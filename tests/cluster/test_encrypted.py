"""Where Spark's own lines are encrypted, hosts need no variable of the configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.cluster.place import KEYS, MARKS, Place
from tests.servers.spark_cluster import Cluster, spark_cluster

pytestmark = MARKS


@pytest.fixture(scope="module")
def encrypted() -> Iterator[Cluster]:
    """Two hosts without any variable, that speak to nobody who does not know a secret."""
    with spark_cluster(Path(os.environ["TMPDIR"]) / "encrypted", secret="s3cr3t-of-spark") as made:
        yield made


@pytest.mark.rare
def test_variables_are_lent_over_encrypted_lines(encrypted: Cluster, ends: tuple[str, str], tmp_path: Path) -> None:
    """They reach no log of Spark's or ours, and no child of a task."""
    place = Place(encrypted, *ends, tmp_path)
    place.config()

    code, told = place.rivet("run")

    assert 0 == code, told
    assert place.is_proved()
    for secret in (KEYS["LAKE_SECRET"], KEYS["SHOP_PASSWORD"]):
        assert secret not in told + "".join(host.logs() for host in encrypted.hosts)


@pytest.mark.rare
def test_changes_are_applied_with_lent_variables(encrypted: Cluster, ends: tuple[str, str], tmp_path: Path) -> None:
    """First copy, changes and mirror: none of their tasks finds a key of the lake on its host."""
    place = Place(encrypted, *ends, tmp_path)
    place.config(
        mode="cdc", chunk_size=None, parallel=None, apply="mirror",
        cdc={"slot": f"rivet_{os.getpid()}", "initial": "snapshot"},
    )  # fmt: skip
    copied = place.rivet("run")
    with psycopg.connect(place.source) as connection:
        connection.execute("UPDATE orders SET note = note || ' later' WHERE id % 7 = 0")
        connection.execute("DELETE FROM orders WHERE id % 11 = 0")

    drained = place.rivet("run")

    assert [0, 0] == [copied[0], drained[0]], (copied, drained)
    assert place.is_proved()
