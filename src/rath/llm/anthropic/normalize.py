"""The documented import path of the decoder for messages."""

from __future__ import annotations

from rath.llm.anthropic.decode import normalize_anthropic_response

__all__ = ["normalize_anthropic_response"]
