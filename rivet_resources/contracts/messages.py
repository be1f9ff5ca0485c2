"""What a topic takes instead of files: messages, and a window of them in one transaction.

Belongs here: the values and the protocol that cross between encoding (`write/messages/`), committing
(`commit/append.py`) and a broker (`destinations/kafka.py`). Not here: any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import pyarrow as pa

from rivet_resources.contracts.change_log import BEFORE, ENVELOPE
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.parts import Part
from rivet_resources.contracts.schema_registry import RegisteredSchema

Rerun = Literal["refuse", "append"]
RUN_HEADER, WINDOW_HEADER = "rivet.run", "rivet.window"  # of every message: who produced it, in which window
Header = tuple[str, bytes]
# Returns what rows with some columns are registered as; None: nowhere, they are plain JSON.
Registered = Callable[[pa.Schema], RegisteredSchema | None]
Encoding = Literal["avro", "ndjson", "protobuf"]
ENVELOPE_NAMES = (*(field.name for field in ENVELOPE), BEFORE)


@dataclass(frozen=True)
class MessageBatch:
    """Some messages in the order of their rows; a value that is NULL is a tombstone.

    `own`: headers of each message besides `common`; None where there are none. `is_everywhere`: messages that go to
    each partition, as a truncate must; None: there is none.
    """

    keys: pa.Array | None
    values: pa.Array
    common: tuple[Header, ...]
    own: list[list[Header]] | None = None
    is_everywhere: list[bool] | None = None
    newest: str = ""  # highest `__pos` among them; '' where rows are no changes


@dataclass(frozen=True)
class WindowMessages:
    """A window on its way into its topic.

    `path` is that of its manifest, `content` the manifest, `expected` its version when the window was planned; None:
    there was none.
    """

    batches: Iterable[MessageBatch]
    path: str
    content: bytes
    expected: str | None


@dataclass(frozen=True)
class WindowAccount:
    """What a committed window left in its topic, kept beside its manifest in the same transaction."""

    messages: int
    partitions: int
    topic_id: str
    offsets: tuple[tuple[int, int], ...]  # by partition: all its messages lie in [low, high)
    newest: str = ""


@dataclass(frozen=True)
class TopicCount:
    """How many messages of a window readers find, or why nobody can tell."""

    found: int = 0
    expected: int = 0
    doubt: str = ""


@runtime_checkable
class Topic(Root, Protocol):
    """A root whose windows are messages; nothing that was produced can be replaced."""

    @property
    def on_rerun(self) -> Rerun:
        """Return what a window that was committed already means."""

    def staged_file(self, part: Part) -> Path:
        """Return the file of a staged part, on this machine.

        Raises:
            DestinationError: it is gone.
        """

    def append(
        self,
        window: WindowMessages,
        *,
        step: Callable[[str], None],
        beside: Sequence[tuple[Topic, WindowMessages]] = (),
    ) -> None:
        """Produce messages and their window's manifest in one transaction.

        Args:
            step: told `produce` when the first messages of a window are on their way, and `commit` when all are there.
            beside: windows of other topics at the same brokers; readers see all of them, or none.

        Raises:
            WindowTaken: another run committed one of the windows, or fenced this one.
            DestinationError and its kin; nothing of the windows is visible then.
        """

    def newest(self) -> str:
        """Return the highest `__pos` of the changes that are in the topic; '' where there are none."""

    def count(self, path: str, run_id: str, window: str) -> TopicCount:
        """Count the messages of a window that a reader of committed messages finds."""

    def findings(self) -> Iterable[Finding]:
        """Look at brokers, topic and rights, for `rivet doctor`; nothing is produced."""


def is_topic(destination: object) -> bool:
    """Return whether a destination takes messages; those of packages need not know the word."""
    return bool(getattr(destination, "is_topic", False))


def value_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a message's value: those of the row; what is known of a change stands in headers."""
    return pa.schema([field for field in schema if field.name not in ENVELOPE_NAMES])
