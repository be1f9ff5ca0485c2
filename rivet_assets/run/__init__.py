"""One window of an export, from the lease to the verdict of its quality gates."""
