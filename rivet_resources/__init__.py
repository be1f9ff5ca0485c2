"""TOUCHES: connections, files, clocks, Spark. Effects happen here, in one fixed order (`commit/publish.py`).

Belongs here: anything that holds a connection, a file or a clock. Not here: deciding what to read,
in which windows, under which rules (`rivet_assets`). Nothing in this package imports `rivet_assets`.
"""
