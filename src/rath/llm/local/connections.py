"""Closing the connections of a server in this process from outside of it."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["sever_connections"]

_FD_DIRECTORY = Path("/dev/fd")
_POLL_SECONDS = 0.01


def sever_connections(port: int, *, timeout: float) -> bool:
    """Cut off everyone who is connected to a port that this process serves.

    Args:
        port: An IPv4 port of this process.
        timeout: Seconds that the server may take to let go of what was cut off.

    Returns:
        Whether no connection is left; False also where the platform cannot tell.
    """
    if not _FD_DIRECTORY.is_dir():
        return False
    # The listener goes first, so that nobody comes after. It is no longer known as one then.
    listeners = set[int]()
    for fd, found in _bound_sockets(port):
        if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            listeners.add(fd)
            _shut_down(found)
    for fd, found in _bound_sockets(port):
        if fd not in listeners:
            _shut_down(found)
    deadline = time.monotonic() + timeout
    while any(fd not in listeners for fd, _ in _bound_sockets(port)):
        if time.monotonic() >= deadline:
            return False
        # The server's threads close the sockets, and tell nobody.
        time.sleep(_POLL_SECONDS)
    return True


def _bound_sockets(port: int) -> Iterator[tuple[int, socket.socket]]:
    """Yield the descriptor and a duplicate of each socket of this process on its own `port`."""
    for fd in map(int, os.listdir(_FD_DIRECTORY)):
        with contextlib.suppress(OSError), _duplicate(fd) as found:
            if found.family == socket.AF_INET and found.getsockname()[1] == port:
                yield fd, found


def _duplicate(fd: int) -> socket.socket:
    copy = os.dup(fd)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


def _shut_down(found: socket.socket) -> None:
    # The peer may have gone already, and some platforms keep their listeners open.
    with contextlib.suppress(OSError):
        found.shutdown(socket.SHUT_RDWR)
