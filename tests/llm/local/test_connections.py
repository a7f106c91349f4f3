from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from rath.llm.local.server import sever_connections


class Served:
    """A listener with one accepted connection, and the client at its other end."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.client = socket.create_connection(("127.0.0.1", self.port))
        self.accepted, _ = self.listener.accept()

    def close_when_cut_off(self) -> None:
        with self.accepted:
            self.accepted.recv(1)


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    for sock in (made.client, made.accepted, made.listener):
        sock.close()


def test_server_that_lets_go_is_reported_as_free(served: Served) -> None:
    thread = threading.Thread(target=served.close_when_cut_off)
    thread.start()
    assert sever_connections(served.port, timeout=5)
    thread.join()


def test_client_sees_the_end_of_its_connection(served: Served) -> None:
    sever_connections(served.port, timeout=0)
    assert served.client.recv(1) == b""


def test_nobody_comes_after(served: Served) -> None:
    sever_connections(served.port, timeout=0)
    with contextlib.ExitStack() as stack, pytest.raises(OSError, match=r"."):
        stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=1))


def test_server_that_holds_on_is_reported(served: Served) -> None:
    assert not sever_connections(served.port, timeout=0)


def test_other_connections_stay(served: Served) -> None:
    other = Served()
    sever_connections(other.port, timeout=0)
    served.client.sendall(b"x")
    assert served.accepted.recv(1) == b"x"
    for sock in (other.client, other.accepted, other.listener):
        sock.close()
