"""What people are told of limits, and when a drain ends because of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rivet_assets.config.load import load_text
from rivet_assets.run.read_limits import ends_at_closing, limit_findings
from rivet_resources.contracts.read_limits import MonthRead, ReadWindow
from rivet_resources.contracts.settings import pace
from rivet_resources.engines.sqlite.source import Sqlite
from rivet_resources.read.meter import place_of
from rivet_resources.state.store import default_url, open_state

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
BLOCK = """
source: {type: sqlite, path: shop.db, LIMITS}
exports:
  - {name: orders, table: orders, format: csv, destination: {type: local, path: lake}, EXPORT}
"""


def findings(limits: str, folder: Path, *, export: str = "", read: int = 0, rows: int | None = None) -> list[str]:
    """Return what is found of an export, each with its status."""
    config = load_text(BLOCK.replace("LIMITS", limits).replace("EXPORT", export), file=folder / "rivet.yaml")
    (export_block,) = config.exports
    source = config.source_of(export_block)[1]
    state = open_state(default_url(folder))
    now = state.now()
    if read:
        state.count_page(place_of(source, pace(None, None)), MonthRead(read, 0), {})
    found = limit_findings(export_block, source, state=state, rows=rows, at=now if read else NOON)
    told = [f"{each.status} {each.name}: {each.text}".replace(f"{now:%Y-%m}", "MONTH") for each in found]
    state.close()
    return told


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(None, ""), (50, ": about 50 rows take 1 s or more"), (900_000, ": about 900,000 rows take 2 h 30 min or more")],
)
def test_rate_says_how_long_rows_take(rows: int | None, expected: str, tmp_path: Path) -> None:
    """At the least; nothing where nobody knows how many there are."""
    told = findings("rate_limit: {rows_per_second: 100}", tmp_path, rows=rows)

    assert [f"ok rate-limit: the source is read at no more than 100 rows/s{expected}"] == told


def test_export_without_limits_is_told_nothing(tmp_path: Path) -> None:
    """And nothing is looked up."""
    assert [] == findings("tuning: {}", tmp_path, rows=10)


def test_export_has_a_rate_of_its_own(tmp_path: Path) -> None:
    """Beside that of its source."""
    told = findings("tuning: {}", tmp_path, export="rate_limit: {bytes_per_second: 1MB}")

    assert ["ok rate-limit: the export is read at no more than 1,048,576 bytes/s"] == told


def test_closed_window_is_a_warning_with_its_next_opening(tmp_path: Path) -> None:
    """Open, it is none."""
    night = '{start: "22:00", end: "06:00", days: [mon, fri], timezone: Europe/Berlin}'

    assert [
        "warn read-window: it may be read 22:00 to 06:00 mon, fri (Europe/Berlin): closed now, "
        "opens at 2026-02-02 21:00 UTC"
    ] == findings(f"read_windows: [{night}]", tmp_path)
    assert ["ok read-window: it may be read 11:00 to 13:00 (UTC): open now"] == findings(
        'read_windows: [{start: "11:00", end: "13:00"}]', tmp_path
    )


@pytest.mark.parametrize(("read", "status"), [(79, "ok"), (80, "warn")])
def test_budget_is_warned_of_from_four_fifths_on(read: int, status: str, tmp_path: Path) -> None:
    """Not one row earlier."""
    told = findings("budget: {rows_per_month: 100}", tmp_path, read=read)

    assert [f"{status} budget: budget of the source for MONTH: {read} of 100 rows ({read}%) read"] == told


def test_drain_ends_where_its_window_closes() -> None:
    """Between two of its own windows, as if it was asked to; a source without windows asks nobody else."""
    now = datetime.now(UTC)
    closed = ReadWindow(start=f"{now + timedelta(hours=2):%H:%M}", end=f"{now + timedelta(hours=3):%H:%M}")
    whole = ReadWindow(start="00:00", end="24:00")
    never, always = (lambda: False), (lambda: True)

    assert ends_at_closing(Sqlite(path=Path("a.db"), read_windows=(closed,)), never)()
    assert not ends_at_closing(Sqlite(path=Path("a.db"), read_windows=(whole,)), never)()
    assert ends_at_closing(Sqlite(path=Path("a.db")), always) is always
