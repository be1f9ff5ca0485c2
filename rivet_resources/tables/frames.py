"""What changes make of a table, as frames in and frames out (`cdc.md`, section 15).

Belongs here: order, the cut at a truncate, filling what the log did not carry, the latest state of each key, the table
with that state in it, and comparing two tables. Not here: versions (`versions.py`), files (`reading.py`, `writing.py`).

Frames of changes have the columns `__op, __pos, __seq, __ts, __unchanged` and then those of the table. A first copy is
no change but the base of the first changes: the log may hold some at the very position of the copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Columns whose value nobody knows: the log said `as before`, and there was no before.
LACKING = "__lacking"
MOVED = "__moved"


def col(name: str, of: str = "") -> Column:
    """Name a column of a table, whatever characters it has."""
    from pyspark.sql import functions as F  # Spark

    quoted = "`" + name.replace("`", "``") + "`"
    return F.col(f"{of}.{quoted}" if of else quoted)


def same_key(key: Sequence[str], left: str, right: str, *, null_keys: bool = True) -> Column:
    """Return that two aliased frames agree on the key; NULL equals NULL.

    Without NULLs on one side plain equality means the same, and lets Spark use the partitioning it already has.
    """
    pairs = [(col(name, left), col(name, right)) for name in key]
    return reduce(lambda a, b: a & b, (a.eqNullSafe(b) if null_keys else a == b for a, b in pairs))


def beyond(changes: DataFrame, newest: str, truncate: tuple[str, int] | None = None) -> DataFrame:
    """Keep the changes of rows that were not applied before, up to `newest`, and stand behind the last truncate."""
    from pyspark.sql import functions as F  # Spark

    # By position alone: whole transactions are applied, so a position was applied wholly or not at all.
    rows = changes.where((F.col("__op") != "truncate") & (F.col("__pos") > newest))
    if truncate is None:
        return rows
    pos, seq = truncate
    return rows.where((F.col("__pos") > pos) | ((F.col("__pos") == pos) & (F.col("__seq") > seq)))


def latest(changes: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the last change of each key; a change that stands there twice counts once."""
    from pyspark.sql import functions as F  # Spark

    last = F.max_by(F.struct("*"), F.struct("__pos", "__seq"))
    # Brought together first: rows are then sorted once, not before and behind the exchange (a third of the CPU).
    met = changes.repartition(*map(col, key))
    return met.groupBy(*map(col, key)).agg(last.alias("__row")).select("__row.*")


def mirrored(
    base: DataFrame | None,
    changes: DataFrame,
    key: Sequence[str],
    columns: Sequence[str],
    *,
    null_keys: bool = True,
    broadcast: bool = False,
) -> DataFrame:
    """Return the table after some changes: the rows they did not touch, and the last state of those they did.

    Args:
        base: the table before, None when it was empty.
        changes: of rows, behind the last truncate, filled.
        columns: of the table, in order; LACKING is kept beside them where `changes` has it.
        null_keys: False when no key of `changes` holds a NULL.
        broadcast: whether their keys are few enough to be sent to the base.
    """
    from pyspark.sql import functions as F  # Spark

    # Deletes go behind the choice of the last change, not before it: a key whose delete is left out would show its
    # state of before.
    left = latest(changes, key).where(F.col("__op") != "delete")
    rows = left.select(*_with_lacking(left, columns))
    if base is None:
        return rows
    # Not those of `latest`: that would sort whole rows twice.
    keys = changes.select(*map(col, key)).distinct()
    keys = (F.broadcast(keys) if broadcast else keys).alias("l")
    untouched = base.alias("b").join(keys, same_key(key, "b", "l", null_keys=null_keys), "left_anti")
    return untouched.select(*map(col, columns)).unionByName(rows, allowMissingColumns=True)


def _with_lacking(frame: DataFrame, columns: Sequence[str]) -> list[Column]:
    return [col(name) for name in (*columns, *([LACKING] if LACKING in frame.columns else []))]


# --- as before -----------------------------------------------------------------------------------


