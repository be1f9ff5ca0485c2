"""Making staged windows visible in topics: their rows as messages, with their manifests, in one transaction.

Belongs here: the way from parts to messages. Not here: the transaction (`destinations/kafka.py`), bytes
(`write/messages/`), what a topic refuses (`rerun.py`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import pyarrow as pa

from rivet_resources.commit.manifest import Manifest
from rivet_resources.contracts.extract import Staged
from rivet_resources.contracts.messages import Encoding, MessageBatch, Registered, Topic, WindowMessages
from rivet_resources.write.messages.encode import RowEncoding, spelling

Step = Callable[[str], None]


@dataclass(frozen=True)
class Appended:
    """A staged window with its manifest and its topic; `registered` as `publish` has it."""

    staged: Staged
    manifest: Manifest
    root: Topic
    registered: Registered | None = None

    @property
    def messages(self) -> WindowMessages:
        """Return what is produced."""
        return WindowMessages(
            _messages(self.staged, self.root, self.registered),
            path=self.manifest.path,
            content=self.manifest.content,
            expected=self.staged.previous,
        )


def append_windows(windows: Sequence[Appended], *, step: Step) -> None:
    """Produce staged windows with their manifests, all at once, and remove what was staged.

    Raises:
        WindowTaken: another run committed one of the windows, or fenced this one.
        DestinationError and its kin; nothing of the windows is visible then.
    """
    first, *others = windows
    # One transaction of the broker: a reader of committed messages sees all rows with the manifests, or nothing. The
    # fence is its transactional id, so there is no swap and nothing to take back after a refusal.
    first.root.append(first.messages, step=step, beside=[(each.root, each.messages) for each in others])
    # After the transaction only: a death before it leaves the files, and the next run's sweep takes them.
    for each in windows:
        each.root.discard(each.staged.files)


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
