"""Figures, each shown by a command that prints a table: `python -m tests.bench.full|small|backfill`.

Belongs here: measured comparisons against a bare script and against Spark JDBC on the same machine, in one
run. Not here: tests; no figure here decides whether a build passes.
"""
