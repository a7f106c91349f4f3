"""What every client of chat completions shares, wherever its server runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from rath.llm.body import BodyWriter
from rath.llm.call import Served
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import RathLLMChatResponse
from rath.llm.encode import refuse_call_options
from rath.llm.failure import Asked
from rath.llm.openai.decode import OpenAIChunkDecoder, decode_completion
from rath.llm.openai.encode import body_writer
from rath.llm.sdk.target import Listing
from rath.llm.vendor import VendorClient
from rath.llm.wire import ChunkDecoder

if TYPE_CHECKING:
    from rath.llm.sdk.binding import Sdk

__all__ = ["COMPLETIONS_PATH", "MODELS", "CompletionsClient", "load_sdk"]

COMPLETIONS_PATH = "/chat/completions"
MODELS = Listing("/models")


def load_sdk() -> Sdk:
    """Import the SDK, for `Target.load`."""
    from rath.llm.openai.binding import SDK

    return SDK


class CompletionsClient(VendorClient):
    """Writes and reads chat completions; a subclass knows where they go."""

    renderer: ClassVar[str] = "openai-chat/1"
    takes_schema: ClassVar[bool] = True
    takes_loose_schema: ClassVar[bool] = True

    def write_body(self, request: RathLLMChatRequest, *, model: str) -> BodyWriter:
        refuse_call_options(request.extra_create_args)
        return body_writer(request, model=model)

    def decode(self, reply: Mapping[str, Any], asked: Asked) -> tuple[RathLLMChatResponse, Served]:
        return decode_completion(reply, asked)

    def chunk_decoder(self, asked: Asked) -> ChunkDecoder:
        return OpenAIChunkDecoder(asked)
