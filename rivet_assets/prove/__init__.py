"""What was exported, compared with its source and mended: validate, reconcile, repair."""
