"""Every state a row has had, as frames in and frames out: slowly changing, type 2 (`cdc.md`, 15; `connectors.md`, 13).

Belongs here: what opens a version, what closes it, and which are none. Not here: the table's state now (`frames.py`).

A change that changes no value opens nothing. A delete closes; a truncate closes all.

`valid_from_pos` and `valid_to_pos` order exactly; the times are the source's word and may be missing. So as of time t:
`(valid_from IS NULL OR valid_from <= t) AND (is_current OR valid_to > t)`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from rivet_resources.contracts.types import INSTANT
from rivet_resources.shape.shape import EXPORTED_AT, ROW_HASH
from rivet_resources.tables.frames import LACKING, col, same_key
from rivet_resources.tables.reading import Truncate

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec

# What a version has before the columns of its table.
VERSION = (
    pa.field("valid_from", INSTANT),
    pa.field("valid_from_pos", pa.string()),
    pa.field("valid_to", INSTANT),
    pa.field("valid_to_pos", pa.string()),
    pa.field("is_current", pa.bool_()),
    pa.field("__op", pa.string()),  # of the change that opened it
)
NAMES = tuple(field.name for field in VERSION)
# `__seq` of a version that stood before: it comes before the changes of its own position.
STANDING = -2
# Rivet's, not the row's: a later export of the same row is no new state.
OWN = (EXPORTED_AT.name, ROW_HASH.name)


def versioned(
    base: DataFrame | None,
    changes: DataFrame,
    key: Sequence[str],
    columns: Sequence[str],
    *,
    truncates: Sequence[Truncate] = (),
    null_keys: bool = True,
    own: Collection[str] = OWN,
) -> DataFrame:
    """Return all versions after some changes: those they did not touch, those they closed, those they opened.

    Args:
        base: versions before, None when there were none.
        changes: of rows, filled, in any order; a change may stand there twice.
        columns: of the table; LACKING is kept beside them where `changes` has it.
        truncates: all of the changes', in order.
        null_keys: False when no key of `changes` holds a NULL.
        own: columns that are not the row's, so that another cell of theirs is no new state.
    """
    from pyspark.sql import functions as F  # Spark

    moved = _version_columns(changes, columns)
    if base is None:
        return _chain(moved, key, columns, truncates, own)
    open_ = base.where("is_current").alias("b")
    if truncates:  # they touch every open version
        mine, untouched = open_, base.where("NOT is_current")
    else:
        keys = changes.select(*map(col, key)).distinct().alias("t")
        same = same_key(key, "b", "t", null_keys=null_keys)
        mine = open_.join(keys, same, "left_semi")
        # Closed versions never change again, and open ones of other keys are copied: only touched keys pass the windows
        # below.
        untouched = base.where("NOT is_current").unionByName(open_.join(keys, same, "left_anti"))
    standing = mine.select(
        F.col("valid_from_pos").alias("__pos"), F.lit(STANDING).cast("long").alias("__seq"),
        F.col("valid_from").alias("__ts"), F.col("__op"), *map(col, columns),
    )  # fmt: skip
    made = _chain(standing.unionByName(moved, allowMissingColumns=True), key, columns, truncates, own)
    return untouched.select(*map(col, (*NAMES, *columns))).unionByName(made, allowMissingColumns=True)


def opened(copy: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Make the rows of a first copy into versions that nobody knows the beginning of; `__op` and `__pos` are theirs."""
    from pyspark.sql import functions as F  # Spark

    given = {"valid_from_pos": F.col("__pos"), "is_current": F.lit(True), "__op": F.col("__op")}
    # A row of the first copy has no `valid_from`: it held before we looked, nobody knows since when.
    none = {name: F.lit(None).cast("timestamp") for name in ("valid_from", "valid_to")}
    cells = {**given, **none, "valid_to_pos": F.lit(None).cast("string")}
    return copy.select(*(cells[name].alias(name) for name in NAMES), *map(col, columns))


