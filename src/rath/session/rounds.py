"""One round of tool calls: check, run in lanes under deadlines, and say what came of each."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from uuid import UUID

from rath._async.bridge import is_async
from rath._async.lanes import Job, Key, Lanes
from rath._async.runtime import runtime
from rath._async.workers import UserExit
from rath._core.blobs import Blob
from rath.backend.effects import FileEffect, observe_effects
from rath.session.arguments import ArgumentChecker, BadArguments
from rath.session.content import ToolCall
from rath.session.encode import ResultText, encode_failure, encode_result
from rath.session.placement import Placement
from rath.session.record import ToolRun, ToolStatus
from rath.session.request import INTERRUPTED
from rath.session.session import Session
from rath.session.tooling import (
    DEFAULT_TOOL_TIMEOUT,
    SandboxOperator,
    Tool,
    runs_on_sandbox,
)

DispatchTool = Any
"""A custom executor's `dispatch_tool(session, tool, arguments)`, or None for the loop's own."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call that passed the checks, or the failure that the model reads instead."""

    call: ToolCall
    tool: Tool | None
    arguments: dict[str, Any] | None
    key: Key = ()
    is_barrier: bool = False
    """Whether nothing of the round may run beside it; a refused call disturbs nobody."""

    limit: float = DEFAULT_TOOL_TIMEOUT
    """Seconds that the call may take."""

    refusal: ResultText | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """What became of one call of a round."""

    prepared: Prepared
    result: ResultText
    status: ToolStatus
    elapsed_ms: float
    effects: tuple[FileEffect, ...]


@dataclass(slots=True)
class ToolRounds:
    """Runs the tool rounds of one run; keeps its lanes and its compiled schemas."""

    table: Mapping[str, Tool]
    placement: Placement
    dispatch: DispatchTool
    lanes: Lanes = field(default_factory=Lanes)
    checker: ArgumentChecker = field(default_factory=ArgumentChecker)

    async def run(
        self, calls: Sequence[ToolCall], session: Session, done: dict[int, Finished]
    ) -> list[Finished]:
        """Run the calls of one turn on a snapshot; results stand in the order of the calls.

        Args:
            calls: What the model asked for.
            session: The one snapshot that all tools of the round see.
            done: Filled by call index as results come, so that a round that is cut off keeps
                what it had.
        """
        # What a tool says of itself is user code, so it is asked on a worker.
        prepared = await runtime().call_in_worker(lambda: [self._prepare(call) for call in calls])
        jobs = [
            self._job(one, session, partial(done.__setitem__, index))
            for index, one in enumerate(prepared)
        ]
        return await self.lanes.run(jobs)

    def _job(
        self, prepared: Prepared, session: Session, tell: Callable[[Finished], None]
    ) -> Job[Finished]:
        async def finish() -> Finished:
            finished = await self._finish(prepared, session)
            tell(finished)
            return finished

        lane = prepared.key if prepared.refusal is None else ("refused", prepared.call.id)
        return Job(lane, prepared.is_barrier, finish)

    def _prepare(self, call: ToolCall) -> Prepared:
        tool = self.table.get(call.name)
        if tool is None:
            return Prepared(
                call,
                None,
                None,
                refusal=encode_failure("unknown_tool", f"unknown tool {call.name!r}"),
            )
        arguments: dict[str, Any] | None = None
        try:
            arguments = self.checker.parse(call.name, call.arguments)
            self.checker.check(call.name, tool.parameters, arguments)
            key = tuple(tool.resource_key(arguments))
            is_barrier = not getattr(tool, "parallel_safe", False)
            limit = float(getattr(tool, "timeout", None) or DEFAULT_TOOL_TIMEOUT)
        except BadArguments as exc:
            refusal = encode_failure("invalid_tool_arguments", str(exc), exc.detail)
            return Prepared(call, tool, arguments, refusal=refusal)
        except (Exception, SystemExit, KeyboardInterrupt) as exc:  # noqa: BLE001  # a tool's lane: what a tool does wrong, its model reads
            return Prepared(call, tool, arguments, refusal=_exception_text(exc))
        return Prepared(call, tool, arguments, key, is_barrier, limit)

    async def _finish(self, prepared: Prepared, session: Session) -> Finished:
        if prepared.refusal is not None:
            return Finished(prepared, prepared.refusal, "failed", 0.0, ())
        started = time.monotonic()
        with observe_effects() as effects:
            result, status = await self._attempt(prepared, session)
        elapsed_ms = (time.monotonic() - started) * 1000
        return Finished(prepared, result, status, elapsed_ms, tuple(effects))

    async def _attempt(self, prepared: Prepared, session: Session) -> tuple[ResultText, ToolStatus]:
        tool = cast("Tool", prepared.tool)
        deadline = asyncio.timeout(prepared.limit)
        try:
            async with deadline:
                await self.lanes.wait_free(prepared.key)
                value = await self._call(tool, prepared, session)
            result = encode_result(value)
        except TimeoutError as exc:
            if not deadline.expired():
                return _exception_text(exc), "failed"
            return _timeout_text(prepared.call.name, prepared.limit), "abandoned"
        except Exception as exc:  # noqa: BLE001  # a tool's lane: what a tool does wrong, its model reads
            return _exception_text(exc), "failed"
        return result, "failed" if result.failure else "done"

    async def _call(self, tool: Tool, prepared: Prepared, session: Session) -> Any:
        arguments = dict(prepared.arguments or {})
        if self.dispatch is not None:
            return await self._call_user(self.dispatch, (session, tool, arguments), prepared.key)
        if runs_on_sandbox(tool):
            payload = cast("SandboxOperator", tool).to_payload(arguments)
            return await self.placement.held().adispatch(payload)
        return await self._call_user(tool, (session, arguments), prepared.key)

    async def _call_user(self, fn: Any, arguments: tuple[Any, ...], key: Key) -> Any:
        call = partial(fn, *arguments)
        if is_async(fn):
            return await runtime().call_on_user_loop(call)
        future = runtime().start_in_worker(call)
        try:
            value = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            # A thread cannot be killed: its lane stays held until it comes back.
            self.lanes.hold(key, future)
            raise
        if inspect.isawaitable(value):
            return await runtime().call_on_user_loop(lambda: value)
        return value


