"""How exports are described to Dagster: assets, checks, sensors, jobs, the component."""
