"""The documented import path of the encoder for chat completions."""

from __future__ import annotations

from rath.llm.openai.encode import to_create_kwargs, to_create_kwargs_stream

__all__ = ["to_create_kwargs", "to_create_kwargs_stream"]
