"""Recorded exchanges with models: files of requests and answers, and a server that replays them.

`python -m tests.support.exchanges` makes the files anew, see `tests/data/exchanges/README.md`.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from rath.conformance import check_chat_client
from rath.llm import Provider
from rath.llm.local.server import ensure_server
from tests.support import chat_replies
from tests.support.asking import KEY
from tests.support.chat_replies import Reply, StreamItem
from tests.support.chat_server import CapturedRequest, ChatServer
from tests.support.served_model import MODEL, serve_model
from tests.support.served_model.server import form_of

FOLDER = Path(__file__).parents[1] / "data" / "exchanges"
SOURCES = ("scripted", "embedded")
PROTOCOLS = ("openai", "anthropic")
EMBEDDED_MODEL = "qwen2.5-coder-0.5b-instruct"
_SECRETS = ("authorization", "x-api-key")
_MODELS = "models"
_SENT = (*_SECRETS, "content-type", "anthropic-version")


@dataclass(frozen=True, slots=True)
class Recorded:
    """An exchange: one line of a file."""

    path: str
    request: Any
    """The body, None where there is none."""

    status: int
    content_type: str
    answer: str

    def reply(self) -> Reply:
        """The answer; of a stream, each event is a piece of its own."""
        if self.content_type != "text/event-stream":
            return chat_replies.raw(self.answer, status=self.status, content_type=self.content_type)
        return chat_replies.event_stream(*_events(self.answer), done=False)


def load(source: str, protocol: str) -> list[Recorded]:
    """Read a file."""
    lines = (FOLDER / f"{source}-{protocol}.jsonl").read_text("utf-8").split("\n")
    return [Recorded(**json.loads(line)) for line in lines if line]


@contextmanager
def replayed(source: str, protocol: str) -> Generator[ChatServer, None, None]:
    """Serve the answers of a file to the requests that were recorded with them."""
    answers = {_key(each.path, each.request): each for each in load(source, protocol)}

    def answer(request: CapturedRequest) -> Reply:
        found = answers.get(_key(request.path, request.json()))
        if found is None:
            return chat_replies.status_error(
                400, "no such request was recorded; python -m tests.support.exchanges records anew"
            )
        return found.reply()

    with ChatServer(answer, models=_listing(answers)) as server:
        yield server


def _listing(answers: Mapping[str, Recorded]) -> Callable[[CapturedRequest], Reply] | None:
    found = answers.get(_MODELS)
    return None if found is None else lambda _: found.reply()


def _key(path: str, body: Any) -> str:
    """Return what makes a request: what its model is asked, however that is written down."""
    if path.partition("?")[0].endswith("/models"):
        return _MODELS
    form = form_of(path)
    return path if form is None else form.read(body).key


def _events(text: str) -> Iterator[StreamItem]:
    for event in re.split(r"\n\n", text.replace("\r\n", "\n")):
        if event.startswith("data: "):
            yield event.removeprefix("data: ")
        elif event:
            name, _, data = event.partition("\ndata: ")
            yield f"{data}\n{name}"


class _Recorder:
    """Passes requests on and keeps the first answer to each."""

    def __init__(self, root: str, key: str) -> None:
        self._root = root
        self._key = key
        self.kept: dict[str, Recorded] = {}

    def __call__(self, request: CapturedRequest) -> Reply:
        """Ask and wait; one request after the other, which is enough for a recording."""
        own = {"authorization": f"Bearer {self._key}", "x-api-key": self._key}
        sent = {name: value for name, value in request.headers.items() if name in _SENT}
        sent |= {name: value for name, value in own.items() if name in sent}
        asked = urllib.request.Request(
            self._root + request.path, request.body or None, sent, method=request.method
        )
        try:
            with urllib.request.urlopen(asked) as answered:
                status, headers, body = answered.status, answered.headers, answered.read()
        except HTTPError as exc:
            status, headers, body = exc.code, exc.headers, exc.read()
        recorded = Recorded(
            path=request.path,
            request=json.loads(request.body or "null"),
            status=status,
            content_type=headers.get_content_type(),
            answer=body.decode(),
        )
        key = _key(request.path, recorded.request)
        return self.kept.setdefault(key, recorded).reply()


def _record(source: str, protocol: str, root: str, provider: Provider) -> None:
    assert provider.api_key is not None
    recorder = _Recorder(root, provider.api_key)
    with ChatServer(recorder, models=recorder) as server:
        asked = replace(provider, base_url=server.base_url, provider_kind=protocol)
        unknown = "no-such-model" if source == "scripted" else None
        sys.stdout.write(f"{check_chat_client(asked, unknown_model=unknown)}\n")
    lines = [json.dumps(asdict(each), ensure_ascii=False) for each in recorder.kept.values()]
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{source}-{protocol}.jsonl").write_text("\n".join([*lines, ""]), "utf-8")


def _record_all() -> None:
    endpoint = ensure_server(None)
    embedded = Provider(model=endpoint.model, api_key=endpoint.api_key, temperature=0, seed=1)
    with serve_model() as server:
        scripted = Provider(model=MODEL, api_key=KEY)
        for protocol in PROTOCOLS:
            _record("scripted", protocol, server.base_url.removesuffix("/v1"), scripted)
            _record("embedded", protocol, endpoint.base_url.removesuffix("/v1"), embedded)


if __name__ == "__main__":
    _record_all()
