"""The fake chat server as a child process, and the URLs of its behaviours."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running fake chat server."""

    port: int

    def url(self, behaviour: str) -> str:
        """The base URL of one behaviour, such as `tools-50`; ends with `/v1`."""
        return f"http://127.0.0.1:{self.port}/{behaviour}/v1"

    def take_peak(self) -> int:
        """The most requests in flight at once since this was last asked."""
        return self._counts()["peak"]

    def count_requests(self) -> int:
        """All requests since the server started."""
        return self._counts()["requests"]

    def _counts(self) -> dict[str, int]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/peak", timeout=10) as answer:
            counts: dict[str, int] = json.load(answer)
            return counts


@contextmanager
def serve() -> Generator[Endpoint, None, None]:
    """Start the fake chat server; it ends with the block, and with this process."""
    command = [sys.executable, "-m", "benchmarks.fake_chat_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Endpoint(int(json.loads(process.stdout.readline())["port"]))
        finally:
            process.stdin.close()
