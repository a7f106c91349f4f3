"""Replays: recorded operations run again with what the record says, and compared with it."""
