"""Runs: the loop, its tools and models, resume and replay."""
