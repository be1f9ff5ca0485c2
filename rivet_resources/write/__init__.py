"""From shaped pages to files: parts, their measures and sums."""
