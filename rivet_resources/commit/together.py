"""Making the windows of several topics visible at once: first copies of a drain, which nothing could replace.

Belongs here: the order of effects of `publish.py`, for windows that are one transaction. Not here: windows of files,
which are published one after the other, as the next run replaces them (`publish.py`), producing (`append.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from rivet_resources.commit.append import Appended, append_windows
from rivet_resources.commit.manifest import Manifest, build_manifest
from rivet_resources.commit.publish import Ledger, Step, no_hook, publish_parts, sidecars, withdrawn_if_taken
from rivet_resources.commit.rerun import refuse_replacing
from rivet_resources.commit.supersede import succession
from rivet_resources.contracts.extract import Staged
from rivet_resources.contracts.messages import Registered, Topic


@dataclass(frozen=True)
class OfTopic:
    """A staged window and its topic; `registered` as `publish` has it."""

    staged: Staged
    root: Topic
    registered: Registered | None = None


def publish_together(windows: Sequence[OfTopic], *, state: Ledger, step: Step = no_hook) -> list[Manifest]:
    """Make staged windows visible in one transaction, so that a death at any line shows all of them, or none.

    A window without a row has a manifest as well: the next run must find each of them, or none.

    Raises:
        WindowTaken: another run committed one of the windows since it was planned; ours leave nothing behind.
        WindowConflict: windows of another mode are there; ours leave nothing visible.
    """
    with ExitStack() as withdrawn:
        ready = []
        for window in windows:
            withdrawn.enter_context(withdrawn_if_taken(window.staged, root=window.root))
            old = succession(window.staged, root=window.root)
            refuse_replacing(window.staged, old, root=window.root)
            manifest = build_manifest(window.staged, window.staged.parts, supersedes=old.hides)
            ready.append(Appended(window.staged, manifest, window.root, window.registered))
        step("parts")
        for each in ready:
            publish_parts(each.staged.files, root=each.root)
        step("manifest")
        append_windows(ready, step=step)
    step("success")
    step("cursor")
    # Last, as nothing depends on it: the manifests can make all of it again.
    step("metrics")
    for each in ready:
        state.record_commit(each.manifest)
        each.root.delete(sidecars(each.staged))
    return [each.manifest for each in ready]
