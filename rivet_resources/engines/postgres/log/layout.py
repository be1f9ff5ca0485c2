"""What the catalog knows of a table and its log never tells, compared with a checkpoint's note.

Belongs here: the statement's piece for one table, what is noted of it, what a difference means. Not here: the survey
around it (survey.py), when a note is compared (log.py).

pgoutput tells rows, not DDL (2026-11): a default that fills old rows, a column's new name, rows that an ATTACH
brings or a DETACH or TRUNCATE of one partition takes are in no message. All of them leave a mark in the catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rivet_resources.contracts.change_log import Untold
from rivet_resources.contracts.evidence import Finding
from rivet_resources.engines.postgres.sql import quote
from rivet_resources.errors import SourceError, SourceLost

Rows = list[tuple[Any, ...]]
Ask = Callable[..., Rows]
Known = Mapping[str, Any]

# Of the table `t.rel` of the survey. A leaf joined with the newest link on its way up; xmin is who wrote the link.
# atthasmissing: rows older than the column show its default (pg_attribute, "System Catalogs").
LAYOUT = """
CASE WHEN t.rel IS NOT NULL THEN (
    WITH RECURSIVE tree (oid, joined) AS (
        SELECT t.rel::oid, NULL::xid
        UNION ALL
        SELECT i.inhrelid,
            CASE WHEN tree.joined IS NULL OR age(i.xmin) < age(tree.joined) THEN i.xmin ELSE tree.joined END
        FROM tree JOIN pg_class p ON p.oid = tree.oid AND p.relkind = 'p'
        JOIN pg_inherits i ON i.inhparent = tree.oid
    ), leaf AS (
        SELECT c.oid, n.nspname, c.relname, c.relfilenode, c.xmin AS changed, tree.joined,
            (SELECT a.xmin FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tableoid') AS made
        FROM tree JOIN pg_class c ON c.oid = tree.oid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind <> 'p'
    ), made_of AS (
        SELECT e.oid, e.typrelid FROM pg_attribute a JOIN pg_type y ON y.oid = a.atttypid
        LEFT JOIN pg_type b ON b.oid = y.typbasetype
        JOIN pg_type e ON e.oid IN (y.oid, y.typelem, b.oid, b.typelem)
        WHERE a.attrelid = t.rel::oid AND a.attnum > 0 AND NOT a.attisdropped AND e.typtype IN ('e', 'c')
    )
    SELECT json_build_object(
        'width', r.relnatts, 'is_root', r.relkind = 'p',
        'columns', (SELECT json_object_agg(a.attnum, json_build_array(a.attname, a.atttypid::int8, a.atttypmod))
            FROM pg_attribute a
            WHERE a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''),
        'generated', (SELECT json_agg(a.attname) FROM pg_attribute a
            WHERE a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> ''),
        'filled', (SELECT json_agg(DISTINCT a.attname) FROM leaf JOIN pg_attribute a ON a.attrelid = leaf.oid
            WHERE a.atthasmissing AND NOT a.attisdropped),
        'given', (SELECT json_agg(a.attname) FROM pg_attribute a WHERE a.attrelid = r.oid AND a.attnum > 0
            AND NOT a.attisdropped AND (a.atthasdef OR a.attidentity <> '' OR a.attnotnull)),
        'labels', (SELECT json_object_agg(l.oid::int8, l.enumlabel) FROM pg_enum l
            WHERE l.enumtypid IN (SELECT oid FROM made_of)),
        'parts', (SELECT json_object_agg(m.oid::int8, (SELECT json_agg(json_build_array(a.attnum, a.atttypid::int8)
                ORDER BY a.attnum) FROM pg_attribute a
            WHERE a.attrelid = m.typrelid AND a.attnum > 0 AND NOT a.attisdropped)) FROM made_of m
            WHERE m.typrelid <> 0),
        'leaves', (SELECT json_object_agg(leaf.oid::int8, json_build_array(
            leaf.nspname, leaf.relname, leaf.relfilenode::int8, leaf.joined::text, leaf.changed::text,
            leaf.made::text)) FROM leaf))
    FROM pg_class r WHERE r.oid = t.rel::oid) END"""

# Rows that were in a partition before it joined the table: written by an older transaction, or earlier by the same.
# Transaction ids wrap round, so they are compared by age().
OLDER = """
SELECT EXISTS (SELECT FROM {name} AS r WHERE age(r.xmin) > age(%s::text::xid) OR (r.xmin::text = %s
    AND r.cmin::text::int8 < (SELECT i.cmin::text::int8 FROM pg_inherits i WHERE i.inhrelid = %s::int8::oid)))"""
KEPT = "SELECT EXISTS (SELECT FROM {name} AS r WHERE age(r.xmin) > age(%s::text::xid))"
# All rows of a leaf, some at least, and some plain column of it, were written since the note's oldest transaction.
# ALTER TABLE … TYPE does that where it writes a table anew. VACUUM FULL and CLUSTER keep who wrote a row, SET
# ACCESS METHOD touches no column. The horizon has 64 bits, a row's xmin the low 32 of them.
ANEW = """
SELECT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = %s::int8::oid AND a.attnum > 0 AND NOT a.attisdropped
        AND a.attgenerated = '' AND age(a.xmin) <= age(n.horizon))
    AND EXISTS (SELECT FROM {name}) AND NOT EXISTS (SELECT FROM {name} AS r WHERE age(r.xmin) > age(n.horizon))
