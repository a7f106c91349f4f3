"""What every client of chat completions shares, wherever its server runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rath.llm.body import BodyWriter
from rath.llm.call import Served
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import RathLLMChatResponse
from rath.llm.failure import Asked
from rath.llm.openai.decode import OpenAIChunkDecoder, decode_completion
from rath.llm.openai.encode import body_writer
from rath.llm.vendor import VendorClient
from rath.llm.wire import ChunkDecoder

__all__ = ["COMPLETIONS_PATH", "CompletionsClient"]

COMPLETIONS_PATH = "/chat/completions"


class CompletionsClient(VendorClient):
    """Writes and reads chat completions; a subclass knows where they go."""

    renderer: ClassVar[str] = "openai-chat/1"

    def write_body(self, request: RathLLMChatRequest, *, model: str) -> BodyWriter:
        return body_writer(request, model=model)

    def decode(self, reply: Mapping[str, Any], asked: Asked) -> tuple[RathLLMChatResponse, Served]:
        return decode_completion(reply, asked)

    def chunk_decoder(self, asked: Asked) -> ChunkDecoder:
        return OpenAIChunkDecoder(asked)
