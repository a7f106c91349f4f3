"""MCP over HTTP: each served workflow is a tool of a server of its own, at `/mcp/NAME`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from rath.flow.serving.calls import Calls, ServedAnswer, SessionOwner, refusal_answer
from rath.flow.serving.serve import ServeOptions
from rath.flow.serving.server import Context, make_server
from rath.flow.tool.agent_tool import description_of
from rath.serving.principals import LimitReached, Limits, Principal
from rath.serving.runs import Runs, in_worker
from rath.session.record import Entry

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from rath.serving.app import ServerOptions

Start = Callable[[], AbstractAsyncContextManager[Any]]
"""Starts what serves, for as long as the context lasts."""


class Allowed:
    """Lets in principals that may run a workflow; to others it is not there.

    Args:
        app: What is behind.
        workflow: The name of the workflow.
    """

    def __init__(self, app: ASGIApp, workflow: str) -> None:
        self._app = app
        self._workflow = workflow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 404."""
        principal: Principal = scope["rath.principal"]
        if principal.may_run(self._workflow):
            await self._app(scope, receive, send)
            return
        error = {"message": f"there is no workflow {self._workflow!r} here", "code": "not_found"}
        await JSONResponse({"error": error}, 404)(scope, receive, send)


class LimitedCalls(Calls):
    """Calls of one principal, counted against its limits."""

    def __init__(self, runs: Runs, name: str, principal: Principal) -> None:
        self._limits: Limits = runs.limits
        self._principal = principal
        options = ServeOptions(store=runs.store, run_seconds=runs.run_seconds)
        if runs.max_message_chars is not None:
            options = replace(options, max_message_chars=runs.max_message_chars)
        super().__init__(
            runs.workflows[name],
            name,
            options,
            owner=SessionOwner(name, principal.name),
            report=partial(self._limits.note_entry, principal),
        )

    async def call(
        self, arguments: Mapping[str, Any], tell: Callable[[Entry], None]
    ) -> ServedAnswer:
        """Make a call unless a limit is used up; see `Calls.call`."""
        try:
            await in_worker(partial(self._limits.begin_run, self._principal))
        except LimitReached as exc:
            return refusal_answer(str(exc))
        try:
            return await super().call(arguments, tell)
        finally:
            self._limits.end_run(self._principal.name)
            if self._principal.usd_per_day is not None:
                await in_worker(partial(self._limits.write_spending, self._principal))


class Started:
    """Starts what serves before its first request, where no lifespan has done so.

    An application that is mounted in another one is not told of its start. What is started then
    ends with the event loop.

    Args:
        app: What is behind.
        start: Starts it.
    """

    def __init__(self, app: ASGIApp, start: Start) -> None:
        self._app = app
        self._start = start
        self._ready: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Serve as long as the context lasts."""
        async with self._start():
            self._ready = asyncio.get_running_loop().create_future()
            self._ready.set_result(None)
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on once it is started."""
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._serve(self._ready))
        await asyncio.shield(self._ready)
        await self._app(scope, receive, send)

    async def _serve(self, ready: asyncio.Future[None]) -> None:
        try:
            async with self._start():
                ready.set_result(None)
                await asyncio.Event().wait()
        except Exception as exc:  # noqa: BLE001  # whoever waits for the start is told
            self._ready = None
            if not ready.done():
                ready.set_exception(exc)


def mcp_routes(runs: Runs, options: ServerOptions) -> tuple[list[BaseRoute], Start]:
    """Return the routes of all workflows, and what serves them.

    Requests share no session of the protocol: each is a principal's own.

    Args:
        runs: The runs of the server.
        options: Of the server.
    """
    routes: list[BaseRoute] = []
    starts: list[Start] = []
    all_calls: list[dict[Principal, LimitedCalls]] = []
    for name, workflow in runs.workflows.items():
        principals: dict[Principal, LimitedCalls] = {}
        server = make_server(
            partial(_calls_of, runs, name, principals),
            name=name,
            description=description_of(workflow) or f"Runs {name}.",
        )
        app = server.streamable_http_app(
            streamable_http_path=f"/mcp/{name}",
            stateless_http=True,
            max_request_body_size=options.max_body_bytes,
            # The guard of the server has checked the names.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        for route in app.routes:
            if isinstance(route, Route):
                started = Started(route.app, partial(app.router.lifespan_context, app))
                route.app = Allowed(started, name)
                starts.append(started.lifespan)
        routes += app.routes
        all_calls.append(principals)

    @asynccontextmanager
    async def start() -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            for each in starts:
                await stack.enter_async_context(each())
            yield
            for calls in all_calls:
                for of_principal in calls.values():
                    of_principal.cancel_all()

    return routes, start


def _calls_of(
    runs: Runs, name: str, principals: dict[Principal, LimitedCalls], context: Context
) -> Calls:
    """Return the calls of who sends a request."""
    assert context.request is not None, "it came over HTTP"
    principal: Principal = context.request.scope["rath.principal"]
    if principal not in principals:
        principals[principal] = LimitedCalls(runs, name, principal)
    return principals[principal]
