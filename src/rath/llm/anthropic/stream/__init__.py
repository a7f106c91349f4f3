"""Streams of the Messages API."""
