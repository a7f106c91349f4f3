"""A recorded exchange between the SDK and the real server, done again with the test server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.opensandbox_server.raw import Said, ask
from tests.support.opensandbox_server.server import OpenSandboxServer

_TIMES = ("sleep 0.2", "sleep 0.02"), ('"timeout":1000', '"timeout":100')
"""Shorter waits than those that were recorded."""
_UPLOADS = (
    (("/box/a.txt", 644, "héllo\nline2\nline3\n"),),
    (("/box/b.bin", 755, "\x00\x01"), ("/box/d/c.py", 755, "x=1")),
)
"""What the two uploads sent; their bodies were not recorded."""
_UNRECORDED = "echo bg1; echo bg2; until [ -e /tmp/go ]; do sleep 0.01; done; echo bg3"
"""What stands for a background command whose start is missing in the recording."""
_GO_ON = "touch /tmp/go"
_MAX_ASKED = 2000
_IGNORED_HEADERS = frozenset({"date"})
_SAME_VALUES = frozenset(
    {
        "accept-ranges",
        "cache-control",
        "content-disposition",
        "content-range",
        "content-type",
        "execd-commands-tail-cursor",
        "server",
        "transfer-encoding",
        "vary",
        "x-accel-buffering",
    }
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One recorded request and both answers to it."""

    name: str
    recorded: Said
    ours: Said


class Replay:
    """Sends recorded requests to the test server, with its ids in place of the recorded ones."""

    def __init__(self, server: OpenSandboxServer) -> None:
        self._server = server
        self._ids: dict[str, str] = {}
        self._places = {"127.0.0.1:18080": server.domain}
        self._uploads = iter(_UPLOADS)

    def run(self, path: Path) -> Iterator[Exchange]:
        """Do all of a recording, in order."""
        for line in path.read_text("utf-8").splitlines():
            record: dict[str, Any] = json.loads(line)
            url = urlsplit(str(record["url"]))
            if "/command/status/aa82" in url.path and not self._knows("aa82"):
                self._start_unrecorded(url.netloc, url.path.rpartition("/")[2])
            recorded = Said(record["status"], record["rh"], record["rbody"].encode())
            target = self._ours(url.path) + (f"?{self._ours(url.query)}" if url.query else "")
            body, headers = self._body(record)
            place = self._places[url.netloc]
            if url.query == "cursor=8":
                self._run(place, {"command": _GO_ON})
            ours = ask(place, record["m"], target, body, headers)
            for _ in range(_MAX_ASKED):
                if not _is_early(recorded, ours):
                    break
                ours = ask(place, record["m"], target, body, headers)
            self._learn(recorded, ours, url.netloc)
            yield Exchange(f"{record['m']} {url.path}?{url.query}", recorded, ours)

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

    def _knows(self, start: str) -> bool:
        return any(each.startswith(start) for each in self._ids)

    def _start_unrecorded(self, place: str, recorded_id: str) -> None:
        said = self._run(self._places[place], {"command": _UNRECORDED, "background": True})
        self._ids[recorded_id] = said.frames()[0]["text"]

    @staticmethod
    def _run(place: str, command: Mapping[str, Any]) -> Said:
        return ask(place, "POST", "/proxy/44772/command", command)

    def _learn(self, recorded: Said, ours: Said, place: str) -> None:
        """Note which of our ids, and which of our ports, stands for a recorded one."""
        if is_stream(recorded) and is_stream(ours):
            self._ids[recorded.frames()[0]["text"]] = ours.frames()[0]["text"]
        elif is_json(recorded) and is_json(ours):
            then, now = recorded.json(), ours.json()
            for name in ("id", "session_id"):
                if name in then and name in now:
                    self._ids[then[name]] = now[name]
            if "endpoint" in then and "endpoint" in now:
                then_place = then["endpoint"].partition("/")[0]
                self._places[then_place] = now["endpoint"].partition("/")[0]


def _is_early(recorded: Said, ours: Said) -> bool:
    """Whether a background command has not come as far as it had when this was recorded."""
    cursor = "execd-commands-tail-cursor"
    if cursor in recorded.headers:
        return int(ours.headers[cursor]) < int(recorded.headers[cursor])
    return b'"running":false' in recorded.body and b'"running":true' in ours.body


def is_json(said: Said) -> bool:
    """Whether the body is a JSON document."""
    return said.headers.get("content-type", "").startswith("application/json")


def is_stream(said: Said) -> bool:
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


def differences(exchange: Exchange) -> list[str]:
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


def _events(recorded: Said, ours: Said) -> tuple[list[Any], list[Any]]:
    """What both streams say, without order between the two outputs and without times.

    Of a background command only the first event was recorded: the SDK left before the next.
    """
    then, now = recorded.frames(), ours.frames()
    if len(then) == 1:
        now = now[:1]
    return sorted(map(_event, then)), sorted(map(_event, now))


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
