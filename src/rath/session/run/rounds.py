"""The tool calls of one turn: checked, placed, run side by side, with their effects."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from rath._async.bridge import is_async
from rath._async.deferred import nesting
from rath._async.lanes import Key, LaneCall, Lanes
from rath._async.runtime import await_future, runtime
from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath.backend.abc import BackendSandbox
from rath.backend.effects import (
    UNOBSERVED,
    EffectLog,
    FileEffect,
    PausableDeadline,
    observe_effects,
)
from rath.backend.start import WorkspaceStart
from rath.errors import WorkspaceLost
from rath.session.bindings import Placement
from rath.session.calls.results import (
    CALL_INTERRUPTED,
    CALL_SUSPENDED,
    CallResult,
    CheckedCall,
    deferred_call,
    exception_result,
    lane_keys,
    with_arguments,
)
from rath.session.content import ResultText, ToolCall, encode_failure, encode_result
from rath.session.operation import call_scope
from rath.session.record import ToolStatus
from rath.session.run.hook_calls import CallHooks
from rath.session.session import Session
from rath.session.tooling import (
    BUILT_IN_NAMES,
    MAX_QUICK_CHARS,
    ArgumentChecker,
    BadArguments,
    CurrentCall,
    Tool,
    ToolOffer,
    call_here,
    in_a_loop,
    in_call,
    load_library,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

MAX_RECORD_BYTES = 256 << 20
"""Contents of files that the effects of one run hold in memory, in bytes, each content once; a
guess. What comes later keeps its digest and size only."""

FULL = (
    f"contents were not kept, only their digests: the record of the run holds "
    f"{MAX_RECORD_BYTES >> 20} MiB of them (MAX_RECORD_BYTES)"
)


class ContentCache:
    """Counts the contents that the effects of one run hold; each digest once.

    Args:
        limit: How many bytes they may have together.
    """

    def __init__(self, limit: int = MAX_RECORD_BYTES) -> None:
        self._room = limit
        self._stored: set[str] = set()

    def fitting(self, effects: Iterable[FileEffect]) -> tuple[tuple[FileEffect, ...], bool]:
        """Return effects with the contents for which there is room, and whether all are there."""
        fitting_effects: list[FileEffect] = []
        is_complete = True
        for effect in effects:
            before, after = self._fitting(effect.before), self._fitting(effect.after)
            if before is not effect.before or after is not effect.after:
                effect = replace(effect, before=before, after=after)
                is_complete = False
            fitting_effects.append(effect)
        return tuple(fitting_effects), is_complete

    def _fitting(self, blob: Blob | None) -> Blob | None:
        if blob is None or blob.data is None or blob.digest in self._stored:
            return blob
        if len(blob.data) > self._room:
            return blob.without_data()
        self._room -= len(blob.data)
        self._stored.add(blob.digest)
        return blob


CUT_OFF = "the call was cut off, and what its code did afterwards was not observed"

_NOTHING_GIVEN: Mapping[int, CurrentCall] = MappingProxyType({})

DispatchTool = Callable[[Session, Tool, Mapping[str, Any]], Any]
"""A custom executor's `dispatch_tool`."""


Tell = Callable[[CallResult], None]
"""Is told what became of a call."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A call that runs."""

    offer: ToolOffer
    time: PausableDeadline
    effects: EffectLog
    mark: int
    """The moment from which operations that nobody observed count."""


