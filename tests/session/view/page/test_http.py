from __future__ import annotations

import asyncio

import pytest

from rath.session.view.page import BadRequest, Request, event, read_request

WHOLE = b"GET /a HTTP/1.1\r\nHost: here\r\nX-Y:  z \r\n\r\n"


def read(data: bytes) -> Request:
    async def of_bytes() -> Request:
        reader = asyncio.StreamReader(limit=1000)
        reader.feed_data(data)
        reader.feed_eof()
        return await read_request(reader)

    return asyncio.run(of_bytes())


def test_a_request_is_read() -> None:
    assert read(WHOLE) == Request("GET", "/a", {"host": "here", "x-y": "z"})


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


def test_an_event_is_one_block() -> None:
    assert event("part", '{"a": 1}') == b'event: part\ndata: {"a": 1}\n\n'
