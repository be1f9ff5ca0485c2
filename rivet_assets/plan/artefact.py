"""The plan as a file: what a run would do, sealed, without a secret.

Belongs here: its fields (`contract.md`, 13.2), sealing, reading it back. Not here: what is planned (`facts.py`),
whether it still holds (`priority.py`).

The seal is a checksum, not a signature: it finds a slip of an editor, not an enemy who can compute it too.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rivet_resources.errors import RivetError

VERSION = 1
MOST_RANGES = 200  # of chunks, written out; `chunk_count` says how many there are


class PlanUnusable(RivetError):
    """The file is no plan, is damaged or edited, or was made by a newer Rivet."""

    code = "RIVET_PLAN_UNUSABLE"


class PlanSection(BaseModel):
    """A section of a plan: frozen, and no key that this version does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class PlannedWindow(PlanSection):
    """One window, and the commit of it that will be replaced."""

    key: str
    table: str = ""  # of a drain: which of its tables; '' for every other mode
    text: str = ""  # what it covers, for people
    statement: str = ""  # the first one that a task would send; '' unknown
    chunk_count: int | None = None  # None: only the run will know
    chunk_ranges: tuple[str, ...] = ()
    row_estimate: int | None = None
    replaces_run_id: str | None = None
    replaces_rows: int | None = None
    replaces_bytes: int | None = None


class Computed(PlanSection):
    """What was found at the source and at the destination."""

    windows: tuple[PlannedWindow, ...]
    chunk_count: int | None
    chunk_ranges: tuple[str, ...]
    cursor_snapshot: str | None  # committed cursor, or position of a drain
    cursor_high: str | None = None  # how far a run of that moment would have gone
    row_estimate: int | None
    columns: tuple[tuple[str, str], ...]  # of the relation: name, Arrow type
    notes: tuple[str, ...] = ()


class Diagnostics(PlanSection):
    """How hard the export is on its source."""

    verdict: str  # '' where it could not be told
    warnings: tuple[str, ...] = ()
    recommended_profile: str = ""
    strategy_rationale: str = ""
    suggestions: tuple[str, ...] = ()
    drift: str = ""  # against the last commit; '' for none
    first_run: bool = False
    duration: str = ""  # how long it takes, at which rate; '' where no run was measured
    holds_back: str = ""  # what the server keeps meanwhile; '' nothing, or only for a moment


class Prioritization(PlanSection):
    """When the export's turn comes."""

    score: int
    signals: dict[str, int]
    rank: Literal["high", "medium", "low"] = Field(alias="class")
    wave: int
    cost: Literal["low", "medium", "high", "very high"]
    seconds: float  # its usual duration, a guess without history
    parallel_safe: bool = True
    source_group: str | None = None


class PlanEntry(PlanSection):
    """What a run of one export would do."""

    export_name: str
    source_name: str
    source_type: str
    strategy: str
    plan_fingerprint: str
    resolved_plan: dict[str, Any]
    computed: Computed
    diagnostics: Diagnostics
    prioritization: Prioritization


class PlanArtefact(PlanSection):
    """The whole plan. `integrity` is over everything else."""

    version: Literal[1] = 1
    plan_id: str
    created_at: datetime  # aware UTC
    expires_at: datetime
    config_path: str
    config_fingerprint: str
    exports: tuple[PlanEntry, ...]
    integrity: str = ""


def canonical(document: Any) -> bytes:
    """Spell a JSON document in the one way that its fingerprint is made of: keys sorted, no space."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def fingerprint(document: Any) -> str:
    """Hash a JSON document, whatever the order of its keys."""
    return f"xxh3:{xxhash.xxh3_64_hexdigest(canonical(document))}"


def seal(artefact: PlanArtefact) -> dict[str, Any]:
    """Return the plan as a JSON document with its seal."""
    document = artefact.model_dump(mode="json", by_alias=True, exclude={"integrity"})
    return {**document, "integrity": fingerprint(document)}


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write a sealed plan, readable by its owner alone, since queries stand in it.

    Raises:
        PlanUnusable: the place cannot be written.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    new = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):  # /dev/stdout, a pipe
            path.write_text(text, encoding="utf-8")
            return
        # A file of its own, then a swap: one that stood there keeps its mode when it is written over, a new one of the
        # usual mode would show its text for a moment, and a death in the middle would leave half a plan.
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(new, path)
    except OSError as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise PlanUnusable(f"{path} cannot be written: {error.strerror}. Name another file with -o.") from error


def read(path: Path) -> PlanArtefact:
    """Read a plan and check its seal.

    Raises:
        PlanUnusable: no plan, edited since it was made, or of a newer Rivet.
    """
    # What an enemy could gain is little, since `apply` runs nothing but exports and windows of the configuration.
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanUnusable(f"{path} cannot be read: {error.strerror}. Make one with `rivet plan -o FILE`.") from error
    except (ValueError, RecursionError) as error:
        raise PlanUnusable(f"{path} is not JSON. Make a plan with `rivet plan -o FILE`.") from error
    if not isinstance(document, dict) or "integrity" not in document:
        raise PlanUnusable(f"{path} is no plan: it has no seal. Make one with `rivet plan -o FILE`.")
    # Before the seal and the fields: a newer plan may have others of both, and "was changed" would send its reader
    # astray.
    if isinstance(document.get("version"), int) and document["version"] > VERSION:
        raise PlanUnusable(f"{path} has version {document['version']}; this Rivet reads {VERSION}. Upgrade Rivet.")
    rest = {key: value for key, value in document.items() if key != "integrity"}
    if document["integrity"] != fingerprint(rest):
        raise PlanUnusable(
            f"{path} was changed after it was made: its seal does not fit, and --force does not help. Plan again."
        )
    try:
        return PlanArtefact.model_validate_json(json.dumps(document))
    except ValidationError as error:
        # Without the input: a query of the plan may hold what its author would not print.
        first = error.errors(include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise PlanUnusable(f"{path} is no plan of this version: {where}: {first['msg']}. Plan again.") from error
