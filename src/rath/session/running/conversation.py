"""The requests of one run: rendered once, encoded once, growing with its rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from rath.llm.chat_request import RathLLMChatRequest, RathLLMMessage
from rath.llm.draft import ChatDraft, OnDelta, open_draft
from rath.llm.exchange import Exchange, evidence_of
from rath.llm.failure import may_fall_back
from rath.session.body import Body
from rath.session.chunk import ChunkRow, RowId
from rath.session.reasoning import OwnAnswers
from rath.session.record import ModelCall, Purpose
from rath.session.request import Renderer
from rath.session.running.aside import aside, rows_worth
from rath.session.running.calls import Call, Context, bytes_digest, call_model
from rath.session.running.candidates import Candidate

_log = logging.getLogger("rath.session.loop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What stands around the rows of a session in every request of a run."""

    head: Sequence[ChunkRow]
    """The agent's rows."""

    request: Callable[[Candidate], RathLLMChatRequest]
    """Gives parameters and tools; the messages come from here."""

    context: Context | None = None
    question: str | None = None
    """The closing message of a side call."""

    streaming: bool = False


class Rendition:
    """A session as one model reads it: a draft that follows the rows, each encoded once.

    What it sends is a function of the agent's rows, the session's rows, the recalled notes, the
    request's parameters and tools, the client's way of encoding, and what the record holds of the
    answers of this very endpoint and model: nothing else. Making one is O(rows).
    """

    def __init__(self, candidate: Candidate, frame: Frame, body: Body) -> None:
        self.draft = open_draft(
            candidate.client,
            frame.request(candidate),
            streaming=frame.streaming,
            provider_origin=candidate.origin,
            provider=candidate.provider,
        )
        self._own = OwnAnswers(self.draft.facts)
        self._renderer = Renderer(self._own)
        head = [*self._renderer.render(frame.head), *self._renderer.close()]
        self.head_digest = bytes_digest(repr(head).encode(errors="replace"))
        self._own.stand_behind(self.head_digest, frame.context)
        self._own.learn(body.record)
        self.n_rows = len(body.table)
        """How many rows of the session it holds."""
        self.draft.append([*head, *self._rows_and_more(frame, body.table.rows)])

    def follow(self, body: Body) -> None:
        """Add what came since; O(new rows)."""
        self._own.learn(body.record)
        rows = body.table.since(self.n_rows)
        rendered = self._renderer.render(rows, start=self.n_rows)
        self.draft.append([*rendered, *self._renderer.hand_over()])
        self.n_rows += len(rows)

    def _rows_and_more(self, frame: Frame, rows: Sequence[ChunkRow]) -> list[RathLLMMessage]:
        renderer, context = self._renderer, frame.context
        at = len(rows) if context is None else context.at
        messages = renderer.render(rows[:at])
        if context is not None:
            messages += [*renderer.close(), context.message]
        messages += renderer.render(rows[at:], start=at)
        if frame.question is None:
            return messages + renderer.hand_over()
        return [*messages, *renderer.close(), RathLLMMessage("user", frame.question)]


class Conversation:
    """A session in front of a model, and of those that answer in its place where it fails.

    Each has a rendition of its own, which is made when it is asked for the first time and brought
    up to date when it is asked again.
    """

    def __init__(self, candidates: Sequence[Candidate], frame: Frame) -> None:
        self._candidates = candidates
        self._frame = frame
        self._renditions: list[Rendition | None] = [None] * len(candidates)
        self._last = 0
        """Index of the candidate that answered last."""
        self._displaced: str | None = None
        """The model whose failure brought that one, None while it is the first choice."""

    async def ask(
        self,
        body: Body,
        note: Callable[[ModelCall], None],
        *,
        operation: UUID,
        purpose: Purpose,
        row: RowId | None = None,
        on_delta: OnDelta | None = None,
    ) -> Exchange:
        """Ask for the answer to a session and return it.

        The candidate that answered last is asked first, and after it the others in their order,
        each once, as long as they fail with errors that another may not have. Until the first
        choice answers again, every call names the model whose failure led to it.

        Args:
            body: Content of the session; it has only grown since the last call.
            note: Gets an entry of each call, whatever became of it.
            operation: The run that asks.
            purpose: What the answer is for.
            row: The row that it will become.
            on_delta: Makes the calls streamed and gets each delta, also those of calls that failed.

        Raises:
            ProviderError: The last error; its notes name the models that had failed before.
        """
        failures: list[_Failure] = []
        try:
            while True:
                index = (self._last + len(failures)) % len(self._candidates)
                rendition = self._renditions[index]
                if rendition is None or rendition.n_rows < len(body.table):
                    rendition = await self._up_to_date(index, body)
                call = Call(
                    operation=operation,
                    purpose=purpose,
                    head_digest=rendition.head_digest,
                    n_rows=rendition.n_rows,
                    context=self._frame.context,
                    question=self._frame.question,
                    row=row,
                    fallback_from=failures[-1].model if failures else self._displaced,
                )
                try:
                    exchange = await call_model(rendition.draft, call, note, on_delta=on_delta)
                except Exception as exc:
                    if len(failures) + 1 == len(self._candidates) or not may_fall_back(exc):
                        raise
                    failures.append(_Failure(_name(rendition.draft, exc), exc))
                    _log.warning("run %s: %s; the next model is asked", operation, failures[-1])
                else:
                    self._last = index
                    self._displaced = call.fallback_from if index else None
                    return exchange
        except Exception as exc:
            for failure in failures:
                exc.add_note(f"before it, {failure}")
            raise

    async def _up_to_date(self, index: int, body: Body) -> Rendition:
        """Return a rendition that holds all rows; without stalling the runtime if they are many."""
        known = self._renditions[index]
        if known is None:
            make = partial(Rendition, self._candidates[index], self._frame, body)
            n_rows = rows_worth(self._frame.head) + rows_worth(body.table)
            known = await aside(max(n_rows, len(body.record)), make)
            self._renditions[index] = known
        else:
            new = body.table.since(known.n_rows)
            await aside(rows_worth(new), partial(known.follow, body))
        return known


@dataclass(frozen=True, slots=True)
class _Failure:
    model: str
    """Provider kind, endpoint and model."""

    error: Exception

    def __str__(self) -> str:
        return f"{self.model} failed with {type(self.error).__name__}: {self.error}"


def _name(draft: ChatDraft, error: Exception) -> str:
    facts, evidence = draft.facts, evidence_of(error)
    endpoint = facts.endpoint if evidence is None else evidence.endpoint
    parts = (facts.provider_kind, endpoint, facts.requested_model)
    return " ".join(part for part in parts if part)
