"""Requests to a served workflow, beside the same runs without a server."""

from __future__ import annotations

import asyncio
import gc
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.endpoint import Endpoint
from benchmarks.measure import Runs
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, Line, Reference
from rath.flow import Agent
from rath.serving import Principal, ServerOptions, TokenFile, asgi
from rath.session import Session
from rath.session.persistence.store import FileStore
from rath.testing import ScriptedClient

_REQUESTS = 100
"""For a repeat; what is looked for is small beside the noise of one."""


def lines(_: Endpoint, sizes: Sizes) -> list[Line]:
    """CPU of a request of the OpenAI API, whole and streamed, beyond that of its run."""
    with tempfile.TemporaryDirectory() as folder:
        store = FileStore(Path(folder, "sessions"))
        tokens = TokenFile(Path(folder, "tokens.json"))
        token = tokens.add(Principal(name="benchmark", requests_per_minute=10**6))
        app = asgi(
            {"team": _agent()},
            ServerOptions(tokens=tokens, store=store, a2a=False, mcp=False),
        )
        bare: list[float] = []
        whole: list[float] = []
        streamed: list[float] = []
        for _repeat in range(sizes.repeats + 1):  # the first one warms up
            bare.append(_cpu(lambda: _runs(store, streaming=True)))
            whole.append(_cpu(lambda: asyncio.run(_requests(app, token, stream=False))))
            streamed.append(_cpu(lambda: asyncio.run(_requests(app, token, stream=True))))
    run = Reference("the run alone", Runs.of(bare[1:]))
    beyond = [
        (name, [one - other for one, other in zip(served[1:], bare[1:], strict=True)])
        for name, served in (("whole", whole), ("streamed", streamed))
    ]
    return [
        Line(f"a {name} chat request beyond its run, CPU", Runs.of(more), "ms", run, AtMost(2))
        for name, more in beyond
    ]


def _agent() -> Agent:
    turns = ["An answer of a few words, as a model gives it."] * 100_000
    return Agent("Answer.", ScriptedClient(turns).provider, system_tools=False)


def _runs(store: FileStore, *, streaming: bool) -> None:
    turns = ["An answer of a few words, as a model gives it."] * _REQUESTS
    client = ScriptedClient(turns)
    agent = Agent(
        "Answer.", client.provider, system_tools=False, persist=True, store=store,
        streaming=streaming,
    )  # fmt: skip
    for _ in range(_REQUESTS):
        agent(Session.from_user_message("Say something.")).text()


async def _requests(app: Any, token: str, *, stream: bool) -> None:
    messages = [{"role": "user", "content": "Say something."}]
    body = json.dumps({"model": "team", "messages": messages, "stream": stream}).encode()
    for _ in range(_REQUESTS):
        await _request(app, token, body)


async def _request(app: Any, token: str, body: bytes) -> None:
    """Make one request, as a server of the interface does that has read it."""
    headers = [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {token}".encode())]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "scheme": "http",
        "http_version": "1.1",
    }
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": body}]
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()  # the client stays
        raise AssertionError("it never ends")

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)
    assert statuses == [200], statuses


def _cpu(work: Callable[[], None]) -> float:
    """Return the CPU seconds of one of the requests."""
    gc.collect()
    start = time.process_time()
    work()
    return (time.process_time() - start) / _REQUESTS
