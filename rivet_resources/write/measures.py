"""What is counted while rows pass: rows, NULLs, replaced values, checksums, cost, and what a uniqueness rule needs.

Belongs here: the task's tally and the driver's count of duplicates. Not here: what the numbers must be
(`rivet_assets/run/judge/quality.py`); the source is never asked a second time for any of them.

Uniqueness is decided on 128 bits per cell.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
import xxhash

from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.parts import Measures
from rivet_resources.contracts.rows.profile import ProfileColumns
from rivet_resources.contracts.rows.row_errors import RefusedRows
from rivet_resources.contracts.rows.row_rules import NO_ROW_RULES, RowRules, hashed_name
from rivet_resources.contracts.source import Page
from rivet_resources.errors import PartCorrupt, UnknownColumn, UnsupportedColumn, ValueDoesNotFit
from rivet_resources.scratch import temporary
from rivet_resources.shape.transforms.fields import whole
from rivet_resources.write.checksums.sums import RunningSums
from rivet_resources.write.profile import ProfileTally
from rivet_resources.write.row_rules import RowRuleCount

Cells = npt.NDArray[np.uint64]  # shape (cells, 2): high and low 64 bits
Numbers = npt.NDArray[np.uint64]

SPILL_CELLS = 1_000_000  # 16 MB a column in memory
BUCKET_CELLS = 2_000_000  # what the driver sorts at once
MB = 1024 * 1024


class Tally:
    """Counts the pages of one chunk; `result` gives the measures, `sidecars` the files that go with them."""

    def __init__(
        self,
        schema: pa.Schema,
        *,
        unique_columns: Sequence[str] = (),
        row_rules: RowRules = NO_ROW_RULES,
        profile: ProfileColumns | None = None,
        scratch: Path,
    ) -> None:
        """Start counting.

        Raises:
            UnknownColumn: a unique column is not in `schema`.
            UnsupportedColumn: a unique column is a list, struct or map.
            TransformError: a rule of a contract does not fit its column.
        """
        self._started = time.process_time()
        _forget_peak()
        self._nulls = dict.fromkeys(schema.names, 0)
        self._nullable = [(field.name, field.nullable) for field in schema]
        self._special: dict[str, Counter[str]] = {}
        self._skipped, self._dead = Counter[str](), Counter[str]()  # rows by reason
        self._sums = RunningSums()
        self._rows = self._rows_read = self._pages = self._bytes = self._retries = 0
        self._longest_ms = 0.0
        self._unique = {name: SortedRuns(schema, (name,), scratch) for name in unique_columns}
        if row_rules.key:
            self._unique[row_rules.key_name] = SortedRuns(schema, row_rules.key, scratch)
        for names in row_rules.hashed:
            if hashed_name(names) not in self._unique:
                self._unique[hashed_name(names)] = SortedRuns(schema, names, scratch)
        self._row_rules = RowRuleCount(schema, row_rules) if row_rules else None
        self._aside = {rule.check: 0 for rule in row_rules.aside}
        self._profile = ProfileTally(schema, profile) if profile is not None else None

    def add(self, page: Page, refused: Sequence[RefusedRows] = ()) -> None:
        """Count one page, as it will be written, and its rows that will not.

        Raises:
            ValueDoesNotFit: a NULL in a column that the catalog says has none.
        """
        for each in refused:
            (self._dead if each.policy == "dead_letter" else self._skipped)[each.reason] += each.rows.num_rows
            if each.check:
                self._aside[each.check] += each.rows.num_rows
        self._rows += page.table.num_rows
        self._rows_read += page.table.num_rows if page.rows_read is None else page.rows_read
        size_bytes = page.nbytes
        self._bytes += size_bytes
        self._sums.add(page.table, size_bytes=size_bytes)
        self._pages += 1
        self._retries += page.retries
        self._longest_ms = max(self._longest_ms, page.statement_ms)
        for (name, is_nullable), column in zip(self._nullable, page.table.columns, strict=True):
            count = column.null_count
            # The file's schema promises no NULL, and readers skip the test: one NULL in it would be read as whatever
            # lies there.
            if count and not is_nullable:
                raise ValueDoesNotFit(
                    f"Column {name!r} is NOT NULL in the catalog, yet {count} rows hold NULL. "
                    f"Was it altered while it was read? Run again."
                )
            self._nulls[name] += count
        for name, kinds in page.special.items():
            self._special.setdefault(name, Counter()).update(kinds)
        for runs in self._unique.values():
            runs.add(page.table)
        if self._row_rules is not None:
            self._row_rules.add(page.table)
        if self._profile is not None:
            self._profile.add(page.table, size_bytes=size_bytes)

    @property
    def profile(self) -> bytes | None:
        """Return what was counted for a profile, as a file holds it; None where nobody asked."""
        return None if self._profile is None else self._profile.content

    def sidecars(self) -> dict[str, list[Path]]:
        """Finish the hash files of the unique columns: {column: local files}."""
        return {name: runs.files() for name, runs in self._unique.items()}

    def result(
        self,
        *,
        unique: dict[str, list[str]] | None = None,
        profile: Sequence[str] = (),
        retries: int = 0,
        throttled_seconds: float = 0.0,
    ) -> Measures:
        """Sum up; `unique` and `profile` are the sidecars as staged, `retries` those beyond the pages' own."""
        return Measures(
            rows=self._rows,
            rows_read=self._rows_read,
            nulls=dict(self._nulls),
            special_values={name: dict(kinds) for name, kinds in self._special.items()},
            unique=unique or {},
            profile=[*profile],
            skipped=dict(self._skipped),
            dead=dict(self._dead),
            checksums=self._sums.result(),
            broken={**(self._row_rules.broken if self._row_rules else {}), **self._aside},
            newest=dict(self._row_rules.newest) if self._row_rules else {},
            pages=self._pages,
            arrow_bytes=self._bytes,
            retries=self._retries + retries,
            longest_statement_ms=self._longest_ms,
            throttled_seconds=throttled_seconds,
            cpu_seconds=time.process_time() - self._started,
            peak_mb=peak_mb(),
        )


