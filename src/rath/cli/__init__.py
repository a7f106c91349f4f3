"""The `rath` command."""

from __future__ import annotations

from rath.cli.app import main

__all__ = ["main"]
