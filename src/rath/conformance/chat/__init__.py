"""The contract of chat clients."""

from __future__ import annotations

from rath.conformance.chat.contract import check_chat_client

__all__ = ["check_chat_client"]
