"""Scripted replies of the test chat server: pure functions that give the bytes on the wire."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

MODEL = "scripted-model"
CREATED = 1_700_000_000

CutHow = Literal["close", "reset"]
HeldAt = Literal["start", "headers", "body"]


class Gate:
    """A point in a reply where the server stops until the test says `release()`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = False
        self._callbacks: list[Callable[[], None]] = []
        self.reached = threading.Event()
        """Set once the server stands at this gate."""
        self.abandoned = threading.Event()
        """Set if the client hangs up while the server stands at this gate."""

    def release(self) -> None:
        """Let the server go on, now and at every later visit of this gate."""
        with self._lock:
            self._open = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def on_release(self, callback: Callable[[], None]) -> None:
        """Call `callback` at release (at once if released), on the releasing thread."""
        with self._lock:
            if not self._open:
                self._callbacks.append(callback)
                return
        callback()


@dataclass(frozen=True, slots=True)
class Cut:
    """The server closes the connection here, whatever is still missing."""

    how: CutHow = "close"
    """`close` ends the stream orderly (FIN), `reset` breaks it (RST)."""


Step = bytes | Gate | Cut
StreamItem = Mapping[str, Any] | str | Gate | Cut


@dataclass(frozen=True, slots=True)
class Reply:
    """What the server does with one request: send bytes, wait at a gate, cut the connection."""

    steps: tuple[Step, ...]


def raw(
    body: bytes | str,
    *,
    status: int = 200,
    content_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Send `body` as it stands, with its length."""
    payload = body.encode() if isinstance(body, str) else body
    head = {"content-length": str(len(payload)), "content-type": content_type, **(headers or {})}
    return Reply((_head(status, head) + payload,))


def json_body(
    value: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Reply:
    """Send `value` as JSON."""
    return raw(json.dumps(value), status=status, headers=headers)


def tool_call(
    name: str, arguments: str | Mapping[str, Any] = "{}", *, id: str = "call_1"
) -> dict[str, Any]:
    """One complete tool call of an assistant message; a string of arguments is sent as it is."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


def usage(prompt: int, completion: int, **details: Any) -> dict[str, Any]:
    """Token counts in the vendor's form; `details` adds keys such as `prompt_tokens_details`."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {**counts, "total_tokens": prompt + completion, **details}


def completion(
    content: str | None = None,
    *,
    tool_calls: tuple[Mapping[str, Any], ...] = (),
    finish_reason: str | None = None,
    usage: Mapping[str, Any] | None = None,
    model: str = MODEL,
    message: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """A normal, not streamed answer.

    Args:
        finish_reason: `tool_calls` or `stop` when left out, by what the answer holds.
        message: Further keys of the assistant message, such as `reasoning_content` or `refusal`.
    """
    body: dict[str, Any] = {"role": "assistant", "content": content, **(message or {})}
    if tool_calls:
        body["tool_calls"] = list(tool_calls)
    reason = finish_reason or ("tool_calls" if tool_calls else "stop")
    choice = {"index": 0, "message": body, "finish_reason": reason, "logprobs": None}
    envelope = {"id": "chatcmpl-1", "object": "chat.completion", "created": CREATED, "model": model}
    counts = {} if usage is None else {"usage": dict(usage)}
    return json_body({**envelope, "choices": [choice], **counts}, headers=headers)


def chunk(
    delta: Mapping[str, Any] | None = None,
    *,
    finish_reason: str | None = None,
    usage: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One chunk of a streamed answer; without a delta and a finish reason it has no choices."""
    choices = []
    if delta is not None or finish_reason is not None:
        choices = [{"index": 0, "delta": dict(delta or {}), "finish_reason": finish_reason}]
    envelope = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": MODEL,
    }
    counts = {} if usage is None else {"usage": dict(usage)}
    return {**envelope, "choices": choices, **counts}


def text_chunk(content: str) -> dict[str, Any]:
    """A chunk that adds `content` to the answer."""
    return chunk({"content": content})


def tool_chunk(
    arguments: str = "", *, index: int | None = 0, id: str | None = None, name: str | None = None
) -> dict[str, Any]:
    """A chunk of one tool call; `index=None` leaves the index out, as some servers do."""
    part: dict[str, Any] = {"function": {"arguments": arguments}}
    if index is not None:
        part["index"] = index
    if id is not None:
        part |= {"id": id, "type": "function"}
    if name is not None:
        part["function"]["name"] = name
    return chunk({"tool_calls": [part]})


