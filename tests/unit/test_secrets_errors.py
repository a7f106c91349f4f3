"""Law 9: no error, and no log of it, shows the key that an endpoint repeats."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from traceback import TracebackException

import pytest

from rath.errors import ProviderError
from rath.llm import RathLLMStreamDelta
from tests.support import chat_replies
from tests.support.asking import NoSleep, exchange
from tests.support.canaries import seen, shown_of
from tests.support.chat_replies import Reply
from tests.support.chat_server import ChatServer
from tests.support.dialects import Dialect
from tests.support.echoes import client_of, failing, failing_by_headers, provider_of

OnDelta = Callable[[RathLLMStreamDelta], None] | None
KEY = "sk-cNry-0123456789abcdef"


def ignore(_: RathLLMStreamDelta) -> None:
    pass


@pytest.mark.parametrize(
    ("key", "on_delta"),
    [
        ("sk-cNry-0123456789abcdef", ignore),
        ("x%y&z?cNry#=:@/+ab==", None),
        ("q\"u'o\\t<cNry>{}$`w1", None),
        ('c%"cNry', ignore),
        ("cNry01", None),
    ],
    ids=["plain", "address", "quotes", "odd", "short"],
)
def test_no_error_repeats_a_key(
    server: ChatServer, dialect: Dialect, key: str, on_delta: OnDelta, logged: io.StringIO
) -> None:
    # A short word may well be the name of a model.
    server.models = [key, f"model-{key}"] if len(key) >= 16 else ["n"]
    client = client_of(dialect, server, key)
    for reply in failing(dialect, key):
        server.queue(reply)
        with pytest.raises(ProviderError) as caught:
            exchange(client, on_delta=on_delta)
        assert seen(key, *shown_of(caught.value)) == []
    assert "HTTP Request: POST" in logged.getvalue()
    assert seen(key, logged.getvalue()) == []


def test_no_error_and_no_log_repeats_what_stands_in_headers(
    server: ChatServer, dialect: Dialect, logged: io.StringIO
) -> None:
    client = client_of(dialect, server, KEY)
    for reply in failing_by_headers(KEY):
        server.queue(reply)
        with pytest.raises(ProviderError) as caught:
            exchange(client)
        assert seen(KEY, *shown_of(caught.value)) == []
    assert "bad header ***" in logged.getvalue()
    assert seen(KEY, logged.getvalue()) == []


def broken(dialect: Dialect) -> Iterator[Reply]:
    """Failures of every kind that say nothing of a key."""
    yield from (dialect.error(status) for status in (400, 401, 403, 404, 413, 429, 500, 529))
    yield from (chat_replies.dropped(), chat_replies.dropped("reset"), chat_replies.empty())
    yield from (chat_replies.html(), chat_replies.invalid_json(), chat_replies.json_body([]))
    yield dialect.stream(*dialect.begin, chat_replies.Cut())
    yield chat_replies.event_stream("{oops", done=False)
    yield chat_replies.raw(b"", status=307, headers={"location": "http://127.0.0.1:1/x"})
    yield chat_replies.held(dialect.answer, chat_replies.Gate())


@pytest.mark.parametrize("on_delta", [None, ignore], ids=["whole", "streamed"])
def test_no_local_variable_shows_a_key(
    server: ChatServer, dialect: Dialect, on_delta: OnDelta
) -> None:
    server.models = ["n"]
    provider = replace(provider_of(dialect, server, KEY), timeout=0.05)
    client = dialect.make(provider, sleep=NoSleep())
    for reply in broken(dialect):
        server.queue(reply)
        with pytest.raises(ProviderError) as caught:
            exchange(client, on_delta=on_delta)
        frames = TracebackException.from_exception(caught.value, capture_locals=True)
        assert seen(KEY, "".join(frames.format())) == []
