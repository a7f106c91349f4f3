"""The chat client for models that run inside the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import ClassVar

from rath._async.retry import Sleep
from rath._async.runtime import runtime
from rath.errors import MissingExtra
from rath.llm.credentials import RequestTarget
from rath.llm.endpoint import public_url
from rath.llm.local.server import LocalEndpoint, ensure_server
from rath.llm.local.weights import BUNDLED_MODEL
from rath.llm.openai.client import COMPLETIONS_PATH, MODELS, CompletionsClient
from rath.llm.provider import OutputMode, Provider, ProviderOrigin
from rath.llm.transport import ApiEndpoint, Transport, open_transport

__all__ = ["RathLocalChatClient"]


class RathLocalChatClient(CompletionsClient):
    """Asks a model of this process, whose server starts with the first call.

    Args:
        provider: `model` is the path of a GGUF file, or None for the model of the extra
            `local-weights`.
        sleep: Waits between tries; for tests.
        serve: Starts the server of a model and blocks until it answers; for tests.

    Raises:
        MissingExtra: The runtime is not installed.
        ValueError: The provider names an endpoint.
    """

    kind: ClassVar[str] = "local"
    sdk: ClassVar[str | None] = "xllamacpp"

    def __init__(
        self,
        provider: Provider,
        *,
        sleep: Sleep = asyncio.sleep,
        serve: Callable[[str], LocalEndpoint] = ensure_server,
    ) -> None:
        super().__init__(provider, sleep=sleep)
        if provider.base_url:
            raise ValueError(
                'a local model has no base_url; use provider_kind="openai" for a server of your own'
            )
        if serve is ensure_server and find_spec("xllamacpp") is None:
            raise MissingExtra("local", 'Provider(provider_kind="local")')
        self._serve = serve
        self._endpoints: dict[str, LocalEndpoint] = {}

    def output_mode(self, *, with_tools: bool) -> OutputMode:
        # The server holds every answer to a schema, so that no tool is ever called beside one.
        return "tool" if with_tools else "schema"

    def target(
        self, model: str | None, *, provider_origin: ProviderOrigin = "call"
    ) -> RequestTarget:
        chosen = model or self.provider.model
        return RequestTarget(
            kind=self.kind,
            endpoint=None,
            model=chosen or BUNDLED_MODEL,
            path=COMPLETIONS_PATH,
            origins=(("model", provider_origin if chosen else "default"), ("base_url", "default")),
            timeout=self.timeout,
        )

    async def connect(self, target: RequestTarget) -> Transport:
        server = self._endpoints.get(target.model)
        if server is None:
            server = await runtime().call_in_worker(partial(self._serve, target.model))
            self._endpoints[target.model] = server
        endpoint = ApiEndpoint(
            sdk="openai",
            base_url=server.base_url,
            key_origin=None,
            from_project=False,
            headers_variable=None,
            api_key=server.api_key,
            listing=MODELS,
        )
        known = replace(
            target,
            endpoint=public_url(server.base_url + COMPLETIONS_PATH) or server.base_url,
            secret=server.api_key,
        )
        transport = await open_transport(endpoint, known)
        return _LocalWire(transport, target.model, runtime_version=server.runtime_version)


class _LocalWire:
    """A wire to the server in this process; what counts there is the runtime, not the SDK."""

    def __init__(self, wire: Transport, model: str, *, runtime_version: str) -> None:
        self.post = wire.post
        self.stream = wire.stream
        self._listed = wire.models
        self._model = model
        self.endpoint = wire.endpoint
        self.credential = wire.credential
        self.sdk_version: str | None = runtime_version

    async def models(self) -> tuple[str, ...]:
        # The server lists its one model by the name of the file, whatever path it was asked by.
        return tuple(sorted({*await self._listed(), self._model}))
