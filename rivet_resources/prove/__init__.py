"""Committed parts read again: against their manifests, and against the source."""
