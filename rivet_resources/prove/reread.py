"""Reading the source as an export does, without exporting: what was read is summed up, or hashed, and let go.

Belongs here: a destination that keeps nothing, and a format that writes nothing. Not here: which rows (`modes/`), what
is concluded (`rivet_assets/prove/reconcile.py`), hashing rows (`compare_rows.py`).

"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from rivet_resources.contracts.destination import Destination
from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.extract import Extract, Staged
from rivet_resources.contracts.format import Format
from rivet_resources.contracts.parts import Part
from rivet_resources.read.connections import Permits
from rivet_resources.read.stage import Exporter


def read_again(extract: Extract, exporter: Exporter, *, permits: Permits | None = None) -> Staged:
    """Read every chunk and measure it; the parts of what comes back are of no file.

    Raises:
        RivetError: as `Exporter.stage`.
    """
    # Without a fingerprint no chunk that a dead run finished is taken for read.
    plain = replace(extract, unique_columns=(), max_file_bytes=None, fingerprint="", skip_empty=False)
    # By the one `Exporter`, with the chunks, pace, throttle, governor and retries of the export itself, and with its
    # transforms: so the sums are of the very cells that an export would write now.
    unkept = replace(plain, destination=NullDestination(), format=NullFormat(extract.format))
    return exporter.stage(unkept, permits=permits)


@dataclass(frozen=True)
class NullDestination:
    """A destination that forgets."""

    type: str = "nowhere"
    is_stream: bool = False
    extra: None = None
    schemes: tuple[str, ...] = ()

    def credentials(self) -> Iterator[Finding]:
        """Yield nothing: nobody signs in."""
        return iter(())

    @staticmethod
    def read_address(address: str) -> dict[str, str]:
        """Return nothing: no URL means it."""
        return {}

    def on(self, day: date) -> Destination:
        """Change nothing."""
        return self

    def root(self, export: str) -> NullRoot:
        """Address nothing."""
        return NullRoot()


@dataclass(frozen=True)
class NullRoot:
    """A folder that holds nothing and takes everything."""

    uri: str = "nowhere"
    keeps_manifests: bool = False

    def stage(self, file: Path, *, run_id: str, path: str, md5: str) -> dict[str, Any]:
        """Take a part and forget it."""
        return {}

    def staged_exists(self, part: Part) -> bool:
        """Return False: nothing is kept."""
        return False

    def publish(self, part: Part) -> None:
        """Show nothing."""

    def discard(self, parts: Iterable[Part]) -> None:
        """Remove nothing."""

    def read(self, path: str) -> tuple[bytes, str] | None:
        """Find nothing."""
        return None

    def put(self, path: str, content: bytes) -> None:
        """Take and forget."""

    def swap(self, path: str, content: bytes, *, expected: str | None) -> str:
        """Take and forget."""
        return ""

    def list(self, prefix: str = "") -> dict[str, int]:
        """List nothing."""
        return {}

    def list_after(self, path: str, *, most: int) -> dict[str, str | None]:
        """List nothing."""
        return {}

    def delete(self, paths: Iterable[str]) -> None:
        """Remove nothing."""

    def local_path(self, path: str) -> None:
        """Return None: nothing is kept."""

    def open(self, path: str) -> BinaryIO:
        """Find nothing.

        Raises:
            FileNotFoundError: always.
        """
        raise FileNotFoundError(path)

    def staged_runs(self) -> set[str]:
        """Name no run."""
        return set()

    def sweep(self, *, keep: Iterable[str], everywhere: bool = True) -> int:
        """Remove nothing."""
        return 0

    def check(self) -> None:
        """Prove nothing."""


@dataclass(frozen=True)
class StandInFormat:
    """What a format whose files only we read has of the export's own, so that rows are shaped for that one."""

    of: Format

    @property
    def type(self) -> str:
        """Name the export's format."""
        return self.of.type

    @property
    def holds_lists(self) -> bool:
        """Return what holds of the export's format."""
        return self.of.holds_lists

    def check_schema(self, schema: pa.Schema, *, export: str) -> tuple[str, ...]:
        """Ask the export's format."""
        return self.of.check_schema(schema, export=export)


@dataclass(frozen=True)
class NullFormat(StandInFormat):
    """A format whose files hold nothing but the number of their rows."""

    @property
    def extension(self) -> str:
        """Name files."""
        return "rows"

    @property
    def codec(self) -> str:
        """Name no compression."""
        return "none"

    def writer(
        self, path: Path, schema: pa.Schema, *, key: tuple[str, ...] = (), limit_bytes: int | None = None
    ) -> _Counting:
        """Open a file that will hold a number."""
        return _Counting(path)

    def rows(self, path: Path, schema: pa.Schema) -> int:
        """Read the number."""
        return int(path.read_text())


class _Counting:
    """Counts rows."""

    def __init__(self, path: Path) -> None:
        self.bytes_written = 0
        self._path = path
        self._rows = 0

    def write(self, table: pa.Table) -> None:
        """Count the rows of a page."""
        self._rows += table.num_rows

    def close(self) -> None:
        """Write the number."""
        self._path.write_text(str(self._rows))
