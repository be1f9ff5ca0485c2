"""What is decided before a session starts."""

from __future__ import annotations

import os
import socket

import pytest

from rivet_resources.contracts.settings import Spark
from rivet_resources.errors import SparkUnavailable
from rivet_resources.spark import sessions


def test_master_that_nobody_answers_for_is_refused_at_once() -> None:
    """Spark would try for a minute; each place is named."""
    with pytest.raises(SparkUnavailable, match=r"127\.0\.0\.1:1: .*refused; 127\.0\.0\.1:2: .*refused"):
        sessions.refuse_silent_master("spark://127.0.0.1:1,127.0.0.1:2")


def test_one_of_several_masters_is_enough() -> None:
    """As in a cluster whose first master is standing by; other cluster managers are theirs to find."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sessions.refuse_silent_master(f"spark://127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}")
    sessions.refuse_silent_master("yarn")
    sessions.refuse_silent_master("k8s://https://127.0.0.1:1")


@pytest.mark.parametrize(
    ("conf", "variable", "expected"),
    [
        ({"spark.pyspark.python": "/opt/rivet/bin/python3"}, "/usr/bin/python3", "/opt/rivet/bin/python3"),
        ({}, "/usr/bin/python3", "/usr/bin/python3"),
        ({}, None, None),
    ],
)
def test_python_of_the_file_outweighs_the_variable(
    conf: dict[str, str], variable: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with spark-submit; the variable is as before when Spark has started."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if variable is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", variable)

    with sessions._python_of_tasks(Spark(master="spark://h:7077", conf=conf)):
        seen = os.environ.get("PYSPARK_PYTHON")

    assert (expected, variable) == (seen, os.environ.get("PYSPARK_PYTHON"))
