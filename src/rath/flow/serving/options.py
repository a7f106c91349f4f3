"""What of a served workflow can be chosen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rath.session.log.store import SessionStore

ServedSessions = Literal["own", "any"]
"""With which stored sessions a client can go on: those that this workflow's server made, or any of
the store, which a client then can read by asking about them."""

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What of a served workflow can be chosen."""

    description: str | None = None
    """What the tool is good for; by default what the workflow says of itself."""

    persist: bool = True
    """Whether sessions are stored; a client goes on with none that is not."""

    store: SessionStore | None = None
    """Where; None for the store of the home."""

    sessions: ServedSessions = "own"
    path: str = "/mcp"
    """Of the address, over HTTP."""

    token: str | None = field(default=None, repr=False)
    """What a client must send as `Authorization: Bearer`, over HTTP; None for nothing."""

    allowed_hosts: tuple[str, ...] = ()
    """Further names by which clients may call the server, as `name:port` or `name:*`."""


def check_address(host: str, port: int, options: ServeOptions) -> None:
    """Refuse what must not be served over HTTP.

    Raises:
        ValueError: Host and token would let anybody in, or something is out of range.
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"port {port} is out of range; give 1 to 65535, or 0 for a free one")
    if not options.path.startswith("/"):
        raise ValueError(f"the path {options.path!r} must begin with '/', such as '/mcp'")
    if options.token is not None and (not options.token.strip() or not options.token.isascii()):
        raise ValueError("the token is empty or not ASCII; give some random characters, or none")
    if host not in LOOPBACK and options.token is None:
        raise ValueError(
            f"serving on {host!r} lets everybody on that network run the workflow, with its tools "
            "and on your account; give a token (--token-env NAME, or ServeOptions(token=...)), or "
            "serve on 127.0.0.1"
        )
