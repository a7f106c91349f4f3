"""What becomes of files as values: changes, diffs, merges, and bringing them home."""
