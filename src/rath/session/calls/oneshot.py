"""Questions outside of a conversation, and the callback that reads answers as they come."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeVar
from uuid import UUID

from msgspec import structs

from rath._async.bridge import call_either, is_async
from rath._async.workers import UserExit
from rath._core.dataclasses import dataclass
from rath.errors import BudgetExceededError
from rath.llm.chat_response import RathLLMChatChoice, RathLLMStreamDelta
from rath.session.body import Body
from rath.session.calls.requests import Conversation, ProviderCandidate, RequestFrame, side_request
from rath.session.chunk import RowId
from rath.session.record import ModelCall, Purpose


@contextmanager
def noting(where: str) -> Generator[None]:
    """Add `where` to an error that leaves the block.

    An error that an input raised must be awaited outside of it: a failure is passed on to every
    session that comes after, and would collect a note of each.
    """
    try:
        yield
    except Exception as exc:
        exc.add_note(where)
        raise


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class OneShot:
    """A question about a session that is asked once."""

    purpose: Purpose
    operation: UUID
    candidates: Sequence[ProviderCandidate]
    question: str
    """The last message of the user."""

    on_event: OnEventCb | None = None
    row: RowId | None = None
    """The row that the answer will become."""

    async def ask(
        self, user: Body, agent: Body, note: Callable[[ModelCall], None]
    ) -> RathLLMChatChoice:
        """Ask, and return the model's first choice; see `ask_for`."""
        return await self.ask_for(user, agent, note, read=_as_it_is)

    async def ask_for(
        self,
        user: Body,
        agent: Body,
        note: Callable[[ModelCall], None],
        *,
        read: Callable[[RathLLMChatChoice], T],
    ) -> T:
        """Ask, and return what `read` makes of the model's first choice.

        A call whose answer became no row names none, and its entry holds what the model said.

        Args:
            user: Content of the session.
            agent: The instructions that stand before it.
            note: Gets an entry of each call, whatever became of it.
            read: Raises where an answer is of no use.
        """
        frame = RequestFrame(
            head=tuple(agent.table),
            request=side_request,
            question=self.question,
            streaming=self.on_event is not None,
        )
        conversation = Conversation(self.candidates, frame)
        with _Held(note) as held:
            async with Emitter(self.on_event) as emitter:
                exchange = await conversation.ask(
                    user,
                    held.hold,
                    operation=self.operation,
                    purpose=self.purpose,
                    row=self.row,
                    on_delta=emitter.sink,
                )
            choice = exchange.response.primary_choice
            held.answer_text = choice.message.content
            return read(choice)


class _Held:
    """Keeps the entry of an answer until it is known whether it becomes a row."""

    def __init__(self, note: Callable[[ModelCall], None]) -> None:
        self._note = note
        self._call: ModelCall | None = None
        self.answer_text: str | None = None
        """What the model said."""

    def hold(self, call: ModelCall) -> None:
        """Note a call that makes no row in any case; keep any other one."""
        if call.rows:
            self._call = call
        else:
            self._note(call)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        call = self._call
        if call is not None:
            self._note(
                call if error is None else structs.replace(call, rows=(), answer=self.answer_text)
            )


def _as_it_is(choice: RathLLMChatChoice) -> RathLLMChatChoice:
    return choice


_log = logging.getLogger("rath.session.loop")

OnEventCb = Callable[[RathLLMStreamDelta], Awaitable[None] | None]

_FAILED = "on_event failed; the run goes on"

MAX_QUEUED = 1024
"""Deltas that may wait for a slow callback before the stream itself is slowed down; a guess."""


class Emitter:
    """Gives deltas to one callback in order; leaving the block waits until it has had them all.

    An exception of the callback is logged and does not end the run, except BudgetExceededError.
    """

    def __init__(self, callback: OnEventCb | None) -> None:
        self._callback = callback
        self._queue: deque[RathLLMStreamDelta] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._stop: BudgetExceededError | None = None
        self._is_ending = False
        self._pump: asyncio.Task[None] | None = None

    @property
    def sink(self) -> Callable[[RathLLMStreamDelta], Awaitable[None] | None] | None:
        """Where a model call puts its deltas, or None when nobody listens."""
        return None if self._callback is None else self._put

    def _put(self, delta: RathLLMStreamDelta) -> Awaitable[None] | None:
        if self._stop is not None:
            raise self._stop
        self._queue.append(delta)
        self._wake.set()
        return self._wait_for_room() if len(self._queue) >= MAX_QUEUED else None

    async def _wait_for_room(self) -> None:
        self._room.clear()
        await self._room.wait()

    async def __aenter__(self) -> Self:
        if self._callback is not None:
            self._pump = asyncio.create_task(self._run(self._callback), name="rath callback")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pump is None:
            return
        if isinstance(error, asyncio.CancelledError):
            self._pump.cancel()
            await asyncio.wait([self._pump])
            return
        self._is_ending = True
        self._wake.set()
        try:
            await self._pump
        except asyncio.CancelledError:
            self._pump.cancel()
            raise
        if self._stop is not None and error is None:
            raise self._stop

    async def _run(self, callback: OnEventCb) -> None:
        deliver = _deliver_async if is_async(callback) else _deliver
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch = list(self._queue)
            self._queue.clear()
            self._room.set()
            if batch and self._stop is None:
                try:
                    await call_either(deliver, callback, batch)
                except BudgetExceededError as exc:
                    self._stop = exc
                except UserExit:
                    # If this task ended here, a full queue would hold up the stream for ever.
                    _log.exception(_FAILED)
            if self._is_ending and not self._queue:
                return


def _deliver(callback: OnEventCb, batch: list[RathLLMStreamDelta]) -> Awaitable[None] | None:
    """Call a plain function; one that gives an awaitable goes on where awaitables are awaited."""
    for index, delta in enumerate(batch):
        try:
            waiting = callback(delta)
        except BudgetExceededError:
            raise
        except BaseException:  # noqa: BLE001  # a callback that fails must not end the run it watches
            _log.exception(_FAILED)
        else:
            if inspect.isawaitable(waiting):
                return _deliver_async(callback, batch[index:], waiting)
    return None


async def _deliver_async(
    callback: OnEventCb,
    batch: list[RathLLMStreamDelta],
    first: Awaitable[None] | None = None,
) -> None:
    """Call and await; `first` is what the call for the first delta gave, if it was made."""
    for delta in batch:
        try:
            waiting, first = first or callback(delta), None
            if inspect.isawaitable(waiting):
                await waiting
        except BudgetExceededError:
            raise
        except (
            Exception,
            SystemExit,
            KeyboardInterrupt,
            asyncio.CancelledError,
        ):  # a callback that fails must not end the run it watches
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            _log.exception(_FAILED)
