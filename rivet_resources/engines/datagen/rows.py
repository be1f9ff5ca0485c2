"""Made-up rows by number: row n is a function of (seed, pattern, n) and of a clock, and of nothing else.

Belongs here: the patterns of `connectors.md`, 5, and how bits become values. Not here: vocabularies
(vocabulary.py), which rows are wanted and how fast (pages.py).

Each row has 64 bytes of its own, blake2b(seed, pattern, n), and draws from fixed places of them: 16 lanes of 32 bits.
That is what makes rows equal however a run is cut into pages and chunks, and whatever the version of Python or NumPy:
no generator with a state, no convenience method of a library. Hashing is per row; the rest is done for all rows of a
page at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.types import INSTANT, JSON, Fact
from rivet_resources.engines.datagen import vocabulary as words

Numbers = npt.NDArray[np.int64]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY_MICROSECONDS = 86_400_000_000
BYTES = 64

WHOLE = Fact("integer", pa.int64())
TEXT = Fact("text", pa.string())
TRUTH = Fact("bool", pa.bool_())
REAL = Fact("float", pa.float64())
MONEY = Fact("numeric", pa.decimal128(12, 2))
DAY = Fact("date", pa.date32())
MOMENT = Fact("timestamptz", INSTANT)
DOCUMENT = Fact("json", JSON, logical="json")
# What a catalog would call them.
NATIVE: Mapping[Fact, str] = {
    WHOLE: "bigint", TEXT: "varchar", TRUTH: "boolean", REAL: "double", MONEY: "decimal(12,2)", DAY: "date",
    MOMENT: "timestamptz", DOCUMENT: "json",
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """All that rows depend on beside their number."""

    pattern: str
    seed: int
    clock: datetime  # aware UTC, the `now` of all dates
    has_sequence: bool = True
    has_timestamp: bool = True
    custom: tuple[tuple[str, Any], ...] = ()  # (name, JSON value), constant in every row

    @property
    def clock_microseconds(self) -> int:
        """Count since 1970, exact."""
        since = self.clock - EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


class Draws:
    """The bits of some rows in a row, and ways to draw from them; one place serves one field."""

    def __init__(self, recipe: Recipe, n: Numbers) -> None:
        self.n = n
        self.clock = recipe.clock_microseconds
        # The NULs keep the parts apart: seed 1 of one pattern must not be seed 12 of another.
        self._salt = f"{recipe.seed}\0{recipe.pattern}\0".encode()

    def __len__(self) -> int:
        return len(self.n)

    @cached_property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """Hash each number: (rows, 64)."""
        # Copied for each row: the salt is hashed once.
        base = blake2b(self._salt, digest_size=BYTES)
        digests = []
        for n in self.n.tolist():
            row = base.copy()
            row.update(n.to_bytes(8, "little"))
            digests.append(row.digest())
        return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, BYTES)

    def lane(self, place: int) -> npt.NDArray[np.uint64]:
        """Return 32 raw bits."""
        lanes = self.bytes.view(np.dtype("<u4"))
        return lanes[:, place].astype(np.uint64)

    def below(self, place: int, end: int | Numbers) -> Numbers:
        """Draw a whole number from 0 up to, excluding, `end` (at most 2^32): the high half of a product."""
        # Scaled and not taken modulo: the remainder would favour small numbers, and the low bits are spent elsewhere.
        return ((self.lane(place) * np.asarray(end, dtype=np.uint64)) >> np.uint64(32)).astype(np.int64)

    def back(self, place: int, span: int) -> Numbers:
        """Draw a time within `span` microseconds before the clock, from lanes `place` and the next."""
        bits = self.lane(place) | (self.lane(place + 1) << np.uint64(32))
        # Two lanes, since 32 bits of microseconds are little more than an hour.
        return self.clock - (bits % np.uint64(span)).astype(np.int64)

    def choice(self, place: int, vocabulary: Sequence[str]) -> pa.Array:
        """Draw words."""
        return pick(vocabulary, self.below(place, len(vocabulary)))

    def hex(self, place: int, digits: int, *, prefix: str = "") -> pa.Array:
        """Draw hexadecimal digits, from the bytes of lane `place` on."""
        raw = self.bytes[:, 4 * place : 4 * place + digits // 2]
        both = np.stack([raw >> 4, raw & 15], axis=2).reshape(len(raw), digits)
        texts = np.empty((len(raw), len(prefix) + digits), dtype=np.uint8)
        texts[:, : len(prefix)] = np.frombuffer(prefix.encode(), dtype=np.uint8)
        texts[:, len(prefix) :] = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)[both]
        offsets = np.arange(len(raw) + 1, dtype=np.int32) * texts.shape[1]
        return pa.StringArray.from_buffers(len(raw), pa.py_buffer(offsets.tobytes()), pa.py_buffer(texts.tobytes()))

    def moment(self) -> pa.Array:
        """Return the clock itself, for every row."""
        return pa.array(np.full(len(self), self.clock)).cast(INSTANT)


def pick(vocabulary: Sequence[str], places: Numbers) -> pa.Array:
    """Return the words at these places."""
    return pa.array(vocabulary, pa.string()).take(pa.array(places))


def number_texts(prefix: str, numbers: Numbers) -> pa.Array:
    """Write numbers with at least eight digits behind a prefix."""
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 8, "0")
    return pc.binary_join_element_wise(prefix, digits, "")


def money(hundredths: Numbers) -> pa.Array:
    """Turn hundredths, not negative, into decimals."""
    # A decimal128 is two words, the low one first; the high one
    # of a number that is not negative and fits 63 bits is zero.
    halves = np.zeros((len(hundredths), 2), dtype=np.int64)
    halves[:, 0] = hundredths
    return pa.Array.from_buffers(MONEY.arrow, len(hundredths), [None, pa.py_buffer(halves.tobytes())])


def text(numbers: Numbers) -> pa.Array:
    """Write numbers as they are."""
    return pa.array(numbers).cast(pa.string())


def join_texts(*pieces: pa.Array | str) -> pa.Array:
    """Join texts row by row."""
    return pc.binary_join_element_wise(*pieces, "")


# --- patterns ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pattern:
    """A kind of row: its fields in order, which of them tells rows apart, which of them is n itself."""

    identity: str
    fields: tuple[tuple[str, Fact], ...]
    make: Callable[[Draws], list[pa.Array]]
    number: str = ""  # the field that equals n
    is_unique: bool = True  # the identity of no two rows is equal


def _sequence(draws: Draws) -> list[pa.Array]:
    return [pa.array(draws.n)]


def _random(draws: Draws) -> list[pa.Array]:
    return [
        draws.hex(0, 16),
        pa.array(draws.below(2, 1000)),
        pa.array(draws.below(3, 101) / 100.0),
        pa.array(draws.below(4, 2) == 1),
        draws.choice(5, words.CATEGORIES),
    ]


def _users(draws: Draws) -> list[pa.Array]:
    # A place of the hash belongs to one field for good, or equal seeds would no longer make equal rows.
    first, last = draws.choice(0, words.FIRST_NAMES), draws.choice(1, words.LAST_NAMES)
    name = pc.utf8_lower(join_texts(first, ".", last))
    days = draws.clock // DAY_MICROSECONDS - draws.below(6, 3 * 365 + 1)
    return [
        number_texts("user_", draws.n),
        first,
        last,
        join_texts(name, "@", draws.choice(2, words.DOMAINS)),
        pa.array(18 + draws.below(3, 62)),
        draws.choice(4, words.COUNTRIES),
        pa.array(draws.below(5, 4) == 0),
        pa.array(days.astype(np.int32)).cast(pa.date32()),
    ]


def _orders(draws: Draws) -> list[pa.Array]:
    quantity = 1 + draws.below(2, 9)
    price = 10_00 + draws.below(3, 200_00 + 1)
    return [
        number_texts("ORD-", draws.n),
        _customer(draws, 0),
        draws.choice(1, words.PRODUCTS),
        pa.array(quantity),
        money(price),
        money(price * quantity),
        draws.choice(4, words.CURRENCIES),
        draws.choice(5, words.STATUSES),
        pa.array(draws.back(6, 7 * DAY_MICROSECONDS)).cast(INSTANT),
    ]


def _customer(draws: Draws, place: int) -> pa.Array:
    return number_texts("user_", 1 + draws.below(place, 9999))


def _events(draws: Draws) -> list[pa.Array]:
    types = draws.below(5, len(words.EVENT_TYPES))
    return [
        draws.hex(0, 16, prefix="evt_"),
        pick(words.EVENT_TYPES, types),
        pa.array(draws.n),
        draws.choice(6, words.SOURCES),
        _customer(draws, 7),
        draws.hex(2, 12, prefix="sess_"),
        _payload(draws, types),
    ]


def _payload(draws: Draws, types: Numbers) -> pa.Array:
    """Write each event's JSON: what its type has, `{}` for types that have nothing."""
    cents = 1_00 + draws.below(8, 499_00 + 1)
    referrer = pick(("", *(f'"referrer":"{at}",' for at in words.REFERRERS)), draws.below(10, 4))
    page_view = join_texts(
        '{"url":"https://shop.example', draws.choice(9, words.PATHS), '",', referrer,
        '"duration_ms":', text(100 + draws.below(11, 29_900)), "}",
    )  # fmt: skip
    click = join_texts(
        '{"element_id":"', draws.choice(12, words.ELEMENTS), '","x":', text(draws.below(13, 1920)),
        ',"y":', text(draws.below(14, 1080)), "}",
    )  # fmt: skip
    hundredths = pc.utf8_lpad(text(cents % 100), 2, "0")
    purchase = join_texts(
        '{"amount":', text(cents // 100), ".", hundredths, ',"items":', text(1 + draws.below(15, 9)), "}"
    )
    kinds = ((words.PAGE_VIEW, page_view), (words.CLICK, click), (words.PURCHASE, purchase))
    is_kind = pa.StructArray.from_arrays([pa.array(types == kind) for kind, _ in kinds], names=["v", "c", "p"])
    return pc.case_when(is_kind, *(made for _, made in kinds), "{}")


def _metrics(draws: Draws) -> list[pa.Array]:
    places = draws.below(0, len(words.METRICS))
    # In hundredths: whole numbers are the same on every machine, sums of doubles need not be.
    low, span = (np.array([getattr(m, name) for m in words.METRICS], dtype=np.int64) for name in ("low", "span"))
    hundredths = low[places] + draws.below(1, span[places] + 1)
    tags = join_texts(
        '{"env":"', draws.choice(3, words.ENVIRONMENTS), '","region":"', draws.choice(4, words.REGIONS), '"}'
    )
    return [
        pa.array(draws.n),
        pick([metric.name for metric in words.METRICS], places),
        pa.array(hundredths / 100.0),
        pick([metric.unit for metric in words.METRICS], places),
        draws.choice(2, words.HOSTS),
        tags,
        draws.moment(),
    ]


def _key_value(draws: Draws) -> list[pa.Array]:
    return [number_texts("key_", draws.n), draws.hex(0, 16, prefix="value_")]


# `connectors.md`, 5. Amounts of money are decimals, since doubles would not hold the exact product.
PATTERNS: Mapping[str, Pattern] = {
    "sequence": Pattern("value", (("value", WHOLE),), _sequence, number="value"),
    "random": Pattern(
        "id",
        (("id", TEXT), ("value", WHOLE), ("ratio", REAL), ("active", TRUTH), ("category", TEXT)),
        _random,
        is_unique=False,
    ),
    "users": Pattern(
        "user_id",
        (("user_id", TEXT), ("first_name", TEXT), ("last_name", TEXT), ("email", TEXT), ("age", WHOLE),
         ("country", TEXT), ("premium", TRUTH), ("signup_date", DAY)),
        _users,
    ),
    "orders": Pattern(
        "order_id",
        (("order_id", TEXT), ("customer_id", TEXT), ("product", TEXT), ("quantity", WHOLE), ("unit_price", MONEY),
         ("total_amount", MONEY), ("currency", TEXT), ("status", TEXT), ("created_at", MOMENT)),
        _orders,
    ),
    "events": Pattern(
        "event_id",
        (("event_id", TEXT), ("event_type", TEXT), ("sequence", WHOLE), ("source", TEXT), ("user_id", TEXT),
         ("session_id", TEXT), ("payload", DOCUMENT)),
        _events,
        number="sequence",
        is_unique=False,
    ),
    "metrics": Pattern(
        "metric_id",
        (("metric_id", WHOLE), ("name", TEXT), ("value", REAL), ("unit", TEXT), ("host", TEXT), ("tags", DOCUMENT),
         ("timestamp", MOMENT)),
        _metrics,
        number="metric_id",
    ),
    "key_value": Pattern("key", (("key", TEXT), ("value", TEXT)), _key_value),
}  # fmt: skip


# --- rows ----------------------------------------------------------------------------------------


def fields(recipe: Recipe) -> dict[str, Fact]:
    """Return what rows are made of, in order: the pattern's fields, `_sequence`, `_timestamp`, the custom ones.

    A custom field with the name of another takes its place.
    """
    made = dict(PATTERNS[recipe.pattern].fields)
    if recipe.has_sequence:
        made["_sequence"] = WHOLE
    if recipe.has_timestamp:
        made["_timestamp"] = MOMENT
    return made | {name: fact_of(value) for name, value in recipe.custom}


def numbers(recipe: Recipe) -> tuple[str, ...]:
    """Name the fields that equal the row's number, `_sequence` first; none of them is a custom one."""
    made = ("_sequence" if recipe.has_sequence else "", PATTERNS[recipe.pattern].number)
    return tuple(name for name in made if name and name not in dict(recipe.custom))


def rows(recipe: Recipe, wanted: range) -> pa.RecordBatch:
    """Make the rows of these numbers; JSON is plain text here."""
    return records(recipe, np.arange(wanted.start, wanted.stop, wanted.step, dtype=np.int64))


def records(recipe: Recipe, wanted: Numbers) -> pa.RecordBatch:
    """Make the rows of any numbers, in their order; see `rows`."""
    draws = Draws(recipe, wanted)
    pattern = PATTERNS[recipe.pattern]
    made = dict(zip((name for name, _ in pattern.fields), pattern.make(draws), strict=True))
    if recipe.has_sequence:
        made["_sequence"] = pa.array(draws.n)
    if recipe.has_timestamp:
        made["_timestamp"] = draws.moment()
    for name, value in recipe.custom:
        made[name] = constant(value, len(draws))
    return pa.RecordBatch.from_arrays(list(made.values()), list(made))


def fact_of(value: Any) -> Fact:
    """Type a custom field by its one value; a null is text."""
    # Before int: Python's True is one.
    if isinstance(value, bool):
        return TRUTH
    if isinstance(value, int):
        return WHOLE
    if isinstance(value, float):
        return REAL
    return DOCUMENT if isinstance(value, list | dict) else TEXT


def constant(value: Any, count: int) -> pa.Array:
    """Repeat a custom field's value."""
    fact = fact_of(value)
    if fact is DOCUMENT:
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    stored = pa.string() if fact is DOCUMENT else fact.arrow
    return pa.repeat(pa.scalar(value, stored), count)
