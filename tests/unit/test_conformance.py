"""The promises that plugins are tested by: Rivet's own keep them, and each is broken by something that does not."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from rivet_resources import retry
from rivet_resources.conformance import (
    CHECK_PROMISES,
    DESTINATION_PROMISES,
    ENGINE_PROMISES,
    FORMAT_PROMISES,
    STEP_PROMISES,
    PromiseBroken,
    fake_clock,
)
from rivet_resources.contracts.format import FormatKeys
from rivet_resources.contracts.settings import Settings, Tuning, pace
from rivet_resources.contracts.source import Page
from rivet_resources.destinations.local import Local, LocalRoot
from rivet_resources.engines.datagen.source import Datagen
from rivet_resources.engines.sqlite.source import Sqlite
from rivet_resources.errors import SourceLost
from rivet_resources.registry import FORMATS, STEPS

PAGE = pa.table({"id": [1, 2, 3, 4], "note": ["a", None, "", "ä"]})
OWN = {
    "drop": {"columns": ["note"]},
    "rename": {"columns": {"note": "text"}},
    "upper": {"columns": ["note"]},
    "mask": {"fields": ["note"]},
}
named = {"ids": lambda each: each.__name__}


@pytest.mark.parametrize("promise", DESTINATION_PROMISES, **named)
def test_folder_keeps_what_destinations_promise(promise: Callable[..., None], tmp_path: Path) -> None:
    """The simplest of Rivet's own."""
    promise(Local(path=str(tmp_path / "lake")), tmp_path)


class Careless:
    """A folder of which one method is another."""

    def __init__(self, path: Path, **others: Any) -> None:
        self.inner, self.others = Local(path=str(path)), others

    def root(self, export: str) -> Any:
        """Wrap the root."""
        careless = type("CarelessRoot", (LocalRoot,), self.others)
        root = self.inner.root(export)
        return careless(**{name: getattr(root, name) for name in root.__dataclass_fields__})


BROKEN: dict[str, dict[str, Any]] = {
    "staged_parts_are_invisible": {"staged_exists": lambda self, part: False},
    "discarded_parts_are_gone": {"discard": lambda self, parts: None},
    "attempts_do_not_meet": {"discard": lambda self, parts: [self.put(part.path, b"") for part in parts]},
    "parts_can_be_read_in_ranges": {"open": lambda self, path: __import__("io").BytesIO(b"rows")},
    "swaps_are_fenced": {"swap": lambda self, path, content, *, expected: self.put(path, content) or "1"},
    "small_objects_are_replaced_and_removed": {"delete": lambda self, paths: None},
    "listings_go_on_and_tell_versions": {"list_after": lambda self, path, *, most: dict.fromkeys(self.list(), "1")},
    "sweeps_spare_living_runs": {"sweep": lambda self, *, keep: len(list(keep))},
    "places_travel_and_can_be_proved": {"check": lambda self: self.put(".rivet_doctor_probe", b"1")},
}


@pytest.mark.parametrize("promise", DESTINATION_PROMISES, **named)
def test_place_that_breaks_a_promise_is_found(promise: Callable[..., None], tmp_path: Path) -> None:
    """Each check can fail, and says what should have been."""
    careless = Careless(tmp_path / "lake", **BROKEN[promise.__name__])

    with pytest.raises(PromiseBroken):
        promise(careless, tmp_path)


@pytest.mark.parametrize("word", OWN)
@pytest.mark.parametrize("promise", STEP_PROMISES, **named)
def test_own_steps_keep_what_steps_promise(promise: Callable[..., None], word: str) -> None:
    """Steps of Rivet, one of each sort."""
    promise(STEPS[word].model_validate({"type": word, **OWN[word]}), PAGE)


class Numbering:
    """A step that numbers the rows of a page: a page later begins anew."""

    def plan(self, schema: pa.Schema) -> Any:
        """Promise a column that it does not make."""
        from rivet_resources.contracts.transform import StepPlan

        return StepPlan(schema.append(pa.field("row", pa.int32())), {"row": frozenset({"nothing"})}, frozenset())

    def apply(self, table: pa.Table) -> pa.Table:
        """Number."""
        return table.append_column("row", pa.array(range(table.num_rows), pa.int64()))


@pytest.mark.parametrize("promise", STEP_PROMISES, **named)
def test_step_that_breaks_a_promise_is_found(promise: Callable[..., None]) -> None:
    """Each check can fail."""
    with pytest.raises(PromiseBroken):
        promise(Numbering(), PAGE)


# --- formats -------------------------------------------------------------------------------------

ROWS = pa.table(
    {"id": pa.array(range(400)), "note": pa.array([None if n % 7 == 0 else f"n{n}" for n in range(400)], pa.string())}
)


@pytest.mark.parametrize("word", FORMATS)
@pytest.mark.parametrize("promise", FORMAT_PROMISES, **named)
def test_own_formats_keep_what_formats_promise(promise: Callable[..., None], word: str, tmp_path: Path) -> None:
    """All of Rivet's."""
    promise(FORMATS[word].from_keys(FormatKeys()), ROWS, tmp_path)


