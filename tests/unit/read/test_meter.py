"""A task keeps to the limits of its source: it waits for its turn, and ends where the budget or the time is over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rivet_resources.contracts.read_limits import (
    Budget,
    Metering,
    MonthRead,
    PageCounted,
    RateLimit,
    ReadWindow,
    SourceLimits,
)
from rivet_resources.contracts.settings import Tuning, pace
from rivet_resources.contracts.source import Page
from rivet_resources.engines.sqlite.source import Sqlite
from rivet_resources.errors import BudgetReached, ConfigError, ReadWindowClosed
from rivet_resources.read import task
from rivet_resources.read.meter import Meter, is_limited, metered, place_of, refuse_now, slowed
from rivet_resources.read.task import run_chunk
from rivet_resources.state import readings
from rivet_resources.state.database import Database
from rivet_resources.state.store import default_url, open_state
from tests.fakes import FAST, NOON, TableSource, extract_of

LIMITS = SourceLimits(rate=RateLimit(rows_per_second=100))


@dataclass
class FakeTime:
    """A clock that only sleeping moves, and a real store that goes by it."""

    url: str
    now: datetime = NOON
    slept: list[float] = field(default_factory=list)

    def clock(self) -> datetime:
        """Return the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.slept.append(seconds)
        self.now += timedelta(seconds=seconds)

    def count_page(self, place: str, page: MonthRead, costs: Mapping[str, float]) -> PageCounted:
        """Count in the store at this clock's time."""
        database = Database(self.url)
        with database.write() as connection:
            counted = readings.count(connection, place, page, costs=costs, at=self.now)
        database.close()
        return counted

    def meter(self, **changes: Any) -> Meter:
        """Return a task's meter."""
        plain = Metering(store=self.url, place="shop:5432", name="orders", limits=LIMITS)
        return Meter(replace(plain, **changes), self, clock=self.clock, sleep=self.sleep)


@pytest.fixture
def fake_time(tmp_path: Path) -> FakeTime:
    """An empty store."""
    url = default_url(tmp_path)
    open_state(url).close()
    return FakeTime(url)


def page(rows: int) -> Page:
    """Return a page of so many rows of eight bytes."""
    return Page(pa.table({"id": pa.array(range(rows), pa.int64())}), {}, statement_ms=1.0)


def test_two_tasks_in_turn_read_no_faster_than_the_rate(fake_time: FakeTime) -> None:
    """1,000 rows at 100 a second take ten seconds, whoever reads them."""
    one, two = fake_time.meter(), fake_time.meter(name="lines")
    for _ in range(10):
        one.count(page(50))
        two.count(page(50))

    assert 10.0 == pytest.approx((fake_time.now - NOON).total_seconds())


def test_task_begins_when_what_others_read_is_paid_for(fake_time: FakeTime) -> None:
    """It does not read a page first."""
    fake_time.count_page("shop:5432", MonthRead(300, 0), {"source:shop:5432 rows": 3.0})

    assert 3.0 == pytest.approx(fake_time.meter().begin())


def test_export_has_a_rate_of_its_own_beside_its_sources(fake_time: FakeTime) -> None:
    """The slower of the two holds; bytes are those of Arrow."""
    meter = fake_time.meter(export_rate=RateLimit(bytes_per_second=80))

    assert 1.0 == pytest.approx(meter.count(page(10)))  # 80 bytes; by rows 0.1 s
    assert 0.01 == pytest.approx(fake_time.meter(name="other").count(page(1)))  # which waits for rows alone


def test_page_that_crosses_the_budget_is_kept_and_the_next_refused(fake_time: FakeTime) -> None:
    """Rows that were read are not thrown away."""
    meter = fake_time.meter(limits=SourceLimits(budget=Budget(rows_per_month=100)))
    meter.begin()
    meter.count(page(60))
    meter.count(page(60))

    with pytest.raises(BudgetReached, match=r"120 of 100 rows \(120%\) were read\. Nothing more .* before 2026-02-01"):
        meter.begin()
    with pytest.raises(BudgetReached) as caught:
        meter.count(page(60))
    assert datetime(2026, 2, 1, tzinfo=UTC).timestamp() == caught.value.not_before


def test_budget_that_warns_refuses_nothing(fake_time: FakeTime) -> None:
    """`on_reached: warn`."""
    meter = fake_time.meter(limits=SourceLimits(budget=Budget(rows_per_month=1, on_reached="warn")))

    assert [0.0, 0.0] == [meter.count(page(60)) for _ in range(2)]


@pytest.mark.parametrize("keeps_chunks", [True, False])
def test_closed_window_ends_an_export_between_chunks_where_they_are_kept(
    keeps_chunks: bool, fake_time: FakeTime
) -> None:
    """Without progress that is kept, the source would be read twice: such an export ends its work."""
    limits = SourceLimits(windows=(ReadWindow(start="13:00", end="14:00"),))
    meter = fake_time.meter(limits=limits, ends_between_chunks=keeps_chunks)

    if not keeps_chunks:
        meter.begin()
        return
    with pytest.raises(ReadWindowClosed, match=r"opens at 2026-01-31 13:00 UTC") as caught:
        meter.begin()
    assert (2, False) == (caught.value.exit_code, caught.value.retry)


