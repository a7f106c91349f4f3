"""Recall on a small labelled set of notes and queries: `python -m benchmarks.recall`."""
