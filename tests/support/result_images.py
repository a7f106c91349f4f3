"""Runs in which a tool returns images, on endpoints of both protocols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rath.llm import Provider
from rath.llm.image import Image
from rath.session import (
    Session,
    run_session_loop,
)
from rath.session.record import ModelCall
from rath.testing import tool_call
from tests.support import anthropic_replies as claude
from tests.support import anthropic_rules, openai_rules
from tests.support import chat_replies as replies
from tests.support.asking import KEY
from tests.support.chat_replies import Reply
from tests.support.chat_server import ChatServer
from tests.support.images import picture
from tests.support.sessions import FunctionTool, run

CAT, DOG = (Image.from_bytes(picture(name)) for name in (b"cat", b"dog"))
CAMERA = FunctionTool("camera", lambda *_: ["a cat", CAT, {"and": DOG}])
CLOCK = FunctionTool("clock", lambda *_: "noon")

ANSWERS: dict[str, list[Reply]] = {
    "openai": [
        replies.completion(
            tool_calls=(
                replies.tool_call("camera", id="c1"),
                replies.tool_call("clock", id="c2"),
            )
        ),
        replies.completion("a cat and a dog"),
    ],
    "anthropic": [
        claude.message(
            claude.tool_use("camera", {}, id="c1"),
            claude.tool_use("clock", {}, id="c2"),
            stop_reason="tool_use",
        ),
        claude.message(claude.text("a cat and a dog")),
    ],
}
CHECKS: dict[str, Callable[[bytes], dict[str, Any]]] = {
    "openai": openai_rules.check_body,
    "anthropic": anthropic_rules.check_body,
}
KINDS = sorted(ANSWERS)


def never(*_: object) -> object:
    raise AssertionError("it was made before")


def provider_of(kind: str, server: ChatServer) -> Provider:
    return Provider(provider_kind=kind, base_url=server.base_url, api_key=KEY, model="m")


def program(provider: Provider, **options: Any) -> Session:
    return run_session_loop(
        Session.from_user_message("look"),
        Session.from_agent_prompt("You are a test."),
        agent_provider=provider,
        tools=[CAMERA, CLOCK],
        system_tools=False,
        **options,
    )


def asked(kind: str, **options: Any) -> tuple[Session, Provider, list[bytes]]:
    """A run whose server has gone when this returns, and the bodies that it got."""
    with ChatServer() as server:
        server.queue(*ANSWERS[kind])
        provider = provider_of(kind, server)
        out = program(provider, **options).synchronize()
        return out, provider, [request.body for request in server.requests]


def scripted(*turns: Any, **options: Any) -> Session:
    made = turns or (tool_call("camera", {}, id="c1"), "a cat")
    return run(made, CAMERA, CLOCK, **options).synchronize()


def digests(session: Session) -> list[str]:
    calls = (entry for entry in session.record if isinstance(entry, ModelCall))
    return [call.seen.request_digest for call in calls if call.seen is not None]


def shown_in(session: Session) -> list[bytes | None]:
    return [image.blob.data for row in session.chunk_table for image in row.images]


def one_call(kind: str, number: int) -> Reply:
    if kind == "openai":
        return replies.completion(tool_calls=(replies.tool_call("camera", id=f"c{number}"),))
    return claude.message(claude.tool_use("camera", {}, id=f"c{number}"), stop_reason="tool_use")
