"""What `rivet validate` prints: lines for people, one JSON document, an exit code.

Belongs here: wording and shape of the whole, and the next step for each kind of flaw. Not here: what is looked at
(`validate.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rivet_assets.run.report import Line, Report, Section, Severity
from rivet_resources.commit.manifest import manifest_path
from rivet_resources.contracts.addressing import MANIFESTS
from rivet_resources.contracts.extract import Window
from rivet_resources.prove.flaws import EXITS, Flaw, Validated, WindowValidated

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export

Found = Sequence[tuple["Export", Sequence[Validated]]]

# Steps for what is wrong in a window, by the kind of table; `{export}` and `{table}` are filled in.
REPAIRS: Mapping[str, str] = {
    "batch": "`rivet repair -e {export}` names what it would read again; with --execute it does",
    "changes": "`rivet state reset -e {export}`, then `rivet run -e {export}`, begins anew and replaces what is there",
    "kept": "remove the folder; the next `rivet run -e {export}` makes it again from the changes",
}
STEPS: Mapping[str, str] = {
    "UNTRACKED_OBJECT": "the next run removes what runs of {export} left; whatever else is there is not Rivet's",
    "BOUNDARY_DIFFERS": "`rivet state rebuild -e {export}` brings the store up to the manifests",
    "MANIFEST_REQUIRED": "restore the folder, or run `rivet state reset -e {export}` and `rivet run -e {export}`",
}
UNREADABLE = (
    "restore {path}; or remove it and run its window again, of mode incremental after `rivet state reset -e {export}`"
)
SEVERITIES: Mapping[str, Severity] = {"wrong": "fail", "unverified": "warn", "advisory": ""}
VERDICTS: Mapping[str, Severity] = {"match": "ok", "mismatch": "fail", "unknown": "warn"}
UNVERIFIED = "make it readable (`rivet doctor -e {export}`), then validate again"


def render(found: Found) -> Report:
    """Return one line per folder, one per flaw with the next step below it, and a sum at the end."""
    flaws = [flaw for _, folders in found for each in folders for flaw in each.all_flaws]
    counted = [sum(flaw.kind == kind for flaw in flaws) for kind in EXITS]
    total = f"{counted[0]} wrong, {counted[1]} could not be verified, {counted[2]} worth knowing"
    return Report([_section(export, each) for export, folders in found for each in folders], total)


def _section(export: Export, found: Validated) -> Section:
    rows = [
        Line((flaw.code,), f"{place_of(found, flaw)}: {flaw.text}", SEVERITIES[flaw.kind]) for flaw in found.all_flaws
    ]
    rows += [Line((), text) for text in (*(f"→ {step}" for step in steps_of(export, found)), *_notes(found))]
    return Section(_headline(found), rows, severity=VERDICTS[found.verdict], apart=False)


def _headline(found: Validated) -> str:
    """Return how a folder stands, and how much of it was looked at."""
    word = {"match": "ok", "mismatch": "WRONG", "unknown": "not verified"}[found.verdict]
    if found.note:
        return f"{found.export}  {word}: {found.note} ({found.uri})"
    windows, parts = found.windows, sum(window.parts for window in found.windows)
    rows, size = (sum(getattr(window, name) for window in windows) for name in ("rows", "size_bytes"))
    counts = f"{_count(len(windows), 'window')}, {_count(parts, 'part')}, {_count(rows, 'row')}, {size:,} bytes"
    return f"{found.export}  {word}: {counts}, depth {found.depth} ({found.uri})"


def _notes(found: Validated) -> Iterator[str]:
    """Yield what a full look could not compare."""
    if found.depth != "full":
        return
    columns = sorted({name for window in found.windows for name in window.not_compared})
    if columns:
        yield f"checksums not recomputed of: {', '.join(columns)} (the format does not give their cells back exactly)"
    without = sum(1 for window in found.windows if not window.has_checksums and window.rows)
    if without:
        yield f"{_count(without, 'window')} without checksums in the manifest: bytes and rows were compared"


def place_of(found: Validated, flaw: Flaw) -> str:
    """Name what a flaw is about."""
    window = f"window {flaw.window}, " if flaw.window else ""
    return f"{window}{flaw.path or found.uri}"


def steps_of(export: Export, found: Validated) -> list[str]:
    """Return the next steps, each once."""
    return list(dict.fromkeys(step_of(export, found, flaw) for flaw in found.all_flaws))


def step_of(export: Export, found: Validated, flaw: Flaw) -> str:
    """Return what to do about a flaw."""
    if _is_out_of_place(flaw):
        template = UNREADABLE
    elif flaw.short in STEPS:
        template = STEPS[flaw.short]
    elif flaw.kind == "unverified":
        template = UNVERIFIED
    elif not export.answers.follows_log:
        template = REPAIRS["batch"]
    else:
        template = REPAIRS["kept" if found.export.endswith(("_mirror", "_history")) else "changes"]
    return template.format(export=export.name, path=flaw.path)


def _is_out_of_place(flaw: Flaw) -> bool:
    """Return whether a manifest cannot be read, or not from where it lies: no window can then be read again."""
    is_manifest = flaw.path.startswith(f"{MANIFESTS}/") and flaw.path.endswith(".json")
    return is_manifest and (not flaw.window or manifest_path(Window(flaw.window)) != flaw.path)


def document(found: Found) -> dict[str, Any]:
    """Return the JSON document."""
    return {
        "ok": exit_code(found) == 0,
        "exports": [_folder(export, each) for export, folders in found for each in folders],
    }


def _folder(export: Export, found: Validated) -> dict[str, Any]:
    return {
        "export": found.export,
        "uri": found.uri,
        "depth": found.depth,
        "verdict": found.verdict,
        "note": found.note or None,
        "windows": [_window(window) for window in found.windows],
        "findings": [
            {
                "code": flaw.code, "kind": flaw.kind, "window": flaw.window or None, "path": flaw.path or None,
                "text": flaw.text, "next_step": step_of(export, found, flaw),
            }
            for flaw in found.all_flaws
        ],
    }  # fmt: skip


def _window(window: WindowValidated) -> dict[str, Any]:
    return {
        "window": window.window,
        "run_id": window.run_id,
        "verdict": window.verdict,
        "rows": window.rows,
        "parts": window.parts,
        "size_bytes": window.size_bytes,
        "has_checksums": window.has_checksums,
        "columns_compared": list(window.compared),
        "columns_not_compared": list(window.not_compared),
    }


def exit_code(found: Found) -> int:
    """Answer 3 when something is wrong, else 1 when something could not be verified, else 0."""
    return max((each.exit_code for _, folders in found for each in folders), default=0)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
