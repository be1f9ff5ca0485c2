"""What differs by engine in a random workload: types, DDL, housekeeping, what may be asked of it.

Belongs here: facts, one value per engine. Not here: connections and literals (`tests/lab_engines.py`), choices
(`plan.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tests import lab_engines
from tests.workloads.steps import Mode

Change = Literal["add", "add default", "drop", "rename", "widen"]
MODES: tuple[Mode, ...] = ("full", "chunked", "time_window", "by id", "by time", "by batch", "poll", "cdc")


@dataclass(frozen=True)
class Able:
    """One engine, as random workloads need it."""

    name: str
    label: str  # DDL of a text that may be a key
    uuid: str
    ddl: tuple[Change, ...] = ("add", "add default", "drop", "rename", "widen")
    follows_ddl: bool = True  # its log tells of new columns
    house: tuple[str, ...] = ("ANALYZE t",)
    add: str = "ALTER TABLE t ADD COLUMN {name} {type}"
    widen: str = ""
    modes: tuple[Mode, ...] = MODES
    most_rows: int = 2000
    has_two_writers: bool = True
    real_clocks: float = 0.3  # of workloads by time; each waits until its last rows are final
    settled_seconds: float = 0.6
    wide_note: str = ""

    @property
    def lab(self) -> lab_engines.Engine:
        """Return its connections and literals."""
        return lab_engines.ENGINES[self.name]

    def type_of(self, word: str) -> str:
        """Return the DDL of a word."""
        own: Mapping[str, str] = {"label": self.label, "uuid": self.uuid}
        return own.get(word) or self.lab.types[word]


MYSQL_HOUSE = ("ANALYZE TABLE t", "OPTIMIZE TABLE t", "CHECK TABLE t")
POSTGRES = Able(
    "postgres", "varchar(60)", "uuid", house=("VACUUM t", "VACUUM FULL t", "ANALYZE t", "REINDEX TABLE t"),
    widen="ALTER TABLE t ALTER COLUMN {name} TYPE {type}",
)  # fmt: skip
MARIADB = Able(
    "mariadb", "varchar(60)", "uuid", house=MYSQL_HOUSE, widen="ALTER TABLE t MODIFY {name} {type}", real_clocks=0.15,
    settled_seconds=3.5, wide_note="varchar(300)",
)  # fmt: skip
MYSQL = Able(
    "mysql", "varchar(60)", "char(36)", house=MYSQL_HOUSE, widen="ALTER TABLE t MODIFY {name} {type}", real_clocks=0.15,
    settled_seconds=3.5, wide_note="varchar(300)",
)  # fmt: skip
SQLSERVER = Able(
    "sqlserver", "nvarchar(60)", "uniqueidentifier", house=("UPDATE STATISTICS t",), ddl=("add", "drop", "widen"),
    follows_ddl=False, add="ALTER TABLE t ADD {name} {type} NULL", widen="ALTER TABLE t ALTER COLUMN {name} {type}",
    most_rows=120, real_clocks=0.15, settled_seconds=3.5, wide_note="nvarchar(300)",
)  # fmt: skip
SQLITE = Able(
    "sqlite", "TEXT", "TEXT", house=("VACUUM", "ANALYZE", "REINDEX"), ddl=("add", "add default", "drop", "rename"),
    modes=MODES[:-1], has_two_writers=False, settled_seconds=1.3,
)  # fmt: skip
ENGINES = {each.name: each for each in (POSTGRES, MARIADB, MYSQL, SQLSERVER, SQLITE)}
