"""One row of `rivet doctor`, and the kinds that failures are sorted into.

Belongs here: what all parts of the doctor share. Not here: what is asked (`doctor_*.py`), printing
(`report.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rivet_assets.run.admit.provenance import ForeseenRead
from rivet_resources.contracts.evidence import Finding
from rivet_resources.errors import (
    BucketMissing,
    CheckpointUnusable,
    ConfigError,
    DestinationAuth,
    DestinationError,
    DestinationPermission,
    DestinationTls,
    DestinationUnreachable,
    DiskFull,
    ExtraMissing,
    LogBusy,
    LogSetup,
    PositionLost,
    RivetError,
    SourceAuth,
    SourceLost,
    SourceMissing,
    SourcePermission,
    SourceTls,
    SourceUnreachable,
    SparkUnavailable,
    StateError,
    UnknownTable,
    WorkerUnfit,
)
from rivet_resources.fan_out import NoAnswer
from rivet_resources.schema_registry.errors import (
    SchemaRegistryAuth,
    SchemaRegistryError,
    SchemaRegistryTls,
    SchemaRegistryUnreachable,
)
from rivet_resources.state.checkpoints.record import START_ANEW

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export

# Told what a run of an export would read, by the name under which state and files of it are kept.
Told = Callable[["Export", Mapping[str, ForeseenRead]], None]

# What went wrong, in the words people sort by, and where to look; the first class that fits.
CATEGORIES: Sequence[tuple[type[RivetError], str, str]] = (
    (SourceAuth, "auth", "Check user and password, and the variable or file they come from."),
    (SourcePermission, "permission", "Give the user the right that the message names."),
    (SourceMissing, "not-found", "Fix `database` or `path` of the source, or create it."),
    (SourceTls, "tls", "Do what the message says; `tls: {mode: …}` of the source decides what is checked."),
    (SourceUnreachable, "connectivity", "Check host and port, the firewall, and that the server runs."),
    (SourceLost, "connectivity", "Ask again; if it stays so, look at the server and what stands between."),
    (UnknownTable, "not-found", "Fix `table` of the export, or give the user the right to see it."),
    (PositionLost, "position", f"Take a new snapshot: {START_ANEW}."),
    (LogBusy, "busy", "Wait for the other reader, or give this export a slot or server id of its own."),
    (LogSetup, "setup", "Set the source up as the message says."),
    (CheckpointUnusable, "checkpoint", f"Restore it, or give it up: {START_ANEW}."),
    (BucketMissing, "bucket-not-found", "Create the bucket, or fix `destination.bucket`."),
    (DestinationPermission, "permission", "Give whoever signs in the right that the message names."),
    (DestinationAuth, "auth", "Check the credentials of the destination."),
    (DestinationTls, "tls", "Fix the certificate of the endpoint, or name its authority to the client."),
    (DestinationUnreachable, "connectivity", "Check the destination's endpoint and the network."),
    (DiskFull, "space", "Free space there, or choose another place."),
    (DestinationError, "destination", "Check `destination` of the export."),
    (SchemaRegistryUnreachable, "connectivity", "Check `url` of `schema_registry`, and that the registry runs."),
    (SchemaRegistryAuth, "auth", "Check `username` and `password_env` of `schema_registry`."),
    (SchemaRegistryTls, "tls", "Check `ca_file` of `schema_registry`, and the name in `url`."),
    (SchemaRegistryError, "schema-registry", "Check `schema_registry`, and look at the registry."),
    (StateError, "state", "Check `state` of the config and RIVET_STATE_URL."),
    (WorkerUnfit, "worker", "Set the workers up as `docs/guides/cluster.md` says."),
    (SparkUnavailable, "spark", "Do what the message says."),
    (ExtraMissing, "driver", "Run the command that the message names, then ask again."),
    (ConfigError, "config", "Set what the message names, then ask again."),
)


@dataclass(frozen=True)
class Row(Finding):
    """One answer. `about`: source shop, export orders, destination local …; `code` and `category` where it failed."""

    about: str = ""
    code: str = ""
    category: str = ""


def fault_row(about: str, name: str, error: Exception) -> Row:
    """Turn what was raised into a row; the text of an error that is not ours may hold a secret, and is not shown."""
    if isinstance(error, RivetError):
        category, fix = next(((c, f) for kind, c, f in CATEGORIES if isinstance(error, kind)), ("other", ""))
        status: Literal["warn", "fail"] = "warn" if isinstance(error, LogBusy) else "fail"
        return Row(name, status, str(error), fix, about, error.code, category)
    if isinstance(error, NoAnswer):
        return Row(name, "fail", f"{error}.", "Check the network, and what the server waits for.", about, "", "silent")
    return Row(name, "fail", f"{type(error).__name__} was raised, which is a bug of Rivet.", "", about, "", "bug")


def finding_rows(about: str, findings: Iterable[Finding], *, category: str = "") -> Iterator[Row]:
    """Yield what each finding is about; `category` sorts those that fail."""
    for each in findings:
        sort = category if each.status == "fail" else ""
        yield Row(each.name, each.status, each.text, each.fix, about, "", sort)


def spell_count(count: int, word: str) -> str:
    """Spell a number of things."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def spell_age(seconds: float) -> str:
    """Spell how long ago something was."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
