"""A fast OpenAI-compatible chat server of fixed answers, run as a process of its own.

The first part of the URL path says how it behaves, so `base_url` chooses it:

    /reply/v1            a short text
    /message             the same as Anthropic's SDK asks for it
    /tools-50/v1         one tool call until the request holds 50 tool results, then a text
    /tools-1x8/v1        the same, 8 calls a round: done at 1 * 8 results
    /tools-3-cut-10/v1   the same as tools-3, but each 10th request of the server gets no answer or
                         half of one, and its connection is closed
    /delay-100ms/v1      a short text after 100 ms; all requests wait side by side
    /stream-2000/v1      server-sent events of 2,000 text deltas
    /peak                GET: the most requests in flight at once since the last call, and how many
                         there were in all, as JSON

It prints `{"port": N}` and ends when its standard input closes, so it never outlives its parent.
It counts tool results with `bytes.count` and never parses a body, so that it stays far cheaper than
any client that it measures.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
from dataclasses import dataclass
from functools import lru_cache

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_ENVELOPE = {"id": "chatcmpl-0", "created": 1_700_000_000, "model": "fake"}
_CHUNK = {**_ENVELOPE, "object": "chat.completion.chunk"}
_BACKLOG = 4096


@dataclass(frozen=True, slots=True)
class Reply:
    """A short text after a delay."""

    delay: float = 0.0
    """Seconds."""
    is_message: bool = False
    """In the format of Anthropic."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Tool calls until the request holds enough results."""

    rounds: int
    calls_per_round: int
    cut_each: int = 0
    """Of so many requests one is cut; 0 for none."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A streamed text."""

    n_deltas: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The most requests in flight at once; asking resets it."""


Behaviour = Reply | Tools | Stream | Peak


@lru_cache
def behaviour(path: str) -> Behaviour:
    """What the path of a request asks for.

    Raises:
        ValueError: The first part of the path names no behaviour.
    """
    name = path.split("/")[1]
    if name == "reply":
        return Reply()
    if name == "message":
        return Reply(is_message=True)
    if name == "peak":
        return Peak()
    if found := re.fullmatch(r"delay-(\d+)ms", name):
        return Reply(int(found[1]) / 1000)
    if found := re.fullmatch(r"tools-(\d+)(?:x(\d+))?(?:-cut-(\d+))?", name):
        return Tools(int(found[1]), int(found[2] or 1), int(found[3] or 0))
    if found := re.fullmatch(r"stream-(\d+)", name):
        return Stream(int(found[1]))
    raise ValueError(f"no behaviour named {name!r}; the module docstring lists them")


class Connection(asyncio.Protocol):
    """One keep-alive connection; takes one request at a time, as chat clients send them."""

    in_flight = 0
    peak = 0
    n_requests = 0

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._needed:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            self._needed = end + 4 + _content_length(self._buffer[:end])
        if len(self._buffer) >= self._needed:
            request, self._buffer, self._needed = self._buffer, bytearray(), 0
            self._respond(request)

    def _respond(self, request: bytearray) -> None:
        Connection.in_flight += 1
        Connection.n_requests += 1
        Connection.peak = max(Connection.peak, Connection.in_flight)
        path = bytes(request[: request.find(b"\r\n")]).split(b" ")[1].decode()
        match behaviour(path):
            case Reply(delay=0.0, is_message=is_message):
                self._finish(_message_bytes() if is_message else _reply_bytes())
            case Reply(delay=delay):
                asyncio.get_running_loop().call_later(delay, self._finish, _reply_bytes())
            case Tools(cut_each=each) if each and Connection.n_requests % each == 0:
                answer = _reply_bytes()
                self._finish(
                    answer[: len(answer) // 2] if Connection.n_requests // each % 2 else b""
                )
                self._transport.close()
            case Tools(rounds=rounds, calls_per_round=n_calls):
                done = request.count(b'"tool_call_id"')
                more = done < rounds * n_calls
                self._finish(_calls_bytes(done, n_calls) if more else _reply_bytes())
            case Stream(n_deltas=n_deltas):
                self._finish(_stream_bytes(n_deltas))
            case Peak():
                peak, Connection.peak = Connection.peak, 0
                counts = {"peak": peak, "requests": Connection.n_requests}
                self._finish(_json_bytes(counts))

    def _finish(self, data: bytes) -> None:
        Connection.in_flight -= 1
        self._transport.write(data)


def _content_length(head: bytearray) -> int:
    found = head.lower().find(b"content-length:")
    return 0 if found < 0 else int(head[found + 15 :].split(b"\r\n", 1)[0])


def _json_bytes(value: object) -> bytes:
    body = json.dumps(value).encode()
    return _HEAD % (len(body), body)


def _completion(message: dict[str, object], reason: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    usage = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
    return _json_bytes(
        {**_ENVELOPE, "object": "chat.completion", "choices": [choice], "usage": usage}
    )


@lru_cache
def _reply_bytes() -> bytes:
    return _completion({"content": "The work is done."}, "stop")


@lru_cache
def _message_bytes() -> bytes:
    text = {"type": "text", "text": "The work is done."}
    message = {"id": "msg_0", "type": "message", "role": "assistant", "model": "fake"}
    usage = {"input_tokens": 20, "output_tokens": 5}
    end = {"stop_reason": "end_turn", "stop_sequence": None, "usage": usage}
    return _json_bytes({**message, "content": [text], **end})


@lru_cache(maxsize=1024)
def _calls_bytes(done: int, n_calls: int) -> bytes:
    calls = [
        {
            "id": f"call_{done + i}",
            "type": "function",
            "function": {"name": "add", "arguments": json.dumps({"a": done, "b": i})},
        }
        for i in range(n_calls)
    ]
    return _completion({"content": None, "tool_calls": calls}, "tool_calls")


@lru_cache
def _stream_bytes(n_deltas: int) -> bytes:
    """The whole answer; each event is an HTTP chunk of its own."""
    words = b"".join(_event({"content": f"word{i} "}, None) for i in range(n_deltas))
    events = _event({"role": "assistant", "content": ""}, None) + words
    counts = {"prompt_tokens": 20, "completion_tokens": n_deltas, "total_tokens": 20 + n_deltas}
    usage = _chunk(json.dumps({**_CHUNK, "choices": [], "usage": counts}))
    end = _event({}, "stop") + usage + _chunk("[DONE]") + b"0\r\n\r\n"
    return _STREAM_HEAD + events + end


def _event(delta: dict[str, object], reason: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return _chunk(json.dumps({**_CHUNK, "choices": [choice]}))


def _chunk(data: str) -> bytes:
    payload = f"data: {data}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(payload), payload)


async def main() -> None:
    """Serve until standard input closes."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    server = await loop.create_server(Connection, "127.0.0.1", 0, backlog=_BACKLOG)

    def watch_parent() -> None:
        sys.stdin.buffer.read()
        loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=watch_parent, daemon=True).start()
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await stop.wait()


if __name__ == "__main__":
    asyncio.run(main())
