"""Generated data as a source: the same rows from the same seed."""
