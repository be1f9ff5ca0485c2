"""YARN as a cluster manager: where its ResourceManager is, and why it ended an application.

Belongs here: what Hadoop's files and YARN's own answers tell. Not here: sessions (`sessions.py`), hosts (`cluster.py`).
"""

from __future__ import annotations

import os
import re
import socket
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rivet_resources.contracts.settings import Spark
from rivet_resources.errors import SparkUnavailable

if TYPE_CHECKING:
    from pyspark import SparkContext

FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")  # as spark-submit reads them
FILES = ("core-site.xml", "yarn-site.xml")
PREFIX = "yarn.resourcemanager."
PORT = 8032  # yarn-default.xml, yarn.resourcemanager.address
CONNECT_TIMEOUT_SECONDS = 5.0
REPORT_MILLISECONDS = 5_000  # Hadoop itself would ask for 15 minutes


def refuse_silent_manager(settings: Spark) -> None:
    """Raise where YARN's files are not named, or no ResourceManager answers; Hadoop would try for 15 minutes.

    Raises:
        SparkUnavailable
    """
    if settings.master != "yarn":
        return
    folders = [Path(folder) for name in FOLDERS if (folder := os.environ.get(name))]
    if not folders:
        raise SparkUnavailable(
            "`spark: master: yarn` reads where YARN is from yarn-site.xml, and neither HADOOP_CONF_DIR nor "
            "YARN_CONF_DIR names the folder that holds it. Set one of them, for `rivet` and for Dagster's processes."
        )
    reasons = []
    for place in manager_places(settings, folders):
        at, _, port = place.rpartition(":")
        try:
            socket.create_connection((at.strip("[]"), int(port)), CONNECT_TIMEOUT_SECONDS).close()
            return
        except (OSError, ValueError) as error:
            reasons.append(f"{place}: {error}")
    if reasons:
        named = ", ".join(map(str, folders))
        raise SparkUnavailable(
            f"YARN's ResourceManager (`spark: master: yarn`, yarn-site.xml in {named}) does not answer: "
            f"{'; '.join(reasons)}. Check yarn.resourcemanager.hostname there, and that it runs."
        )


def manager_places(settings: Spark, folders: list[Path]) -> list[str]:
    """Return the addresses of the ResourceManagers, host:port; [] where the files leave that to somebody else."""
    known = {**_properties(folders), **_of_spark(settings.conf)}
    places = []
    for name in known.get("yarn.resourcemanager.ha.rm-ids", "").split(",") if _has_several(known) else [""]:
        suffix = f".{name.strip()}" if name else ""
        host = known.get(f"{PREFIX}hostname{suffix}") or known.get(f"{PREFIX}hostname")
        place = known.get(f"{PREFIX}address{suffix}") or (host and f"{host}:{PORT}")
        if place:
            places.append(_filled(place, known))
    # A text that only Hadoop can fill in is no address, and all of them must be known before nobody answers.
    return [] if any("${" in place for place in places) else places


def _has_several(known: Mapping[str, str]) -> bool:
    return known.get("yarn.resourcemanager.ha.enabled", "").lower() == "true"


def _properties(folders: list[Path]) -> dict[str, str]:
    found: dict[str, str] = {}
    for file in (folder / name for folder in folders for name in FILES):
        # What is not there or not readable is Hadoop's to tell, which knows more ways to its settings.
        with suppress(OSError, ElementTree.ParseError):
            for each in ElementTree.parse(file).iter("property"):
                found[(each.findtext("name") or "").strip()] = (each.findtext("value") or "").strip()
    return found


def _of_spark(conf: Mapping[str, str]) -> dict[str, str]:
    """Return Hadoop's settings among Spark's, which outweigh the files."""
    return {key.removeprefix("spark.hadoop."): value for key, value in conf.items() if key.startswith("spark.hadoop.")}


def _filled(text: str, known: Mapping[str, str]) -> str:
    return re.sub(r"\$\{([^}]+)\}", lambda match: known.get(match[1], match[0]), text)


def end_of(context: SparkContext) -> tuple[str, str]:
    """Ask YARN how an application ended: its state (`KILLED`, `FAILED`…), and its name with a reason; "" if unknown."""
    return next(_told(context), ("", ""))


def _told(context: SparkContext) -> Iterator[tuple[str, str]]:
    # It may have no application, or no YARN that answers: then nobody knows why.
    with suppress(Exception):
        scala: Any = context._jsc.sc()
        hadoop: Any = context._jvm.org.apache.hadoop.yarn
        conf = hadoop.conf.YarnConfiguration(scala.hadoopConfiguration())
        conf.setLong("yarn.resourcemanager.connect.max-wait.ms", REPORT_MILLISECONDS)
        client = hadoop.client.api.YarnClient.createYarnClient()
        client.init(conf)
        client.start()
        try:
            report = client.getApplicationReport(hadoop.api.records.ApplicationId.fromString(scala.applicationId()))
            told = str(report.getDiagnostics() or "").strip()
            name = str(scala.applicationId())
            yield str(report.getYarnApplicationState()), f"{name}, {told.splitlines()[0][:300]}" if told else name
        finally:
            client.stop()
