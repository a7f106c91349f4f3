"""A server for tests that speaks both APIs of OpenSandbox and runs what it is asked to run.

`server` is what a test holds. A request comes in through `connections`, which writes it down in
`journal` and lets `faults` happen; `lifecycle` answers for `/v1` (`wishes` reads what a new sandbox
is to be, `records` tells of it, `runtime` makes it), and `container` passes everything else on to
`execd`, the daemon that runs inside the sandbox, in bubblewrap: it alone touches what a client
names. What it says, and when, is that of a recorded exchange with the real server; where none was
recorded, what the documents of its makers say.
"""

from __future__ import annotations

from tests.support.chat_replies import Gate
from tests.support.opensandbox_server.faults import Answer, CutStream, Delay, Drop
from tests.support.opensandbox_server.http import CapturedRequest
from tests.support.opensandbox_server.server import (
    OpenSandboxServer,
    UnavailableError,
    unavailable_reason,
)

__all__ = [
    "Answer",
    "CapturedRequest",
    "CutStream",
    "Delay",
    "Drop",
    "Gate",
    "OpenSandboxServer",
    "UnavailableError",
    "unavailable_reason",
]
