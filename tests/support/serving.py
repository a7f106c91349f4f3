"""Processes that serve workflows, and clients that call them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import uvicorn
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from starlette.types import ASGIApp

from tests.support.waiting import wait_until

PROGRAM = "tests.support.served_program:Team"
ROOT = Path(__file__).parents[2]


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of a process that serves, with a home of its own."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    known = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "OPENRATH_HOME": str(home)}
    return {**known, "SERVED_BEGUN": str(home / "begun"), "PYTHONUNBUFFERED": "", **more}


def command(*options: str, program: str = PROGRAM) -> list[str]:
    """Return the command line that serves a program."""
    return [sys.executable, "-m", "rath", "mcp", "serve", program, "--name", "team", *options]


def over_stdio(home: Path) -> StdioServerParameters:
    """Return what a client needs to start a server of its own."""
    program, *arguments = command()
    return StdioServerParameters(command=program, args=arguments, env=environment(home), cwd=ROOT)


@contextmanager
def stdio_process(home: Path) -> Generator[subprocess.Popen[bytes]]:
    """Start a server of which the test holds the pipes."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command(),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=environment(home),
        cwd=ROOT,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def http_process(
    home: Path, *options: str, **more: str
) -> Generator[tuple[subprocess.Popen[bytes], str]]:
    """Start a server on a free port; yield it and its address."""
    with subprocess.Popen(
        command("--http", "--port", "0", *options),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment(home, **more),
        cwd=ROOT,
    ) as process:
        try:
            assert process.stderr is not None
            said = b""
            while b"serving" not in said:
                said = process.stderr.readline()
                assert said, "it ended before it served"
            yield process, said.decode().split(" at ")[1].split(";")[0]
        finally:
            process.kill()


def ask(
    server: str | StdioServerParameters,
    use: Callable[[Client], Awaitable[Any]],
    *,
    mode: str = "auto",
    headers: dict[str, str] | None = None,
) -> Any:
    """Connect a client, use it, and return what came of that."""

    async def connect() -> Any:
        if isinstance(server, str):
            async with httpx2.AsyncClient(headers=headers or {}, timeout=30) as http:
                transport = streamable_http_client(server, http_client=http)
                async with Client(transport, mode=mode) as client:
                    return await use(client)
        async with Client(server, mode=mode) as client:
            return await use(client)

    return anyio.run(connect)


def told(
    server: str | StdioServerParameters,
    message: object,
    *,
    mode: str = "auto",
    headers: dict[str, str] | None = None,
    **more: object,
) -> dict[str, Any]:
    """Call the one tool and return the structured answer."""

    async def call(client: Client) -> Any:
        result = await client.call_tool("team", {"message": message, **more})
        return {**result.structured_content, "is_error": result.is_error}

    answer: dict[str, Any] = ask(server, call, mode=mode, headers=headers)
    return answer


def free_port() -> socket.socket:
    """Return a socket that listens on a free port."""
    return socket.create_server(("127.0.0.1", 0), backlog=512)


@contextmanager
def listening(
    app: ASGIApp, bound: socket.socket | None = None, *, server: uvicorn.Server | None = None
) -> Generator[str]:
    """Serve an application on a thread, on a free port or one that is bound; yield its address."""
    server = server or uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
    with bound or free_port() as bound:
        port = bound.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()
