"""Making a staged window visible in a topic: its rows as messages, with its manifest, in one transaction.

Belongs here: the way from parts to messages. Not here: the transaction (`destinations/kafka.py`), bytes
(`write/messages/`), what a topic refuses (`rerun.py`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import cast

import pyarrow as pa

from rivet_resources.commit.manifest import Manifest
from rivet_resources.contracts.extract import Staged
from rivet_resources.contracts.messages import Encoding, MessageBatch, Registered, Topic
from rivet_resources.write.messages.encode import RowEncoding, spelling

Step = Callable[[str], None]


def append_window(
    staged: Staged, manifest: Manifest, *, root: Topic, step: Step, registered: Registered | None = None
) -> None:
    """Produce a staged window with its manifest, and remove what was staged.

    Raises:
        WindowTaken: another run committed the window, or fenced this one.
        DestinationError and its kin; nothing of the window is visible then.
    """
    # One transaction of the broker: a reader of committed messages sees all rows with the manifest, or nothing. The
    # fence is its transactional id, so there is no swap and nothing to take back after a refusal.
    root.append(
        _messages(staged, root, registered),
        path=manifest.path,
        content=manifest.content,
        expected=staged.previous,
        step=step,
    )
    # After the transaction only: a death before it leaves the files, and the next run's sweep takes them.
    root.discard(staged.files)


def _messages(staged: Staged, root: Topic, registered: Registered | None) -> Iterator[MessageBatch]:
    extract = staged.extract
    encoding = cast(Encoding, extract.format.type)

    def spell(schema: pa.Schema) -> Callable[[pa.RecordBatch], pa.Array]:
        found = extract.registered if registered is None else registered(schema)
        return spelling(encoding, found)(schema)

    rows = RowEncoding(encoding, extract.message_key, extract.run_id, extract.window.key, spell)
    whole = pa.ipc.read_schema(pa.py_buffer(staged.schema_ipc))
    for part in staged.parts:
        # A part of a drain has a schema of its own where its table was altered inside the window.
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(part.schema))) if part.schema else whole
        yield from rows.messages(root.staged_file(part), schema)
