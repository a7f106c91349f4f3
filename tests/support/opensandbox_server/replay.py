"""A recorded exchange between the SDK and the real server, done again with the test server.

Requests that the back end never sends are left out: the test server does not have them.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.opensandbox_server.server import OpenSandboxServer

IMAGE = "opensandbox/code-interpreter:v1.1.0"
"""An image that can run code."""

_LEFT_OUT = re.compile(
    r"/session|/command/status/|/command/\w+/logs|id=cfacad66|/files/(search|mv|permissions|replace)"
    r"|DELETE .*/directories|/(pause|resume) |/metrics|offset=|\"background\"|\"uid\"|EXECD_ENVS"
    r"|\$ZED"
)
"""Sessions, commands in the background or as another user, variables in a file, and the rest of the
API for files."""

_TIMES = ("sleep 0.2", "sleep 0.02"), ('"timeout":1000', '"timeout":100')
"""Shorter waits than those that were recorded."""
_UPLOADS = (
    (("/box/a.txt", 644, "héllo\nline2\nline3\n"),),
    (("/box/b.bin", 755, "\x00\x01"), ("/box/d/c.py", 755, "x=1")),
)
"""What the two uploads sent; their bodies were not recorded."""
_IGNORED_HEADERS = frozenset({"date"})
_SAME_VALUES = frozenset(
    {
        "accept-ranges",
        "cache-control",
        "content-disposition",
        "content-range",
        "content-type",
        "server",
        "transfer-encoding",
        "vary",
        "x-accel-buffering",
    }
)


@dataclass(frozen=True, slots=True)
class WireAnswer:
    """One answer: its status, its headers by lower-case name, its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Decode the body."""
        return json.loads(self.body)

    def texts(self, kind: str = "stdout") -> list[str]:
        """The texts of the events of one kind."""
        return [event["text"] for event in self.frames() if event["type"] == kind]

    def error(self) -> dict[str, Any] | None:
        """The error of a stream that has one."""
        return next((event["error"] for event in self.frames() if "error" in event), None)

    def frames(self) -> list[dict[str, Any]]:
        """The events of a stream."""
        return [json.loads(each) for each in self.body.split(b"\n\n") if each.strip()]


Api = Callable[..., WireAnswer]
"""A way to ask one of the APIs: method, path, and what else it takes."""


def ask(
    place: str,
    method: str,
    target: str,
    body: bytes | Mapping[str, Any] = b"",
    headers: Mapping[str, str] | None = None,
) -> WireAnswer:
    """Send one plain request, without the SDK, on a connection of its own.

    Args:
        place: Host and port.
        method: Such as `GET`.
        target: Path and query.
        body: Bytes, or what becomes JSON.
        headers: Headers of the request.

    Raises:
        OSError, http.client.HTTPException: The connection broke.
    """
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection(place, timeout=50)
    try:
        connection.request(method, target, data or None, dict(headers or {}))
        response = connection.getresponse()
        received = {name.lower(): value for name, value in response.getheaders()}
        return WireAnswer(response.status, received, response.read())
    finally:
        connection.close()


@dataclass(frozen=True, slots=True)
class WireExchange:
    """One recorded request and both answers to it."""

    name: str
    recorded: WireAnswer
    ours: WireAnswer


class Replay:
    """Sends recorded requests to the test server, with its ids in place of the recorded ones."""

    def __init__(self, server: OpenSandboxServer) -> None:
        self._server = server
        self._ids: dict[str, str] = {}
        self._places = {"127.0.0.1:18080": server.domain}
        self._uploads = iter(_UPLOADS)

    def run(self, path: Path) -> Iterator[WireExchange]:
        """Do all of a recording, in order."""
        for line in path.read_text("utf-8").splitlines():
            record: dict[str, Any] = json.loads(line)
            url = urlsplit(str(record["url"]))
            name = f"{record['m']} {url.path} {url.query}"
            if _LEFT_OUT.search(f"{name} {record['body']}"):
                continue
            recorded = WireAnswer(record["status"], record["rh"], record["rbody"].encode())
            target = self._ours(url.path) + (f"?{self._ours(url.query)}" if url.query else "")
            ours = ask(self._places[url.netloc], record["m"], target, *self._body(record))
            self._learn(recorded, ours)
            yield WireExchange(name, recorded, ours)

    def _body(self, record: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
        headers = dict(record["h"])
        headers.pop("content-length", None)
        if headers.pop("transfer-encoding", None):
            boundary = headers["content-type"].partition("boundary=")[2]
            return _multipart(next(self._uploads), boundary), headers
        text = self._ours(record["body"])
        for old, new in _TIMES:
            text = text.replace(old, new)
        if "expiresAt" in text:
            until = datetime.now(UTC) + timedelta(minutes=10)
            text = json.dumps({"expiresAt": until.isoformat()})
        return text.encode(), headers

    def _ours(self, text: str) -> str:
        for recorded, ours in self._ids.items():
            text = text.replace(recorded, ours)
        return text

    def _learn(self, recorded: WireAnswer, ours: WireAnswer) -> None:
        """Note which of our ids, and which of our ports, stands for a recorded one."""
        if is_stream(recorded) and is_stream(ours):
            self._ids[recorded.frames()[0]["text"]] = ours.frames()[0]["text"]
        elif is_json(recorded) and is_json(ours):
            then, now = recorded.json(), ours.json()
            if "id" in then and "id" in now:
                self._ids[then["id"]] = now["id"]
            if "endpoint" in then and "endpoint" in now:
                then_place = then["endpoint"].partition("/")[0]
                self._places[then_place] = now["endpoint"].partition("/")[0]


def is_json(said: WireAnswer) -> bool:
    """Whether the body is a JSON document."""
    return said.headers.get("content-type", "").startswith("application/json")


def is_stream(said: WireAnswer) -> bool:
    """Whether the body is a stream of events."""
    return said.headers.get("content-type", "") == "text/event-stream"


def shape(value: Any) -> Any:
    """What a document looks like: its keys and kinds of values, without the values."""
    if isinstance(value, Mapping):
        pairs: Mapping[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return {name: shape(each) for name, each in pairs.items()}
    if isinstance(value, list):
        items: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
        return [shape(each) for each in items]
    return "number" if isinstance(value, (int, float)) else type(value).__name__


def differences(exchange: WireExchange) -> list[str]:
    """How our answer is unlike the recorded one."""
    recorded, ours = exchange.recorded, exchange.ours
    found = _unlike("status", recorded.status, ours.status)
    names = [set(said.headers) - _IGNORED_HEADERS for said in (recorded, ours)]
    found += _unlike("names of headers", sorted(names[0]), sorted(names[1]))
    for name in sorted(_SAME_VALUES & names[0] & names[1]):
        found += _unlike(f"header {name}", recorded.headers[name], ours.headers[name])
    if is_stream(recorded):
        found += _unlike("events", *_events(recorded, ours))
    elif is_json(recorded) and is_json(ours):
        then, now = recorded.json(), ours.json()
        found += _unlike("shape of the document", shape(then), shape(now))
        if recorded.status >= 400:
            found += _unlike("error code", then["code"], now["code"])
    elif recorded.body:
        found += _unlike("body", recorded.body, ours.body)
    return [f"{exchange.name}: {each}" for each in found]


def _events(recorded: WireAnswer, ours: WireAnswer) -> tuple[list[Any], list[Any]]:
    """What both streams say, without order between the two outputs and without times."""
    return sorted(map(_event, recorded.frames())), sorted(map(_event, ours.frames()))


def _event(event: Mapping[str, Any]) -> str:
    told: dict[str, Any] = {"shape": shape(event), "type": event["type"]}
    if event["type"] == "stdout":
        told["text"] = event["text"]
    if event["type"] == "error":
        told["error"] = event["error"]
    return json.dumps(told, sort_keys=True)


def _unlike(what: str, recorded: object, ours: object) -> list[str]:
    return [] if recorded == ours else [f"{what}: recorded {recorded!r}, ours {ours!r}"]


def _multipart(files: Sequence[tuple[str, int, str]], boundary: str) -> bytes:
    lines: list[str] = []
    for path, mode, text in files:
        metadata = json.dumps({"path": path, "owner": None, "group": None, "mode": mode})
        for name, kind, content in (
            ("metadata", "application/json", metadata),
            ("file", "application/octet-stream", text),
        ):
            lines += [
                f"--{boundary}",
                f'Content-Disposition: form-data; name="{name}"; filename="{name}"',
                f"Content-Type: {kind}",
                "",
                content,
            ]
    return "\r\n".join([*lines, f"--{boundary}--", ""]).encode()
