"""The documented import path of the encoder for messages."""

from __future__ import annotations

from rath.llm.anthropic.encode import (
    DEFAULT_MAX_TOKENS,
    build_anthropic_kwargs,
    build_anthropic_stream_kwargs,
)

__all__ = ["DEFAULT_MAX_TOKENS", "build_anthropic_kwargs", "build_anthropic_stream_kwargs"]
