"""Spark JDBC at its best flags: C2 kept as rows enter the JVM, SerialGC, class archive, direct start, fetch 10,000."""

import os
import sys
from urllib.parse import urlsplit

from rivet_resources.contracts.settings import Spark
from rivet_resources.spark.runtime import SparkRuntime

query, target, jar, flags = sys.argv[1:]
place = urlsplit(os.environ["BENCH_URL"])
conf = {"spark.driver.extraClassPath": jar, "parquet.compression.codec.zstd.level": "1"}
archive = tuple(flags.split()) or None
runtime = SparkRuntime(Spark(master="local[*]", driver_memory="1g", jit="full", conf=conf), archive=archive)
session = runtime.session()
session.sparkContext._jsc.hadoopConfiguration().set("parquet.compression.codec.zstd.level", "1")
rows = session.read.format("jdbc").options(
    url=f"jdbc:postgresql://{place.hostname}:{place.port}{place.path}", query=query, fetchsize="10000",
    user=place.username, password=place.password, driver="org.postgresql.Driver", preferTimestampNTZ="false",
)  # fmt: skip
rows.load().write.option("compression", "zstd").mode("overwrite").parquet(target)
process = runtime.process
runtime.stop()
if process is not None:
    process.wait()  # a recording JVM writes its archive now
