"""What was asked of the server so far, and what is to go wrong next."""

from __future__ import annotations

import fnmatch
import threading

from tests.support.opensandbox_server.faults import Action, Fault
from tests.support.opensandbox_server.http import CapturedRequest


class Journal:
    """Requests in order of arrival, and faults in wait for them; for any thread."""

    def __init__(self) -> None:
        self._requests: list[CapturedRequest] = []
        self._faults: list[Fault] = []
        self._changed = threading.Condition()

    @property
    def requests(self) -> list[CapturedRequest]:
        """All requests so far."""
        with self._changed:
            return [*self._requests]

    def add(self, fault: Fault) -> None:
        """Let something go wrong; of several that fit, the oldest happens."""
        with self._changed:
            self._faults.append(fault)

    def clear_faults(self) -> None:
        """Let everything go well again."""
        with self._changed:
            self._faults.clear()

    def note(self, request: CapturedRequest) -> Action | None:
        """Add a request; gives what is to happen to it."""
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()
            taken = next((fault for fault in self._faults if fault.takes(request)), None)
            self._faults = [fault for fault in self._faults if fault.n_left != 0]
            return None if taken is None else taken.action

    def matching(self, method: str, path: str) -> list[CapturedRequest]:
        """Requests of a method (or `*`) whose path fits a pattern."""
        with self._changed:
            return self._fitting(method, path)

    def wait_for(self, method: str, path: str, *, n_requests: int, timeout: float) -> None:
        """Wait until so many requests of a kind have arrived in all.

        Raises:
            TimeoutError: Fewer arrived within `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: len(self._fitting(method, path)) >= n_requests, timeout
            ):
                n_now = len(self._fitting(method, path))
                what = f"{method} {path}"
                raise TimeoutError(f"{n_now} of {n_requests} {what} within {timeout} s")

    def _fitting(self, method: str, path: str) -> list[CapturedRequest]:
        return [
            request
            for request in self._requests
            if method in ("*", request.method) and fnmatch.fnmatchcase(request.path, path)
        ]
