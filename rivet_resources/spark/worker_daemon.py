"""The process from which Spark forks its Python workers, with all imports of a task already done.

Belongs here: what is imported before the fork. Not here: what a worker does (`read/executor.py`). Spark starts it
as `python -m rivet_resources.spark.worker_daemon pyspark.worker`, by `spark.python.daemon.module`.

The threads that the imports of a task start belong to OpenBLAS and jemalloc, which stop and restart them around a fork.
Linux only; elsewhere pyspark's daemon is used.
"""

from __future__ import annotations

import gc

from rivet_resources.process_start import import_without_frames

# pyspark's own daemon imports nothing, since imports may start threads, which a fork does not copy; so each worker pays
# for pyarrow, pandas (which pyarrow looks for) and the driver: four workers 5.5 CPU s and 103 MB each, against 1.5 CPU
# s and 37 MB from this daemon (measured).
BEFORE_FORK = (
    "pyspark.worker",
    "rivet_resources.read.executor",
    "rivet_resources.engines.postgres.source",
    "rivet_resources.write.formats.parquet",
    "rivet_resources.write.formats.csv",
    "rivet_resources.destinations.local",
    "adbc_driver_postgresql.dbapi",
)


def main() -> None:
    """Import, then serve forks until Spark closes our input."""
    # ADBC would import polars, whose threads do not survive a fork.
    import_without_frames(*BEFORE_FORK)
    # Else the workers' first collection copies every page they share.
    gc.freeze()
    from pyspark.daemon import manager  # Spark

    manager()


if __name__ == "__main__":
    main()
