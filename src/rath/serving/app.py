"""The server: its options, the guard before all routes, and its life."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, cast

from rath._core.dataclasses import dataclass
from rath.errors import MissingExtra
from rath.flow.serving.serve import LOOPBACK
from rath.flow.tool.agent_tool import tool_name_of
from rath.flow.tool.options import TOOL_NAME
from rath.flow.workflow import Workflow
from rath.jobs.engine import Engine
from rath.serving.principals import LimitReached, Limits, Principal, TokenFile
from rath.session.log.store import SessionStore

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
except ImportError as _exc:
    raise MissingExtra("serve", "a server of workflows") from _exc

from rath.serving.agui_api import AguiRoutes
from rath.serving.background import BackgroundRuns
from rath.serving.openai_api import OpenAIRoutes, limit_error
from rath.serving.openai_wire import WireError
from rath.serving.runs import Runs

if TYPE_CHECKING:
    from rath.llm.embedding import EmbeddingProvider

NOBODY = Principal(name="local")
"""The principal of callers from this machine while there are no tokens."""

FORWARDED = (b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip")
"""Headers by which a proxy says for whom it asks."""

MAX_HEADER_BYTES = 32 * 1024
DISCONNECT_SECONDS = 5.0
FAREWELL_SECONDS = 2
"""How long requests may take to be answered once their runs were cancelled by the end."""

_log = logging.getLogger("rath.serving")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of a server."""

    openai: bool = True
    """Whether the OpenAI API is served, below `/v1`."""

    a2a: bool = True
    """Whether A2A is served, at `/a2a` and `/.well-known/agent-card.json`."""

    mcp: bool = True
    """Whether each workflow is a tool over MCP, at `/mcp/NAME`."""

    agui: bool = True
    """Whether each workflow is served over AG-UI, at `/agui/NAME`."""

    tokens: TokenFile = field(default_factory=TokenFile)
    """Tokens of callers. While there are none, only this machine may call, as `local`."""

    local: Principal = NOBODY
    """The principal of callers from this machine while there are no tokens."""

    store: SessionStore | None = None
    """Store of the sessions; None for that of the home."""

    engine: Engine | str | None = None
    """Engine of runs in the background, as in `flow.map`."""

    embeddings: EmbeddingProvider | None = None
    """The model of `/v1/embeddings`; None for none."""

    allowed_hosts: tuple[str, ...] = ()
    """Further names by which clients may call the server, as `name` or `name:port`."""

    url: str = "http://127.0.0.1:8000"
    """The address that the agent card gives."""

    disconnect_grace: float | None = DISCONNECT_SECONDS
    """Seconds for which a run goes on though its client has gone, so that it can come back; None
    to let it end by itself."""

    run_seconds: float | None = 3600.0
    """How long a run may take; one that takes longer is cancelled, and can go on later."""

    max_body_bytes: int = 16 * 1024 * 1024
    max_message_chars: int = 1_000_000
    header_seconds: float = 20.0
    """How long a client of `serve` may take to send the header of a request."""

    body_seconds: float = 30.0
    """How long a client may take to send a body."""

    stop_seconds: float = 3.0
    """How long a whole answer of `serve` may take once the server is told to stop; its run is
    cancelled then. Streams end at once."""


def asgi(
    workflow: Workflow | Mapping[str, Workflow], options: ServerOptions | None = None
) -> ASGIApp:
    """Return an ASGI application that serves workflows.

    Args:
        workflow: What to serve; or several by name, each a model of the OpenAI API, an A2A agent
            and an MCP tool. The name of one is that of its class in snake case.
        options: What else can be chosen.

    Raises:
        MissingExtra: The packages of `openrath[serve]` are not installed.
        TypeError: It is no workflow, or there is none.
        ValueError: A name cannot be that of a model.
        EngineError: There is no engine such as that of the options.
    """
    chosen = options or ServerOptions()
    workflows = _named(workflow)
    limits = Limits(chosen.tokens.path.with_name("spending.db"))
    runs = Runs(
        workflows,
        limits,
        store=chosen.store,
        run_seconds=chosen.run_seconds,
        max_message_chars=chosen.max_message_chars,
    )
    routes: list[BaseRoute] = []
    starts: list[Callable[[], Any]] = []
    if chosen.openai:
        background = BackgroundRuns(runs, chosen.engine)
        routes += OpenAIRoutes(runs, background, chosen).routes()
    if chosen.a2a:
        try:
            from rath.serving.a2a_api import a2a_routes  # noqa: PLC0415  # a protocol of its own
        except ImportError as exc:
            raise MissingExtra("serve", "A2A") from exc
        routes += a2a_routes(runs, chosen)
    if chosen.agui:
        routes += AguiRoutes(runs, chosen).routes()
    if chosen.mcp:
        from rath.serving.mcp_api import mcp_routes  # noqa: PLC0415  # as above

        mcp, start = mcp_routes(runs, chosen)
        routes += mcp
        starts.append(start)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            for start in starts:
                await stack.enter_async_context(start())
            yield
        await runs.cancel_all()

    handlers: Mapping[Any, Any] = {HTTPException: _answer_http_error}
    inner = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    return Guard(inner, chosen, runs)


