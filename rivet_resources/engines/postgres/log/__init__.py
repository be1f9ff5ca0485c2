"""Logical decoding of PostgreSQL, from a slot to changes."""
