"""A step, a check and a notifier for Rivet."""