async def _answer_http_error(request: Request, error: HTTPException) -> JSONResponse:
    problem = WireError(
        f"{request.method} {request.url.path!r:.80}: {error.detail}", code="not_found"
    )
    return JSONResponse(problem.body(), error.status_code, headers=error.headers)


def _named(workflow: Workflow | Mapping[str, Workflow]) -> dict[str, Workflow]:
    given: object = workflow
    if isinstance(given, Workflow):
        try:
            return {tool_name_of(given): given}
        except ValueError:
            raise ValueError(
                f"an object of type {type(given).__name__} has no name of its own; give "
                'it one, such as asgi({"guide": workflow})'
            ) from None
    if not isinstance(given, Mapping) or not given:
        raise TypeError(f"asgi serves a workflow, or several by name, not {workflow!r:.80}")
    named: dict[str, Workflow] = {}
    for name, each in cast("Mapping[object, object]", given).items():
        if not isinstance(each, Workflow):
            raise TypeError(f"asgi serves workflows, and {name!r} is of type {type(each).__name__}")
        named[str(name)] = each
        if TOOL_NAME.fullmatch(str(name)) is None:
            raise ValueError(
                f"{name!r} cannot be the name of a workflow; give 1 to 64 letters, digits, '_' or "
                "'-'"
            )
    return named


class Guard:
    """Lets in requests of known principals, of bounded size, for a known name of the server.

    No answer has a header of CORS, and a request with the origin of a web page is refused.

    Args:
        app: What is behind.
        options: Of the server.
        runs: Those of the server.
    """

    def __init__(self, app: ASGIApp, options: ServerOptions, runs: Runs) -> None:
        self._app = app
        self._options = options
        self._runs = runs
        self._limits = runs.limits

    async def cancel_runs(self) -> None:
        """End all runs and wait a moment; requests that wait for them are answered."""
        await self._runs.cancel_all()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its principal in `rath.principal`, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            self._check_names(scope)
            principal = self._principal(scope)
            if scope["method"] not in ("GET", "HEAD"):
                self._limits.take_request(principal)
            body = await self._body(scope, receive)
        except LimitReached as exc:
            await _refuse(limit_error(exc), scope, receive, send)
        except WireError as exc:
            await _refuse(exc, scope, receive, send)
        except (ValueError, OSError):
            _log.exception("the file of the tokens cannot be read")
            error = WireError("the server cannot read its tokens", status=500, kind="server_error")
            await _refuse(error, scope, receive, send)
        else:
            scope["rath.principal"] = principal
            await self._app(scope, _body_first(body, receive), send)

    def _check_names(self, scope: Scope) -> None:
        hosts = _headers(scope, b"host")
        name = hosts[0].decode("latin-1") if len(hosts) == 1 else ""
        own = (*LOOPBACK, "[::1]", *self._options.allowed_hosts)
        if not any(name == each or name.rpartition(":")[0] == each for each in own):
            raise WireError(
                f"this server is not called {name!r:.80}; allow that name (--allow-host), or call "
                "it 127.0.0.1",
                status=421,
                code="unknown_host",
            )
        if _headers(scope, b"origin"):
            raise WireError(
                "requests of web pages are refused; send them from a server of yours",
                status=403,
                kind="permission_error",
                code="origin_refused",
            )

    def _principal(self, scope: Scope) -> Principal:
        values = _headers(scope, b"authorization")
        if not self._options.tokens.principals() and not values:
            if _is_local(scope):
                return self._options.local
            raise _unauthorized("make a token (rath serve token add NAME) and send it")
        scheme, _, token = (values[0] if len(values) == 1 else b"").partition(b" ")
        # A client of the OpenAI API must have a key: while there are no tokens, any will do.
        if not self._options.tokens.principals() and _is_local(scope):
            return self._options.local
        found = self._options.tokens.find(token.decode("latin-1"))
        if scheme.lower() != b"bearer" or found is None:
            raise _unauthorized("send a token of this server as `Authorization: Bearer TOKEN`")
        return found

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """Return the whole body.

        Raises:
            WireError: It is too large, or came too slowly.
        """
        most = self._options.max_body_bytes
        lengths = _headers(scope, b"content-length")
        if lengths and (not lengths[0].isdigit() or int(lengths[0]) > most):
            raise _too_large(most)
        parts: list[bytes] = []
        n_bytes = 0
        try:
            async with asyncio.timeout(self._options.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return b""
                    parts.append(message.get("body", b""))
                    n_bytes += len(parts[-1])
                    if n_bytes > most:
                        raise _too_large(most)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise WireError(
                f"the body did not come within {self._options.body_seconds:g} s; send it again",
                status=408,
                code="request_timeout",
            ) from None


def _headers(scope: Scope, name: bytes) -> list[bytes]:
    return [value for each, value in scope["headers"] if each == name]


def _is_local(scope: Scope) -> bool:
    """Tell whether a request comes from this machine, and not through a proxy on it."""
    if any(_headers(scope, name) for name in FORWARDED):
        return False
    client = scope.get("client")
    if client is None:  # a socket in the file system, or a test
        return True
    return _is_loopback(str(client[0]))


def _is_loopback(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host).is_loopback)
    except ValueError:
        return False


