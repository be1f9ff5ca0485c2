"""Places in a binary log: a file and an offset, as a server names them and as positions that sort.

Belongs here: `BinlogPosition` and its three spellings. Not here: reading (dump.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from rivet_resources.contracts.change_log import Position
from rivet_resources.errors import CheckpointUnusable

NUMBER = re.compile(r".*\.(\d+)")
KEY_DIGITS = 24  # file number 8, offset 16


@cache
def _number(file: str) -> int:
    """Read the number that a file's name ends with; each file's once, where places are many."""
    match = NUMBER.fullmatch(file)
    if match is None:
        raise CheckpointUnusable(f"{file!r} is no binary log's name; those end in a number, as binlog.000001.")
    return int(match[1])


class BinlogPosition(NamedTuple):
    """A file of the log and an offset in it. Compare `order`: names of files do not sort for ever."""

    file: str
    offset: int

    @property
    def number(self) -> int:
        """Return the number that the file's name ends with."""
        return _number(self.file)

    @property
    def order(self) -> tuple[int, int]:
        """Return what is larger the later the place is, on one server."""
        # By number: behind binlog.999999 comes binlog.1000000, which sorts before it as a text.
        return _number(self.file), self.offset

    @property
    def key(self) -> str:
        """Write it so that texts sort as places do."""
        return f"{self.number:08x}{self.offset:016x}"

    def position(self, more: Mapping[str, str]) -> Position:
        """Make it a position."""
        return Position(self.key, str(self), "MysqlBinlog", {name: text for name, text in more.items() if text})

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}"


def place_of(position: Position) -> BinlogPosition:
    """Read a position back.

    Raises:
        CheckpointUnusable: it is not `file:offset`.
    """
    # At the last colon: a file's name may have one.
    file, _, offset = position.text.rpartition(":")
    if position.type != "MysqlBinlog" or not NUMBER.fullmatch(file) or not offset.isdecimal():
        raise CheckpointUnusable(
            f"The stored position {position.text!r} ({position.type}) is not of a binary log; those are file:offset. "
            f"Is the checkpoint another source's? Name the right one, or delete it and take a new snapshot."
        )
    return BinlogPosition(file, int(offset))
