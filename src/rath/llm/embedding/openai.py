"""Embeddings from OpenAI, Azure OpenAI and every server that speaks their protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import ClassVar

from rath._async.retry import Sleep
from rath._async.runtime import runtime
from rath.errors import ProviderStatusError
from rath.llm.credentials import OPENAI_FIXED_MODEL, RequestTarget, resolve_account
from rath.llm.embedding.client import Batch, EmbeddingClient
from rath.llm.embedding.decode import Embedded, decode_embeddings
from rath.llm.embedding.encode import embedding_parameters
from rath.llm.embedding.provider import EmbeddingProvider
from rath.llm.evidence import CallRecorder, JsonValue
from rath.llm.limits import pass_gate
from rath.llm.openai.client import DEFAULT_BASE_URL, OpenAIEndpoint
from rath.llm.refusal import explain_refusal

__all__ = ["RathOpenAIEmbeddingClient"]

_PATH = "/embeddings"
_LONG = 100_000
"""Bytes of an answer that are read on a worker thread, so that no other session waits."""


class RathOpenAIEmbeddingClient(EmbeddingClient):
    """Asks an endpoint for embeddings.

    Args:
        provider: Endpoint, key, model and patience; see `EmbeddingProvider`.
        sleep: Waits between tries; for tests.

    Raises:
        ValueError: There is no key, or the base_url is not one.
    """

    kind: ClassVar[str] = "openai"
    renderer: ClassVar[str] = "openai-embeddings/1"
    sdk: ClassVar[str | None] = "openai"

    def __init__(self, provider: EmbeddingProvider, *, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(provider, sleep=sleep)
        account = resolve_account(
            provider,
            kind=self.kind,
            variables=OPENAI_FIXED_MODEL,
            default_base_url=DEFAULT_BASE_URL,
            purpose="embedding",
            missing="No API key for EmbeddingProvider",
        )
        self._endpoint = OpenAIEndpoint.of(account, _PATH)
        self._asked = self.route()

    def parameters(self) -> Mapping[str, JsonValue]:
        return embedding_parameters(self.provider.model, dimensions=self.provider.dimensions)

    def route(self) -> RequestTarget:
        return self._endpoint.target(self.provider.model, timeout=self.provider.timeout)

    async def ask(self, batch: Batch, call: CallRecorder) -> Embedded:
        asked = self._asked
        wire = await self._endpoint.connect(asked)
        call.reached(wire.endpoint, sdk_version=wire.sdk_version, credential=wire.credential)
        gate = await pass_gate(call, None)
        try:
            reply = await wire.post(batch.body)
        except ProviderStatusError as exc:
            explained = await explain_refusal(exc, asked, wire.models)
            if explained is exc:
                raise
            raise explained from exc
        finally:
            gate.leave()
        decode = partial(
            decode_embeddings,
            reply.content,
            asked,
            n_texts=len(batch.texts),
            dimensions=self.provider.dimensions,
        )
        is_long = len(reply.content) > _LONG
        return await runtime().call_in_worker(decode) if is_long else decode()
