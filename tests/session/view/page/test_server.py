from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from rath.errors import PersistenceError
from rath.session.persistence import sessions_dir
from rath.session.persistence.store import default_store
from rath.session.view.page import MAX_PAGES, BadRequest, Feed, Request, read_request
from tests.session.view.page.conftest import SlowRun, serving
from tests.support.sessions import run
from tests.support.waiting import PATIENCE


def ask(
    address: str, *, path: str | None = None, method: str = "GET", **headers: str
) -> http.client.HTTPResponse:
    """Ask a server for its page, or for another path; the answer may be read on."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.netloc, timeout=10)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, parts.path if path is None else path, headers=named)
    return connection.getresponse()


def events(response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    """Yield the events of a stream until it ends."""
    name = ""
    for line in response:
        word, _, rest = line.decode().rstrip("\n").partition(": ")
        if word == "event":
            name = rest
        elif word == "data":
            yield name, json.loads(rest)


def test_the_page_is_served_with_its_data(slow_run: SlowRun) -> None:
    with serving(slow_run.session) as served:
        response = ask(served.address)
        page = response.read().decode()
    assert response.status == 200
    assert "Wait, then say so." in page
    assert 'data-events="events/0"' in page
    assert "connect-src 'self'" in page
    assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("request_of", "status"),
    [
        pytest.param({"path": "/"}, 404, id="no secret"),
        pytest.param({"path": "/wrong/"}, 404, id="another secret"),
        pytest.param({"path": "//etc/passwd"}, 404, id="a file"),
        pytest.param({"method": "POST"}, 405, id="another method"),
        pytest.param({"host": "evil.example"}, 421, id="another name"),
        pytest.param({"origin": "https://evil.example"}, 403, id="another origin"),
        pytest.param({"origin": "null"}, 403, id="no origin"),
        pytest.param({"sec_fetch_site": "cross-site"}, 403, id="from another site"),
    ],
)
def test_a_request_of_others_is_refused(
    slow_run: SlowRun, request_of: dict[str, str], status: int
) -> None:
    with serving(slow_run.session) as served:
        response = ask(served.address, **request_of)
        reply = response.read().decode()
    assert response.status == status
    assert "Wait, then say so." not in reply


@pytest.mark.parametrize("rest", ["events/0", "events/7", "events/x", "page.html", "../"])
def test_nothing_else_is_served(slow_run: SlowRun, rest: str) -> None:
    with serving(slow_run.session) as served:
        assert ask(served.address, path=urlsplit(served.address).path + rest).status == 404


def test_new_rows_are_streamed_until_the_run_ends(slow_run: SlowRun) -> None:
    with serving(slow_run.session) as served:
        ask(served.address).read()
        stream = events(ask(served.address + "events/0"))
        first = next(stream)
        slow_run.may_go_on.set()
        reports = [first, *stream]
        assert served.ends.get(timeout=PATIENCE) == "completed"
    parts = [data for name, data in reports if name == "part"]
    texts = [row["t"] for part in parts for row in part["rows"] if "t" in row]
    assert texts[-1] == "The wait is over."
    assert texts.count("I wait.") == 0
    assert reports[0][0] == "now"
    assert reports[-1] == ("end", {"state": "completed"})


def test_a_page_that_comes_back_has_to_reload(slow_run: SlowRun) -> None:
    with serving(slow_run.session) as served:
        ask(served.address).read()
        next(events(ask(served.address + "events/0")))
        assert list(events(ask(served.address + "events/0"))) == [("again", {})]


def test_a_session_that_is_over_is_served_too(slow_run: SlowRun) -> None:
    slow_run.may_go_on.set()
    slow_run.session.synchronize()
    with serving(slow_run.session) as served:
        assert served.ends.get(timeout=PATIENCE) == "completed"
        ask(served.address).read()
        reports = list(events(ask(served.address + "events/0")))
    assert reports == [("now", []), ("end", {"state": "completed"})]


def test_a_page_that_many_others_followed_is_forgotten(slow_run: SlowRun) -> None:
    with serving(slow_run.session) as served:
        for _ in range(MAX_PAGES + 1):
            ask(served.address).read()
        assert ask(served.address + "events/0").status == 404
        assert ask(served.address + f"events/{MAX_PAGES}").status == 200


def test_a_silent_run_is_still_heard_of(slow_run: SlowRun) -> None:
    with serving(slow_run.session, beat=0.01) as served:
        ask(served.address).read()
        stream = ask(served.address + "events/0")
        reports = [stream.readline() for _ in range(5)]
    assert reports[3] == b": still here\n"


def test_a_log_that_becomes_unreadable_ends_the_server(slow_run: SlowRun) -> None:
    path = sessions_dir() / f"{slow_run.session.id}.jsonl.__partial__"
    with serving(slow_run.session) as served:
        content = path.read_bytes()
        path.write_bytes(content.replace(b"I wait.", b"I want.") + b"{}\n")
        with pytest.raises(PersistenceError):
            served.end(10)
        path.write_bytes(content)


def test_a_second_session_stands_next_to_the_one_that_is_followed() -> None:
    one, two = (run([text], persist=True).synchronize() for text in ("one", "two"))
    snapshot = Feed(default_store(), one.id, compare=two.id).read()
    assert [head.id for head in snapshot.heads] == [one.id, two.id]


WHOLE = b"GET /a HTTP/1.1\r\nHost: here\r\nX-Y:  z \r\n\r\n"


def read(data: bytes) -> Request:
    async def of_bytes() -> Request:
        reader = asyncio.StreamReader(limit=1000)
        reader.feed_data(data)
        reader.feed_eof()
        return await read_request(reader)

    return asyncio.run(of_bytes())


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(WHOLE[:-3], id="cut off"),
        pytest.param(b"GET\r\n\r\n", id="no target"),
        pytest.param(b"GET / HTTP/1.1\r\nHost\r\n\r\n", id="no value"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", id="two hosts"),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"x" * 2000 + b"\r\n\r\n", id="too long"),
        pytest.param(b"\x16\x03\x01\x00\xff\r\n\r\n", id="another protocol"),
    ],
)
def test_what_is_no_request_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest):
        read(data)
