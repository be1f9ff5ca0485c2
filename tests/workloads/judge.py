"""What a reader must find after each step of a workload, by the promise of the mode (docs/engines/README.md).

Belongs here: models of what is published. Not here: reading it (`published.py`), the table (`table.py`).

Every judge is told of attempts and of runs that ended well. After an attempt that died all old rows or all new ones are
there; after one that ended well, with nobody writing beside it, exactly the rows that the mode promises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import reduce
from zoneinfo import ZoneInfo

from tests.workloads.published import Windows
from tests.workloads.steps import Key
from tests.workloads.table import Table
from tests.workloads.values import Cells, Row, cells, plain

Rows = Counter[Cells]


class Wrong(AssertionError):
    """What is published is not what it must be."""


@dataclass(frozen=True)
class Attempt:
    """One attempt to run, as a judge needs to know it."""

    ended_well: bool
    is_alone: bool = True  # nobody wrote while it ran, and all that was written is final
    is_exact: bool = True  # it sees one instant, whoever writes
    is_anew: bool = False  # the first after a reset
    window: int | None = None


def counted(rows: Iterable[Row], *, is_csv: bool = False) -> Rows:
    """Count rows as they are compared."""
    return Counter(cells(row, is_csv=is_csv) for row in rows)


def differ(what: str, found: Rows, least: Rows, most: Rows) -> None:
    """Compare.

    Raises:
        Wrong: rows are missing, or there are more than may be.
    """
    missing, beyond = least - found, found - most
    if missing or beyond:
        raise Wrong(
            f"{what}: {sum(missing.values())} rows are missing, {sum(beyond.values())} should not be there\n"
            f"  missing: {_few(missing)}\n  beyond: {_few(beyond)}"
        )


def _few(rows: Rows) -> str:
    return "; ".join(f"{count} × {dict(each)}"[:300] for each, count in list(rows.items())[:4])


# --- whole tables and windows of time ------------------------------------------------------------


@dataclass
class WholeJudge:
    """`full`, `chunked` and `time_window`: each window is the table, or its part of it, as one run saw it."""

    table: Table
    states: dict[str, list[Rows]] = field(default_factory=dict)  # by window: those that may be published
    is_resumed: bool = False  # finished chunks of a dead run may be taken over

    def before(self, attempt: Attempt) -> None:
        """Take the table as it is when an attempt begins, or while it runs."""
        for window, rows in self._now().items():
            self.states.setdefault(window, []).append(rows)

    def after(self, attempt: Attempt, found: Windows) -> None:
        """Judge what is published.

        Raises:
            Wrong
        """
        now, workload = self._now(), self.table.workload
        can_resume = "chunk_checkpoint" in workload.block
        unknown = set(found) - set(now)
        if unknown:
            raise Wrong(f"windows that nobody asked for: {sorted(unknown)}")
        for place, (window, rows) in enumerate(now.items()):
            states = [*self.states.get(window, []), rows]
            is_run = attempt.ended_well and attempt.window in (None, place)
            is_mixed = not (attempt.is_alone or attempt.is_exact) or self.is_resumed
            if is_run and attempt.is_alone and not self.is_resumed:
                states = [rows]
            if is_run and window not in found:
                raise Wrong(f"{window} was run and has no manifest")
            if window in found:
                shown = counted(found[window], is_csv=workload.is_csv)
                if is_mixed:
                    least, most = reduce(lambda a, b: a & b, states), reduce(lambda a, b: a | b, states)
                    differ(window, shown, least, most)
                elif shown not in states:
                    differ(f"{window}, at most of {len(states)} states", shown, states[-1], states[-1])
                if is_run or (attempt.is_alone and not can_resume):
                    states = [shown]
            self.states[window] = states
        self.is_resumed = can_resume and not attempt.ended_well

    def final(self, found: Windows) -> None:
        """Judge what is published in the end.

        Raises:
            Wrong
        """
        self.is_resumed = False
        self.after(Attempt(ended_well=True), found)

    def _now(self) -> dict[str, Rows]:
        workload = self.table.workload
        if not workload.windows:
            return {"all": self.table.state()}
        split: dict[str, Rows] = {window: Counter() for window in workload.windows}
        for row in self.table.rows.values():
            day = _day(row["at"], ZoneInfo(str(workload.options["zone"])))
            if day in split:
                split[day][cells(row, is_csv=workload.is_csv)] += 1
        return split


def _day(value: object, zone: ZoneInfo) -> str | None:
    if isinstance(value, int):
        value = datetime.fromtimestamp(value, UTC)
    if isinstance(value, datetime):
        value = (value if value.tzinfo is None else value.astimezone(zone)).date()
    return value.isoformat() if isinstance(value, date) else None


# --- incremental and poll ------------------------------------------------------------------------


@dataclass
class VersionJudge:
    """`incremental` and `poll`: a version of a row, told by its key and its cursor, is there once.

    `must`: versions that a run has seen, or that it would have been wrong not to see. `may`: any that were there.
    """

    table: Table
    must: Counter[object] = field(default_factory=Counter)
    versions: dict[object, set[Cells]] = field(default_factory=dict)  # what each version may look like
    is_uncertain: bool = False  # an attempt since the last reset may have been the first

    def before(self, attempt: Attempt) -> None:
        """Take the table as it is when an attempt begins, or while it runs."""
        for row in self.table.rows.values():
            for name in self._names(row):
                self.versions.setdefault(name, set()).add(cells(row, is_csv=self.table.workload.is_csv))

    def after(self, attempt: Attempt, found: Windows) -> None:
        """Judge what is published.

        Raises:
            Wrong
        """
        self.before(attempt)
        present = Counter(name for row in self.table.rows.values() for name in self._names(row))
        if attempt.ended_well and attempt.is_anew:
            self.must = Counter()
        if attempt.ended_well and attempt.is_alone:
            self.must |= present
        shown: Counter[object] = Counter()
        for row in (row for rows in found.values() for row in rows):
            name = self._named(row)
            shown[name] += 1
            if name not in self.versions:
                raise Wrong(f"a row that there never was: {row}")
            if self._op(row) != "delete" and self._cells(row) not in self.versions[name]:
                raise Wrong(f"a row as it never was: {row}; it was {[dict(v) for v in self.versions[name]]}")
        most = {name: 1 if self.table.workload.key else 10**9 for name in shown}
        if attempt.ended_well and attempt.is_alone and not self.table.workload.key:
            most = {name: present[name] for name in shown}
        self._differ(shown, most)
        if self.table.workload.mode == "poll" and attempt.ended_well and attempt.is_alone:
            self._mirror(found)

    def final(self, found: Windows) -> None:
        """Judge what is published in the end.

        Raises:
            Wrong
        """
        self.after(Attempt(ended_well=True), found)

    def _differ(self, shown: Counter[object], most: Mapping[object, int]) -> None:
        missing = self.must - shown
        beyond = {name: count for name, count in shown.items() if count > most[name]}
        if missing or beyond:
            raise Wrong(
                f"{sum(missing.values())} versions are missing, {len(beyond)} are there too often\n"
                f"  missing: {[*missing.items()][:5]}\n  too often: {[*beyond.items()][:5]}"
            )

    def _names(self, row: Row) -> list[object]:
        """Name the versions that a row of the table stands for: none, where a poll would read none."""
        workload = self.table.workload
        if not workload.key:
            return [cells(row, is_csv=workload.is_csv)]
        key = tuple(map(plain, self.table.key_of(row)))
        if workload.mark and row[workload.mark] is not None:
            return [(key, plain(row[workload.mark]), "delete")]
        return [(key, plain(row[workload.cursor]))]

    def _op(self, row: Row) -> object:
        return row.get("__op")

    def _named(self, row: Row) -> object:
        """Name the version that a published row is."""
        workload = self.table.workload
        if not workload.key:
            return cells(row, is_csv=workload.is_csv)
        key = tuple(map(plain, self.table.key_of(row)))
        if self._op(row) == "delete":
            if not workload.mark:
                self.versions.setdefault((key, "gone"), set())
                return (key, "gone")
            return (key, plain(row[workload.mark]), "delete")
        return (key, plain(row[workload.cursor]))

    def _cells(self, row: Row) -> Cells:
        own = {name: value for name, value in row.items() if not name.startswith("__")}
        return cells(own, is_csv=self.table.workload.is_csv)

    def _mirror(self, found: Windows) -> None:
        """Apply a poll's changes: the table must come out, but for deletes that nobody looks for.

        Raises:
            Wrong
        """
        workload = self.table.workload
        stable = set(self.table.columns) - self.table.unstable  # DDL moves no row's stamp
        shown = fold(self.table, found, stable)
        rows = [row for row in self.table.rows.values() if not workload.mark or row[workload.mark] is None]
        expected = {
            tuple(map(plain, self.table.key_of(row))): cells({name: row[name] for name in stable}) for row in rows
        }
        if workload.block["delete_detection"] == {"type": "disabled"}:
            shown = {key: row for key, row in shown.items() if key in expected}
        differ("the changes, applied", Counter(shown.values()), Counter(expected.values()), Counter(expected.values()))


def fold(table: Table, found: Windows, columns: Collection[str]) -> dict[Key, Cells]:
    """Apply changes in their order: {key: row as it is compared}, of these columns."""
    changes = sorted((row for rows in found.values() for row in rows), key=lambda row: (row["__pos"], row["__seq"]))  # type: ignore[arg-type, return-value]
    state: dict[Key, Cells] = {}
    for row in changes:
        key = tuple(map(plain, table.key_of(row)))
        if row["__op"] == "delete":
            state.pop(key, None)
        else:
            state[key] = cells({name: value for name, value in row.items() if name in columns})
    return state


# --- change logs ---------------------------------------------------------------------------------

FIRST_COPY = "after=start"


@dataclass
class ChangeJudge:
    """`cdc`: applied, the changes are the table; and each that was committed after the first drain is there once."""

    table: Table
    must: Rows = field(default_factory=Counter)
    may: Rows = field(default_factory=Counter)
    has_begun: bool = False
    has_tried: bool = False

    def before(self, attempt: Attempt) -> None:
        """Take what was committed since the last look."""
        for op, key, row in self.table.changes:
            change = self._change(op, key, row)
            if self.has_begun:
                self.must[change] += 1
            elif self.has_tried:
                self.may[change] += 1
        self.table.changes.clear()
        self.has_tried = True

    def after(self, attempt: Attempt, found: Windows) -> None:
        """Judge what is published.

        Raises:
            Wrong
        """
        if attempt.is_anew and attempt.ended_well:
            self.must, self.may, self.has_begun = Counter(), Counter(), False
        self.before(attempt)
        later = Counter(
            self._change(str(row["__op"]), self.table.key_of(row), row)
            for window, rows in found.items()
            if window != FIRST_COPY
            for row in rows
        )
        is_whole = attempt.ended_well and attempt.is_alone
        differ("changes", later, self.must if is_whole else Counter(), self.must + self.may)
        self.has_begun |= attempt.ended_well
        if is_whole:
            now = Counter(cells(row) for row in self.table.rows.values())
            differ("the changes, applied", Counter(fold(self.table, found, self.table.columns).values()), now, now)

    def final(self, found: Windows) -> None:
        """Judge what is published in the end.

        Raises:
            Wrong
        """
        self.after(Attempt(ended_well=True), found)

    def _change(self, op: str, key: Key, row: Row) -> Cells:
        """Spell a change by what the log surely tells: of a delete the key, else the columns that never changed."""
        stable = {} if op == "delete" else {
            name: value for name, value in row.items()
            if not name.startswith("__") and name not in self.table.unstable
        }  # fmt: skip
        return (("op", op), ("key", tuple(map(plain, key))), *cells(stable))


Judge = WholeJudge | VersionJudge | ChangeJudge


def judge_of(table: Table) -> Judge:
    """Choose the judge of a workload's mode."""
    match table.workload.mode:
        case "full" | "chunked" | "time_window":
            return WholeJudge(table)
        case "cdc":
            return ChangeJudge(table)
    return VersionJudge(table)