def _unauthorized(advice: str) -> WireError:
    return WireError(
        f"the token is missing or wrong; {advice}",
        status=401,
        kind="authentication_error",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _too_large(most: int) -> WireError:
    return WireError(
        f"the body has more than {most} bytes, the most that is read",
        status=413,
        code="request_too_large",
        headers={"Connection": "close"},
    )


async def _refuse(error: WireError, scope: Scope, receive: Receive, send: Send) -> None:
    response = JSONResponse(error.body(), error.status, headers=error.headers)
    await response(scope, receive, send)


def _body_first(body: bytes, receive: Receive) -> Receive:
    """Return what gives a body that was read, and then what comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_next() -> Message:
        return messages.pop() if messages else await receive()

    return receive_next


class _TimedProtocol(H11Protocol):
    """HTTP/1.1 whose clients must send each header within a time.

    The library has a limit for connections that rest between two requests alone, and a byte ends
    the rest.
    """

    header_seconds: ClassVar[float]
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._limit_header()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit_header()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._limit_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_limit()
        super().connection_lost(exc)

    def _limit_header(self) -> None:
        """Start the time where no request is answered, and end it where one is."""
        cycle: RequestResponseCycle | None = getattr(self, "cycle", None)
        if cycle is not None and not cycle.response_complete:
            self._end_limit()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.header_seconds, self.transport.close)

    def _end_limit(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Server(uvicorn.Server):
    """A server whose runs are cancelled some time after it is told to stop."""

    def __init__(self, config: uvicorn.Config, app: ASGIApp, stop_seconds: float) -> None:
        super().__init__(config)
        self._app = app
        self._stop_seconds = stop_seconds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        cancelling = asyncio.ensure_future(self._cancel_runs())
        try:
            await super().shutdown(sockets)
        finally:
            cancelling.cancel()
            await asyncio.wait([cancelling])

    async def _cancel_runs(self) -> None:
        await asyncio.sleep(self._stop_seconds)
        if isinstance(self._app, Guard):
            await self._app.cancel_runs()


def build_server(
    app: ASGIApp,
    options: ServerOptions | None = None,
    *,
    certificate: str | None = None,
    key: str | None = None,
) -> uvicorn.Server:
    """Return the server of an application, with the limits of its options; see `serve`.

    Raises:
        OSError: Certificate and key cannot be read, or do not belong together.
    """
    chosen = options or ServerOptions()
    timing = {"header_seconds": chosen.header_seconds}
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        http=type("_TimedProtocol", (_TimedProtocol,), timing),
        ws="none",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_graceful_shutdown=math.ceil(chosen.stop_seconds) + FAREWELL_SECONDS,
        server_header=False,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    try:
        config.load()
    except OSError as exc:
        raise OSError(
            f"the certificate {certificate!r} and the key {key!r} cannot be used: "
            f"{exc.strerror or exc}; expected two PEM files that belong together"
        ) from exc
    return _Server(config, app, chosen.stop_seconds)


def require_token(host: str, options: ServerOptions) -> None:
    """Refuse an address that others than this machine can reach while nobody has a token.

    Args:
        host: Address to listen on.
        options: Those of the application.

    Raises:
        ValueError: Nobody has a token, and others than this machine could call.
    """
    if not _is_loopback(host) and not options.tokens.principals():
        raise ValueError(
            f"serving on {host!r} needs a token, or everybody on that network could run the "
            "workflow; make one with `rath serve token add NAME`, or serve on 127.0.0.1"
        )


def serve(
    app: ASGIApp,
    listening: socket.socket,
    *,
    options: ServerOptions | None = None,
    certificate: str | None = None,
    key: str | None = None,
) -> None:
    """Serve an application of `asgi` until SIGTERM or Ctrl-C; closes the socket.

    Requests in flight have a few seconds to end then; runs are cancelled, and can go on later.

    Args:
        app: The application.
        listening: A socket that listens; one that others than this machine can reach needs a
            token.
        options: Those of the application.
        certificate: File of the certificate, for TLS.
        key: File of its private key.

    Raises:
        ValueError: Nobody has a token, and others than this machine could call.
        OSError: Certificate and key cannot be read, or do not belong together.
    """
    chosen = options or ServerOptions()
    try:
        require_token(str(listening.getsockname()[0]), chosen)
        server = build_server(app, chosen, certificate=certificate, key=key)
    except (ValueError, OSError):
        listening.close()
        raise
    server.run(sockets=[listening])