class SortedRuns:
    """The cells of one column, or of several together, spilled as sorted files without repetition."""

    def __init__(self, schema: pa.Schema, names: tuple[str, ...], scratch: Path) -> None:
        """Begin without a cell.

        Raises:
            UnknownColumn, UnsupportedColumn: a column is not there, or cannot be hashed.
        """
        for name in names:
            _require_hashable(schema, name)
        place = "_".join(str(schema.get_field_index(name)) for name in names)
        self._stem = scratch / f"unique{place}"
        self._names = names
        self._waiting: list[Cells] = []
        self._count = 0
        self._files: list[Path] = []

    def add(self, table: pa.Table) -> None:
        """Take the non-NULL cells of a page; of several columns, the rows in which none is NULL."""
        for chunk in table.column(self._names[0]).chunks if len(self._names) == 1 else (table.select(self._names),):
            cells = cell_hashes(chunk) if isinstance(chunk, pa.Array) else _row_cells(chunk)
            self._waiting.append(cells)
            self._count += len(cells)
        if self._count >= SPILL_CELLS:
            self._spill()

    def files(self) -> list[Path]:
        """Write what is left; the files so far, in no order."""
        if self._count:
            self._spill()
        return self._files

    def _spill(self) -> None:
        """Write the cells in memory as one file: a pair (duplicates, distinct), then the distinct cells in order."""
        # Sorted here, where each file is small and tasks are many: the driver then only merges.
        cells = _sort(np.concatenate(self._waiting))
        repeated = _repeats(cells)
        # Every sidecar file holds distinct cells only, with the duplicates seen inside it as a number in front: so a
        # value that fills a whole table costs sixteen bytes a file, and memory stays bounded.
        head = np.array([[repeated.sum(), len(cells) - repeated.sum()]], np.uint64)
        path = Path(f"{self._stem}-{len(self._files)}.u128")
        with open(path, "wb") as file:
            head.astype("<u8").tofile(file)
            cells[~repeated].astype("<u8").tofile(file)
        self._files.append(path)
        self._waiting, self._count = [], 0


def _require_hashable(schema: pa.Schema, name: str) -> None:
    """Check that uniqueness of a column can be measured.

    Raises:
        UnknownColumn, UnsupportedColumn
    """
    if name not in schema.names:
        raise UnknownColumn(name, relation="The export", known=schema.names, key="quality.unique_columns")
    if pa.types.is_nested(schema.field(name).type):
        raise UnsupportedColumn(
            f"Column {name!r} is {schema.field(name).type}, whose uniqueness cannot be measured. "
            f"Write it as text with `columns: {{{name}: text}}`, or take it out of `quality.unique_columns`."
        )


