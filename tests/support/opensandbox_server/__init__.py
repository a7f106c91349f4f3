"""A server for tests that speaks both APIs of OpenSandbox and runs what it is asked to run.

`server` is what a test holds: it takes requests, records them and lets faults happen (`http`).
`lifecycle` answers for `/v1`; everything else `container` passes on to `execd`, the daemon that
runs inside each sandbox, in bubblewrap: it alone touches what a client names.

The server has what the back end of `rath` asks for and no more. Its answers, and their order, are
those of a recorded exchange with the real server; where none was recorded, what the documents of
its makers say.
"""

from __future__ import annotations

from tests.support.chat_replies import Gate
from tests.support.opensandbox_server.http import Answer, CapturedRequest, CutStream, Drop
from tests.support.opensandbox_server.server import (
    OpenSandboxServer,
    UnavailableError,
    unavailable_reason,
)

__all__ = [
    "Answer",
    "CapturedRequest",
    "CutStream",
    "Drop",
    "Gate",
    "OpenSandboxServer",
    "UnavailableError",
    "unavailable_reason",
]
