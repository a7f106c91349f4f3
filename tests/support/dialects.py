"""What the test server says in each vendor's protocol, so that one test covers them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pytest

from rath.llm import Provider
from rath.llm.anthropic import RathAnthropicChatClient
from rath.llm.client import VendorClient
from rath.llm.openai import RathOpenAIChatClient
from rath.llm.transport import ApiEndpoint, ModelListing
from tests.support import anthropic_replies, chat_replies
from tests.support.asking import KEY, NoSleep
from tests.support.chat_replies import Reply, StreamItem
from tests.support.chat_server import ChatServer

BEGUN = "wh"
WHOLE = "whole"
"""The answer of every dialect; `BEGUN` is how it begins."""

_OPENAI_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    529: "overloaded_error",
}
_ANTHROPIC_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One vendor's protocol."""

    kind: Literal["anthropic", "openai"]
    headers_variable: str
    path: str
    """Below the version of the API."""

    make: Callable[..., VendorClient]
    answer: Reply
    """A whole answer."""

    odd_answer: Reply
    """The same beside things that nobody knows."""

    begin: Sequence[StreamItem]
    rest: Sequence[StreamItem]
    """The same as a stream, in two parts."""

    odd: Sequence[StreamItem]
    """Events, blocks and fields that nobody knows."""

    failure: StreamItem
    """An event that reports a failure of the endpoint, status 529."""

    stream: Callable[..., Reply]
    """Sends items as they are, with no end marker of its own."""

    error_of: Callable[[int, str, Mapping[str, str]], Reply]

    def client(
        self, server: ChatServer, sleep: NoSleep | None = None, provider: Provider | None = None
    ) -> VendorClient:
        """A client for the test server that never really waits between tries."""
        given = replace(provider or Provider(), base_url=server.base_url, api_key=KEY, model="m")
        return self.make(given, sleep=sleep or NoSleep())

    def target(
        self, base_url: str, *, from_project: bool = False, listing: ModelListing | None = None
    ) -> ApiEndpoint:
        """The endpoint of a client."""
        return ApiEndpoint(
            base_url=base_url,
            key_origin=None,
            from_project=from_project,
            headers_variable=self.headers_variable,
            api_key=KEY,
            listing=listing,
        )

    def error(
        self, status: int, message: str = "because", *, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """An answer with an error status, of the type that belongs to it."""
        return self.error_of(status, message, headers or {})


def _openai_error(status: int, message: str, headers: Mapping[str, str]) -> Reply:
    kind = _OPENAI_TYPES.get(status, "invalid_request_error")
    return chat_replies.status_error(status, message, kind=kind, headers=headers)


def _anthropic_error(status: int, message: str, headers: Mapping[str, str]) -> Reply:
    kind = _ANTHROPIC_TYPES.get(status, "api_error")
    return anthropic_replies.error(status, kind, message, headers=headers)


def _openai_stream(*items: StreamItem) -> Reply:
    return chat_replies.event_stream(*items, done=False)


OPENAI = Dialect(
    kind="openai",
    headers_variable="OPENAI_CUSTOM_HEADERS",
    path="/chat/completions",
    make=RathOpenAIChatClient,
    answer=chat_replies.completion(WHOLE),
    odd_answer=chat_replies.completion(
        WHOLE, finish_reason="evaporated", message={"hologram": {"depth": 3}}
    ),
    begin=(chat_replies.text_chunk(BEGUN),),
    rest=(chat_replies.text_chunk(WHOLE[len(BEGUN) :]), chat_replies.finish_chunk(), "[DONE]"),
    odd=(
        {"object": "chat.hologram", "depth": 3},
        chat_replies.chunk({"hologram": {"depth": 3}}),
        chat_replies.chunk({}, finish_reason="evaporated"),
    ),
    failure={"error": {"type": "overloaded_error", "message": "Overloaded"}},
    stream=_openai_stream,
    error_of=_openai_error,
)

_EVENTS = anthropic_replies.events(anthropic_replies.envelope(anthropic_replies.text(WHOLE)))
_AFTER_BEGUN = 1 + next(
    index for index, event in enumerate(_EVENTS) if event["type"] == "content_block_delta"
)

ANTHROPIC = Dialect(
    kind="anthropic",
    headers_variable="ANTHROPIC_CUSTOM_HEADERS",
    path="/messages",
    make=RathAnthropicChatClient,
    answer=anthropic_replies.message(anthropic_replies.text(WHOLE)),
    odd_answer=anthropic_replies.message(
        {"type": "hologram", "depth": 3},
        anthropic_replies.text(WHOLE),
        stop_reason="evaporated",
    ),
    begin=_EVENTS[:_AFTER_BEGUN],
    rest=_EVENTS[_AFTER_BEGUN:],
    odd=(
        {"type": "hologram_event", "depth": 3},
        {"type": "content_block_start", "index": 7, "content_block": {"type": "hologram"}},
        {"type": "content_block_delta", "index": 7, "delta": {"type": "depth_delta", "depth": 3}},
        {"type": "content_block_stop", "index": 7},
    ),
    failure=anthropic_replies.error_event(),
    stream=anthropic_replies.stream,
    error_of=_anthropic_error,
)

DIALECTS = (OPENAI, ANTHROPIC)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer() as running:
        yield running


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.kind)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    found: Dialect = request.param
    return found
