"""Serving a workflow: its options, the check of all that is given, and the life of a server."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from dataclasses import field
from functools import partial
from typing import Any, Literal, cast, get_args

from rath._async.runtime import runtime, wait_interruptibly
from rath._core.dataclasses import dataclass
from rath.flow.tool.agent_tool import description_of, tool_name_of
from rath.flow.tool.options import TOOL_NAME
from rath.flow.workflow import Workflow
from rath.session.log.store import SessionStore

Transport = Literal["stdio", "http"]

_END_SECONDS = 1.8
"""How long serving may take to end once it was told to."""


def serve_mcp(
    workflow: Workflow | Callable[[], Workflow],
    *,
    name: str | None = None,
    transport: Transport = "stdio",
    host: str = "127.0.0.1",
    port: int = 8000,
    options: ServeOptions | None = None,
) -> None:
    """Serve a workflow as a tool of the Model Context Protocol; returns when serving ends.

    The tool takes a `message` and, to go on with an earlier call, its `session_id`. Each call is a
    run of its own; clients are told of its progress, and one that cancels its call ends the run.
    It ends with Ctrl-C or SIGTERM, over stdio also with the connection: runs are cancelled then,
    and their sessions can go on later.

    Over stdio, standard output belongs to the protocol: what the program prints goes to standard
    error.

    Args:
        workflow: The workflow, or what makes it without arguments, such as its class.
        name: Of the tool; by default the name of the workflow's class in snake case.
        transport: `stdio` for a client that starts this program, `http` for streamable HTTP.
        host: Address to listen on; another than this machine's own needs a token.
        port: To listen on; 0 for a free one, which is told on standard error.
        options: What else can be chosen.

    Raises:
        TypeError: It is no workflow.
        ValueError: There is no name, or one that no tool can have; or host, port or an option
            would not do.
        OSError: The port cannot be listened on.
    """
    chosen = options or ServeOptions()
    if transport not in get_args(Transport):
        raise ValueError(f"unknown transport {transport!r}: expected 'stdio' or 'http'")
    if chosen.sessions not in get_args(ServedSessions):
        raise ValueError(f"unknown sessions {chosen.sessions!r}: expected 'own' or 'any'")
    if transport == "stdio":
        _serve_stdio(workflow, name, chosen)
        return
    check_address(host, port, chosen)
    # On first use: a program that serves nothing shall not load a server.
    from rath.flow.serving.http import address_of, listen, serve_http  # noqa: PLC0415

    served = _WorkflowServer(workflow, name, chosen)
    with listen(host, port) as listening:
        where = address_of(listening, host, chosen.path)
        sys.stderr.write(f"serving {served.name!r} at {where}; Ctrl-C ends it\n")
        sys.stderr.flush()
        server = served.server()
        served.run(partial(serve_http, server, listening, host=host, options=chosen))


def _serve_stdio(
    workflow: Workflow | Callable[[], Workflow], name: str | None, options: ServeOptions
) -> None:
    from rath.flow.serving.server import claim_stdio, serve_stdio  # noqa: PLC0415  # as above

    with claim_stdio() as wire:
        served = _WorkflowServer(workflow, name, options)
        served.run(partial(serve_stdio, served.server(), wire))


class _WorkflowServer:
    """A workflow as it is served."""

    def __init__(
        self,
        workflow: Workflow | Callable[[], Workflow],
        name: str | None,
        options: ServeOptions,
    ) -> None:
        from rath.flow.serving.calls import Calls  # noqa: PLC0415  # on first use, as above

        instance: object = workflow if isinstance(workflow, Workflow) else workflow()
        if not isinstance(instance, Workflow):
            raise TypeError(
                f"serve_mcp takes a workflow or what makes one, not {type(instance).__name__}"
            )
        self.name = name or tool_name_of(instance)
        if TOOL_NAME.fullmatch(self.name) is None:
            raise ValueError(
                f"{self.name!r} cannot be the name of a tool; give 1 to 64 letters, digits, '_' "
                "or '-'"
            )
        self._description = options.description or description_of(instance) or f"Runs {self.name}."
        self._calls = Calls(instance, self.name, options)

    def server(self) -> Any:
        """Return the server of the protocol."""
        from rath.flow.serving.server import make_server  # noqa: PLC0415  # on first use, as above

        return make_server(self._calls, name=self.name, description=self._description)

    def run(self, serve: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Serve until it ends, or is told to."""
        with _interrupt_on_sigterm():
            running = runtime().submit(serve, label=f"serving {self.name}", at_exit="leave")
            try:
                wait_interruptibly(running.future)
            except KeyboardInterrupt:
                self._calls.cancel_all()
                runtime().cancel(running)
                with suppress(TimeoutError):
                    running.future.exception(timeout=_END_SECONDS)
                return
        error = running.future.exception()
        if error is not None and not _is_end(error):
            raise error


def _is_end(error: BaseException) -> bool:
    """Tell whether an error only says that the other side is gone."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return all(_is_end(each) for each in group.exceptions)
    return isinstance(error, BrokenPipeError | ConnectionResetError)


@contextmanager
def _interrupt_on_sigterm() -> Generator[None]:
    """Let SIGTERM end serving as Ctrl-C does, where this thread may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


ServedSessions = Literal["own", "any"]
"""With which stored sessions a client can go on: those that this workflow's server made, or any of
the store, which a client then can read by asking about them."""

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Options of a served workflow."""

    description: str | None = None
    """Description of the tool for models; by default that of the workflow."""

    persist: bool = True
    """Whether sessions are stored; a client goes on with none that is not."""

    store: SessionStore | None = None
    """Store of the sessions; None for that of the home."""

    run_seconds: float | None = None
    """How long a call may take; its run is cancelled then, and can go on later. None for no
    limit."""

    max_message_chars: int = 1_000_000
    """Longest message that is read; a guess above what models read."""

    sessions: ServedSessions = "own"
    path: str = "/mcp"
    """Of the address, over HTTP."""

    token: str | None = field(default=None, repr=False)
    """The bearer token that clients must send over HTTP; None for none."""

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
