"""What people see of an export in Dagster: its definition, its page, its lineage."""
