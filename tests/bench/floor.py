"""The floor: the least a Python script can do to bring a PostgreSQL query into a Parquet file."""

import os
import sys

import adbc_driver_postgresql.dbapi
import pyarrow as pa
import pyarrow.parquet as pq

query, target = sys.argv[1:]
with adbc_driver_postgresql.dbapi.connect(os.environ["BENCH_URL"]) as connection, connection.cursor() as cursor:
    cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(16 << 20)})
    cursor.execute(query)
    reader = cursor.fetch_record_batch()
    # ADBC delivers numeric as text; a decimal column is what everybody else writes.
    fields = [pa.field(f.name, pa.decimal128(12, 2) if f.name == "amount" else f.type) for f in reader.schema]
    schema = pa.schema([field.remove_metadata() for field in fields])
    with pq.ParquetWriter(target, schema, compression="zstd", compression_level=1) as writer:
        for batch in reader:
            writer.write_table(
                pa.table([column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)], schema)
            )
