"""Limits that a provider sets for its calls, and the gate of an endpoint that they pass."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Literal
from urllib.parse import urlsplit

from rath._async.limiter import Caps, Gate, Limiter
from rath.llm.chat_response import RathLLMStreamDelta
from rath.llm.evidence import CallRecorder, OnDelta
from rath.llm.provider import Provider

_PORTS = {"http": 80, "https": 443}

Whose = Literal["our", "custom"]

_limiter = Limiter()

_is_inside: ContextVar[bool] = ContextVar("rath_inside_custom_client", default=False)
"""Whether the current code was called by a call that holds a place at a gate of others."""


def caps_of(provider: Provider) -> Caps | None:
    """Return the limits that a provider sets, None when it sets none."""
    in_flight, per_minute = provider.max_in_flight, provider.max_requests_per_minute
    return None if in_flight is None and per_minute is None else Caps(in_flight, per_minute)


async def pass_gate(call: CallRecorder, caps: Caps | None, *, whose: Whose = "our") -> Gate:
    """Wait until a call may be sent to its endpoint; whoever gets the gate must `leave` it.

    The time that was waited is added to the evidence of the call, also when the wait is cancelled.
    Without caps nothing is waited for, and the call counts for those that have some.

    Args:
        call: Says where it goes, and hears how long it waited.
        caps: What its provider allows.
        whose: Whose client calls. Those of others are counted by themselves, since many of them
            call through one of ours: a call would hold the very place that it waits for.
    """
    if whose == "custom" and caps is not None and _is_inside.get():
        # Two such clients that call each other would wait for each other's places.
        caps = Caps(None, caps.per_minute, goes_first=True)
    gate = _limiter.gate(_place(whose, call.facts.provider_kind, call.endpoint))
    if gate.enter_at_once(caps):
        call.was_sent = True
        return gate
    assert caps is not None  # who has none never waits
    clock = asyncio.get_running_loop().time
    start = clock()
    try:
        await gate.enter(caps)
    finally:
        call.queued_ms += (clock() - start) * 1000
    call.was_sent = True
    return gate


@contextmanager
def inside_custom_client() -> Generator[None]:
    """Let the calls that are made inside wait for no place at the gates of custom clients."""
    token = _is_inside.set(True)
    try:
        yield
    finally:
        _is_inside.reset(token)


def giving_way(gate: Gate, on_delta: OnDelta) -> OnDelta:
    """Return `on_delta` for a call that has passed `gate` and holds no place while it awaits.

    What takes the deltas may stand still because a callback asks the same endpoint: if a place
    were held meanwhile, the two would wait for each other. So whoever holds one of ours waits for
    the endpoint alone, and no call can wait for ever.
    """

    def give(delta: RathLLMStreamDelta) -> Awaitable[None] | None:
        waiting = on_delta(delta)
        return None if waiting is None else gate.give_way(waiting)

    return give


@lru_cache(maxsize=256)
def _place(whose: Whose, provider_kind: str, endpoint: str | None) -> str:
    """Return what all calls to one endpoint have in common, whatever their path, key and model.

    A client that does not say where it calls is told by its kind.
    """
    parts = urlsplit(endpoint or "")
    if not parts.hostname:
        return f"{whose} {provider_kind}"
    port = parts.port or _PORTS.get(parts.scheme)
    return f"{whose} {parts.scheme}://{parts.hostname}:{port}"
