"""The documented import path of the decoder for streamed messages."""

from __future__ import annotations

from rath.llm.anthropic.stream.decode import anthropic_event_to_deltas

__all__ = ["anthropic_event_to_deltas"]
