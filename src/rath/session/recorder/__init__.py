"""Sessions written while they run: their logs, and those of what they came from."""
