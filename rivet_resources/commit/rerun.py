"""What a topic refuses because nothing in it can be replaced.

Belongs here: the two refusals. Not here: producing a window (`append.py`), which windows replace others of files
(`supersede.py`).
"""

from __future__ import annotations

from rivet_resources.commit.manifest import Manifest
from rivet_resources.commit.supersede import Replacement
from rivet_resources.contracts.extract import Extract, Staged
from rivet_resources.contracts.messages import Topic
from rivet_resources.errors import RivetError, WindowConflict


class WindowInTopic(RivetError):
    """The window was produced already, and what stands in a topic cannot be replaced."""

    code = "RIVET_WINDOW_IN_TOPIC"


def refuse_rerun(extract: Extract, standing: Manifest | None, *, root: Topic) -> None:
    """Refuse to read a window anew that is in the topic, unless its rows shall be there once more.

    Raises:
        WindowInTopic
    """
    if standing is None or standing.row_count == 0:
        return
    if root.on_rerun == "append" and extract.window.kind != "after":
        return
    raise WindowInTopic(
        f"Window {extract.window.key} of export {extract.export} is in {root.uri} since "
        f"{standing.finished_at:%Y-%m-%d %H:%M} UTC ({standing.row_count} rows, run {standing.run_id}). A topic is "
        f"append only, so its rows would be there twice. Where a further copy is wanted, write `on_rerun: append` in "
        f"the destination: its messages name their run in the header rivet.run. Else name another topic."
    )


def refuse_replacing(staged: Staged, old: Replacement, *, root: Topic) -> None:
    """Refuse a window that would take the place of others: their messages would stay.

    Raises:
        WindowConflict
    """
    others = [each for each in old.replaced if each.row_count]
    if others:
        raise WindowConflict(
            f"Window {staged.extract.window.key} of export {staged.extract.export} would take the place of window "
            f"{others[0].window} in {root.uri}, whose messages stay: rows would be there twice. Name another topic for "
            f"the export in its new mode."
        )
