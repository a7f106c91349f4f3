"""Single calls of a model beside a loop: compress, select."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar
from uuid import UUID

from msgspec import structs

from rath.llm.chat_response import RathLLMChatChoice
from rath.session.body import Body
from rath.session.calls.requests import Candidate, Conversation, RequestFrame, side_request
from rath.session.calls.stream import Emitter, OnEventCb
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
    candidates: Sequence[Candidate]
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
