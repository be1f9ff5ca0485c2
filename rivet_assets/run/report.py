"""What a command tells people, as a value: sections of labelled rows, tables, a sum at the end; and as plain lines.

Belongs here: the value, and its text for pipes, logs and files. Not here: what stands in it (`report.py` of each room,
`launch/outcome.py`), colours and width of a terminal (`cli/terminal.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Severity = Literal["", "ok", "warn", "fail"]


@dataclass(frozen=True)
class Line:
    """A text behind its labels, which stand in columns; `fix` is ready to paste, on a line of its own below."""

    labels: tuple[str, ...]
    text: str
    severity: Severity = ""
    fix: str = ""


@dataclass(frozen=True)
class Table:
    """Cells in columns; those of `numbers` are set to the right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()
    rule: bool = False

    def __str__(self) -> str:
        """Write one line per row, columns as wide as their widest cell."""
        lines = [self.headings, *self.rows] if self.headings else [*self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))] if lines else []
        if self.rule:
            lines.insert(1, ["─" * width for width in widths])
        return "\n".join("  ".join(self._set(line, widths)).rstrip() for line in lines)

    def _set(self, line: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
        for column, (cell, width) in enumerate(zip(line, widths, strict=True)):
            yield cell.rjust(width) if column in self.numbers else cell.ljust(width)


@dataclass(frozen=True)
class Section:
    """A title, and below it rows, then a table, `indent` columns from the left; an empty line sets it `apart`."""

    title: str
    rows: Sequence[Line] = ()
    table: Table | None = None
    severity: Severity = ""
    indent: int = 0
    apart: bool = True


@dataclass(frozen=True)
class Report:
    """Sections one after another; their labels have the same widths."""

    sections: Sequence[Section]
    total: str = ""
    gap: int = 2  # columns behind a label

    @property
    def widths(self) -> tuple[int, ...]:
        """Return how wide each column of labels is."""
        labels = [row.labels for section in self.sections for row in section.rows]
        columns = range(max(map(len, labels), default=0))
        return tuple(max(len(each[column]) for each in labels if column < len(each)) for column in columns)

    def __str__(self) -> str:
        """Write the report as lines, without colours and without regard to any width."""
        lines = [line for section in self.sections for line in self._lines(section)]
        return "\n".join([*lines[1:], *(("", self.total) if self.total else ())])

    def _lines(self, section: Section) -> Iterator[str]:
        if section.apart or section is self.sections[0]:
            yield ""
        if section.title:
            yield " " * section.indent + section.title
        for row in section.rows:
            yield (self.margin(row, section) + row.text).rstrip()
            if row.fix:
                yield f"{self.margin(row, section, is_empty=True)}→ {row.fix}"
        if section.table is not None:
            yield from (" " * (section.indent + 4) + line for line in str(section.table).splitlines())

    def margin(self, row: Line, section: Section, *, is_empty: bool = False) -> str:
        """Return what stands before the text of a row: its labels, or as much room."""
        labels = zip(row.labels, self.widths, strict=False)
        columns = [f"{'' if is_empty else label:<{width + self.gap}}" for label, width in labels]
        return " " * (section.indent + 2) + "".join(columns)
