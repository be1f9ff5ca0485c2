"""What validating finds: flaws with codes, and what they come to for a window and for an export.

Belongs here: the codes, their kinds and exit codes (`contract.md`, 10.4). Not here: looking (`validate.py`), wording
of a report (`rivet_assets/prove/validate_report.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Depth = Literal["light", "sample", "full"]
Kind = Literal["wrong", "unverified", "advisory"]
Verdict = Literal["match", "mismatch", "unknown"]

# Code without its prefix → what it means for the command. PART_READ_ERROR and BOUNDARY_DIFFERS are ours.
KINDS: Mapping[str, Kind] = {
    "PART_MISSING": "wrong",
    "PART_SIZE_MISMATCH": "wrong",
    "PART_CHECKSUM_MISMATCH": "wrong",
    "PART_ROW_COUNT": "wrong",
    "VALUE_CHECKSUM": "wrong",
    "CDC_POSITION": "wrong",
    "SUCCESS_MALFORMED": "wrong",
    "SUCCESS_STALE": "wrong",
    "MANIFEST_INCONSISTENT": "wrong",
    "CONTENT_UNMET": "wrong",
    "MANIFEST_REQUIRED": "wrong",
    "MANIFEST_READ_ERROR": "unverified",
    "SUCCESS_READ_ERROR": "unverified",
    "LIST_ERROR": "unverified",
    "PART_READ_ERROR": "unverified",
    "UNTRACKED_OBJECT": "advisory",
    "BOUNDARY_DIFFERS": "advisory",
}
# 3: the data is at fault; 1: nobody could see it, so nothing is said of the data.
EXITS: Mapping[Kind, int] = {"wrong": 3, "unverified": 1, "advisory": 0}
PREFIX = "RIVET_VERIFY_"


@dataclass(frozen=True)
class Flaw:
    """One thing that is not as the manifests say; `text` has counts, sizes and names, never a value."""

    short: str  # of KINDS
    path: str  # relative to the export's folder; '' for the folder itself
    text: str
    window: str = ""  # its key; '' where it is about no window

    @property
    def code(self) -> str:
        """Return the stable code."""
        return PREFIX + self.short

    @property
    def kind(self) -> Kind:
        """Return whether it is wrong, could not be verified, or is only worth knowing."""
        return KINDS[self.short]


def verdict_of(flaws: Iterable[Flaw]) -> Verdict:
    """Return what flaws come to; what is wrong outweighs what nobody could see."""
    kinds = {flaw.kind for flaw in flaws}
    return "mismatch" if "wrong" in kinds else "unknown" if "unverified" in kinds else "match"


@dataclass(frozen=True)
class WindowValidated:
    """One committed window; what of it was compared depends on the depth."""

    window: str
    run_id: str
    rows: int
    parts: int
    size_bytes: int
    flaws: tuple[Flaw, ...] = ()
    compared: tuple[str, ...] = ()  # columns whose checksums were made again
    not_compared: tuple[str, ...] = ()  # columns with a checksum that this format does not give back exactly
    has_checksums: bool = True  # False: its manifest has none (an older Rivet's, or without rows)

    @property
    def verdict(self) -> Verdict:
        """Return how it stands."""
        return verdict_of(self.flaws)


@dataclass(frozen=True)
class Validated:
    """One export's folder; `flaws` are those of no window."""

    export: str
    uri: str
    depth: Depth
    windows: tuple[WindowValidated, ...] = ()
    flaws: tuple[Flaw, ...] = ()
    note: str = ""  # why nothing could be verified though nothing is wrong: no manifest was ever written there

    @property
    def all_flaws(self) -> tuple[Flaw, ...]:
        """List the folder's flaws, then those of its windows."""
        return (*self.flaws, *(flaw for window in self.windows for flaw in window.flaws))

    @property
    def verdict(self) -> Verdict:
        """Return how the whole folder stands."""
        return "unknown" if self.note else verdict_of(self.all_flaws)

    @property
    def exit_code(self) -> int:
        """Answer 3 where something is wrong, else 1 where something could not be verified, else 0."""
        return max((EXITS[flaw.kind] for flaw in self.all_flaws), default=0)
