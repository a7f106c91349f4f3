"""A pipe that tells which processes of a command are there, and when all of them are gone."""

from __future__ import annotations

import os
import select
from pathlib import Path

from tests.support.waiting import PATIENCE


class Witness:
    """A named pipe that the processes of a command hold open: at its end, all of them are gone."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(self.fd, True)
        # Held open from here too until the command has begun, so that reading waits for it.
        self._writer = os.open(path, os.O_WRONLY)

    def has_begun(self) -> bool:
        return bool(select.select([self.fd], [], [], 0)[0])

    def wait_begun(self) -> None:
        assert os.read(self.fd, 6) == b"begun\n"
        self.let_go()

    def pids(self, count: int) -> list[int]:
        """Wait for the process ids of so many processes, one a line."""
        lines = b""
        while lines.count(b"\n") < count:
            self._wait()
            lines += os.read(self.fd, 4096)
        self.let_go()
        return [int(line) for line in lines.split()]

    def pids_by_now(self) -> list[int]:
        lines = b""
        while self.has_begun():
            lines += os.read(self.fd, 4096)
        return [int(line) for line in lines.split()]

    def let_go(self) -> None:
        os.close(self._writer)

    def wait_all_gone(self) -> None:
        self._wait()
        assert os.read(self.fd, 1) == b""
        os.close(self.fd)

    def _wait(self) -> None:
        assert select.select([self.fd], [], [], PATIENCE)[0], "nothing came in time"
