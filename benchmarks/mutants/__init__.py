"""Seeded mutants of a package, and which of them the tests find: `python -m benchmarks.mutants`."""
