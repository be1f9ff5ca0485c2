"""What is still to be applied, and the committed parts of changes and versions as frames.

Belongs here: comparing the windows of a change export with what a version's manifest says it holds, and reading parts
with the columns and types that are wanted. Not here: what becomes of the rows (`frames.py`, `versions.py`).

A version is continued while the change export still begins with the window it began with. A new first copy has
another run id: then positions and rows have nothing in common with what was applied, and all is built anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.commit.manifest import Manifest, current_manifests, schema_of, window_manifest
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.extract import Window
from rivet_resources.errors import ConfigError, ManifestUnreadable, WindowConflict
from rivet_resources.spark.cells import spark_type, to_spark
from rivet_resources.spark.cluster import with_variables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = "after=start"
BATCH_ROWS = 20_000


@dataclass(frozen=True)
class PendingWindows:
    """Windows that a version does not hold yet, in log order, and the version they continue; None: from scratch."""

    windows: tuple[Manifest, ...]
    origin: str
    base: Manifest | None
    fence: str | None  # version of the manifest that the new one will replace
    repeats_until: str | None = None  # of the first copy, see `CursorMove`
    is_rekeyed: bool = False  # the version there is goes by another key, and so did who read these changes

    @property
    def high(self) -> str:
        """Return how far the version will reach."""
        return _high(self.windows[-1])

    @property
    def copy(self) -> tuple[Manifest, ...]:
        """Return the window of the first copy, when it is among what is to be applied: then it is the base."""
        return tuple(window for window in self.windows if window.window == START)

    @property
    def changes(self) -> tuple[Manifest, ...]:
        """Return the windows of changes."""
        return tuple(window for window in self.windows if window.window != START)

    @property
    def newest(self) -> str:
        """Return the highest position whose rows the base holds; '' for none."""
        return self.base.applied.newest if self.base and self.base.applied else ""

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of the newest window: envelope, then columns."""
        return schema_of(self.windows[-1])


def pending(
    changes: Root, version: Root, *, mode: str, key: tuple[str, ...], anew: bool = False
) -> PendingWindows | None:
    """Compare a change export with the version made from it; None when the version holds everything.

    Args:
        anew: all changes are pending, whatever the version holds.

    Raises:
        ManifestUnreadable: the change export was never committed, or windows between it and the version are gone.
        WindowConflict: what is committed at `version` was made in another way.
        ConfigError: parts are not Parquet, the only form that keeps every type.
    """
    windows = _in_order(changes)
    found = window_manifest(version, Window("all"))
    base, fence = found if found else (None, None)
    if base is not None and (base.applied is None or base.source.extraction.strategy != mode):
        raise WindowConflict(
            f"{version.uri} holds window all of mode {base.source.extraction.strategy}, which a {mode} would replace. "
            f"Choose another `destination` or name, or remove that folder."
        )
    start = next((window for window in windows if window.window == START), None)
    applied = base.applied if base else None
    is_same_copy = applied is not None and not (start and start.run_id != applied.origin)
    is_rekeyed = is_same_copy and applied is not None and applied.key != key
    # The fence stays as it was found: the manifest at that place is there still, and the new one will have to replace
    # it.
    if anew:
        applied = base = None
    # Another key, another place of changes, or a new first copy: positions of then and now cannot be compared, so the
    # version is built from scratch, and its window replaced as a whole.
    if applied and (applied.key != key or applied.changes != changes.uri or (start and start.run_id != applied.origin)):
        applied = base = None
    # Without its first copy a table is the sum of nothing: changes alone say what became of rows that nobody has.
    if applied is None and start is None:
        raise ManifestUnreadable(
            f"{changes.uri} has no window {START}, so its rows before {windows[0].window} are unknown and no {mode} "
            f"can be built. Restore that manifest, or run `rivet state reset` for a new first copy."
        )
    # By where a window ends: a compaction may have joined one that was applied with one that was not, and what of it
    # was is left out row by row (`beyond`).
    rest = tuple(each for each in windows if applied is None or _high(each) > applied.high)
    _refuse_gaps(rest, reached=applied.high if applied else None, where=changes.uri)
    if foreign := next((each for each in (*rest, base) if each and not each.file_format.is_parquet), None):
        raise ConfigError(f"{foreign.destination.uri} is {foreign.format}; a {mode} is made of Parquet. Set `format`.")
    if not rest:
        return None
    first = start.cursor if start else applied
    return PendingWindows(
        rest,
        start.run_id if start else applied.origin,  # type: ignore[union-attr]
        base,
        fence,
        first.repeats_until if first else None,
        is_rekeyed,
    )