@dataclass(slots=True)
class ToolRounds:
    """Runs the tool rounds of one run; keeps its lanes and its compiled schemas.

    Whatever a user may have written (a key, a schema with a slow pattern, the tool itself, the
    result's own way of becoming text) runs on a worker thread or on the user loop.
    """

    table: Mapping[str, ToolOffer]
    placement: Placement
    dispatch: DispatchTool | None
    lanes: Lanes = field(default_factory=Lanes)
    checker: ArgumentChecker = field(default_factory=ArgumentChecker)
    contents: ContentCache = field(default_factory=ContentCache)
    hooks: CallHooks | None = None
    """Who is shown the calls; None where nobody is."""

    _started_in: BackendSandbox | None = None
    """The sandbox whose first files the run has told."""

    lost: WorkspaceLost | None = None
    """Why calls of the last round had no files to work on; None where they had."""

    async def run(
        self,
        calls: Sequence[ToolCall],
        session: Session,
        done: dict[int, CallResult],
        *,
        row: int = 0,
        places: Sequence[int] | None = None,
        given: Mapping[int, CurrentCall] = _NOTHING_GIVEN,
    ) -> list[CallResult]:
        """Run calls of one turn on a snapshot; results stand in the order of the calls.

        Args:
            calls: What the model asked for.
            session: The one snapshot that all tools of the round see.
            done: Filled by place as results come, so that a round that is cut off keeps what it
                had, also of calls that were cut off with it.
            row: Index of the row in which the model asked.
            places: Which of the calls of that row they are; all of them by default.
            given: What somebody has said to calls that are made again, by place.
        """
        places = range(len(calls)) if places is None else places
        if len(calls) == 1 and self.hooks is None:
            # A round of one call is the usual one: it has no lane to share.
            (at,) = places
            offer, tell = self.table.get(calls[0].name), partial(done.__setitem__, at)
            finish: Callable[[Session, Tell], Awaitable[CallResult]]
            if offer is not None and offer.is_plain and self.dispatch is None:
                await self._load_library(calls)
                finish = partial(self._finish_alone, calls[0], offer)
            else:
                (checked,) = await self.prepare_all(calls)
                finish = partial(self._finish, checked)
            with call_scope(session.id, row, at), in_call(given.get(at) or CurrentCall()):
                done[at] = await finish(session, tell)
            return [done[at]]
        prepared = await self.prepare_all(calls)
        if self.hooks is not None:
            prepared = await self.show(prepared, session, row=row, places=places)
        waiting: list[CheckedCall] = []
        jobs = [
            self._job(
                one,
                session,
                (row, at),
                partial(done.__setitem__, at),
                call=given.get(at) or CurrentCall(),
                waiting=waiting,
            )
            for at, one in zip(places, prepared, strict=True)
        ]
        return await self.lanes.run(jobs, keys=partial(lane_keys, prepared, self.placement))

    async def _load_library(self, calls: Sequence[ToolCall]) -> None:
        """Import the schema library where the check of a call needs it."""
        for call in calls:
            offer = self.table.get(call.name)
            if offer is None:
                continue
            if self.checker.needs_library(offer.tool, offer.schema, call.arguments):
                # Before any deadline begins: a tool is not to blame for an import of ours.
                await runtime().call_in_worker(load_library)
                return

    async def prepare_all(self, calls: Sequence[ToolCall]) -> list[CheckedCall]:
        """Prepare the calls of a round in one job; what takes too long is given up."""
        await self._load_library(calls)
        checked: list[CheckedCall] = []
        offers = [self.table.get(call.name) for call in calls]
        if all(offer is None or offer.is_built_in for offer in offers):
            n_chars = sum(len(call.arguments) for call in calls)
            if n_chars <= MAX_QUICK_CHARS:
                return [self._prepare(call) for call in calls]  # nobody else's code, nothing long
        limit = max((offer.limit for offer in offers if offer is not None), default=None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await runtime().call_in_worker(
                    lambda: checked.extend(self._prepare(call) for call in calls)
                )
        rest = zip(calls[len(checked) :], offers[len(checked) :], strict=True)
        return checked + [
            CheckedCall(
                call, offer, refusal=_timeout_text(call.name, offer.limit if offer else 0.0)
            )
            for call, offer in rest
        ]

    async def show(
        self, prepared: Sequence[CheckedCall], session: Session, *, row: int, places: Sequence[int]
    ) -> list[CheckedCall]:
        """Return calls of one turn as hooks let them pass; each is shown once, in order.

        Args:
            prepared: The calls.
            session: The snapshot that their tools see.
            row: Index of the row in which the model asked.
            places: Which of the calls of that row they are.
        """
        if self.hooks is None:
            return list(prepared)
        return [
            await self.hooks.before(one, session, (row, at), again=self._again)
            for at, one in zip(places, prepared, strict=True)
        ]

    async def _again(self, prepared: CheckedCall, arguments: Mapping[str, Any]) -> CheckedCall:
        """Check and place a call with other arguments than the model gave."""
        edited = replace(prepared.call, arguments=json.dumps(dict(arguments)))
        (checked,) = await self.prepare_all([edited])
        return replace(checked, call=prepared.call)

    def _job(
        self,
        prepared: CheckedCall,
        session: Session,
        place: tuple[int, int],
        tell: Tell,
        *,
        call: CurrentCall,
        waiting: list[CheckedCall],
    ) -> LaneCall[CallResult]:
        async def finish() -> CallResult:
            if any(map(prepared.comes_after, waiting)):
                finished = deferred_call(prepared)
            else:
                with call_scope(session.id, *place), in_call(call):
                    finished = await self._finish(prepared, session, tell)
            if finished.status == "suspended":
                waiting.append(prepared)
            elif self.hooks is not None:
                finished = await self.hooks.after(finished, session, place, tell)
            tell(finished)
            return finished

        return LaneCall(prepared.lane, prepared.is_barrier, finish)

    def _prepare(self, call: ToolCall) -> CheckedCall:
        """Parse, check and place a call; on a worker thread."""
        offer = self.table.get(call.name)
        if offer is None:
            needs_place = call.name in BUILT_IN_NAMES and not self.placement.is_chosen
            why = ": it works in a sandbox, and the session has none" if needs_place else ""
            refusal = encode_failure("unknown_tool", f"unknown tool {call.name!r}{why}")
            return CheckedCall(call, None, refusal=refusal)
        arguments: dict[str, Any] | None = None
        try:
            arguments = self.checker.parse(call.name, call.arguments)
            self.checker.check_call(offer.tool, call.name, offer.schema, arguments)
            key = tuple(offer.tool.resource_key(arguments))
        except BadArguments as exc:
            refusal = encode_failure("invalid_tool_arguments", str(exc), exc.detail)
            return CheckedCall(call, offer, arguments, refusal=refusal)
        except (Exception, SystemExit, KeyboardInterrupt) as exc:  # noqa: BLE001  # a tool's lane
            refusal = exception_result(exc, call.name, reads_source=True)
            return CheckedCall(call, offer, arguments, refusal=refusal)
        return CheckedCall(call, offer, arguments, key)

    async def _finish(self, prepared: CheckedCall, session: Session, tell: Tell) -> CallResult:
        if prepared.refusal is not None or prepared.offer is None:
            assert prepared.refusal is not None
            sandbox = self.placement.sandbox
            where = None if sandbox is None else sandbox.describe()
            return CallResult(prepared, prepared.refusal, prepared.refused_as, sandbox=where)
        call = partial(self._call, prepared, session)
        return await self._attempt(lambda: prepared, prepared.offer, call, tell)

    async def _finish_alone(
        self, call: ToolCall, offer: ToolOffer, session: Session, tell: Tell
    ) -> CallResult:
        """Prepare and run a lone call in one job: a round of one plain call is the usual one."""
        checked: list[CheckedCall] = []

        def work() -> object:
            prepared = self._prepare(call)
            checked.append(prepared)
            if prepared.refusal is not None:
                return prepared.refusal
            if self.lanes.is_held(prepared.key):
                return _HELD
            return _encoded(offer.tool(session, dict(prepared.arguments or {})))

        def prepared() -> CheckedCall:
            return checked[0] if checked else CheckedCall(call, offer)

        async def call_it() -> ResultText:
            result = await self._work(offer, work, lambda: prepared().key)
            return await self._call(prepared(), session) if result is None else result

        return await self._attempt(prepared, offer, call_it, tell)

    async def _attempt(
        self,
        prepared: Callable[[], CheckedCall],
        offer: ToolOffer,
        call: Callable[[], Awaitable[ResultText]],
        tell: Tell,
    ) -> CallResult:
        """Run a call under its deadline; whatever it does, a result comes of it.

        One that is cut off with its run is told to `tell`, with what it did by then.
        """
        status: ToolStatus = "failed"
        with observe_effects() as effects, nesting() as nested:
            sandbox = self.placement.sandbox
            mark = 0 if sandbox is None else sandbox.unobserved.mark()
            attempt = _Attempt(offer, PausableDeadline(offer.limit), effects, mark)
            try:
                async with attempt.time:
                    result = await call()
                status = "failed" if result.failure else "done"
            except TimeoutError as exc:
                result = exception_result(exc, offer.tool.name, reads_source=False)
                if attempt.time.has_expired:
                    result = _timeout_text(offer.tool.name, offer.limit)
                    status = "abandoned"
                    nested.cancel()
            except asyncio.CancelledError as exc:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    tell(self._result_of(attempt, prepared(), CALL_INTERRUPTED, "interrupted"))
                    raise
                # Raised by a backend, cancelled by nobody.
                result = exception_result(exc, offer.tool.name, reads_source=False)
            except Exception as exc:  # noqa: BLE001  # a tool's lane: what it does wrong is read
                result = exception_result(exc, offer.tool.name, reads_source=False)
                self.lost = exc if isinstance(exc, WorkspaceLost) else self.lost
        here = call_here()
        assert here is not None, "a round says which call it makes"
        if here.waits is not None and status != "abandoned":
            # Also where the tool has swallowed what was to leave it.
            waiting = self._result_of(attempt, prepared(), CALL_SUSPENDED, "suspended")
            return replace(waiting, waits=here.waits)
        if here.is_edited and prepared().refusal is None:
            result = with_arguments(result, prepared().arguments)
        return self._result_of(attempt, prepared(), result, status)

    def _start_of(self, sandbox: BackendSandbox | None) -> WorkspaceStart | None:
        """Return with what files a sandbox began, once."""
        if sandbox is None or sandbox is self._started_in or sandbox.start is None:
            return None
        self._started_in = sandbox
        return sandbox.start

    def _result_of(
        self, attempt: _Attempt, prepared: CheckedCall, result: ResultText, status: ToolStatus
    ) -> CallResult:
        """Return the result of a call, with its effects and its sandbox."""
        sandbox, offer = self.placement.sandbox, attempt.offer
        gaps = list(attempt.effects.gaps)
        if sandbox is not None and sandbox.unobserved.any_since(attempt.mark):
            gaps.append(UNOBSERVED)
        is_interrupted = status == "interrupted"
        if is_interrupted and offer.effects != "read_only" and not self._is_operation(offer):
            gaps.append(CUT_OFF)
        effects, is_complete = self.contents.fitting(attempt.effects)
        if not is_complete:
            gaps.append(FULL)
        return CallResult(
            prepared,
            result,
            status,
            attempt.time.elapsed_ms(),
            effects,
            tuple(gaps),
            None if sandbox is None else sandbox.describe(),
            self._start_of(sandbox),
            is_cut_off=is_interrupted or status == "suspended",
        )

    def _is_operation(self, offer: ToolOffer) -> bool:
        """Tell whether a call is one sandbox operation, which is looked at when it is cut off."""
        return offer.operator is not None and self.dispatch is None

    async def _call(self, prepared: CheckedCall, session: Session) -> ResultText:
        offer = prepared.offer
        assert offer is not None, "a call that is made has its tool"
        arguments = dict(prepared.arguments or {})
        await self.lanes.wait_free(prepared.key)
        if self.dispatch is not None:
            call = partial(self.dispatch, session, offer.tool, arguments)
        elif offer.operator is not None:
            payload = offer.operator.to_payload(arguments)
            return encode_result(await self.placement.held().adispatch(payload))
        else:
            call = partial(in_a_loop(offer.tool), session, arguments)
        if is_async(call):
            return await self._on_user_loop(offer, call, prepared.key)
        result = await self._work(offer, lambda: _encoded(call()), lambda: prepared.key)
        return cast("ResultText", result)

    async def _work(
        self, offer: ToolOffer, work: Callable[[], object], key: Callable[[], Key]
    ) -> ResultText | None:
        """Run a job on a worker; None says that its lane is held by an abandoned call."""

        def job() -> object:
            try:
                return work()
            except WorkspaceLost:
                raise
            except Exception as exc:  # noqa: BLE001  # a tool's lane; source may be read here
                return _raised(exc, offer)

        future = runtime().start_in_worker(job)
        try:
            value = await await_future(future)
        except asyncio.CancelledError:
            # A thread cannot be killed: its lane stays held until it comes back.
            self.lanes.hold(key(), future)
            future.add_done_callback(_close_coroutine)
            raise
        if value is _HELD:
            return None
        if isinstance(value, ResultText):
            return value
        return await self._on_user_loop(offer, lambda: cast("Awaitable[object]", value), key())

    async def _on_user_loop(
        self, offer: ToolOffer, call: Callable[[], Awaitable[object]], key: Key
    ) -> ResultText:
        async def await_and_encode() -> ResultText:
            try:
                return encode_result(await call())
            except WorkspaceLost:
                raise
            except Exception as exc:  # noqa: BLE001  # as in a worker: no thread of ours waits
                return _raised(exc, offer)

        running = runtime().start_on_user_loop(await_and_encode)
        try:
            return cast("ResultText", await await_future(running.future))
        except asyncio.CancelledError:
            runtime().cancel_on_user_loop(running)
            self.lanes.hold(key, running.future)
            raise


_HELD = object()


def _raised(exc: Exception, offer: ToolOffer) -> ResultText:
    shown = offer.shows_traceback
    return exception_result(exc, offer.tool.name, reads_source=True, is_shown=shown)


def _close_coroutine(done: Future[object]) -> None:
    """Close the coroutine that an abandoned call has returned: nobody awaits it."""
    value = None if done.cancelled() or done.exception() is not None else done.result()
    if inspect.iscoroutine(value):
        value.close()


def _encoded(value: object) -> object:
    """Return the result as text; what must be awaited first comes back as it is."""
    return value if inspect.isawaitable(value) else encode_result(value)


def _timeout_text(name: str, limit: float) -> ResultText:
    return encode_failure(
        "abandoned",
        f"tool {name!r} gave no result within {limit:g} s and was abandoned; whether it took "
        "effect is not known",
    )
