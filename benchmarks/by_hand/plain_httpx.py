"""The programs on plain httpx, and on httpx2, which has the same interface."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import httpx2

from benchmarks.by_hand.add_tool import DESCRIPTION, PARAMETERS, QUESTION, SYSTEM, add

MODEL = "fake"
_PATH = "chat/completions"
_HEADERS = {"authorization": "Bearer x"}
_TIMEOUT = 60.0
_TOOLS = [
    {
        "type": "function",
        "function": {"name": "add", "description": DESCRIPTION, "parameters": PARAMETERS},
    }
]

Client = httpx.Client | httpx2.Client
AsyncClient = httpx.AsyncClient | httpx2.AsyncClient


def open_httpx(base_url: str) -> httpx.Client:
    """A client of httpx."""
    return httpx.Client(base_url=base_url, headers=_HEADERS, timeout=_TIMEOUT)


def open_httpx2(base_url: str) -> httpx2.Client:
    """A client of httpx2."""
    return httpx2.Client(base_url=base_url, headers=_HEADERS, timeout=_TIMEOUT)


# Both asynchronous clients keep their limit of 100 connections, so 200 calls go in two waves. More
# connections are slower: the pool's work grows with the square of their number, and 200 of them
# took 2.8 s with httpx 0.28 where two waves took 0.7 (0.8 and 0.5 s with httpx2 2.16).


def open_async_httpx(base_url: str) -> httpx.AsyncClient:
    """A client of httpx."""
    return httpx.AsyncClient(base_url=base_url, headers=_HEADERS, timeout=_TIMEOUT)


def open_async_httpx2(base_url: str) -> httpx2.AsyncClient:
    """A client of httpx2."""
    return httpx2.AsyncClient(base_url=base_url, headers=_HEADERS, timeout=_TIMEOUT)


def run_tools(client: Client) -> str:
    """Call the model and its tools until it answers with text."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION},
    ]
    while True:
        body = {"model": MODEL, "messages": messages, "tools": _TOOLS}
        response = client.post(_PATH, json=body)
        response.raise_for_status()
        message = response.json()["choices"][0]["message"]
        calls = message.get("tool_calls")
        if not calls:
            return str(message["content"])
        messages.append(message)
        for call in calls:
            result = add(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def fold_stream(client: Client, on_text: Callable[[str], object]) -> str:
    """Join a streamed answer, showing each piece as it comes."""
    parts: list[str] = []
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with client.stream("POST", _PATH, json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            choices = json.loads(line[6:])["choices"]
            if choices and (text := choices[0]["delta"].get("content")):
                on_text(text)
                parts.append(text)
    return "".join(parts)


async def ask(client: AsyncClient, question: str) -> str:
    """One question, one answer."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": question}]}
    response = await client.post(_PATH, json=body)
    response.raise_for_status()
    return str(response.json()["choices"][0]["message"]["content"])


async def fan_out(client: AsyncClient, n_calls: int) -> list[str]:
    """Ask `n_calls` questions at once."""
    return await asyncio.gather(*(ask(client, f"question {i}") for i in range(n_calls)))
