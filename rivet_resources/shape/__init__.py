"""What becomes of a page before it is written: transforms, row hashes, cells as text."""
