"""What every check of a window promises; each check here takes rows that it can measure."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pyarrow as pa
import pyarrow.dataset as ds

from rivet_resources.conformance.promises import hold
from rivet_resources.contracts.rows.window_check import WindowCheck


def numbers_are_numbers(check: WindowCheck, rows: pa.Table) -> None:
    """A number or None comes back, also for a window without rows."""
    for each in (rows, rows.slice(0, 0)):
        found = check.measure(ds.dataset(each))
        hold(found is None or isinstance(found, int | float), "`measure` returns a number, or None where there is none")


def parts_do_not_show(check: WindowCheck, rows: pa.Table) -> None:
    """How rows lie in files changes nothing: parts are sized by bytes."""
    cut = rows.num_rows // 2
    pieces = ds.dataset([ds.dataset(rows.slice(0, cut)), ds.dataset(rows.slice(cut))])
    hold(check.measure(pieces) == check.measure(ds.dataset(rows)), "rows measure alike, whatever parts they lie in")


def other_columns_are_refused(check: WindowCheck, rows: pa.Table) -> None:
    """Columns that it cannot measure are refused before a row is read."""
    hold(check.refuses(rows.schema) == "", "`refuses` returns '' for columns that it measures")
    hold(check.refuses(pa.schema([])) != "", "`refuses` says why columns cannot be measured")


def checks_travel(check: WindowCheck, rows: pa.Table) -> None:
    """A check is plain data."""
    hold(pickle.loads(pickle.dumps(check)) == check, "a check comes out of a pickle as it went in")


CHECK_PROMISES: tuple[Callable[[WindowCheck, pa.Table], None], ...] = (
    numbers_are_numbers,
    parts_do_not_show,
    other_columns_are_refused,
    checks_travel,
)
