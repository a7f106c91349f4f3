"""The documented import path of the decoder for chat completions."""

from __future__ import annotations

from rath.llm.openai.decode import normalize_chat_completion

__all__ = ["normalize_chat_completion"]
