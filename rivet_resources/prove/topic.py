"""Prove that a topic has the messages of the windows that were committed to it.

Belongs here: counting, and what it comes to. Not here: files (`validate.py`), reading a topic (`destinations/`).

What is proved: of each window, that readers of committed messages find as many of its messages as its transaction
produced. Cells are not compared: the bytes of a message carry no sum of their own, and the client checks that of each
batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rivet_resources.commit.manifest import Manifest, current_manifests
from rivet_resources.contracts.messages import Topic
from rivet_resources.errors import RivetError
from rivet_resources.prove.flaws import Depth, Flaw, Validated, WindowValidated


def validate_topic(
    root: Topic, *, export: str, depth: Depth, pick: Callable[[Manifest], bool] | None, is_required: bool
) -> Validated:
    """Look at the windows of one export; `light` reads their manifests only.

    Args:
        is_required: the state store knows a successful run here, so that there must be a manifest.
    """
    found = Validated(export, root.uri, depth)
    try:
        manifests = current_manifests(root)
    except RivetError as error:
        return replace(found, flaws=(Flaw("LIST_ERROR", "", f"cannot be listed: {error}"),))
    if not manifests and is_required:
        text = "has no window, and the state store knows a run that committed one here"
        return replace(found, flaws=(Flaw("MANIFEST_REQUIRED", "", text),))
    if not manifests:
        return replace(found, note="no window is there, and no run is known that committed one")
    chosen = [each for each in manifests.values() if pick is None or pick(each)]
    return replace(found, windows=tuple(_window(root, each, depth) for each in sorted(chosen, key=lambda m: m.window)))


def _window(root: Topic, manifest: Manifest, depth: Depth) -> WindowValidated:
    return WindowValidated(
        window=manifest.window,
        run_id=manifest.run_id,
        rows=manifest.row_count,
        parts=manifest.part_count,
        size_bytes=manifest.size_bytes,
        flaws=() if depth == "light" or not manifest.row_count else tuple(_flaws(root, manifest)),
        not_compared=tuple(each.name for each in manifest.column_checksums or ()),
    )


def _flaws(root: Topic, manifest: Manifest) -> list[Flaw]:
    path, window = manifest.path, manifest.window
    try:
        count = root.count(path, manifest.run_id, window)
    except RivetError as error:
        return [Flaw("PART_READ_ERROR", path, f"its messages cannot be counted: {error}", window)]
    if count.doubt:
        return [Flaw("PART_READ_ERROR", path, f"its messages cannot be counted: {count.doubt}", window)]
    if count.found != count.expected:
        text = f"its transaction produced {count.expected} messages, and readers find {count.found}"
        return [Flaw("PART_ROW_COUNT", path, text, window)]
    return []
