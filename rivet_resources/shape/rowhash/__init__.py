"""The hash of a row: which bytes stand for each cell."""
