"""What Rivet has to know of an engine beside speaking to it: facts that need no connection.

Each engine keeps its own in `engines/<engine>/facts.py`, so that a diff of two shows how the databases differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rivet_resources.extras import Extra


@dataclass(frozen=True)
class EngineFacts:
    """Facts of one engine; a default is what holds where the engine has nothing of the kind."""

    extra: Extra | None = None  # brings its driver; None: the base does
    schemes: Mapping[str, str] = field(default_factory=dict)  # of URLs that mean it → its word in YAML
    file_endings: tuple[str, ...] = ()  # of a database that is a file
    parser: str | None = None  # sqlglot's word for its SQL; None: it has none
    create_index: str = ""  # with {name}, {relation}, {columns}; '': there is none to make
    create_partitioned_index: str = ""  # the same for a partitioned table; '': as for others
    analyze: str = ""  # makes statistics anew, with {relation}
    samples_bounds: bool = False  # inner bounds come from statistics, a sample of bounded size, or arithmetic
    knows_its_end: bool = False  # the newest value is arithmetic, and costs nothing to ask for
    pages_cursors: bool = False  # a cursor is read by short statements, or rests between fetches at no cost
    has_chunk_instants: bool = True  # a chunk can be read in a transaction of its own, which sees one instant
    holds_back: str = ""  # what the server keeps while a snapshot is read, for everybody; '': nothing
    reads_blocks: bool = False  # a table without a key is read by blocks, side by side
    tells_sizes: bool = True  # the catalog knows how many bytes a table has
    types_bind: bool = True  # a column holds nothing but values of its declared type
    folds_texts: bool = False  # collations may call two texts equal; only a unique index tells rows apart
    schema_is_database: bool = False  # so a connection's default database says nothing of a table
    default_schema: str = ""  # which tables are named without one
    has_log: bool = False  # of changes, for mode cdc, at a URL
    has_slots: bool = False  # its log is read through a slot, which two drains cannot share