FROM (SELECT (%s::int8 %% 4294967296)::text::xid AS horizon) AS n"""
# Rows that such an ALTER TABLE wrote are there still: whoever wrote them wrote the column's entry in the catalog too,
# and the table's (its storage is another one). No TRUNCATE of before explains those, and one after took them away.
OF_REWRITE = """
SELECT EXISTS (SELECT FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    WHERE a.attrelid = %s::int8::oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
        AND age(c.xmin) <= age(a.xmin) AND EXISTS (SELECT FROM {name} AS r WHERE r.xmin = a.xmin))"""
ANY = "SELECT EXISTS (SELECT FROM {name} AS r WHERE {column} IS NOT NULL)"


@dataclass(frozen=True)
class Difference:
    """Something that happened to a table and that its log does not tell."""

    kind: Untold
    text: str


@dataclass
class Judged:
    """What a comparison found; `truncate_due`: only a truncate of the table, still to be read, explains it.

    `rewrite`: all rows were written anew, which only a truncate of the table, still to be read, explains; '' for none.
    `doubts`: what may have changed rows, and cannot be known.
    """

    differences: list[Difference] = field(default_factory=list)
    truncate_due: bool = False
    rewrite: str = ""
    doubts: list[Finding] = field(default_factory=list)


def note(layout: Known) -> dict[str, Any]:
    """Return what a checkpoint keeps of a table's layout."""
    leaves = layout["leaves"] or {}
    kept: dict[str, Any] = {"width": layout["width"], "columns": layout["columns"] or {}}
    kept |= {name: layout[name] for name in ("labels", "parts") if layout[name]}
    kept |= {"is_root": layout["is_root"], "leaves": {oid: leaf[:4] for oid, leaf in leaves.items()}}
    return {**kept, "horizon": layout["horizon"]}


def names(layout: Known) -> set[str]:
    """Name the columns that the log carries."""
    return {str(column[0]) for column in (layout["columns"] or {}).values()}


def count_dropped(then: Known, now: Known) -> int:
    """Count the columns that came after the note and are gone again."""
    left = sum(int(number) > then["width"] for number in now["columns"] or {})
    return int(now["width"] - then["width"] - left)


def judge(table: str, name: str, then: Known, now: Known, ask: Ask) -> Judged:
    """Compare a note with the catalog as it is.

    Args:
        table: as configured.
        name: quoted for SQL.
        ask: runs one statement; rows are looked for only where the catalog alone does not decide.
    """
    found = Judged()
    before, after = then["leaves"], now["leaves"] or {}
    # Another file of storage under the same table: something wrote the whole table, or emptied it.
    is_rewritten = any(oid in before and before[oid][2] != leaf[2] for oid, leaf in after.items())
    found.differences += _columns(table, name, then, now, ask, is_rewritten=is_rewritten)
    found.differences += _types(table, then, now)
    if is_rewritten and not found.differences:
        _values(table, then, now, ask, found)
    if now["is_root"] and then["is_root"]:
        _partitions(table, then, now, ask, found)
    return found