def _in_order(changes: Root) -> list[Manifest]:
    """List the current windows of a change export as the log had them."""
    windows = [each for each in current_manifests(changes).values() if each.cursor is not None]
    if not windows:
        raise ManifestUnreadable(f"{changes.uri} has no window of changes: none was published. Materialize them first.")
    # The copy first, whatever its position: the log may hold changes at the very place of the copy.
    return sorted(windows, key=lambda each: (each.window != START, _low(each), _high(each)))


def _refuse_gaps(windows: Sequence[Manifest], *, reached: str | None, where: str) -> None:
    """Refuse to pass over changes that are not there.

    Raises:
        ManifestUnreadable
    """
    for window in windows:
        # Positions sort as texts, so a hole shows without asking the source.
        if reached is not None and _low(window) > reached:
            raise ManifestUnreadable(
                f"{where} has no changes between position {reached} and {_low(window)}, so what happened there cannot "
                f"be applied. Restore the missing manifests, or take a new first copy."
            )
        reached = _high(window)


def _low(window: Manifest) -> str:
    return (window.cursor.low if window.cursor else None) or ""


def _high(window: Manifest) -> str:
    return (window.cursor.high if window.cursor else None) or _low(window)


# --- rows ----------------------------------------------------------------------------------------


def held_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema under which Spark holds rows of `schema`; every cell may be missing."""
    return pa.schema([pa.field(field.name, spark_type(field.type), True) for field in schema])


def frame_of(spark: SparkSession, root: Root, manifests: Sequence[Manifest], schema: pa.Schema) -> DataFrame:
    """Return the rows of these windows with the columns of `schema`, by name; NULL where a part has no such column.

    Local parts without a type of our own are read by Spark, which skips columns nobody asks for; others by pyarrow
    in the executors.
    """
    from pyspark.sql.pandas.types import from_arrow_schema  # Spark

    wanted = from_arrow_schema(held_schema(schema), prefer_timestamp_ntz=True)
    paths = [part.path for manifest in manifests for part in manifest.parts]
    if not paths:
        return spark.createDataFrame([], wanted)
    is_native = all(_is_native(manifest, schema) for manifest in manifests)
    if is_native and None not in (files := [root.local_path(path) for path in paths]):
        return spark.read.schema(wanted).parquet(*map(str, files))
    # One partition for each part, which carries its number only: executors open the parts themselves, and no row passes
    # through the driver.
    parts = spark.range(0, len(paths), 1, len(paths))
    read = with_variables(spark, partial(_read, root=root, paths=paths, schema=schema), root)
    return parts.mapInArrow(read, wanted)


def _is_native(manifest: Manifest, schema: pa.Schema) -> bool:
    """Return whether Spark reads these parts as `frame_of` would: each column has its own type, or is not there."""
    # Such a window has parts of several schemas, of which the manifest names one alone.
    if any(getattr(part, "schema_ipc", None) for part in manifest.parts):
        return False  # a table altered inside its window
    kept = {field.name: field.type for field in schema_of(manifest)}
    return all(
        kept.get(field.name, field.type) == field.type and _plain(spark_type(field.type)) == _plain(field.type)
        for field in schema
    ) and all(_plain(spark_type(kind)) == _plain(kind) for kind in kept.values())


def _plain(kind: pa.DataType) -> str:
    """Spell a type without the names of list items."""
    return f"list<{_plain(kind.value_type)}>" if pa.types.is_list(kind) else str(kind)


def _read(
    batches: Iterator[pa.RecordBatch], *, root: Root, paths: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Run in an executor: give the rows of the parts whose numbers arrive, as Spark can hold them."""
    given = held_schema(schema)
    for part in _batches(batches, root=root, paths=paths, columns=schema.names):
        places = {name: place for place, name in enumerate(part.schema.names)}
        columns = [
            to_spark(part.column(places[field.name]), field.type)
            if field.name in places
            else pa.nulls(part.num_rows, spark_type(field.type))
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=given)


