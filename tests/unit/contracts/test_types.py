"""The type contract's own rules: words, decimals, what is portable, what a column says of itself."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from rivet_resources.contracts.types import ACCEPTS, UUID, WORDS, Column, Fact, is_portable, parse_word
from rivet_resources.engines.postgres.types import POSTGRES, postgres_money, postgres_numeric


@pytest.mark.parametrize("word", WORDS)
def test_word_means_its_type(word: str) -> None:
    """Every word of the contract parses to the Arrow type beside it."""
    assert (word, WORDS[word]) == (parse_word(word).stem, parse_word(word).arrow)


@pytest.mark.parametrize(
    ("text", "arrow"),
    [
        ("decimal(18,4)", pa.decimal128(18, 4)),
        ("decimal( 38 , 0 )", pa.decimal128(38, 0)),
        ("decimal(76,76)", pa.decimal256(76, 76)),
    ],
)
def test_decimal_word_takes_precision_and_scale(text: str, arrow: pa.DataType) -> None:
    """128 bits up to 38 digits, 256 above."""
    assert arrow == parse_word(text).arrow


@pytest.mark.parametrize("text", ["decimal(77,0)", "decimal(5,6)", "decimal(0,0)", "decimal", "varchar", "", "INT8"])
def test_unknown_word_lists_what_exists(text: str) -> None:
    """A wrong word is answered with the right ones, or with the limits of decimal."""
    with pytest.raises(ValueError, match=r"choose one of bool|decimal\(1,0\) to decimal\(76,76\)"):
        parse_word(text)


def test_every_word_but_text_says_what_it_accepts() -> None:
    """The table of accepted families is complete."""
    assert (set(WORDS) | {"decimal"}) - {"text"} == set(ACCEPTS)


def modifier(precision: int, scale: int) -> int:
    """Pack a numeric's modifier as PostgreSQL does."""
    return ((precision << 16) | (scale & 0x7FF)) + 4


@pytest.mark.parametrize(
    ("packed", "arrow"),
    [
        (modifier(12, 2), pa.decimal128(12, 2)),
        (modifier(38, 38), pa.decimal128(38, 38)),
        (modifier(60, 4), pa.decimal256(60, 4)),
        (modifier(3, -2), pa.decimal128(5, 0)),
        (modifier(2, 4), pa.decimal128(4, 4)),
        (modifier(1000, 0), pa.string()),
        (modifier(70, -10), pa.string()),
        (-1, pa.string()),
    ],
)
def test_numeric_modifier_decides_the_decimal(packed: int, arrow: pa.DataType) -> None:
    """Precision and scale come from the modifier; without one, or above 76 digits, the digits are text."""
    assert arrow == postgres_numeric(packed).arrow


def test_money_has_the_scale_the_server_gives() -> None:
    """Yen have no cents."""
    assert [pa.decimal128(19, 2), pa.decimal128(19, 0)] == [postgres_money(2).arrow, postgres_money(0).arrow]


@pytest.mark.parametrize(
    ("arrow", "expected"),
    [
        (pa.int64(), True),
        (pa.json_(), True),
        (pa.timestamp("us", "UTC"), True),
        (pa.list_(pa.int32()), True),
        (pa.uuid(), False),
        (pa.time64("us"), False),
        (pa.timestamp("ns"), False),
        (pa.decimal256(60, 4), False),
        (pa.list_(pa.decimal256(60, 4)), False),
    ],
)
def test_portable_means_every_reader_opens_it(arrow: pa.DataType, expected: bool) -> None:
    """The types of section 2 that some reader refuses are not portable."""
    assert expected == is_portable(arrow)


def test_fallback_facts_read_the_output_form() -> None:
    """A fact that is text for want of better says so."""
    strings = {name: fact for name, fact in POSTGRES.items() if fact.family in ("bit", "other")}

    assert {name: "logical_string" for name in strings} == {name: fact.fidelity for name, fact in strings.items()}
    assert isinstance(POSTGRES["uuid"], Fact)


def test_field_carries_type_and_fidelity() -> None:
    """Readers of a part find the native type, the fidelity and the logical type in the field."""
    column = Column("u", "uuid", UUID, '"u"', logical="uuid", nullable=False)

    expected = {b"rivet.native_type": b"uuid", b"rivet.fidelity": b"exact", b"rivet.logical_type": b"uuid"}
    assert (expected, False) == (column.field.metadata, column.field.nullable)


def test_column_travels_to_a_task() -> None:
    """A column is plain data: pickled and back it is equal."""
    column = Column("l", "integer[]", pa.list_(pa.field("item", pa.int32())), '"l"', facts=(("base", "_int4"),))

    assert column == pickle.loads(pickle.dumps(column))
    assert ("_int4", "") == (column.fact("base"), column.fact("nothing"))


@pytest.mark.parametrize(
    ("native", "length"),
    [("character varying(30)", b"30"), ("varchar(255)", b"255"), ("nvarchar(40)", b"40"), ("binary(16)", b"16"),
     ("character(3)", b"3"), ("bit(5)", b"5"), ("numeric(12,2)", None), ("text", None), ("nvarchar(max)", None),
     ("datetime(6)", None)],
)  # fmt: skip
def test_length_of_a_type_is_field_metadata(native: str, length: bytes | None) -> None:
    """A reader of the file learns how long a text may be at the source; a precision is no length."""
    column = Column(name="a", native=native, arrow=pa.string(), select="a")

    assert length == column.field.metadata.get(b"rivet.max_length")