class Forgetful:
    """CSV of which one method is another."""

    def __init__(self, **others: Any) -> None:
        self.inner, self.others = FORMATS["csv"].from_keys(FormatKeys()), others

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("inner", "others"):
            raise AttributeError(name)
        other = self.others.get(name)
        return getattr(self.inner, name) if other is None else partial(other, self.inner)


def _uneven(inner: Any, path: Path, schema: pa.Schema) -> Any:
    """Return other cells for each file."""
    for table in inner.batches(path, schema):
        yield table.append_column("of", pa.array([path.name] * table.num_rows))


class _Boastful:
    """A writer that tells more than it wrote."""

    def __init__(self, inner: Any) -> None:
        self.write, self.close, self.bytes_written = inner.write, inner.close, 10**9


WRONG_FORMATS: dict[str, dict[str, Any]] = {
    "rows_are_counted": {"rows": lambda inner, path, schema: 7},
    "cells_come_back": {"exact_columns": lambda inner, schema: frozenset({"nothing"})},
    "pages_do_not_show": {"batches": _uneven},
    "bytes_are_told": {"writer": lambda inner, path, schema, **_: _Boastful(inner.writer(path, schema))},
    "torn_files_are_found": {"rows": lambda inner, path, schema: 400},
    "formats_travel": {},
}


@pytest.mark.parametrize("promise", FORMAT_PROMISES, **named)
def test_format_that_breaks_a_promise_is_found(promise: Callable[..., None], tmp_path: Path) -> None:
    """Each check can fail; a wrapper, compared with its copy, is another one."""
    with pytest.raises(PromiseBroken):
        promise(Forgetful(**WRONG_FORMATS[promise.__name__]), ROWS, tmp_path)


# --- engines -------------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> Sqlite:
    """A SQLite file with 500 rows."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, note TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(n, f"n{n}") for n in range(500)])
        connection.commit()
    return Sqlite(type="sqlite", path=path)


@pytest.mark.parametrize("promise", ENGINE_PROMISES, **named)
def test_own_engines_keep_what_engines_promise(promise: Callable[..., None], shop: Sqlite) -> None:
    """Two that need no server."""
    promise(shop, "t")
    made = {"pattern": "orders", "seed": 1, "max_events": 300, "events_per_second": 0, "clock": "2026-01-01T00:00:00Z"}
    promise(Datagen.model_validate(made), "orders")


class SpoiledSqlite(Sqlite):
    """SQLite that reads wrong in one way."""

    fault: str = ""

    def pages(self, *given: Any, **named: Any) -> Any:
        """Read, and spoil it."""
        for page in super().pages(*given, **named):
            if self.fault == "typed":
                yield Page(page.table.rename_columns(["x", "y"]), {}, 0.0)
            elif self.fault == "once":
                yield page
                if given[0].index:
                    yield page
            else:
                yield page


def test_engine_that_breaks_a_promise_is_found(shop: Sqlite, tmp_path: Path) -> None:
    """Two of the checks, by pages that are wrong; the others have nothing that could be exchanged so simply."""
    by_name = {each.__name__: each for each in ENGINE_PROMISES}
    with pytest.raises(PromiseBroken, match="planned names"):
        by_name["pages_are_typed"](SpoiledSqlite(type="sqlite", path=shop.path, fault="typed"), "t")
    with pytest.raises(PromiseBroken, match="each row once"):
        by_name["chunks_hold_each_row_once"](SpoiledSqlite(type="sqlite", path=shop.path, fault="once"), "t")


# --- checks of windows ---------------------------------------------------------------------------


class Blank(Settings):
    """Counts NULLs, or what its fault says."""

    type: Literal["blank"] = "blank"
    column: str = "note"
    fault: str = ""

    def refuses(self, schema: pa.Schema) -> str:
        """Look for the column."""
        return "" if self.column in schema.names or self.fault == "takes all" else f"there is no {self.column}"

    def measure(self, rows: Any) -> Any:
        """Count."""
        if self.fault == "text":
            return "3"
        if self.fault == "parts" and len(getattr(rows, "children", ())) > 1:
            return 0
        return rows.to_table(columns=[self.column]).column(0).null_count


@pytest.mark.parametrize("promise", CHECK_PROMISES, **named)
def test_check_keeps_what_checks_promise(promise: Callable[..., None]) -> None:
    """An honest one."""
    promise(Blank(), ROWS)


@pytest.mark.parametrize(
    ("name", "fault"),
    [("numbers_are_numbers", "text"), ("parts_do_not_show", "parts"), ("other_columns_are_refused", "takes all")],
)
def test_check_that_breaks_a_promise_is_found(name: str, fault: str) -> None:
    """Each can fail."""
    (promise,) = (each for each in CHECK_PROMISES if each.__name__ == name)
    with pytest.raises(PromiseBroken):
        promise(Blank(fault=fault), ROWS)


def test_pauses_between_tries_pass_at_once_and_are_counted() -> None:
    """By the clock that a test winds; behind the block they last again."""
    paced = pace(Tuning(max_retries=3, retry_backoff_ms=30_000), None)

    def fail() -> None:
        raise SourceLost("away")

    with fake_clock() as clock, pytest.raises(SourceLost):
        retry.call(fail, pace=paced)

    assert clock.pauses == [30.0, 60.0, 60.0]
    assert retry.time is time