def _row_cells(table: pa.Table) -> Cells:
    """Return 128 bits per row without NULLs: the cells of its columns, each as alone, hashed together."""
    table = table.drop_null()
    columns = [cell_hashes(whole(column)) for column in table.columns]
    rows = np.ascontiguousarray(np.concatenate(columns, axis=1))
    cells = pa.FixedSizeBinaryArray.from_buffers(pa.binary(rows.shape[1] * 8), len(rows), [None, pa.py_buffer(rows)])
    return _hash(cells)


def count_duplicates(root: Root, files: Sequence[str]) -> int:
    """Count the rows beyond the first of each value, over all sidecars of one column of a window.

    Raises:
        PartCorrupt: a sidecar is missing or cut short.
    """
    # Reads each file once to a temporary folder on this machine, then merges bucket by bucket, so memory is one file or
    # one bucket (about 32 MB), not the table.
    with temporary("unique") as folder:
        runs = [_fetch(root, path, folder / f"{index}.u128") for index, path in enumerate(files)]
        duplicates = sum(int(run[0, 0]) for run in runs)
        distinct = [run[1:] for run in runs]
        return duplicates + sum(int(_repeats(_sort(bucket)).sum()) for bucket in _buckets(distinct))


def count_missing(root: Root, files: Sequence[str], known: Sequence[Path]) -> int:
    """Count the distinct values of a window's sidecars that are in none of some local files of the same form.

    Memory is one bucket of each (about 64 MB), whatever their sizes.

    Raises:
        PartCorrupt: a sidecar is missing or cut short.
    """
    with temporary("references") as folder:
        runs = [_fetch(root, path, folder / f"{index}.u128")[1:] for index, path in enumerate(files)]
        others: list[Cells] = [np.memmap(path, "<u8", "r").reshape(-1, 2)[1:] for path in known]
        # Both sides are cut at the same bounds, so that equal values stand in the same bucket.
        pieces = -(-max(sum(map(len, runs)), sum(map(len, others))) // BUCKET_CELLS)
        both = zip(_buckets(runs, pieces), _buckets(others, pieces), strict=True)
        return sum(_distinct(np.concatenate((mine, theirs))) - _distinct(theirs) for mine, theirs in both)


def _distinct(cells: Cells) -> int:
    return len(cells) - int(_repeats(_sort(cells)).sum())


def _fetch(root: Root, path: str, local: Path) -> Cells:
    """Bring one sidecar here and map it into memory, its head included."""
    found = root.read(path)
    if found is None:
        raise PartCorrupt(f"{root.uri}/{path} with the cells of a unique column is gone. Run again.")
    local.write_bytes(found[0])
    # A sidecar that is cut short would make duplicates vanish, and a rule pass that should not.
    if len(found[0]) < 16 or len(found[0]) % 16:
        raise PartCorrupt(f"{root.uri}/{path} is cut short at {len(found[0])} bytes. Run again.")
    run: Cells = np.memmap(local, "<u8", "r").reshape(-1, 2)
    if int(run[0, 1]) != len(run) - 1:
        raise PartCorrupt(f"{root.uri}/{path} holds {len(run) - 1} cells instead of {int(run[0, 1])}. Run again.")
    return run


def _buckets(runs: Sequence[Cells], pieces: int | None = None) -> Iterator[Cells]:
    """Yield all cells in pieces, such that equal cells stand in one piece: in the same, whosever they are."""
    pieces = -(-sum(len(run) for run in runs) // BUCKET_CELLS) if pieces is None else pieces
    # By the value of the first half, which spreads evenly, and not by position: the same bounds cut every file.
    bounds = [np.uint64(piece * 2**64 // pieces) for piece in range(1, pieces)]
    cuts = [[0, *np.searchsorted(run[:, 0], bounds).tolist(), len(run)] for run in runs]
    for piece in range(pieces):
        found = [run[cut[piece] : cut[piece + 1]] for run, cut in zip(runs, cuts, strict=True)]
        yield np.concatenate(found) if found else np.zeros((0, 2), np.uint64)


def _sort(cells: Cells) -> Cells:
    """Sort cells; the second half only where the first ones are equal, which is nearly never."""
    cells = cells[np.argsort(cells[:, 0])]
    high, low = cells[:, 0], cells[:, 1]
    # lexsort costs several times an argsort of one column, and is needed for equal first halves only.
    if ((high[1:] == high[:-1]) & (low[1:] < low[:-1])).any():
        cells = cells[np.lexsort((low, high))]
    return cells


def _repeats(cells: Cells) -> npt.NDArray[np.bool_]:
    """Mark, in ordered cells, those equal to the one before."""
    marks = np.zeros(len(cells), np.bool_)
    marks[1:] = (cells[1:] == cells[:-1]).all(axis=1)
    return marks


# Integers, dates, times, floats, decimals and UUIDs keep all their bits (mixed, so that they spread evenly); text and
# binary cells are hashed with XXH3-128, where two different cells meet once in 10^20 for a billion rows.
def cell_hashes(column: pa.Array) -> Cells:
    """Return 128 bits per non-NULL cell, of shape (cells, 2): equal for equal values, in whatever chunk they stand.

    Floats compare as SQL does: all NaN are one value, and -0.0 is 0.0.
    """
    column = (column.storage if isinstance(column, pa.ExtensionArray) else column).drop_null()
    arrow = column.type
    if pa.types.is_dictionary(arrow):
        return cell_hashes(column.cast(arrow.value_type))
    if pa.types.is_floating(arrow):
        # Adding zero makes 0.0 of -0.0; all NaN get one bit pattern.
        numbers = column.cast(pa.float64()).to_numpy() + 0.0
        return _mix(np.where(np.isnan(numbers), np.nan, numbers).view(np.uint64))
    if pa.types.is_boolean(arrow):
        column = column.cast(pa.uint8())
    if pa.types.is_boolean(arrow) or pa.types.is_integer(arrow):
        # A negative one wraps, and stays itself.
        return _mix(column.to_numpy().astype(np.uint64))
    if pa.types.is_temporal(arrow):
        return _mix(column.view(pa.int64() if arrow.bit_width == 64 else pa.int32()).to_numpy().astype(np.uint64))
    if pa.types.is_decimal128(arrow) or (pa.types.is_fixed_size_binary(arrow) and arrow.byte_width == 16):
        return _pairs(column)
    return _hash(column)


def _mix(numbers: Numbers) -> Cells:
    """Spread 64-bit numbers evenly without losing a bit. Source: S. Vigna, "splitmix64", its finaliser."""
    mixed = numbers.copy()
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return np.stack((mixed, numbers), axis=1)


def _pairs(column: pa.Array) -> Cells:
    """Keep all of a sixteen-byte cell: one half spreads, the other is added to it and kept beside."""
    start = column.offset * 16
    halves = np.frombuffer(column.buffers()[1], "<u8")[start // 8 : start // 8 + len(column) * 2].reshape(-1, 2)
    spread = _mix(halves[:, 0] + _mix(halves[:, 1])[:, 0])[:, 0]
    return np.stack((spread, halves[:, 1]), axis=1)


def _hash(column: pa.Array) -> Cells:
    """Hash texts, binaries and wide decimals."""
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.string())
    if not pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.large_binary())
    cells: Iterable[bytes] = column.to_numpy(zero_copy_only=False)
    digests = b"".join(map(xxhash.xxh3_128_digest, cells))
    # A digest of XXH3 is in canonical form, which is big-endian: its high half comes first.
    return np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)


def _forget_peak() -> None:
    """Start the system's record of peak memory anew, so that it speaks of this chunk; Linux only, else no change."""
    try:
        # proc(5): 5 resets VmHWM, the peak of resident memory, to what is held now.
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


# One look took 7 ms of CPU, as much as an export without new rows may spend on a few statements.
SHARED_SECONDS = 5.0


def peak_mb() -> float:
    """Return the largest memory of this process since the chunk began, less what it shares with its parent."""
    # Workers are forked, and pages still shared would count once in each (`engine.md`, section 9).
    if not sys.platform.startswith("linux"):
        # `ru_maxrss` is in bytes on macOS, and in kilobytes elsewhere (getrusage(2)).
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MB
    status = Path("/proc/self/status").read_text()
    peak_kb = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)
    return float(peak_kb / 1024 - _shared_mb(os.getpid(), int(time.monotonic() / SHARED_SECONDS)))


@lru_cache(maxsize=1)
def _shared_mb(process: int, moment: int) -> float:
    """Measure what this process shares with its parent; now and then only, for the kernel walks all of its pages."""
    memory = psutil.Process().memory_full_info()
    return float(max(0, memory.rss - memory.pss) / MB)
