"""A proxy before the PostgreSQL server of the tests, which cuts connections where it is told to."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path

from tests.support.postgres_server import PostgresServer

_PORT = ".s.PGSQL.5432"
_BYTES = 1 << 16


class PostgresProxy:
    """Passes on what clients and the server send.

    Args:
        server: The server.
        directory: Where its socket is.
    """

    def __init__(self, server: PostgresServer, directory: Path) -> None:
        self._server = server
        self.directory = directory
        self._lock = threading.Lock()
        self._marker: bytes | None = None
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / _PORT))
        self._listener.listen()
        self._serving = threading.Thread(target=self._serve)
        self._serving.start()

    def url(self, **options: str) -> str:
        """Return the URL of a schema of its own, reached through the proxy."""
        return self._server.url(host=str(self.directory), **options)

    def lose_answer_to(self, marker: bytes) -> None:
        """Let the next message with these bytes reach the server, and cut instead of answering."""
        with self._lock:
            self._marker = marker

    def cut(self) -> None:
        """Cut every connection, wherever it is."""
        with self._lock:
            connections = list(self._open)
        for each in connections:
            _shut(each)

    def close(self) -> None:
        """End it and all its connections."""
        _shut(self._listener)
        self._serving.join()
        self._listener.close()
        for thread in self._threads:
            while thread.is_alive():
                self.cut()
                thread.join(0.05)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                thread = threading.Thread(target=self._pass_on, args=(client,))
                self._threads.append(thread)
            thread.start()

    def _pass_on(self, client: socket.socket) -> None:
        is_lost = threading.Event()
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(str(self._server.directory / _PORT))
            with self._lock:
                self._open |= {client, server}
            answers = threading.Thread(target=_answer, args=(client, server, is_lost))
            answers.start()
            with contextlib.suppress(OSError):
                while data := client.recv(_BYTES):
                    with self._lock:
                        if self._marker is not None and self._marker in data:
                            self._marker = None
                            is_lost.set()
                    server.sendall(data)
            _shut(server)
            answers.join()
            with self._lock:
                self._open -= {client, server}


def _answer(client: socket.socket, server: socket.socket, is_lost: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while (data := server.recv(_BYTES)) and not is_lost.is_set():
            client.sendall(data)
    _shut(client)


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def running_proxy(server: PostgresServer) -> Generator[PostgresProxy]:
    """Start a proxy, and end it."""
    # Not below tmp_path: a socket's path has at most 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="rath-pgp-"))
    proxy = PostgresProxy(server, directory)
    try:
        yield proxy
    finally:
        proxy.close()
        shutil.rmtree(directory)