# --- tasks ---------------------------------------------------------------------------------------


def metered_by(fake_time: FakeTime, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Let tasks of this process count by a clock that only sleeping moves."""

    @contextmanager
    def opened(extract: Any) -> Iterator[Meter]:
        yield fake_time.meter(**changes)

    monkeypatch.setattr(task, "meter_of", opened)


def test_budget_in_mid_chunk_leaves_nothing_staged(
    fake_time: FakeTime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that were written before are removed again."""
    metered_by(fake_time, monkeypatch, limits=SourceLimits(budget=Budget(rows_per_month=1500)))
    table = pa.table({"id": range(10_000)})
    extract = extract_of(table, tmp_path, source=TableSource(table, page_rows=1000))

    with pytest.raises(BudgetReached, match=r"2,000 of 1,500 rows"):
        run_chunk(extract, extract.chunks[0], attempt=0, scratch=tmp_path / "scratch")

    assert set() == extract.destination.root("orders").staged()  # type: ignore[attr-defined]  # of a folder


def test_chunk_takes_as_long_as_its_rows_and_says_so(
    fake_time: FakeTime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 rows at 100 a second: 100 seconds of waiting, told as throttled."""
    metered_by(fake_time, monkeypatch)
    extract = extract_of(pa.table({"id": range(10_000)}), tmp_path)

    result = run_chunk(extract, extract.chunks[0], attempt=0, scratch=tmp_path / "scratch")

    assert 100.0 == pytest.approx(result.measures.throttled_seconds)
    assert 10_000 == result.measures.rows


# --- before anybody connects ---------------------------------------------------------------------


def test_pages_are_about_a_second_of_the_rate_with_the_same_throttle_per_row() -> None:
    """50 ms per 10,000 rows are 5 ms per 1,000; faster rates change nothing."""
    balanced = pace(None, Tuning(profile="balanced"))

    slower = slowed(balanced, RateLimit(rows_per_second=1000), None)

    assert (1000, True, 5) == (slower.batch_size, slower.batch_size_is_explicit, slower.throttle_ms)
    assert 2 == slowed(balanced, None, RateLimit(bytes_per_second="2MB")).batch_size_memory_mb
    assert balanced == slowed(balanced, RateLimit(rows_per_second=1_000_000, bytes_per_second="1GB"), None)


def test_source_without_limits_asks_no_store(tmp_path: Path) -> None:
    """What is off costs nothing."""
    extract = extract_of(pa.table({"id": [1]}), tmp_path)

    assert not is_limited(extract)
    refuse_now(extract.source, name="orders", state=None, pace=FAST, at=NOON)  # type: ignore[arg-type]  # none is asked


def test_tasks_elsewhere_need_a_store_that_they_reach(tmp_path: Path) -> None:
    """A file of this machine cannot be counted in by others."""
    source = Sqlite(path=tmp_path / "shop.db", rate_limit=RateLimit(rows_per_second=1))
    extract = extract_of(pa.table({"id": [1]}), tmp_path, source=source)

    with pytest.raises(ConfigError, match="Write `state: postgresql://"):
        metered(extract, store=default_url(tmp_path), is_far=True, is_encrypted=True)
    far = metered(extract, store="postgresql://rivet:hunter2@state/rivet", is_far=True, is_encrypted=True)
    assert "hunter2" not in repr(far)


def test_what_keeps_to_a_limit_reads_no_page_ahead(tmp_path: Path) -> None:
    """It would be beyond the limit, and be counted by nobody where reading ends there."""
    source = Sqlite(path=tmp_path / "shop.db", rate_limit=RateLimit(rows_per_second=1))
    extract = extract_of(pa.table({"id": [1]}), tmp_path, source=source)

    limited = metered(extract, store=default_url(tmp_path), is_far=False, is_encrypted=True)

    assert (extract.pace.reads_ahead, limited.pace.reads_ahead) == (True, False)


def test_password_of_the_store_travels_over_encrypted_lines_only(tmp_path: Path) -> None:
    """One that signs in without may go over any."""
    source = Sqlite(path=tmp_path / "shop.db", rate_limit=RateLimit(rows_per_second=1))
    extract = extract_of(pa.table({"id": [1]}), tmp_path, source=source)

    with pytest.raises(ConfigError, match="not encrypted") as refused:
        metered(extract, store="postgresql://rivet:hunter2@state/rivet", is_far=True, is_encrypted=False)
    assert "hunter2" not in str(refused.value)
    assert metered(extract, store="postgresql://rivet@state/rivet", is_far=True, is_encrypted=False).metering


def test_two_blocks_of_one_file_are_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the file is named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOP", str(tmp_path / "shop.db"))

    assert place_of(Sqlite(path=Path("shop.db")), FAST) == place_of(Sqlite(path_env="SHOP"), FAST)