# --- columns -------------------------------------------------------------------------------------


def _columns(table: str, name: str, then: Known, now: Known, ask: Ask, *, is_rewritten: bool) -> Iterator[Difference]:
    """Find columns whose values in rows written earlier are not what the log said."""
    before, after = then["columns"], now["columns"] or {}
    had = {column[0] for column in before.values()}
    is_retyped = any(before[number][1:] != column[1:] for number, column in after.items() if number in before)
    # By their numbers, which outlive a rename; the number of a dropped column is never given again.
    for number, (column, *_) in after.items():
        if number in before:
            if before[number][0] != column:
                yield _column(
                    f"column {before[number][0]} of {table} was renamed to {column}: rows that were not written since "
                    "have it under its old name in what is published"
                )
        elif int(number) <= then["width"]:
            yield _column(
                f"column {column} of {table} was generated and is a plain one now: the log never had the values of "
                "rows that were not written since"
            )
        elif column in had:
            yield _column(
                f"column {column} of {table} was dropped, or renamed, and another one was added under its name: rows "
                "that were not written since have the old values in what is published"
            )
        elif _fills(name, column, now, ask, is_rewritten=is_rewritten, is_retyped=is_retyped):
            yield _column(
                f"column {column} was added to {table} with a value for the rows that were there already, and the "
                "log does not tell it: they lack it in what is published"
            )


def _values(table: str, then: Known, now: Known, ask: Ask, found: Judged) -> None:
    """Find a table whose rows an ALTER TABLE … TYPE … USING wrote anew: no message tells their new values."""
    before, after = then["leaves"], now["leaves"] or {}
    swapped = {oid: leaf for oid, leaf in after.items() if oid in before and before[oid][2] != leaf[2]}
    anew = {
        oid: leaf for oid, leaf in swapped.items()
        # A note of before the horizon was kept cannot tell; it is taken as it was then.
        if "horizon" in then and _holds(ask, ANEW.format(name=_quote_leaf(leaf)), (oid, then["horizon"]))
    }  # fmt: skip
    if not anew:
        return
    retyped = [
        column for number, (column, *kind) in (now["columns"] or {}).items()
        if number in then["columns"] and then["columns"][number][1:] != kind
    ]  # fmt: skip
    # A new type explains the new storage. Whether a USING changed values besides cannot be known, so it is told and
    # not refused.
    if retyped:
        found.doubts.append(_retyped(table, retyped))
        return
    text = (
        f"the rows of {table} were written anew by an ALTER TABLE, as `TYPE … USING` does, and the log does not "
        "tell their values: they have the old ones in what is published"
    )
    # Rows of the rewrite that are still there rule out that a truncate came after it.
    asked = ((OF_REWRITE.format(name=_quote_leaf(leaf)), (oid,)) for oid, leaf in anew.items())
    if any(_holds(ask, statement, values, unknown=False) for statement, values in asked):
        found.differences.append(_column(text))
    else:
        found.rewrite = text


def _retyped(table: str, columns: Sequence[str]) -> Finding:
    return Finding(
        f"table {table}",
        "warn",
        f"column {', '.join(columns)} has another type now, and all rows of {table} were written anew; the log does "
        "not tell whether a USING changed their values",
        "if it did, begin anew: rivet state reset -e NAME",
    )


def _types(table: str, then: Known, now: Known) -> Iterator[Difference]:
    """Find types whose values read otherwise now: labels of enums, attributes of composite types."""
    labels, parts = now["labels"] or {}, now["parts"] or {}
    for oid, label in then.get("labels", {}).items():
        if labels.get(oid, label) != label:
            yield _column(
                f"label {label} of an enum of {table} was renamed to {labels[oid]}: rows that were not written since "
                "have the old one in what is published"
            )
    for oid, attributes in then.get("parts", {}).items():
        if parts.get(oid, attributes) != attributes:
            yield _column(
                f"a composite type of {table} was altered: rows that were not written since have its old attributes "
                "in what is published"
            )


def _column(text: str) -> Difference:
    return Difference("columns", text)