def interrupted(call: ToolCall, tool: Tool | None) -> Finished:
    """Return what is known of a call that was cut off with its run."""
    result = encode_failure("interrupted", INTERRUPTED)
    return Finished(Prepared(call, tool, None), result, "interrupted", 0.0, ())


def tool_run_entry(
    finished: Finished, *, operation: UUID, schema_digest: str | None, placement: Placement
) -> ToolRun:
    """Return the record entry of a call."""
    prepared, result = finished.prepared, finished.result
    tool, sandbox = prepared.tool, placement.sandbox
    return ToolRun(
        operation=operation,
        call_id=prepared.call.id,
        tool=prepared.call.name,
        origin=_origin(tool),
        schema_digest=schema_digest,
        effects_declared=getattr(tool, "effects", "non_idempotent"),
        arguments=prepared.arguments,
        sandbox=sandbox.describe() if sandbox is not None and sandbox.is_open else None,
        status=finished.status,
        error_kind=result.failure,
        exit_code=result.exit_code,
        signal=-result.exit_code if result.exit_code is not None and result.exit_code < 0 else None,
        duration_ms=finished.elapsed_ms,
        shown=Blob.from_bytes(result.shown.encode(), keep=0),
        full=None if result.full is None else Blob.from_bytes(result.full.encode()),
        file_effects=finished.effects,
    )


def _origin(tool: Tool | None) -> str:
    if tool is None:
        return "unknown"
    kind = type(tool)
    return str(getattr(tool, "origin", "") or f"{kind.__module__}:{kind.__qualname__}")


def _exception_text(exc: BaseException) -> ResultText:
    cause = exc.cause if isinstance(exc, UserExit) else exc
    kind = type(cause).__name__
    return encode_failure("tool_execution_exception", f"{kind}: {cause}", kind)


def _timeout_text(name: str, limit: float) -> ResultText:
    return encode_failure(
        "abandoned",
        f"tool {name!r} gave no result within {limit:g} s and was abandoned; whether it took "
        "effect is not known",
    )
