"""How windows of one column's values, and of snapshots, are named: the partition, the window's key, its folder.

`eu` of column `region` is the partition `eu`, the window `region=eu`, and its parts lie in `region=eu/`.

Belongs here: names, and nothing else. Not here: which values there are (`rivet_assets/modes/by_value.py`).
"""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import quote, unquote

# As Hive and Spark name the folder of rows without a value.
NULL = "__HIVE_DEFAULT_PARTITION__"
# An empty text; a partition must have a name.
EMPTY = "__EMPTY__"
OTHERS = "__OTHERS__"  # rows of every value that is not listed
RESERVED = (NULL, EMPTY, OTHERS)
# Bytes of `column=value` as a folder; file systems stop at 255.
LONGEST = 200
# What Dagster refuses in a partition's name, or reads as something else; and the sign that encodes it.
NOT_OF_A_NAME = re.compile(r"%|\||\.\.\.|[\x00-\x1f\x7f]")
SNAPSHOT_WINDOW = re.compile(r"snapshot=\d{4}-\d\d-\d\d")
VALUE_WINDOW = re.compile(r"(?!after(?:\+[1-9]\d*)?=)[^=|]+=.+")
SHARD_COLUMN = "shard"  # what windows and folders of a database of several are named by: `shard=eu`
# What Dagster refuses beside a time, where it reads lists and ranges.
NOT_BESIDE_TIME = re.compile(r"[\[\],]")
BESIDE = "|"  # between a time and a value, in partitions as Dagster joins two dimensions, and in windows
SNAPSHOT_AND_VALUE = re.compile(rf"{SNAPSHOT_WINDOW.pattern}\|[^|=]+=[^|]+")
TIME_AND_VALUE = re.compile(rf"(?:{SNAPSHOT_WINDOW.pattern}|[^|=]+)\|[^|=]+=[^|]+")


def partition_of_value(value: str | None) -> str:
    """Name the partition of a value, None for NULL: the value itself, wherever that can be a name."""
    if value is None:
        return NULL
    # Everything that a path, a store's key or Dagster would stumble over is percent-encoded, so that no two values
    # meet.
    return NOT_OF_A_NAME.sub(lambda found: "".join(f"%{b:02X}" for b in found[0].encode()), value) or EMPTY


def beside_time(partition: str) -> str:
    """Name the partition of a value where it stands beside a time: `a%2Cb` of `a,b`, which leads back to the value."""
    return NOT_BESIDE_TIME.sub(lambda found: f"%{ord(found[0]):02X}", partition)


def value_of_partition(partition: str) -> str | None:
    """Return the value that a partition is named for, None for NULL; not of `OTHERS`, which has none."""
    if partition == NULL:
        return None
    return "" if partition == EMPTY else unquote(partition)


def window_key(column: str, partition: str) -> str:
    """Name the window of a partition, which is its folder too: `region=eu`."""
    word = partition if partition in RESERVED else quote(unquote(partition), safe="")
    return f"{spell_column(column)}={word}"


def spell_column(name: str) -> str:
    """Spell a column as the beginning of a folder or file: what begins with a point is hidden, from us and others."""
    spelled = quote(name, safe="")
    return f"%2E{spelled[1:]}" if spelled.startswith(".") else spelled


def partition_of_window(key: str) -> str:
    """Name the partition of a window: of one of a column's values that value, of any other its own key."""
    if TIME_AND_VALUE.fullmatch(key):
        day, _, value = key.partition(BESIDE)
        return f"{partition_of_window(day)}{BESIDE}{beside_time(partition_of_window(value))}"
    if not VALUE_WINDOW.fullmatch(key):
        return key
    word = key.partition("=")[2]
    return word if word in RESERVED else partition_of_value(unquote(word))


def snapshot_day(key: str) -> str:
    """Return the day of a snapshot, of all rows or of a value's."""
    return partition_of_window(key.partition(BESIDE)[0])


def snapshot_key(day: str) -> str:
    """Name the window of a day's snapshot; its partition is the day, its folder `dt=<day>`."""
    return f"snapshot={day}"


def column_of_window(key: str) -> str:
    """Return the column whose value a window is of."""
    return unquote(value_part(key).partition("=")[0])


def value_part(key: str) -> str:
    """Return which value a window of a time, or of a snapshot, and a value is of; a key of another kind as it is."""
    return key.partition(BESIDE)[2] if TIME_AND_VALUE.fullmatch(key) else key


def folded(value: str) -> str:
    """Return what stays of a text where case, accents and outer space do not count, as in many a collation."""
    plain = unicodedata.normalize("NFKD", value)
    return "".join(letter for letter in plain if not unicodedata.combining(letter)).casefold().strip()
