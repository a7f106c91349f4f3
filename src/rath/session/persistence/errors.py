"""The error of session files, under its documented name."""

from __future__ import annotations

from rath.errors import PersistenceError

__all__ = ["PersistenceError"]
