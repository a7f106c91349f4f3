"""The test chat server does on the wire what the script says."""

import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.support import chat_replies as replies
from tests.support.chat_server import CapturedRequest, ChatServer

PATH = "/chat/completions"


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer() as server:
        yield server


@pytest.fixture
def client(server: ChatServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.base_url, timeout=50, trust_env=False) as client:
        yield client


def test_one_connection_serves_many_requests(server: ChatServer, client: httpx.Client) -> None:
    server.queue(*(replies.completion("x") for _ in range(3)))
    for _ in range(3):
        client.post(PATH, json={})
    assert server.n_connections == 1


def test_empty_script_answers_400_and_says_so(client: httpx.Client) -> None:
    answer = client.post(PATH, json={})
    assert answer.status_code == 400
    assert "queued no reply" in answer.text


def test_answer_function_is_asked_when_the_queue_is_empty() -> None:
    def echo(request: CapturedRequest) -> replies.Reply:
        return replies.completion(request.json()["say"])

    with ChatServer(echo) as server:
        answer = httpx.post(server.base_url + PATH, json={"say": "moo"}, trust_env=False)
    assert answer.json()["choices"][0]["message"]["content"] == "moo"


def test_error_in_the_answer_function_is_raised_by_close() -> None:
    def fail(request: CapturedRequest) -> replies.Reply:
        raise LookupError(request.path)

    server = ChatServer(fail)
    with pytest.raises(httpx.TransportError):
        httpx.post(server.base_url + PATH, json={}, trust_env=False)
    with pytest.raises(LookupError):
        server.close()


@pytest.mark.parametrize("how", ["close", "reset"])
def test_cut_stream_gives_its_first_events_and_then_breaks(
    server: ChatServer, client: httpx.Client, how: replies.CutHow
) -> None:
    gate = replies.Gate()
    server.queue(replies.event_stream(replies.text_chunk("he"), gate, replies.Cut(how)))
    with client.stream("POST", PATH, json={}) as answer:
        lines = answer.iter_lines()
        assert '"he"' in next(lines)
        gate.release()
        with pytest.raises(httpx.TransportError):
            list(lines)


@pytest.mark.parametrize("at", ["start", "headers", "body"])
def test_held_reply_times_out_the_client_and_notes_that_it_left(
    server: ChatServer, client: httpx.Client, at: replies.HeldAt
) -> None:
    gate = replies.Gate()
    server.queue(replies.held(replies.completion("late"), gate, at=at))
    with pytest.raises(httpx.ReadTimeout):
        client.post(PATH, json={}, timeout=httpx.Timeout(50, read=0.02))
    assert gate.reached.wait(50)
    assert gate.abandoned.wait(50)


def test_released_gate_lets_the_reply_go_on(server: ChatServer, client: httpx.Client) -> None:
    gate = replies.Gate()
    server.queue(replies.held(replies.completion("late"), gate, at="headers"))

    def release_when_reached() -> None:
        gate.reached.wait(50)
        gate.release()

    releasing = threading.Thread(target=release_when_reached)
    releasing.start()
    answer = client.post(PATH, json={})
    releasing.join()
    assert answer.json()["choices"][0]["message"]["content"] == "late"


def test_counts_requests_in_flight_at_once(server: ChatServer) -> None:
    gate = replies.Gate()
    server.queue(*(replies.held(replies.completion("x"), gate) for _ in range(3)))
    urls = [server.base_url + PATH] * 3
    threads = [
        threading.Thread(target=httpx.post, args=(url,), kwargs={"json": {}, "trust_env": False})
        for url in urls
    ]
    for thread in threads:
        thread.start()
    server.wait_for_requests(3)
    gate.release()
    for thread in threads:
        thread.join()
    assert server.max_in_flight == 3


def test_waiting_for_requests_that_never_come_ends(server: ChatServer) -> None:
    with pytest.raises(TimeoutError, match="0 of 1 requests"):
        server.wait_for_requests(1, timeout=0.01)


def test_close_does_not_wait_for_a_held_client() -> None:
    gate = replies.Gate()
    with ChatServer() as server:
        server.queue(replies.held(replies.completion("never"), gate, at="body"))
        failed: list[Exception] = []

        def ask(url: str = server.base_url + PATH) -> None:
            try:
                httpx.post(url, json={}, trust_env=False)
            except httpx.TransportError as exc:
                failed.append(exc)

        thread = threading.Thread(target=ask)
        thread.start()
        assert gate.reached.wait(50)
    thread.join(50)
    assert failed
