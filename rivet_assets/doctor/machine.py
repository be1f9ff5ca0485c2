"""What `rivet doctor` asks of this machine: Java and Spark, drivers, free space, Dagster's home, the state store.

Belongs here: what every export needs, whatever it reads. Not here: sources (`source.py`), destinations
(`destination.py`).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from rivet_assets.doctor.row import Row, fault_row, finding_rows
from rivet_assets.run.admit.scope import state_of
from rivet_resources.contracts.settings import Spark
from rivet_resources.destinations.probe import space
from rivet_resources.errors import ExtraMissing, SparkUnavailable
from rivet_resources.extras import CONNECT, Extra, LibraryMissing
from rivet_resources.fan_out import side_by_side
from rivet_resources.spark.jvm import find_java, spark_home
from rivet_resources.state.store import State

if TYPE_CHECKING:
    from rivet_assets.config.load import RivetConfig

STORE_SKEW_SECONDS = 5.0


def spark_rows(settings: Spark) -> list[Row]:
    """Look for Java and Spark; no JVM is started."""
    if settings.engine == "inline":
        return [Row("engine", "ok", "inline: no Java and no Spark are needed", about="spark")]
    if settings.remote is not None:
        if CONNECT.missing():
            return [fault_row("spark", "engine", CONNECT.error())]
        return [Row("engine", "ok", "remote: no Java is needed here; the endpoint was not asked", about="spark")]
    rows = []
    try:
        java = find_java()
        rows.append(Row("java", "ok", f"Java {java.version}, found by {java.found}", about="spark"))
        rows.append(Row("spark", "ok", f"Spark in {spark_home()}", about="spark"))
    except SparkUnavailable as error:
        rows.append(fault_row("spark", "spark" if rows else "java", error))
    return rows


def machine_rows(needed: Iterable[Extra]) -> list[Row]:
    """Look for what reads and writes, for room to work in, and for Dagster's home.

    Args:
        needed: extras of the sources and destinations.
    """
    rows = [*_drivers(dict.fromkeys(needed)), *finding_rows("machine", [space(tempfile.gettempdir(), name="scratch")])]
    return [*rows, _dagster_home()]


def _drivers(needed: Collection[Extra]) -> Iterator[Row]:
    """Name the packages with their versions, and load those that need libraries of the system."""
    there = ["pyarrow"]
    for extra in needed:
        if extra.missing():
            error = extra.error()
            yield Row(extra.name, "fail", str(error), extra.command, "machine", error.code, "driver")
        else:
            there += extra.packages
    yield Row("drivers", "ok", ", ".join(f"{package} {version(package)}" for package in there), about="machine")
    for extra in needed:
        try:
            extra.load()
        except ExtraMissing:
            continue  # told above
        except LibraryMissing as error:
            yield Row(extra.packages[0], "fail", str(error), extra.libraries, "machine", "", "driver")


def _dagster_home() -> Row:
    """Return where Dagster keeps its runs, since without a home they are gone with the process."""
    home = os.environ.get("DAGSTER_HOME")
    if not home:
        text = "DAGSTER_HOME is not set: `rivet run` keeps no Dagster history (its own is in the state store)"
        return Row("dagster_home", "ok", text, about="machine")
    if not Path(home).is_dir():
        text = f"DAGSTER_HOME names {home}, which is no folder"
        return Row("dagster_home", "fail", text, f"mkdir -p '{home}'", "machine", "", "config")
    if not Path(home).is_absolute():
        text = f"DAGSTER_HOME is {home}, which depends on the working folder"
        return Row("dagster_home", "warn", text, f"export DAGSTER_HOME='{Path(home).resolve()}'", "machine")
    return Row("dagster_home", "ok", f"DAGSTER_HOME is {home}", about="machine")


def open_store(config: RivetConfig, *, seconds: float) -> tuple[State | None, list[Row]]:
    """Open the state store, and hand it on for the checkpoints in it."""
    opening = partial(state_of, config)
    answer = side_by_side({"state": opening}, seconds=seconds)["state"]
    if isinstance(answer, Exception):
        return None, [fault_row("state", "open", answer)]
    return answer, [Row("open", "ok", f"the state store {answer.name}", about="state"), *_store_clock(answer)]


def _store_clock(state: State) -> Iterator[Row]:
    """Compare the store's clock, by which leases end, with ours; a file has no other."""
    before = time.time()
    skew = state.now().timestamp() - (before + time.time()) / 2
    if abs(skew) >= STORE_SKEW_SECONDS:
        text = f"the store's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
        yield Row("clock", "warn", text, "Set both clocks by NTP; history is stamped by the store's.", "state")