def _fills(name: str, column: str, now: Known, ask: Ask, *, is_rewritten: bool, is_retyped: bool) -> bool:
    """Return whether an added column gave old rows a value: kept beside them, or written into all of them."""
    if column in (now["filled"] or ()):
        return True
    if not is_rewritten:
        return False
    if column in (now["given"] or ()):
        return True
    # VACUUM FULL and TRUNCATE change the storage as well. Where the column is empty, nothing was filled.
    return not is_retyped and _holds(ask, ANY.format(name=name, column=quote(column)), ())


# --- partitions ----------------------------------------------------------------------------------


def _partitions(table: str, then: Known, now: Known, ask: Ask, found: Judged) -> None:
    """Find partitions that came with rows, left with rows, or were emptied by themselves."""
    before, after = then["leaves"], now["leaves"] or {}
    if gone := [leaf for oid, leaf in before.items() if oid not in after]:
        found.differences.append(
            _partition(f"{_name_leaves(gone)} of {table} was detached or dropped: its rows left with it")
        )
    if again := [leaf for oid, leaf in after.items() if oid in before and before[oid][3] != leaf[3]]:
        found.differences.append(
            _partition(
                f"{_name_leaves(again)} of {table} was detached and attached again: what changed between is unknown"
            )
        )
    if full := [leaf for oid, leaf in after.items() if oid not in before and _came_with_rows(oid, leaf, ask)]:
        found.differences.append(_partition(f"{_name_leaves(full)} was attached to {table} with rows in it"))
    swapped = {oid: leaf for oid, leaf in after.items() if oid in before and before[oid][2] != leaf[2]}
    is_retyped = any(
        then["columns"][number][1:] != column[1:]
        for number, column in (now["columns"] or {}).items()
        if number in then["columns"]
    )
    # ALTER … TYPE writes every row anew.
    if is_retyped and len(swapped) == len(before):
        return
    emptied = {oid: leaf for oid, leaf in swapped.items() if not _keeps_rows(leaf, ask)}
    if not emptied:
        return
    # TRUNCATE of the table itself empties all at once, in one transaction, and the log tells it.
    if set(emptied) == {oid for oid in before if oid in after} and len({leaf[4] for leaf in emptied.values()}) == 1:
        found.truncate_due = True
        return
    found.differences.append(truncated_by_name(table, list(emptied.values())))


def truncated_by_name(table: str, leaves: Sequence[Sequence[Any]]) -> Difference:
    """Return the error that partitions were truncated by their own names."""
    return _partition(f"{_name_leaves(leaves)} of {table} was truncated, or written anew, by itself")


def _partition(text: str) -> Difference:
    return Difference("partitions", text)


def _name_leaves(leaves: Sequence[Sequence[Any]]) -> str:
    shown = ", ".join(str(leaf[1]) for leaf in leaves[:5])
    more = f" and {len(leaves) - 5} more" if len(leaves) > 5 else ""
    return f"partition{'s' if len(leaves) > 1 else ''} {shown}{more}"


def _came_with_rows(oid: str, leaf: Sequence[Any], ask: Ask) -> bool:
    """Return whether a new partition holds rows of before it was one; those the log has under no name of ours.

    Where its rows may not be read, one that was made as a partition counts as empty then.
    """
    return _holds(ask, OLDER.format(name=_quote_leaf(leaf)), (leaf[3], leaf[3], oid), unknown=leaf[5] != leaf[3])


def _keeps_rows(leaf: Sequence[Any], ask: Ask) -> bool:
    """Return whether a partition with new storage kept older rows, as VACUUM FULL and CLUSTER do; not known is no."""
    return _holds(ask, KEPT.format(name=_quote_leaf(leaf)), (leaf[4],), unknown=False)


def _quote_leaf(leaf: Sequence[Any]) -> str:
    return f"{quote(leaf[0])}.{quote(leaf[1])}"


def _holds(ask: Ask, statement: str, values: Sequence[Any], *, unknown: bool = True) -> bool:
    """Ask the rows themselves; who may not read them, or not in time, gets the answer that refuses."""
    try:
        return bool(ask(statement, values, doing="looking for rows that the log does not tell")[0][0])
    except SourceLost:
        # A broken line is no answer; taking it for one would refuse, or accept, by chance.
        raise
    except SourceError:
        return unknown
