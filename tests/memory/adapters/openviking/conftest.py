"""A real server for the tests of the adapter that need one."""

from __future__ import annotations

from tests.support.openviking_service import openviking

__all__ = ["openviking"]
