"""What `dg scaffold defs rivet_assets.Exports <name>` writes where no database is named: a file that runs as it is.

Belongs here: its text. Not here: a file for the tables of a database (`init.py`), Dagster's side
(`dagster/scaffolder.py`).
"""

from __future__ import annotations

from datetime import UTC, datetime

TEMPLATE = """\
# Exports of databases to files, one asset each. It runs as it is: the rows are made up. `dg check yaml` checks it.
# Every key: `rivet schema config`, or the docs tab of `dg docs`. For the tables of a database of yours:
#   dg scaffold defs rivet_assets.Exports NAME --source-env SHOP_URL
type: rivet_assets.Exports

attributes:
  source: {{type: datagen, pattern: orders, max_events: 1000, events_per_second: 0, seed: 42}}
  # Secrets stay names of environment variables, and are read when a run connects:
  # source: {{type: postgres, url_env: SHOP_URL}}   # or mysql, sqlserver, sqlite

  spark: inline # small exports need no JVM; remove the line, and Spark does the work

  exports:
    - name: {name}
      table: orders
      format: parquet # csv, ndjson, avro
      destination: {{type: local, path: exports}} # {{type: s3, bucket: …, prefix: …}}, or gcs, azure
      quality: {{row_count_min: 1}} # a window that fails is not published
      # mode: incremental # only what is new since the last run
      # cursor_column: updated_at
      # mode: time_window # a partition per day, which backfills replace
      # time_column: created_at
      # start: 2026-01-01
      # snapshots: daily # of mode full: each day's copy stays, as a partition of its own
      # start: {today} # the first day; without it Dagster shows years of days that nobody can export
      # schedule: "0 3 * * *"

  # translation: {{key_prefix: raw, group_name: lake, owners: ["team:data"]}}
"""


def template(name: str) -> str:
    """Return the text of a component file with one export of this name."""
    return TEMPLATE.format(name=name, today=datetime.now(UTC).date())
