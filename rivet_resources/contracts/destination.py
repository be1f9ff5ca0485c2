"""What every destination offers: staging that readers cannot see, publishing, and one fenced swap.

All paths are relative to an export's root, with `/`. Versions are opaque texts (ETag, generation, content hash).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.parts import Part, PieceSums
from rivet_resources.extras import Extra


class ReadableRoot(Protocol):
    """What finding and reading manifests asks of an export's folder; every `Root` is one."""

    @property
    def uri(self) -> str:
        """Address it for people and readers: /data/orders, s3://lake/raw/orders."""

    @property
    def keeps_manifests(self) -> bool:
        """Return whether it has a commit point; a stream such as stdout has none."""

    def read(self, path: str) -> tuple[bytes, str] | None:
        """Read a small object with its version; None when absent."""

    def list(self, prefix: str = "") -> dict[str, int]:
        """List visible objects below a path: {path: size}; `_staged/` is not among them."""

    def list_after(self, path: str, *, most: int) -> Mapping[str, str | None]:
        """List the first visible objects whose paths follow this one in its folder, in the order of their paths.

        {path: version, as `read` returns it; None where a listing does not tell}. Where the store can begin to list
        anywhere that is one request per 1,000, however many come before.
        """


class Root(ReadableRoot, Protocol):
    """One export's folder at its destination."""

    def stage(self, file: Path, *, run_id: str, path: str, md5: str) -> dict[str, Any]:
        """Bring a finished local file to the destination, invisible there; called in executors.

        The file is moved or uploaded and compared with the store's own checksum. Returns plain data that
        `publish` and `discard` understand, with no secret.

        Raises:
            PartCorrupt: the store holds something else than was sent.
            DestinationError, DestinationAuth, DiskFull, DestinationUnreachable
        """

    def staged_exists(self, part: Part) -> bool:
        """Return whether a staged part of an earlier run is still there with its size."""

    def publish(self, part: Part) -> None:
        """Move a staged part to its final name; calling it again for a published part changes nothing."""

    def discard(self, parts: Iterable[Part]) -> None:
        """Remove staged parts; missing ones are fine."""

    def put(self, path: str, content: bytes) -> None:
        """Write a small object atomically and durably, whatever stood there."""

    def swap(self, path: str, content: bytes, *, expected: str | None) -> str:
        """Write a small object only if its version is still `expected` (None: only if absent); the new version.

        Raises:
            WindowTaken: somebody else wrote it since.
        """

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects; missing ones are fine."""

    def local_path(self, path: str) -> Path | None:
        """Return a published object as a file of this machine, for those who read by name; None: it is none.

        Raises:
            DestinationError: it lies behind a link that leads out of the folder.
        """

    def open(self, path: str) -> BinaryIO:
        """Open a published object for reading, seekable."""

    def staged_runs(self) -> set[str]:
        """Name the runs that have something staged here."""

    def sweep(self, *, keep: Iterable[str], everywhere: bool = True) -> int:
        """Remove what runs staged here and did not publish, but for the run ids in `keep`; how many were removed.

        Args:
            keep: asked for only where something is staged.
            everywhere: also look for what a death left in any folder, where a place has such; that costs what is there.
        """

    def check(self) -> None:
        """Prove that this place can be written: write `.rivet_doctor_probe`, read it, remove it.

        Raises:
            DestinationAuth, BucketMissing, DestinationUnreachable, DestinationError, DiskFull
        """


@runtime_checkable
class TellsContent(Protocol):
    """A root whose store keeps checksums of its own, so that a published object is proven without reading it."""

    def told_whole(self, path: str, *, size: int, md5: str, sums: PieceSums | None) -> bool | None:
        """Return whether the store itself says that an object is what was sent; None: of this one it cannot tell.

        Args:
            md5: of the whole object, base64.
            sums: of the pieces it was sent in, where that is known.

        Raises:
            DestinationError, DestinationUnreachable, DestinationAuth
        """


class Destination(Protocol):
    """The YAML block of a destination; frozen, plain, picklable. What `DESTINATIONS` of the registry holds."""

    @property
    def is_stream(self) -> bool:
        """Return whether parts are written one after another into one stream that keeps nothing."""

    @property
    def extra(self) -> Extra | None:
        """Return what brings its client; None: the base does. Every connection asks for it first."""

    @property
    def schemes(self) -> tuple[str, ...]:
        """Return the schemes of URLs that mean it: gs, gcs."""

    @staticmethod
    def read_address(address: str) -> dict[str, str]:
        """Read its keys out of what stands behind one of its schemes, for `rivet init`; none: it names no place."""

    @property
    def type(self) -> str:
        """Name the kind of place, as in YAML."""

    def credentials(self) -> Iterator[Finding]:
        """Yield who signs in and by which way, without a secret; nothing where nobody does."""

    def on(self, day: date) -> Destination:
        """Fix `{date}` to the day a run started on."""

    def root(self, export: str) -> Root:
        """Address one export's folder: `<path or prefix>/<export>`.

        A path with `{export}` or `{table}` is that folder itself.
        """
