"""Tables kept current from the change files of one: its state now (`mirror`) and all its states (`history`).

Belongs here: Spark jobs over committed changes, and the frames they are made of. Not here: reading logs
(`engines/*/log/`), draining them (`drain/drain.py`), Dagster (`rivet_assets/`), and the order in which a version
becomes visible (`commit/publish.py`).
"""
