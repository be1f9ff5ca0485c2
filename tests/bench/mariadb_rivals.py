"""What else brings a MariaDB table into Parquet: arrow-odbc in keyset pages, PyMySQL's own rows, Spark JDBC.

Belongs here: each rival at its best, run as `python -m tests.bench.mariadb_rivals NAME TABLE TARGET [JAR [FLAGS]]`
with BENCH_URL in the environment. Not here: how they are measured and compared (`mariadb.py`).
"""

from __future__ import annotations

import os
import sys
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from tests.bench import mariadb_shop as shop

ODBC_DRIVER = "/usr/lib/x86_64-linux-gnu/odbc/libmaodbc.so"
FETCHED_ROWS = {"narrow": 50_000, "wide": 500}
TYPES = {
    "narrow": [pa.int64(), pa.int64(), pa.string(), pa.decimal128(12, 2), pa.float64(), pa.timestamp("us"),
               pa.date32(), pa.string(), pa.string(), pa.string()],
    "wide": [pa.int64(), pa.string(), pa.string()],
}  # fmt: skip


def odbc(name: str, target: str) -> None:
    """Read keyset pages with arrow-odbc over one connection."""
    from arrow_odbc import TextEncoding, connect

    place = urlsplit(os.environ["BENCH_URL"])
    connection = connect(
        f"Driver={ODBC_DRIVER};Server={place.hostname};Port={place.port};Database={place.path[1:]};charset=utf8mb4;",
        user=place.username,
        password=place.password,
    )
    rows, longest = shop.PAGES[name]
    writer, last = None, 0
    while True:
        batches = list(
            connection.read_arrow_batches(
                f"SELECT {shop.COLUMNS[name]} FROM {name} WHERE id > ? ORDER BY id LIMIT {rows}",
                batch_size=rows,
                parameters=[str(last)],
                max_text_size=longest,
                payload_text_encoding=TextEncoding.UTF8,
            )
        )
        if not batches or not sum(batch.num_rows for batch in batches):
            break
        page = pa.Table.from_batches(batches)
        last = page.column("id")[-1].as_py()
        writer = writer or pq.ParquetWriter(target, page.schema, compression="zstd", compression_level=1)
        writer.write_table(page)
    if writer:
        writer.close()


def rows(name: str, target: str) -> None:
    """Read Python rows with PyMySQL's unbuffered cursor."""
    from pymysql.cursors import SSCursor

    names = shop.COLUMNS[name].split(", ")
    schema = pa.schema(list(zip(names, TYPES[name], strict=True)))
    with (
        shop.connect(os.environ["BENCH_URL"], cursorclass=SSCursor) as connection,
        connection.cursor() as cursor,
        pq.ParquetWriter(target, schema, compression="zstd", compression_level=1) as writer,
    ):
        cursor.execute(f"SELECT {shop.COLUMNS[name]} FROM {name}")
        while fetched := cursor.fetchmany(FETCHED_ROWS[name]):
            cells = zip(*fetched, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(cells, schema, strict=True)]
            writer.write_table(pa.table(arrays, schema=schema))


def jdbc(name: str, target: str, jar: str, flags: str = "") -> None:
    """Read with Spark JDBC at its best flags: C2 kept as rows enter the JVM, SerialGC, class archive, fetch 10,000."""
    from rivet_resources.contracts.settings import Spark
    from rivet_resources.spark.runtime import SparkRuntime

    place = urlsplit(os.environ["BENCH_URL"])
    conf = {"spark.driver.extraClassPath": jar}
    settings = Spark(master="local[*]", driver_memory="1g", jit="full", conf=conf)
    runtime = SparkRuntime(settings, archive=tuple(flags.split()) or None)
    session = runtime.session()
    session.sparkContext._jsc.hadoopConfiguration().set("parquet.compression.codec.zstd.level", "1")
    # As `jdbc:mysql:`, which makes Spark quote names as MariaDB reads them; `jdbc:mariadb:` asks for ANSI_QUOTES.
    rows = session.read.format("jdbc").options(
        url=f"jdbc:mysql://{place.hostname}:{place.port}{place.path}?permitMysqlScheme&connectionTimeZone=UTC",
        query=f"SELECT {shop.COLUMNS[name]} FROM {name}", fetchsize="10000" if name == "narrow" else "500",
        user=place.username, password=place.password, driver="org.mariadb.jdbc.Driver",
    )  # fmt: skip
    rows.load().write.option("compression", "zstd").mode("overwrite").parquet(target)
    process = runtime.process
    runtime.stop()
    if process is not None:
        process.wait()  # a recording JVM writes its archive now


if __name__ == "__main__":
    {"odbc": odbc, "rows": rows, "jdbc": jdbc}[sys.argv[1]](*sys.argv[2:])
