"""What a poll cannot see: rows deleted for good, and rows it missed. The keys of the table against what is published.

Belongs here: comparing the two, asking again, and when to stop instead (`connectors.md`, section 12). Not here: what
the found rows become (`shape/poll_envelope.py`), when a diff is due (`modes/poll.py`).

Both sides are keys and stamps only, joined by DuckDB in this process: 1.5 million keys a side take about two seconds,
and it goes to disk where memory ends. A difference in a row above the watermark is none: the window of this run, or the
next one, brings it. What is found is asked for again by key, in a later instant, before anybody hears of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rivet_resources.canonical import canonical
from rivet_resources.commit.manifest import Manifest, schema_of
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.rows.poll import PollShape
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Session
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.statements import conjunction
from rivet_resources.errors import GateRefused
from rivet_resources.poll.places import Order, read
from rivet_resources.poll.watermark import Place
from rivet_resources.scratch import temporary
from rivet_resources.shape.poll_envelope import NAIVE_US, naive

# A statement asks for so many: of a composite key it is a chain of ORs, and SQLite takes no expression deeper than
# 1000 (sqlite.org, "Implementation Limits").
KEYS_AT_ONCE = 500


class DiffStopped(GateRefused):
    """A full diff would delete more than it may, or cannot be trusted; nothing of the run was published."""

    code = "RIVET_POLL_DIFF_STOPPED"


@dataclass(frozen=True)
class DiffRows:
    """What a full diff found, as one page of the table's own columns; of rows that are gone only the key is known."""

    rows: pa.Table
    compared: int
    upserts: int
    deletes: int

    @property
    def note(self) -> str:
        """Return it in one line."""
        return f"full diff: {self.compared} keys compared, {self.upserts} rows repaired, {self.deletes} rows deleted"


