"""Validate what an export has published, and remember the verdicts: for `rivet validate` and for Dagster's checks.

Belongs here: which folders an export has, at which place they are looked for, what the state store adds and learns. Not
here: looking (`rivet_resources/prove/validate.py`), the words of a report (`validate_report.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from rivet_assets.modes.by_shard import chains_asked
from rivet_resources.errors import ConfigError
from rivet_resources.prove.flaws import Depth, Validated, WindowValidated
from rivet_resources.prove.validate import validate
from rivet_resources.state.verifications import Verification

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.commit.manifest import Manifest
    from rivet_resources.contracts.destination import Root
    from rivet_resources.state.store import State

DEPTHS: Sequence[Depth] = ("light", "sample", "full")


@dataclass(frozen=True)
class ValidationScope:
    """What of an export is validated, and how far."""

    depth: Depth = "full"
    windows: tuple[str, ...] = ()  # keys; none: all, and what is about no window
    run_id: str | None = None  # only windows that this run committed
    day: date | None = None  # fills {date}; None: today
    prefix: str | None = None  # the very folder, instead of the configured one

    @property
    def is_whole(self) -> bool:
        """Return whether a folder is looked at as a whole."""
        return not self.windows and self.run_id is None

    def picks(self, manifest: Manifest) -> bool:
        """Return whether a window is among those asked for."""
        return (not self.windows or manifest.window in self.windows) and self.run_id in (None, manifest.run_id)


def validate_export(export: Export, asked: ValidationScope = ValidationScope(), *, state: State) -> list[Validated]:
    """Validate an export's folders, one after the other; each window's verdict is kept in the state store.

    Raises:
        ConfigError: no such window is committed, or `prefix` is given for an export of several folders.
    """
    if export.is_apart:
        return _validate_shards(export, asked, state=state)
    folders = export.all_folders()
    if asked.prefix is not None and len(folders) > 1:
        raise ConfigError(
            f"Export {export.name} writes {len(folders)} folders ({', '.join(folders)}), and --prefix names one. "
            f"Leave it out, or set `destination` of the export."
        )
    found = [validate_folder(export, folder, asked, state=state) for folder in folders]
    _refuse_unknown(export, asked, found)
    return found


def _validate_shards(export: Export, asked: ValidationScope, *, state: State) -> list[Validated]:
    """Validate the folders of shards with chains of their own, of those that windows are asked of.

    Raises:
        ConfigError: as `validate_export`.
    """
    if asked.prefix is not None:
        raise ConfigError(
            f"Export {export.name} writes a folder for each shard ({', '.join(export.folders())}), and --prefix names "
            f"one. Leave it out, or set `destination` of the export."
        )
    found: list[Validated] = []
    for one, keys in chains_asked(export, asked.windows or None):
        scope = replace(asked, windows=tuple(keys or ()))
        seen = [validate_folder(one, one.name, scope, state=state)]
        if asked.run_id is None:
            _refuse_unknown(one, scope, seen)
        found += seen
    if asked.run_id is not None:
        _refuse_unknown(export, replace(asked, windows=()), found)
    return found


def validate_folder(
    export: Export, folder: str, asked: ValidationScope = ValidationScope(), *, state: State
) -> Validated:
    """Validate one of the export's folders, and keep its windows' verdicts."""
    root = _root(export, folder, asked)
    cursor = None if export.answers.follows_log else state.cursor(export.name)
    found = validate(
        root,
        export=folder,
        depth=asked.depth,
        pick=None if asked.is_whole else asked.picks,
        state=state,
        is_required=asked.prefix is None and _has_run(export, folder, asked, state),
        cursor=cursor.value if cursor else None,
    )
    if asked.prefix is None:  # elsewhere lies a copy, which says nothing of what readers see
        _remember(found, state)
    return found


def _root(export: Export, folder: str, asked: ValidationScope) -> Root:
    """Address the folder: where the export is configured to write, on the day asked for, or the very place given."""
    destination = export.destination if asked.day is None else export.destination.on(asked.day)
    root: Any = destination.root(folder)
    if asked.prefix is None or not root.keeps_manifests:
        return root  # type: ignore[no-any-return]
    if "prefix" in {each.name for each in fields(root)}:
        return replace(root, prefix=asked.prefix.strip("/"))  # type: ignore[no-any-return]
    return replace(root, uri=os.path.abspath(asked.prefix))  # type: ignore[no-any-return]


def _has_run(export: Export, folder: str, asked: ValidationScope, state: State) -> bool:
    """Return whether the store knows a commit at this place; with `{date}` in it, one of that very day."""
    days = {file.created_at.date() for file in state.files(folder, last=1_000)}
    days |= {run.started_at.date() for run in state.runs(folder, last=1_000) if run.status == "success"}
    places = (getattr(export.destination, name, "") for name in ("path", "prefix"))
    if not any("{date}" in place for place in places):
        return bool(days)
    return (asked.day or datetime.now(UTC).date()) in days


def _refuse_unknown(export: Export, asked: ValidationScope, found: Sequence[Validated]) -> None:
    """Refuse windows and runs that nothing is committed of: an answer about nothing would look like a good one."""
    if asked.is_whole or any(each.flaws or each.note for each in found):
        return
    seen = {window.window for each in found for window in each.windows}
    unknown = [key for key in asked.windows if key not in seen]
    if not seen or unknown:
        what = f"window {unknown[0]!r}" if unknown else f"window of run {asked.run_id}"
        raise ConfigError(
            f"Export {export.name} has no committed {what} at {found[0].uri}. `rivet state files -e {export.name}` "
            f"lists windows and runs that committed files."
        )


def _remember(found: Validated, state: State) -> None:
    """Keep the verdicts; a shallower look does not take back what a deeper one saw of the same commit."""
    standing = {each.window: each for each in state.verifications(found.export, "validate")}
    for window in found.windows:
        before = standing.get(window.window)
        if before is not None and before.run_id == window.run_id and window.verdict != "mismatch":
            depth = before.detail.get("depth")
            if depth in DEPTHS and DEPTHS.index(depth) > DEPTHS.index(found.depth):
                continue
        state.save_verification(_verification(found, window))


def _verification(found: Validated, window: WindowValidated) -> Verification:
    codes = sorted({flaw.code for flaw in window.flaws})
    detail = {
        "depth": found.depth,
        "rows": window.rows,
        "parts": window.parts,
        "columns": len(window.compared),
        "columns_not_compared": len(window.not_compared),
        "codes": codes,
    }
    return Verification(found.export, window.window, "validate", window.run_id, window.verdict, detail)


def facts_of(found: Validated) -> Mapping[str, str | int]:
    """Return a folder's verdict as flat metadata, for a Dagster check."""
    codes = sorted({flaw.code for flaw in found.all_flaws})
    return {
        "rivet/validate_verdict": found.verdict,
        "rivet/validate_depth": found.depth,
        "rivet/validate_windows": len(found.windows),
        "rivet/validate_parts": sum(window.parts for window in found.windows),
        "rivet/validate_rows": sum(window.rows for window in found.windows),
        "rivet/validate_columns": sum(len(window.compared) for window in found.windows),
        "rivet/validate_columns_not_compared": sum(len(window.not_compared) for window in found.windows),
        "rivet/validate_flaws": sum(flaw.kind != "advisory" for flaw in found.all_flaws),
        "rivet/validate_advisories": sum(flaw.kind == "advisory" for flaw in found.all_flaws),
        "rivet/validate_codes": ", ".join(codes) or "none",
        "dagster/uri": found.uri,
    }
