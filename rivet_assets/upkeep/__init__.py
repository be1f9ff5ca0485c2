"""Looking after what is committed: `rivet compact` and `rivet retain`, without a row of the source being read.

Belongs here: which folders of an export, under which leases, and what is told of it. Not here: the effects at a
destination (`rivet_resources/upkeep`), the commands (`cli`) and jobs (`dagster`).
"""
