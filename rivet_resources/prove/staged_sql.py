"""SQL over the rows of a staged window, by DuckDB, before anybody else can read them.

Belongs here: the one statement, over the files as a table called `rows`. Not here: what its number must be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.extract import Staged
from rivet_resources.contracts.transform import RowRefused, TransformError

if TYPE_CHECKING:
    import pyarrow.dataset as ds

TABLE = "rows"
# Types of DuckDB that are numbers, and those of `true` and of NULL alone.
NUMBERS = re.compile(r'U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?$|DECIMAL|FLOAT$|DOUBLE$|BOOLEAN$|"?NULL"?$')
SETTINGS = (
    "SET TimeZone='UTC'",
    "SET memory_limit='512MB'",
    # No file at all: what does not fit into memory fails, and rows of a window that may be refused are on no other
    # disk.
    "SET temp_directory=''",
    "SET autoinstall_known_extensions=false",
    "SET autoload_known_extensions=false",
    "SET enable_external_access=false",
    # Last: from here on no statement can take one of these back.
    "SET lock_configuration=true",
)


def numbers_by_sql(texts: Mapping[str, str], staged: Staged, root: Root) -> dict[str, float | None]:
    """Return the one number that each statement gives over the window's rows; None where it gives NULL, or NaN.

    Raises:
        TransformError: a statement is none, or gives no number.
        RowRefused: it fails on the rows; DuckDB's own text, which may hold a value, is not shown.
    """
    return _ask(texts, staged_rows(staged, root))


def staged_rows(staged: Staged, root: Root) -> ds.Dataset:
    """Open the rows of a staged window, Parquet on a local disk; nothing is read yet."""
    import pyarrow.dataset as ds  # start

    schema = pa.ipc.read_schema(pa.py_buffer(staged.schema_ipc))
    paths = [str(root.local_path(part.staged["path"])) for part in staged.parts]
    return ds.dataset(paths, format="parquet", schema=schema) if paths else ds.dataset(schema.empty_table())


def check_sql(texts: Mapping[str, str], schema: pa.Schema) -> None:
    """See that statements can be asked of such columns.

    Raises:
        TransformError: one is no single SELECT of one number, or names what is not there.
    """
    if texts:
        _ask(texts, schema.empty_table())


def _ask(texts: Mapping[str, str], rows: Any) -> dict[str, float | None]:
    import duckdb  # start

    with closing(duckdb.connect(":memory:", config={"threads": 1})) as connection:
        # The engine reads the window's Parquet files through Arrow, and nothing else: no other file, no network, no
        # extension.
        connection.register(TABLE, rows)
        for setting in SETTINGS:
            connection.execute(setting).fetchall()
        return {name: _number(name, text, connection) for name, text in texts.items()}


def _number(name: str, text: str, connection: Any) -> float | None:
    import duckdb  # start

    refused: TransformError | RowRefused | None = None
    found: list[Any] = []
    kinds: list[str] = []
    try:
        statements = connection.extract_statements(text)
        # Parsed by the engine itself: a text is not looked through for words, which comments and strings may hold.
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            refused = TransformError(f"contract, {name}: write one SELECT over the table `{TABLE}`.")
        else:
            # A second row is one too many.
            found = connection.execute(statements[0]).fetchmany(2)
            kinds = [str(column[1]) for column in connection.description]
    except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException) as error:
        first = str(error).strip().split("\n")[0].rstrip(".")
        refused = TransformError(f"contract, {name}: {first}. The window is the table `{TABLE}`.")
    except duckdb.Error as error:
        refused = RowRefused(f"contract, {name}: the statement fails on the window's rows ({type(error).__name__}).")
    if refused is not None:
        raise refused
    if len(found) != 1 or len(kinds) != 1 or not NUMBERS.match(kinds[0]):
        raise TransformError(f"contract, {name}: gives no single number; write SELECT count(*) … and the like.")
    number = None if found[0][0] is None else float(found[0][0])
    return None if number is None or math.isnan(number) else number
