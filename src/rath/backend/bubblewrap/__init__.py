"""The `bubblewrap` backend: commands and code in namespaces of their own."""

from rath.backend.bubblewrap.backend import BubblewrapBackend

__all__ = ["BubblewrapBackend"]
