"""Running exports now, through Dagster: what is due, what came of it, what is reported."""