@dataclass(frozen=True)
class Diff:
    """One comparison of a table with what its export has published."""

    order: Order
    shape: PollShape
    low: Place  # rows above it are the poll's own business
    application: str
    pace: Pace
    max_delete_ratio: float

    @property
    def keys(self) -> tuple[Column, ...]:
        """Return the columns of the key."""
        return self.order.columns[1:]

    def run(self, session: Session, *, root: Root, manifests: Sequence[Manifest]) -> DiffRows:
        """Compare, judge, and ask again for what differs.

        Raises:
            DiffStopped: the source shows no row, too many would be deleted, or a key has another type than before.
        """
        # Both sides are gone with the folder; a comparison that spilled to disk leaves none of its keys behind.
        with temporary("diff") as folder, closing(_connect(folder)) as duckdb:
            self._load_published(duckdb, root, manifests)
            duckdb.register("source", self._source_keys(session))
            here, there = (_rows(duckdb, f"SELECT count(*) FROM {name}")[0][0] for name in ("source", "published"))
            gone = self._find_gone(duckdb)
            self._refuse_many(here=here, there=there, gone=gone.num_rows)
            # Judged before the second question is asked: with a table that shows no rows every published key would
            # be asked for.
            changed = self._find_changed(duckdb)
        # Asked in a later instant. A key that a writer moved or put back meanwhile is no deletion.
        deletes = self._still_gone(gone)
        upserts = self._again(changed)
        rows = pa.concat_tables([upserts, deletes]).combine_chunks()
        return DiffRows(rows, compared=max(here, there), upserts=upserts.num_rows, deletes=deletes.num_rows)

    def count_published(self, *, root: Root, manifests: Sequence[Manifest]) -> int:
        """Count the rows that are published and not deleted since: the latest version of each key.

        Raises:
            DiffStopped: a key has another type than before.
        """
        with temporary("diff") as folder, closing(_connect(folder)) as duckdb:
            self._load_published(duckdb, root, manifests)
            return int(_rows(duckdb, "SELECT count(*) FROM published")[0][0])

    # --- the two sides ---------------------------------------------------------------------------

    def _load_published(self, duckdb: Any, root: Root, manifests: Sequence[Manifest]) -> None:
        """Fill `published` with the latest version of each key, but for those whose latest is a deletion."""
        names = [column.name for column in self.keys]
        own = [("__op", pa.string()), ("__pos", pa.string()), ("__seq", pa.int64()), ("__ts", NAIVE_US)]
        kept = pa.schema([*((column.name, _plain(column.arrow)) for column in self.keys), *own])
        # From an empty table, so that DuckDB takes the types of the keys as ours are, and not as the first page
        # suggests.
        duckdb.register("no_row", kept.empty_table())
        _rows(duckdb, "CREATE TABLE versions AS SELECT * FROM no_row")
        for manifest in manifests:
            self._check_keys(manifest)
            for part in manifest.parts:
                with root.open(part.path) as file:
                    # Page by page, keys and stamps alone: what is published may be larger than memory, and DuckDB
                    # spills.
                    for batch in pq.ParquetFile(file).iter_batches(columns=kept.names):
                        page = pa.Table.from_batches([batch]).select(kept.names)
                        duckdb.register("page", pa.table(list(map(_bare, page.columns)), names=kept.names))
                        _rows(duckdb, "INSERT INTO versions SELECT * FROM page")
        listed = ", ".join(map(_quote, names))
        # Structs compare field by field: the greatest (pos, seq) is that of a key's last change.
        latest = "arg_max(struct_pack(op := __op, ts := __ts), struct_pack(pos := __pos, seq := __seq)) AS latest"
        grouped = f"SELECT {listed}, {latest} FROM versions GROUP BY {listed}"
        # A key whose last change is a deletion is not published any more, though its rows lie in the files.
        _rows(duckdb, f"CREATE TABLE published AS SELECT * FROM ({grouped}) WHERE latest.op <> 'delete'")

    def _check_keys(self, manifest: Manifest) -> None:
        """Refuse to compare keys of two types: every key would look new.

        Raises:
            DiffStopped
        """
        schema = schema_of(manifest)
        for column in self.keys:
            index = schema.get_field_index(column.name)
            if index < 0 or _plain(schema.field(index).type) != _plain(column.arrow):
                held = schema.field(index).type if index >= 0 else "missing"
                raise DiffStopped(
                    f"The full diff of {self.order.relation.name} stopped: key {column.name} is {column.arrow}, and in "
                    f"window {manifest.window} it is {held}. Nothing was published. Choose another `destination` and "
                    f"run `rivet state reset`, so that the table is exported anew."
                )

    def _source_keys(self, session: Session) -> pa.Table:
        """Read key and stamp of every row, in the session's instant."""
        order = self.order
        # The relation's own key too: pages of a table are read along it.
        wanted = {column.name for column in (*order.columns,)} | {order.fallback} | set(order.relation.key)
        columns = tuple(column for column in order.relation.columns if column.name in wanted)
        tables = [
            # Under the session's snapshot where it has one: chunks of two instants would show a row that moved
            # twice, or never.
            read(order.source, chunk, columns, snapshot=session.snapshot, application=self.application, pace=self.pace)
            for chunk in session.chunks(order.relation, pieces=1)
        ]
        table = pa.concat_tables(tables)
        cells = [_bare(table.column(column.name)) for column in self.keys]
        return pa.table([*cells, self._stamps(table)], names=[*(column.name for column in self.keys), "__ts"])

    def _stamps(self, table: pa.Table) -> pa.ChunkedArray:
        stamps = table.column(self.shape.updated_at)
        if self.shape.fallback:
            stamps = pc.coalesce(stamps, table.column(self.shape.fallback).cast(stamps.type))
        # As `__ts` is published: what is finer than microseconds is cut off, or it would differ in every run.
        return naive(stamps).cast(NAIVE_US, safe=False)

    # --- the difference --------------------------------------------------------------------------

    def _find_gone(self, duckdb: Any) -> pa.Table:
        listed = ", ".join(f"p.{_quote(column.name)}" for column in self.keys)
        # An anti join never meets NULL here: keys are NOT NULL columns (`connectors.md`, section 11).
        return _table(duckdb, f"SELECT {listed} FROM published p ANTI JOIN source s ON {self._same()}")

    def _find_changed(self, duckdb: Any) -> pa.Table:
        """Return the keys whose row is not published, or with another stamp, and lies below the watermark."""
        listed = ", ".join(f"s.{_quote(column.name)}" for column in self.keys)
        statement = (
            f"SELECT {listed} FROM source s LEFT JOIN published p ON {self._same()} "
            # Below and not at it: of the watermark's own stamp some keys may still be to come.
            f"WHERE s.__ts < CAST(? AS TIMESTAMP) AND (p.latest IS NULL OR p.latest.ts IS DISTINCT FROM s.__ts)"
        )
        return _table(duckdb, statement, [self.low[0].value.removesuffix("Z")])

    def _same(self) -> str:
        return " AND ".join(f"p.{_quote(column.name)} = s.{_quote(column.name)}" for column in self.keys)

    def _refuse_many(self, *, here: int, there: int, gone: int) -> None:
        """Stop before a fault of the source, or of this program, empties a mirror.

        Raises:
            DiffStopped
        """
        # An empty mirror has nothing to lose, and without deletions there is nothing to refuse.
        if not there or not gone:
            return
        name = self.order.relation.name
        # No row at all: more often a right that was taken away, or a policy for rows, than a table emptied on
        # purpose.
        if not here:
            raise DiffStopped(
                f"The full diff of {name} stopped: the table shows no row, and {there} are published. Nothing was "
                f"published. Does this user still see its rows? If it was emptied on purpose, run `rivet state reset`."
            )
        if gone / there > self.max_delete_ratio:
            raise DiffStopped(
                f"The full diff of {name} stopped: {gone} of {there} published rows are gone from the table, more than "
                f"max_delete_ratio {self.max_delete_ratio:.15g} allows. Nothing was published. If they were deleted on "
                f"purpose, raise `delete_detection.max_delete_ratio` for one run."
            )

    # --- asking again ----------------------------------------------------------------------------

    def _still_gone(self, gone: pa.Table) -> pa.Table:
        """Return rows that hold a key alone for those that a later instant does not show either."""
        back = {key for page in self._read_keys(gone, self.keys) for key in _keys_of(page, self.keys)}
        absent = [key not in back for key in _keys_of(gone, self.keys)]
        left = gone.filter(pa.array(absent, pa.bool_()))
        place = {column.name: number for number, column in enumerate(self.keys)}
        cells = [
            _restore_type(left.column(place[column.name]), column.arrow)
            if column.name in place
            # Typed NULLs: the page of found rows must have the table's columns, whatever is known of a deleted one.
            else pa.chunked_array([pa.nulls(left.num_rows, column.arrow)])
            for column in self.order.relation.columns
        ]
        return pa.table(cells, schema=self._schema)

    def _again(self, changed: pa.Table) -> pa.Table:
        """Read the rows whole; those that were changed since come by themselves."""
        limit = pa.scalar(self.low[0].value.removesuffix("Z")).cast(NAIVE_US)
        pages = list(self._read_keys(changed, self.order.relation.columns))
        kept = [page.filter(pc.fill_null(pc.less(self._stamps(page), limit), False)) for page in pages]
        return pa.concat_tables([self._schema.empty_table(), *(page.cast(self._schema) for page in kept)])

    @property
    def _schema(self) -> pa.Schema:
        return pa.schema([(column.name, column.arrow) for column in self.order.relation.columns])

    def _read_keys(self, keys: pa.Table, columns: tuple[Column, ...]) -> Iterator[pa.Table]:
        """Read some columns of the rows with these keys, each statement in an instant of its own."""
        for start in range(0, keys.num_rows, KEYS_AT_ONCE):
            where = conjunction([self.order.where, self._predicate_of(keys.slice(start, KEYS_AT_ONCE))])
            chunk = Chunk(index=0, reader="cursor", relation=self.order.relation.sql, where=where)
            source = self.order.source
            # `snapshot=None`: of an instant later than the comparison, which is the point of asking again.
            yield read(source, chunk, columns, snapshot=None, application=self.application, pace=self.pace)

    def _predicate_of(self, keys: pa.Table) -> str:
        """Write what holds for the rows with these keys."""
        literal, quote = self.order.source.literal, self.order.dialect.quote
        names = [quote(column.name) for column in self.keys]
        dressed = [_restore_type(keys.column(i), column.arrow) for i, column in enumerate(self.keys)]
        texts = [[literal(canonical(cell), column) for cell in cells]
                 for cells, column in zip(dressed, self.keys, strict=True)]  # fmt: skip
        if len(names) == 1:
            return f"{names[0]} IN ({', '.join(texts[0])})"
        rows = zip(*texts, strict=True)
        return " OR ".join(
            "(" + " AND ".join(f"{name} = {text}" for name, text in zip(names, row, strict=True)) + ")" for row in rows
        )