def finish_chunk(reason: str = "stop") -> dict[str, Any]:
    """The chunk that ends the choice."""
    return chunk({}, finish_reason=reason)


def usage_chunk(prompt: int, completion: int, **details: Any) -> dict[str, Any]:
    """The last chunk of a stream that was asked for usage: no choices, only counts."""
    return chunk(usage=usage(prompt, completion, **details))


def event_stream(
    *items: StreamItem, done: bool = True, headers: Mapping[str, str] | None = None
) -> Reply:
    """Server-sent events, each in an HTTP chunk of its own.

    Args:
        items: A mapping is sent as JSON data, a string as raw data (so `"{oops"` is a malformed
            event), a `Gate` holds the stream there, a `Cut` ends the connection there.
        done: Whether the `[DONE]` marker follows the items.
    """
    head = {"content-type": "text/event-stream", "transfer-encoding": "chunked", **(headers or {})}
    steps: list[Step] = [_head(200, head)]
    steps += [_event(item) for item in items]
    if done:
        steps.append(_event("[DONE]"))
    return Reply((*steps, b"0\r\n\r\n"))


def text_stream(*parts: str, counts: tuple[int, int] | None = None) -> Reply:
    """A whole streamed text answer; `counts` adds the usage chunk (prompt, completion tokens)."""
    tail = () if counts is None else (usage_chunk(*counts),)
    return event_stream(*(text_chunk(part) for part in parts), finish_chunk(), *tail)


def status_error(
    status: int,
    message: str = "scripted error",
    *,
    code: str | None = None,
    kind: str = "invalid_request_error",
    retry_after: float | str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """An error in the vendor's JSON form; `retry_after` is seconds or an HTTP date."""
    error = {"message": message, "type": kind, "param": None, "code": code}
    wait = {} if retry_after is None else {"retry-after": str(retry_after)}
    return json_body({"error": error}, status=status, headers={**wait, **(headers or {})})


def model_list(*names: str, last: str | None = None) -> Reply:
    """A list of models; `last` says that another page follows it."""
    data = [{"id": name, "object": "model", "type": "model"} for name in names]
    more = {} if last is None else {"has_more": True, "last_id": last}
    return json_body({"object": "list", "data": data, **more})


def html(body: str = "<html><body>Bad gateway</body></html>", *, status: int = 200) -> Reply:
    """A web page where JSON belongs, as a proxy or a wrong base URL gives."""
    return raw(body, status=status, content_type="text/html; charset=utf-8")


def empty(*, status: int = 200) -> Reply:
    """No body at all."""
    return raw(b"", status=status)


def invalid_json(body: str = '{"id": "chatcmpl-1", "choices": [') -> Reply:
    """A body that says it is JSON and is not."""
    return raw(body)


def dropped(how: CutHow = "close") -> Reply:
    """The connection ends before a byte of the answer."""
    return Reply((Cut(how),))


def held(reply: Reply, gate: Gate, *, at: HeldAt = "start") -> Reply:
    """`reply`, stopped at `gate` before any byte, after the status line, or after the headers."""
    if at == "start":
        return Reply((gate, *reply.steps))
    first, *rest = reply.steps
    if not isinstance(first, bytes):
        raise TypeError(
            f"a reply that starts with {first!r} has no {at} to stop at; use at='start'"
        )
    end = b"\r\n" if at == "headers" else b"\r\n\r\n"
    cut = first.index(end) + len(end)
    return Reply((first[:cut], gate, first[cut:], *rest))


def truncated(reply: Reply, n_bytes: int) -> Reply:
    """`reply`, cut off `n_bytes` bytes before the end that its headers promise."""
    *first, last = reply.steps
    if not isinstance(last, bytes) or not 0 < n_bytes < len(last):
        raise ValueError(f"cannot take {n_bytes} bytes off a reply that ends with {last!r}")
    return Reply((*first, last[:-n_bytes], Cut()))


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [
        f"HTTP/1.1 {status} Scripted",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _event(item: StreamItem) -> Step:
    if isinstance(item, Gate | Cut):
        return item
    data = item if isinstance(item, str) else json.dumps(item)
    payload = f"data: {data}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(payload), payload)
