"""What Dagster holds of ours at run time: the resource, the IO manager, its errors."""
