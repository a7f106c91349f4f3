"""Decisions about calls of which it is not known whether they took effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeVar, get_args
from uuid import UUID

from rath._async.lazy import Deferred
from rath.llm.tool_args import parse_tool_arguments
from rath.session.body import Body
from rath.session.outcome import NeedsDecision, Outcome, Suspended
from rath.session.record import Decision, Entry, Interrupt, Record
from rath.session.resume.claims import require_waiting
from rath.session.resume.open_calls import (
    OpenCall,
    last_interrupt,
    open_calls,
    own_operation,
)

Choice = Literal["retry", "skip", "done"]
"""`retry`: the call is made again. `skip`: it is not, and the model reads so. `done`: it was
carried out, and the model reads so."""


class Decided(Protocol):
    """What is asked of a session to decide about its calls."""

    @property
    def id(self) -> UUID: ...

    @property
    def body(self) -> Deferred[Body]: ...
    @property
    def record(self) -> Record: ...
    @property
    def outcome(self) -> Outcome: ...
    @property
    def open_calls(self) -> tuple[OpenCall, ...]: ...
    def add_entries(self, *entries: Entry) -> None: ...


S = TypeVar("S", bound=Decided)


class Deciding:
    """What somebody can say to a session that waits."""

    __slots__ = ()

    @property
    def open_calls(self: Decided) -> tuple[OpenCall, ...]:
        """The calls of the last turn that have no result, and what is known of each; waits."""
        return open_calls(self.body.result(), self.id, late=self.record)

    def decide(self: S, call: str | OpenCall, choice: Choice, *, result: str | None = None) -> S:
        """Decide about a call of which it is not known whether it took effect.

        Nothing runs yet: the decision is added to the record, and the run goes on when the session
        is given to its agent again, or to `workflow.resume`. It holds for exactly this call, by
        id, tool, arguments and place, and until it is made again; a later one takes its place.

        Args:
            call: The id of the call, or one of `open_calls`, which tells calls of one id apart.
            choice: `retry`: it is made again. `skip`: it is not, and the model reads that.
                `done`: it was carried out, and the model reads that.
            result: With `done`: what came of it, as the model shall read it.

        Returns:
            This session, which still waits.

        Raises:
            ValueError: The session waits for nothing, or has gone on; there is no such open call,
                or more than one; or the choice is unknown; or a result was given that does not
                fit it.
            TypeError: `result` is no text.
        """
        _check_choice(choice, result)
        require_waiting(self.body, self.id)
        waiting = _waits(self)
        asked = _found(call, self.open_calls, self.id)
        operation = own_operation(self.record, self.id)
        assert operation is not None, "a session with open calls has an operation"
        interrupt = last_interrupt(self.record, operation.operation)
        entries: list[Entry] = []
        if interrupt is None:
            calls = waiting.calls if isinstance(waiting, NeedsDecision) else (asked.call.id,)
            interrupt = Interrupt(operation=operation.operation, reason="decision", calls=calls)
            entries.append(interrupt)
        entries.append(_decision(interrupt, asked, choice, result))
        self.add_entries(*entries)
        return self


def _check_choice(choice: object, result: object) -> None:
    if choice not in get_args(Choice):
        raise ValueError(f"unknown choice {choice!r}: expected 'retry', 'skip' or 'done'")
    if result is None:
        return
    if not isinstance(result, str):
        raise TypeError(
            f"result is what the model reads, a str, not {type(result).__name__}; for JSON give "
            "json.dumps(...)"
        )
    if choice != "done":
        raise ValueError(f"a result goes with the choice 'done', not with {choice!r}")


def _waits(session: Decided) -> Suspended:
    outcome = session.outcome
    if isinstance(outcome, Suspended) and outcome.session == session.id:
        return outcome
    why = f"waits for no decision; its outcome is {outcome!r}"
    if isinstance(outcome, Suspended):
        why = (
            f"only passes on that session {outcome.session} waits; decide there, for example "
            "Session.load(...) with that id"
        )
    raise ValueError(f"session {session.id} {why}")


def _found(call: str | OpenCall, known: Sequence[OpenCall], session: UUID) -> OpenCall:
    undone = [one for one in known if one.state != "known"]
    for one in undone:
        is_meant = one.call.id == call or one is call
        if is_meant and one.waits_for in ("approval", "input"):
            method = "approve, deny or edit" if one.waits_for == "approval" else "answer"
            raise ValueError(
                f"call {one} of session {session} waits for an {one.waits_for}, and not for a "
                f"decision of what became of it; use session.{method}"
            )
    if isinstance(call, OpenCall):
        found = [one for one in undone if (one.asked_in, one.index) == (call.asked_in, call.index)]
    else:
        found = [one for one in undone if one.call.id == call]
    if len(found) == 1:
        return found[0]
    wanted = call.call.id if isinstance(call, OpenCall) else call
    listed = "; ".join(map(str, undone)) or "none"
    if not found:
        raise ValueError(
            f"session {session} has no open call {wanted!r}; open are: {listed}. A call whose "
            "result is recorded is not decided about"
        )
    raise ValueError(
        f"{len(found)} open calls of session {session} have the id {wanted!r}: {listed}. Give one "
        "of session.open_calls instead"
    )


def _decision(
    interrupt: Interrupt, asked: OpenCall, choice: Choice, result: str | None
) -> Decision:
    return Decision(
        operation=interrupt.operation,
        rows=() if asked.asked_in is None else (asked.asked_in,),
        interrupt=interrupt.id,
        choice=choice,
        by="Session.decide",
        call_id=asked.call.id,
        arguments=parse_tool_arguments(asked.call.arguments)[0],
        tool=asked.call.name,
        call=asked.index,
        text=result,
    )
