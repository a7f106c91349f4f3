"""What tests of providers share: a test server, and the protocols that it speaks."""

from __future__ import annotations

from tests.support.dialects import dialect, server

__all__ = ["dialect", "server"]