def filled(
    changes: DataFrame, base: DataFrame | None, key: Sequence[str], lacking: Sequence[str], *, moves: bool
) -> DataFrame:
    """Put the last known value of the key into cells that the log did not carry, and name in LACKING those without.

    What is known ends with a delete. A row that changed its key goes on from the value under its old key: the
    delete half, one `__seq` before it, tells which.

    Args:
        changes: of rows only, behind the last truncate.
        base: the table before them, None when it was empty.
        lacking: columns that some change did not carry.
        moves: whether some key was changed.
    """
    from pyspark.sql import functions as F  # Spark

    is_partial = F.coalesce(F.size("__unchanged"), F.lit(0)) > 0
    # Only where the log left something out: the windows below sort every row that they get, and most changes are whole.
    partial = changes.where(is_partial & (F.col("__op") != "delete"))
    stream = _streams(changes, base, partial, key, lacking, moves=moves)
    if moves:
        stream = _follow_keys(stream, key, lacking)
    known = [F.coalesce(_last_known(n), _before(n, key)).alias(_known_name(n)) for n in range(len(lacking))]
    patch = stream.select("__pos", "__seq", "__partial", *known).where("__partial").drop("__partial")
    # A change may stand there twice, as after a drain that died behind its manifest; joined, two would become four.
    patch = patch.dropDuplicates(["__pos", "__seq"]).alias("p")
    same = (F.col("c.__pos") == F.col("p.__pos")) & (F.col("c.__seq") == F.col("p.__seq"))
    cells = [_patch_column(name, lacking) for name in changes.columns]
    unknown = [F.when(_is_lacking(name) & ~_has_value(n), F.lit(name)) for n, name in enumerate(lacking)]
    mended = (
        partial.alias("c").join(patch, same, "left").select(*cells, F.array_compact(F.array(*unknown)).alias(LACKING))
    )
    whole = changes.where(~(is_partial & (F.col("__op") != "delete")))
    return whole.unionByName(mended, allowMissingColumns=True)


def _streams(
    changes: DataFrame,
    base: DataFrame | None,
    partial: DataFrame,
    key: Sequence[str],
    lacking: Sequence[str],
    *,
    moves: bool,
) -> DataFrame:
    """Gather all that tells the values of the lacking columns, for the keys that need it: their changes and base rows.

    A known cell is struct(true, value); after a delete it is struct(false, NULL), and a cell not carried is NULL.
    """
    from pyspark.sql import functions as F  # Spark

    touched = partial.select(*map(col, key))
    if moves:
        # A changed key is a delete and an insert side by side: the delete half has the `__seq` before.
        halves = partial.select(F.col("__pos"), (F.col("__seq") - 1).alias("__seq"))
        deletes = changes.where(F.col("__op") == "delete")
        touched = touched.union(deletes.join(halves, ["__pos", "__seq"], "left_semi").select(*map(col, key)))
    touched = touched.distinct().alias("t")

    def of_touched(frame: DataFrame) -> DataFrame:
        return frame.alias("f").join(touched, same_key(key, "f", "t"), "left_semi")

    is_gone = F.col("__op") == "delete"
    known = [
        F.when(
            is_gone, F.struct(F.lit(False).alias("is"), F.lit(None).cast(changes.schema[name].dataType).alias("value"))
        )
        .when(~_is_lacking(name), F.struct(F.lit(True).alias("is"), col(name).alias("value")))
        .alias(_known_name(n))
        for n, name in enumerate(lacking)
    ]
    is_partial = (F.coalesce(F.size("__unchanged"), F.lit(0)) > 0) & ~is_gone
    keys = [col(name).alias(f"__key{n}") for n, name in enumerate(key)]
    stream = of_touched(changes).select(
        *keys, "__pos", "__seq", is_gone.alias("__gone"), is_partial.alias("__partial"), *known
    )
    stream = stream.dropDuplicates([f"__key{n}" for n in range(len(key))] + ["__pos", "__seq"])
    if base is None:
        return stream
    had = [
        F.struct(F.lit(True).alias("is"), col(name).alias("value")).alias(_known_name(n))
        for n, name in enumerate(lacking)
    ]
    # Before every change: no position is empty.
    first = [F.lit("").alias("__pos"), F.lit(-2).cast("long").alias("__seq")]
    flags = [F.lit(False).alias("__gone"), F.lit(False).alias("__partial")]
    return stream.unionByName(of_touched(base).select(*keys, *first, *flags, *had))


