"""What a drain finds in topics that an earlier run produced to, and died before its checkpoint said so.

Belongs here: going on from there, since nothing in a topic can be replaced. Not here: windows of files, which the next
run replaces (`drain.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from rivet_resources.commit.manifest import Manifest, window_manifest
from rivet_resources.commit.publish import Ledger
from rivet_resources.contracts.change_log import Position
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.extract import Window
from rivet_resources.contracts.messages import Topic
from rivet_resources.drain.checkpoint_book import CheckpointBook


def catch_up(book: CheckpointBook, roots: Mapping[str, Root], state: Ledger) -> dict[str, str]:
    """Follow each table's windows to the last that is in its topic: {table: highest `__pos` that is there}.

    The log is read again from the checkpoint, which is one for all tables; what a table has already is left out.
    """
    published = {}
    for table, root in roots.items():
        # A file's window is simply replaced when it is read again, so only topics have to be asked.
        if not isinstance(root, Topic):
            continue
        stored = book.chain.get(table)
        # As often as there is a next one: several windows may have been produced before the checkpoint failed to be
        # saved.
        while book.has_begun and (found := _window_after(root, book.chain.get(table))) is not None:
            assert found.cursor is not None
            assert found.cursor.high is not None
            # The run that died may not have told the store.
            state.record_commit(found)
            book.chain[table] = found.cursor.high
        # Without a window of its own behind the checkpoint, the log goes on exactly where the table's last one
        # ended.
        if book.chain.get(table) != stored:
            # By `__pos` and not by counting: the windows of a second read may be cut elsewhere.
            published[table] = root.newest()
    return published


def copied(roots: Mapping[str, Root], position: Position) -> dict[str, Manifest]:
    """Return the first copies that an earlier run produced at this position: {table: its manifest}."""
    found = {}
    for table, root in roots.items():
        first = window_manifest(root, Window("after=start")) if isinstance(root, Topic) else None
        # Of this very position: a copy of an earlier beginning was reset since, and is no part of this one.
        if first is not None and first[0].cursor is not None and first[0].cursor.high == position.key:
            found[table] = first[0]
    return found


def _window_after(root: Topic, place: str | None) -> Manifest | None:
    found = None if place is None else window_manifest(root, Window(f"after={place}"))
    return found[0] if found is not None and found[0].cursor is not None and found[0].cursor.high else None