# --- cells and keys ------------------------------------------------------------------------------


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit)
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _bare(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Take what DuckDB would change off: our extension types, and the zone of an instant."""
    if isinstance(column.type, pa.BaseExtensionType):
        return pa.chunked_array([piece.storage for piece in column.chunks], _plain(column.type))
    return column.cast(_plain(column.type))


def _restore_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Put the type back on."""
    plain = _plain(kind)
    # DuckDB gives bytes of any length back, and Arrow has no cast from those to bytes of a fixed one.
    if pa.types.is_fixed_size_binary(plain):
        bare = pa.chunked_array([pa.array(piece.to_pylist(), plain) for piece in column.chunks], plain)
    else:
        bare = column.cast(plain)
    if isinstance(kind, pa.BaseExtensionType):
        pieces = [pa.ExtensionArray.from_storage(kind, piece) for piece in bare.chunks]
        return pa.chunked_array(pieces, kind)
    return bare.cast(kind)


def _keys_of(table: pa.Table, keys: Sequence[Column]) -> Iterable[tuple[object, ...]]:
    cells = []
    for place, column in enumerate(keys):
        cell = table.column(place)
        # Both sides bare, or an instant with a zone and one without would never be equal.
        cells.append(_bare(cell if cell.type == column.arrow else _restore_type(cell, column.arrow)))
    return zip(*(column.to_pylist() for column in cells), strict=True)


# --- DuckDB --------------------------------------------------------------------------------------


def _connect(spill: Path) -> Any:
    import duckdb  # start

    # No extension is fetched or loaded from outside: an export makes no connection that nobody configured.
    offline = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    return duckdb.connect(":memory:", config={"temp_directory": str(spill), **offline})


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _rows(duckdb: Any, statement: str) -> list[tuple[Any, ...]]:
    """Run one statement to its end."""
    rows: list[tuple[Any, ...]] = duckdb.execute(statement).fetchall()
    return rows


def _table(duckdb: Any, statement: str, values: Sequence[object] = ()) -> pa.Table:
    found: pa.Table = duckdb.sql(statement, params=list(values)).to_arrow_table()
    return found
