"""Rows shaped on the way: one file per step or small family of steps, SQL by DuckDB, everything on Arrow pages.

Belongs here: what a step makes of a schema and of a page. Not here: which export has which steps
(`rivet_assets/config/load.py`), reading, writing, and Rivet's own columns, which are appended after the last step.
"""
