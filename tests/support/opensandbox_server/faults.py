"""What a test can make go wrong: which requests are concerned, and what happens to them."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.support.chat_replies import Gate
from tests.support.opensandbox_server.http import CapturedRequest, Reply, json_reply

CutHow = Literal["close", "reset"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The request is not carried out; this is the answer."""

    status: int
    body: Mapping[str, Any] | bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def to_reply(self) -> Reply:
        """The answer to send."""
        if isinstance(self.body, bytes):
            return Reply(self.status, self.body, self.headers)
        made = json_reply(self.body, self.status)
        return Reply(made.status, made.body, {**made.headers, **self.headers})


@dataclass(frozen=True, slots=True)
class CutStream:
    """The request is carried out; of its event stream so many frames come, then it breaks."""

    n_frames: int
    how: CutHow = "close"


@dataclass(frozen=True, slots=True)
class Drop:
    """The connection ends without an answer, before or after the request was carried out."""

    when: Literal["before", "after"] = "before"
    how: CutHow = "close"


@dataclass(frozen=True, slots=True)
class Delay:
    """The request is carried out so many seconds later."""

    seconds: float


Action = Answer | CutStream | Drop | Delay | Gate
"""At a `Gate` a request waits until the test releases it."""


class Fault:
    """Something that happens to requests of one kind.

    Args:
        method: Such as `POST`, or `*`.
        path: Pattern of the path with `*` and `?`, such as `/v1/sandboxes` or `/command`.
        skip: So many fitting requests pass first.
        times: So many are concerned then; None for all.
    """

    def __init__(
        self, method: str, path: str, action: Action, *, skip: int = 0, times: int | None = 1
    ) -> None:
        self.action = action
        self.n_left = times
        """How many requests this is still waiting for; None without end."""
        self._method = method
        self._path = path
        self._n_skip = skip

    def takes(self, request: CapturedRequest) -> bool:
        """Whether this happens to a request; each yes counts."""
        fits = self._method in ("*", request.method)
        if not fits or not fnmatch.fnmatchcase(request.path, self._path):
            return False
        if self._n_skip:
            self._n_skip -= 1
            return False
        if self.n_left is None:
            return True
        self.n_left -= 1
        return self.n_left >= 0
