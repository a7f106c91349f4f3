"""The model that reads the transcripts of a store, as its options name it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from rath.errors import InvalidRequestError, MemoryBackendError, RathError
from rath.llm.base import ChatClient
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.client import open_draft, require_model
from rath.llm.errors import network_error_class
from rath.llm.provider import Provider
from rath.llm.registry import chat_client_for
from rath.memory.adapters.local.extraction.decode import Memo, decode_memos
from rath.memory.adapters.local.extraction.prompt import Chunk, request_for

_WHAT_CHAT_IS = (
    "expected a Provider, a chat client, or an object with complete(request) that returns a "
    "RathLLMChatResponse"
)


class Unusable(ValueError):
    """A model answered, and nothing can be made of its answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model made of a part of a transcript."""

    memos: tuple[Memo, ...]
    model: str
    """The model that answered."""


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A model, and how it is asked."""

    client: ChatClient
    provider: Provider
    """Its sampling goes into the requests."""

    async def amemos(self, chunk: Chunk) -> Answer:
        """Ask what is worth remembering of a part of a transcript.

        Raises:
            ProviderError: The call failed.
            ValueError: The answer cannot be used, or the client cannot be called at all.
        """
        request = request_for(chunk, self.provider)
        try:
            return await self._aask(request, chunk)
        except InvalidRequestError as exc:
            # Models that reason take no temperature but their own.
            if "temperature" not in str(exc):
                raise
        return await self._aask(replace(request, temperature=None), chunk)

    async def _aask(self, request: RathLLMChatRequest, chunk: Chunk) -> Answer:
        draft = open_draft(self.client, request)
        try:
            response = (await draft.asend()).response
        except Exception as exc:
            evidence = draft.last_evidence()
            if isinstance(exc, RathError) or evidence is None or evidence.status != "failed":
                raise
            # A client of the program raises errors of its own, and nobody here knows those.
            failed = f"the model failed: {type(exc).__name__}: {exc}"
            raise network_error_class(exc)(failed) from exc
        choice = response.primary_choice
        memos = decode_memos(choice.message.content or "", chunk.numbers)
        if memos is None:
            is_cut = choice.finish_reason == "length"
            said = "was cut off at its length limit" if is_cut else "holds no JSON array"
            raise Unusable(f"the answer of the model {said}")
        return Answer(memos, str(response.model or self.provider.model or "unknown"))


def chat_model_of(options: Mapping[str, Any]) -> ChatModel | None:
    """Return the model that the options of a store name; None when they name none.

    Raises:
        MemoryBackendError: It cannot be used: there is no such provider, it has no key, or the
            object cannot be asked.
    """
    given, name = options.get("chat"), options.get("chat_provider")
    if given is not None:
        return _of_object(given)
    if name is None:
        return None
    if not isinstance(name, str):
        raise MemoryBackendError(
            f"the option chat_provider of a memory store is {type(name).__name__}; expected the "
            "name of an entry of llm.providers. A model itself is given as the option chat"
        )
    try:
        return _of_provider(Provider.from_config(name))
    except (LookupError, ValueError) as exc:
        raise MemoryBackendError(
            f"the chat_provider {name!r} of the memory store cannot be used: {_words(exc)}"
        ) from exc


def _of_object(given: object) -> ChatModel:
    if isinstance(given, Provider):
        try:
            return _of_provider(given)
        except (LookupError, ValueError) as exc:
            raise MemoryBackendError(
                f"the provider in the option chat of a memory store cannot be used: {_words(exc)}"
            ) from exc
    if not callable(getattr(given, "complete", None)):
        raise MemoryBackendError(
            f"the option chat of a memory store is {type(given).__name__}; {_WHAT_CHAT_IS}"
        )
    provider: object = getattr(given, "provider", None)
    # Objects written for 1.3 need no provider; a draft asks for it with care.
    client = cast("ChatClient", given)
    return ChatModel(client, provider if isinstance(provider, Provider) else Provider())


def _of_provider(provider: Provider) -> ChatModel:
    client = chat_client_for(provider)
    require_model(client, provider.model)
    return ChatModel(client, provider)


def _words(error: Exception) -> str:
    # A KeyError shows its text in quotes.
    return str(error.args[0]) if error.args else type(error).__name__
