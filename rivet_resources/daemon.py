"""The process from which Spark forks its Python workers, with all imports of a task already done.

Belongs here: what is imported before the fork. Not here: what a worker does (`executor.py`). Spark starts it
as `python -m rivet_resources.daemon pyspark.worker`, by `spark.python.daemon.module`.

pyspark's own daemon imports nothing, since imports may start threads that do not survive a fork; so each worker
pays 0.5 to 1 CPU s for pyarrow, pandas (which pyarrow and ADBC look for) and the driver. None of ours leaves a
thread running at import: Arrow's pools start with the first work, ADBC's library with the first connection.
"""

from __future__ import annotations

import contextlib
import gc
import importlib

BEFORE_FORK = (
    "pyspark.worker",
    "rivet_resources.executor",
    "rivet_resources.sources.postgres",
    "rivet_resources.formats.parquet",
    "rivet_resources.formats.csv",
    "rivet_resources.destinations.local",
    "adbc_driver_postgresql.dbapi",
)


def main() -> None:
    """Import, then serve forks until Spark closes our input."""
    for name in BEFORE_FORK:
        with contextlib.suppress(ImportError):  # an extra that is not installed is reported by who needs it
            importlib.import_module(name)
    gc.freeze()  # else the workers' first collection copies every page they share
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
