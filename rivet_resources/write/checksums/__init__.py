"""Sums over columns that prove two sets of rows equal."""