def _batches(
    numbers: Iterator[pa.RecordBatch], *, root: Root, paths: Sequence[str], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Open the parts whose numbers arrive and give their rows, with those of `columns` that a part has."""
    import pyarrow.parquet as pq  # start

    for batch in numbers:
        for number in batch.column(0).to_pylist():
            with root.open(paths[number]) as file:
                parquet = pq.ParquetFile(file)
                present = [name for name in parquet.schema_arrow.names if name in columns]
                yield from parquet.iter_batches(batch_size=BATCH_ROWS, columns=present)


# --- what the envelope tells ---------------------------------------------------------------------


@dataclass(frozen=True)
class Truncate:
    """A moment at which the table was emptied; `at` in microseconds since 1970, None when the log does not say."""

    pos: str
    seq: int
    at: int | None


@dataclass(frozen=True)
class EnvelopeSurvey:
    """What a look at the envelopes and keys of changes tells, before any row is moved."""

    rows: int = 0
    newest: str = ""  # highest position of a change
    lacking: tuple[str, ...] = ()  # columns that some change did not carry
    truncates: tuple[Truncate, ...] = ()  # in log order
    null_keys: bool = False
    moves: bool = False  # some key was changed: a delete half has an even `__seq`

    def lacking_of(self, names: Sequence[str]) -> list[str]:
        """Return which of these columns some change did not carry, in their order."""
        return [name for name in names if name in self.lacking]

    def __add__(self, other: EnvelopeSurvey) -> EnvelopeSurvey:
        """Join what two sets of changes tell."""
        truncates = {*self.truncates, *other.truncates}
        return EnvelopeSurvey(
            self.rows + other.rows,
            max(self.newest, other.newest),
            tuple(sorted({*self.lacking, *other.lacking})),
            tuple(sorted(truncates, key=lambda one: (one.pos, one.seq))),
            self.null_keys or other.null_keys,
            self.moves or other.moves,
        )


def survey(
    spark: SparkSession, root: Root, manifests: Sequence[Manifest], *, newest: str, key: Sequence[str]
) -> EnvelopeSurvey:
    """Look at the envelopes of changes above `newest`: one small row per part comes back."""
    paths = [part.path for each in manifests for part in each.parts]
    if not paths:
        return EnvelopeSurvey()
    look = with_variables(spark, partial(_look, root=root, paths=paths, newest=newest, key=tuple(key)), root)
    rows = spark.range(0, len(paths), 1, len(paths)).mapInArrow(look, "seen string").collect()
    return sum((_parse_survey(row["seen"]) for row in rows), EnvelopeSurvey())


def _look(
    batches: Iterator[pa.RecordBatch],
    *,
    root: Root,
    paths: Sequence[str],
    newest: str,
    key: tuple[str, ...],
) -> Iterator[pa.RecordBatch]:
    """Run in an executor: sum up the envelopes of the parts whose numbers arrive."""
    columns = ("__op", "__pos", "__seq", "__ts", "__unchanged", *key)
    for numbers in batches:
        for number in numbers.column(0).to_pylist():
            one = pa.RecordBatch.from_arrays([pa.array([number])], ["id"])
            rows = _batches(iter([one]), root=root, paths=paths, columns=columns)
            seen = sum(
                (_sum_up(pa.Table.from_batches([each]), newest=newest, key=key) for each in rows), EnvelopeSurvey()
            )
            # As JSON text: one column of one type, whatever a survey comes to hold.
            yield pa.RecordBatch.from_pydict({"seen": [json.dumps(asdict(seen))]})


def _sum_up(rows: pa.Table, *, newest: str, key: tuple[str, ...]) -> EnvelopeSurvey:
    # Where a compaction joined what was applied with what was not, the applied rows must not count a second time.
    if newest:
        rows = rows.filter(pc.greater(rows["__pos"], newest))
    emptied = rows.filter(pc.equal(rows["__op"], "truncate"))
    others = rows.filter(pc.not_equal(rows["__op"], "truncate"))
    # The delete half of a changed key has an even number, a plain delete an odd one.
    deletes = others.filter(pc.equal(others["__op"], "delete"))["__seq"]
    instants = emptied["__ts"].cast(pa.int64()).to_pylist()
    places = zip(emptied["__pos"].to_pylist(), emptied["__seq"].to_pylist(), instants, strict=True)
    return EnvelopeSurvey(
        rows.num_rows,
        pc.max(rows["__pos"]).as_py() or "",
        tuple(pc.unique(pc.list_flatten(rows["__unchanged"])).to_pylist()),
        tuple(Truncate(*place) for place in places),
        any(name not in others.column_names or others[name].null_count for name in key),
        bool(pc.any(pc.equal(pc.bit_wise_and(deletes, 1), 0)).as_py()),
    )


def _parse_survey(text: str) -> EnvelopeSurvey:
    plain: Mapping[str, Any] = json.loads(text)
    lists = {"lacking": tuple(plain["lacking"]), "truncates": tuple(Truncate(**one) for one in plain["truncates"])}
    return EnvelopeSurvey(**{**plain, **lists})