def _follow_keys(stream: DataFrame, key: Sequence[str], lacking: Sequence[str]) -> DataFrame:
    """Carry values along changes of keys: one round for each link of the longest chain of them."""
    from pyspark.sql import functions as F  # Spark

    every = range(len(lacking))
    while True:
        # Each round would otherwise compute all rounds before it once more.
        stream = stream.localCheckpoint()
        halves = stream.select("__pos", "__seq", "__gone", *(_before(n, key).alias(f"__given{n}") for n in every))
        halves = halves.where("__gone").drop("__gone").withColumn("__seq", F.col("__seq") + 1)
        halves = halves.where(reduce(lambda a, b: a | b, (F.col(f"__given{n}.is") for n in every)))
        met = stream.join(halves.dropDuplicates(["__pos", "__seq"]), ["__pos", "__seq"], "left")
        gains = [_last_known(n).isNull() & F.coalesce(F.col(f"__given{n}.is"), F.lit(False)) for n in every]
        # Nothing was gained in this round: every chain of changed keys has been followed to its end.
        if met.where(reduce(lambda a, b: a | b, gains)).isEmpty():
            return stream
        mended = [F.when(gains[n], F.col(f"__given{n}")).otherwise(_last_known(n)).alias(_known_name(n)) for n in every]
        kept = [name for name in stream.columns if name not in {_known_name(n) for n in every}]
        stream = met.select(*kept, *mended)


def _known_name(number: int) -> str:
    return f"__known{number}"


def _last_known(number: int) -> Column:
    from pyspark.sql import functions as F  # Spark

    return F.col(_known_name(number))


def _before(number: int, key: Sequence[str]) -> Column:
    """Return what was known of a lacking column before each row of its key."""
    from pyspark.sql import Window  # Spark
    from pyspark.sql import functions as F  # Spark

    rows = Window.partitionBy(*(f"__key{n}" for n in range(len(key)))).orderBy("__pos", "__seq")
    return F.last(_last_known(number), ignorenulls=True).over(rows.rowsBetween(Window.unboundedPreceding, -1))


def _is_lacking(name: str) -> Column:
    """Return whether a change did not carry a column."""
    from pyspark.sql import functions as F  # Spark

    return F.coalesce(F.array_contains("__unchanged", name), F.lit(False))


def _has_value(number: int) -> Column:
    from pyspark.sql import functions as F  # Spark

    return F.coalesce(F.col(f"p.{_known_name(number)}.is"), F.lit(False))


def _patch_column(name: str, lacking: Sequence[str]) -> Column:
    """Take a column of a partial change, or its last known value."""
    from pyspark.sql import functions as F  # Spark

    if name not in lacking:
        return col(name, "c")
    value = F.col(f"p.{_known_name(list(lacking).index(name))}.value")
    return F.when(_is_lacking(name), value).otherwise(col(name, "c")).alias(name)


# --- comparing -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Differences:
    """How a mirror differs from its source, in rows."""

    missing: int  # in the source only
    extra: int  # in the mirror only
    different: int  # under the same key, with other values
    equal: int

    @property
    def any(self) -> bool:
        """Return whether they differ at all."""
        return bool(self.missing or self.extra or self.different)


def mirror_differences(mirror: DataFrame, source: DataFrame, key: Sequence[str]) -> Differences:
    """Compare two tables by key, over the columns of the source; NULL equals NULL, NaN equals NaN.

    A column that the mirror lacks counts as NULL in every row of it.
    """
    from pyspark.sql import functions as F  # Spark

    others = [name for name in source.columns if name not in key]
    absent = [
        F.lit(None).cast(source.schema[name].dataType).alias(name) for name in others if name not in mirror.columns
    ]
    ours = mirror.select("*", *absent, F.lit(True).alias("__there")).alias("m")
    theirs = source.withColumn("__there", F.lit(True)).alias("s")
    met = ours.join(theirs, same_key(key, "m", "s"), "full_outer")
    in_mirror, in_source = F.col("m.__there").isNotNull(), F.col("s.__there").isNotNull()
    # Plain equality of two NULLs is NULL, which would count as neither equal nor different.
    agree = reduce(lambda a, b: a & b, (col(n, "m").eqNullSafe(col(n, "s")) for n in others), F.lit(True))
    counts = met.agg(
        F.count_if(~in_mirror).alias("missing"),
        F.count_if(~in_source).alias("extra"),
        F.count_if(in_mirror & in_source & ~agree).alias("different"),
        F.count_if(in_mirror & in_source & agree).alias("equal"),
    ).first()
    return Differences(**counts.asDict())