def _version_columns(changes: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Keep what a version is made of."""
    kept = ["__pos", "__seq", "__ts", "__op", *([LACKING] if LACKING in changes.columns else [])]
    return changes.select(*kept, *map(col, columns))


def _moments(rows: DataFrame, line: WindowSpec, truncates: Sequence[Truncate]) -> DataFrame:
    """Keep standing versions, and the last change of each key in each transaction unless a truncate in it came later.

    `__epoch` counts the truncates before: two moments with a truncate between them are strangers.
    """
    from pyspark.sql import functions as F  # Spark

    is_standing = F.col("__seq") == STANDING
    # A transaction is one moment: of several changes to a key in it the last one counts, so a version that began and
    # ended inside it never was.
    is_last = F.coalesce(F.lead("__pos").over(line) != F.col("__pos"), F.lit(True))
    moments = rows.withColumn("__last", is_last).where(is_standing | F.col("__last")).drop("__last")
    if not truncates:
        return moments.withColumn("__epoch", F.lit(0))
    before = F.filter(_places(truncates), lambda one: (one["pos"] < F.col("__pos")) | _same_moment(one, before=True))
    wiped = F.exists(_places(truncates), lambda one: _same_moment(one, before=False))
    epoch = F.when(is_standing, F.lit(0)).otherwise(F.size(before))
    return moments.where(is_standing | ~wiped).withColumn("__epoch", epoch)


def _same_moment(one: Column, *, before: bool) -> Column:
    """Return whether a truncate stands in the transaction of a change, before or behind it."""
    from pyspark.sql import functions as F  # Spark

    order = one["seq"] < F.col("__seq") if before else one["seq"] > F.col("__seq")
    return (one["pos"] == F.col("__pos")) & order


def _places(truncates: Sequence[Truncate]) -> Column:
    """Write truncates down as an array, in log order."""
    from pyspark.sql import functions as F  # Spark

    one = [
        F.struct(
            F.lit(each.pos).alias("pos"),
            F.lit(each.seq).cast("long").alias("seq"),
            F.timestamp_micros(F.lit(each.at).cast("long")).alias("ts"),
        )
        for each in truncates
    ]
    return F.array(*one)


def _chain(
    rows: DataFrame, key: Sequence[str], columns: Sequence[str], truncates: Sequence[Truncate], own: Collection[str]
) -> DataFrame:
    """Make versions of standing ones and changes, by key: each holds until the next one, or the next truncate."""
    from pyspark.sql import Window  # Spark
    from pyspark.sql import functions as F  # Spark

    # All windows have one order, so rows are brought together and sorted once.
    line = Window.partitionBy(*map(col, key)).orderBy("__pos", "__seq")
    moments = _moments(rows, line, truncates)
    told = [col(name) for name in columns if name not in own]
    row, gone = F.struct(*told), F.col("__op") == "delete"
    previous = F.lag(F.struct(gone.alias("gone"), F.col("__epoch").alias("epoch"), row.alias("row"))).over(line)
    repeats = (
        ~gone & ~F.col("__was.gone") & (F.col("__was.epoch") == F.col("__epoch")) & F.col("__was.row").eqNullSafe(row)
    )
    # Repeats go before the next one is looked for: a version lasts until there is another state.
    news = moments.withColumn("__was", previous).where(~F.coalesce(repeats, F.lit(False))).drop("__was")
    following = F.lead(
        F.struct(F.col("__pos").alias("pos"), F.col("__ts").alias("ts"), F.col("__epoch").alias("epoch"))
    )
    # A delete opens nothing, but it closes what was before: so it goes last.
    closed = news.withColumn("__next", following.over(line)).where(~gone)
    if truncates:
        places = _places(truncates)
        wiped = F.when(F.col("__epoch") < F.size(places), F.get(places, F.col("__epoch")))
        by_change = F.col("__next").isNotNull() & (F.col("__next.epoch") == F.col("__epoch"))
        to_pos = F.when(by_change, F.col("__next.pos")).otherwise(wiped["pos"])
        to_ts = F.when(by_change, F.col("__next.ts")).otherwise(wiped["ts"])
    else:
        to_pos, to_ts = F.col("__next.pos"), F.col("__next.ts")
    lacking = [F.col(LACKING)] if LACKING in moments.columns else []
    return closed.select(
        F.col("__ts").alias("valid_from"), F.col("__pos").alias("valid_from_pos"), to_ts.alias("valid_to"),
        to_pos.alias("valid_to_pos"), to_pos.isNull().alias("is_current"), F.col("__op"), *map(col, columns), *lacking,
    )  # fmt: skip
