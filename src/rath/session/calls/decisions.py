"""Decisions on calls: approve, deny, edit, answer, retry, skip; and the outcome then."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, assert_never, cast, get_args
from uuid import UUID

from rath._core.lazy_imports import lazy_function
from rath._core.text import valid_unicode
from rath.llm.tool_args import parse_tool_arguments
from rath.session.body import Body
from rath.session.open_calls import (
    ANSWER,
    Allowance,
    OpenCall,
    SessionLike,
    last_interrupt,
    open_calls,
    own_operation,
)
from rath.session.outcome import NeedsApproval, NeedsDecision, NeedsInput, Outcome, Suspended
from rath.session.record import Decision, Entry, Interrupt, Record
from rath.session.tooling import ArgumentChecker, BadArguments, check_value

Choice = Literal["retry", "skip", "done"]
"""`retry`: the call is made again. `skip`: it is not, and the model reads so. `done`: it was
carried out, and the model reads so."""


S = TypeVar("S", bound=SessionLike)


# Loads what writes logs, where anything is decided.
_require_waiting = lazy_function("rath.session.log.ancestors", "require_waiting")


class Deciding:
    """The decisions that a session which waits can take."""

    __slots__ = ()

    @property
    def open_calls(self: SessionLike) -> tuple[OpenCall, ...]:
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
        _require_waiting(self.body, self.id)
        waiting = _waits(self)
        open_call = _find_unknown_call(call, self.open_calls, self.id)
        operation = own_operation(self.record, self.id)
        assert operation is not None, "a session with open calls has an operation"
        interrupt = last_interrupt(self.record, operation.operation)
        entries: list[Entry] = []
        if interrupt is None:
            calls = waiting.calls if isinstance(waiting, NeedsDecision) else (open_call.call.id,)
            interrupt = Interrupt(operation=operation.operation, reason="decision", calls=calls)
            entries.append(interrupt)
        entries.append(_outcome_decision(interrupt, open_call, choice, result))
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


def _waits(session: SessionLike) -> Suspended:
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


def _find_unknown_call(
    call: str | OpenCall, open_calls: Sequence[OpenCall], session: UUID
) -> OpenCall:
    undone = [one for one in open_calls if one.state != "known"]
    for one in undone:
        is_meant = one.call.id == call or one is call
        if is_meant and one.waits_for in ("approval", "input"):
            method = "approve, deny or edit" if one.waits_for == "approval" else "answer"
            raise ValueError(
                f"call {one} of session {session} waits for an {one.waits_for}, and not for a "
                f"decision of what became of it; use session.{method}"
            )
    if isinstance(call, OpenCall):
        matching = [
            one for one in undone if (one.asked_in, one.index) == (call.asked_in, call.index)
        ]
    else:
        matching = [one for one in undone if one.call.id == call]
    if len(matching) == 1:
        return matching[0]
    wanted = call.call.id if isinstance(call, OpenCall) else call
    listed = "; ".join(map(str, undone)) or "none"
    if not matching:
        raise ValueError(
            f"session {session} has no open call {wanted!r}; open are: {listed}. A call whose "
            "result is recorded is not decided about"
        )
    raise ValueError(
        f"{len(matching)} open calls of session {session} have the id {wanted!r}: {listed}. Give "
        "one of session.open_calls instead"
    )


def _outcome_decision(
    interrupt: Interrupt, open_call: OpenCall, choice: Choice, result: str | None
) -> Decision:
    return Decision(
        operation=interrupt.operation,
        rows=() if open_call.asked_in is None else (open_call.asked_in,),
        interrupt=interrupt.id,
        choice=choice,
        by="Session.decide",
        call_id=open_call.call.id,
        arguments=parse_tool_arguments(open_call.call.arguments)[0],
        tool=open_call.call.name,
        call=open_call.index,
        text=result,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuestion:
    """A question of a tool that nobody has answered."""

    call_id: str
    tool: str
    question: str
    schema: Mapping[str, Any] | None
    """JSON Schema of the answer, None where any JSON value will do."""

    call: OpenCall = field(repr=False)


class Approving:
    """The decisions about calls that wait before they are made, or go on."""

    __slots__ = ()

    @property
    def questions(self: SessionLike) -> tuple[OpenQuestion, ...]:
        """The unanswered questions of tools that called `rath.ask`, in call order; waits."""
        return tuple(
            OpenQuestion(
                call_id=each.call.id,
                tool=each.call.name,
                question=each.question or "",
                schema=each.said.questions[-1].interrupt.schema,
                call=each,
            )
            for each in open_calls(self.body.result(), self.id, late=self.record)
            if each.waits_for == "input"
        )

    def approve(self: S, call_id: str | OpenCall, *, by: str = "Session.approve") -> S:
        """Allow a call that waits for it.

        Nothing runs yet: the decision is added to the record, and the run goes on when nothing
        waits any more and the session is given to its agent again, or to `workflow.resume`. It
        holds for exactly this call, by session, place, id, tool and arguments, and for one making
        of it; a later decision takes its place, as long as the run has not gone on.

        Args:
            call_id: The id of the call, or one of `open_calls`, which tells calls of one id apart.
            by: Who allows it, for the record.

        Returns:
            This session, which still waits.

        Raises:
            ValueError: There is no such call that waits for an approval, or more than one; or the
                run has gone on without it.
            TypeError: `by` is no text.
            PersistenceError: It is stored, and cannot be written or was changed by somebody else.
        """
        return _allow(self, call_id, "approve", by=by)

    def deny(self: S, call_id: str | OpenCall, reason: str = "", *, by: str = "Session.deny") -> S:
        """Have a call that waits for an approval not made; see `approve`.

        Args:
            call_id: The id of the call, or one of `open_calls`.
            reason: Why, as the model shall read it.
            by: Who denies it, for the record.

        Raises:
            ValueError: There is no such call that waits for an approval, or more than one; or the
                run has gone on without it.
            TypeError: `reason` is no text.
        """
        if not isinstance(reason, str):
            raise TypeError(f"reason is what the model reads, a str, not {type(reason).__name__}")
        return _allow(self, call_id, "deny", by=by, text=valid_unicode(reason) or None)

    def edit(
        self: S,
        call_id: str | OpenCall,
        arguments: Mapping[str, Any],
        *,
        by: str = "Session.edit",
    ) -> S:
        """Allow a call with other arguments, of which the model is told; see `approve`.

        Args:
            call_id: The id of the call, or one of `open_calls`.
            arguments: All arguments of the call, as JSON has them.
            by: Who changes it, for the record.

        Raises:
            ValueError: There is no such call that waits for an approval, or more than one; or the
                arguments do not fit the schema of its tool.
            TypeError: The arguments are no mapping, or cannot be written as JSON.
        """
        edited = _as_json(arguments)
        if not isinstance(edited, dict):
            raise TypeError(
                f"arguments are a mapping of names to values, not {type(arguments).__name__}"
            )
        return _allow(self, call_id, "edit", by=by, edited=cast("dict[str, Any]", edited))

    def answer(
        self: S, value: Any, call_id: str | OpenCall | None = None, *, by: str = "Session.answer"
    ) -> S:
        """Answer what a tool has asked with `rath.ask`; see `approve`.

        Args:
            value: The answer, as JSON has it: None, bool, int, float, str, list or dict.
            call_id: The id of the call that asks, or one of `open_calls`; None where only one does.
            by: Who answers, for the record.

        Raises:
            ValueError: No tool of that call waits for an answer, or more than one; or the answer
                is not what was asked for.
            TypeError: The answer cannot be written as JSON.
        """
        open_call = _find_waiting_call(self, call_id, "input")
        question = open_call.said.questions[-1].interrupt
        plain = _as_json(value)
        if question.schema is not None:
            try:
                check_value(question.schema, plain)
            except BadArguments as exc:
                raise ValueError(
                    f"the answer to {question.question!r} of call {open_call} is not what was "
                    f"asked for: {exc}"
                ) from exc
        text = json.dumps(plain, ensure_ascii=False)
        self.add_entries(_approval_decision(question, open_call, ANSWER, by=by, text=text))
        return self


def _allow(
    session: S,
    call: str | OpenCall,
    choice: Allowance,
    *,
    by: str,
    text: str | None = None,
    edited: Mapping[str, Any] | None = None,
) -> S:
    open_call = _find_waiting_call(session, call, "approval")
    if edited is not None:
        _check_edited(session, open_call, edited)
    interrupt = open_call.said.to_allow
    assert interrupt is not None, "a call that waits for an approval says since when"
    session.add_entries(
        _approval_decision(interrupt, open_call, choice, by=by, text=text, edited=edited)
    )
    return session


def _check_edited(session: SessionLike, open_call: OpenCall, edited: Mapping[str, Any]) -> None:
    """Check arguments against the schema that the run offered, where the record has it."""
    operation = own_operation(session.record, session.id)
    offered = () if operation is None else operation.tools
    schema = next((tool.parameters for tool in offered if tool.name == open_call.call.name), None)
    if schema is None:
        return
    try:
        ArgumentChecker().check(open_call.call.name, schema, edited)
    except BadArguments as exc:
        raise ValueError(f"call {open_call} cannot be made with these arguments: {exc}") from exc


def _find_waiting_call(session: SessionLike, call: str | OpenCall | None, wanted: str) -> OpenCall:
    """Return the call that is meant, once it is sure that it waits for just that.

    Raises:
        ValueError: It does not.
    """
    _require_waiting(session.body, session.id)
    outcome = session.outcome
    if isinstance(outcome, Suspended) and outcome.session != session.id:
        raise ValueError(
            f"session {session.id} only passes on that session {outcome.session} waits; say it "
            "there, for example Session.load(...) with that id"
        )
    calls = session.open_calls if isinstance(outcome, Suspended) else ()
    fitting = [each for each in calls if _is_open_for(each, wanted)]
    matching = [each for each in fitting if call is None or _is_meant(each, call)]
    if call is None:
        matching = [each for each in matching if each.waits_for == wanted]
    if len(matching) == 1:
        return matching[0]
    if not matching:
        raise ValueError(_not_waiting(session, call, wanted, calls))
    listed = "; ".join(map(str, matching))
    raise ValueError(
        f"{len(matching)} calls of session {session.id} are meant by {_name_of(call)}: {listed}. "
        + ("Say which one with its id" if call is None else "Give one of session.open_calls")
    )


def _is_open_for(call: OpenCall, wanted: str) -> bool:
    """Tell whether something may still be said to a call; what was said can be changed."""
    if call.state == "known" or call.waits_for == "decision":
        return False
    if wanted == "approval":
        return call.said.to_allow is not None and call.state == "asked"
    questions = call.said.questions[-1:]
    return call.state == "suspended" and bool(questions) and call.said.child is None


def _is_meant(each: OpenCall, call: str | OpenCall) -> bool:
    if isinstance(call, OpenCall):
        return (each.asked_in, each.index) == (call.asked_in, call.index)
    return each.call.id == call


def _name_of(call: str | OpenCall | None) -> str:
    if call is None:
        return "no id"
    return repr(call.call.id if isinstance(call, OpenCall) else call)


_METHODS = {
    "approval": "approve, deny or edit",
    "input": "answer",
    "decision": "decide",
}


def _not_waiting(
    session: SessionLike, call: str | OpenCall | None, wanted: str, calls: Sequence[OpenCall]
) -> str:
    """Say what a session waits for, and how that is said."""
    waiting = [each for each in calls if each.waits_for is not None]
    listed = "; ".join(
        f"{each} for {_article(each.waits_for or '')}: session.{_METHODS[each.waits_for or '']}"
        for each in waiting
    )
    what = "a call" if call is None else f"a call {_name_of(call)}"
    where = f"; what waits: {listed}" if listed else "; nothing waits in it"
    return f"session {session.id} has not {what} that waits for {_article(wanted)}{where}"


def _article(kind: str) -> str:
    return {"approval": "an approval", "input": "an answer", "decision": "a decision"}[kind]


def _as_json(value: Any) -> Any:
    """Return a copy of a value as it comes back from JSON, so that nobody can change it.

    Raises:
        TypeError: It has no JSON form.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        return json.loads(valid_unicode(text))
    except (TypeError, ValueError, RecursionError) as exc:
        raise TypeError(
            f"{type(value).__name__} cannot be written as JSON ({exc}); use None, bool, int, "
            "float, str, list and dict"
        ) from exc


def _approval_decision(
    interrupt: Interrupt,
    open_call: OpenCall,
    choice: str,
    *,
    by: str,
    text: str | None = None,
    edited: Mapping[str, Any] | None = None,
) -> Decision:
    assert open_call.asked_in is not None, "a row of a run has an id"
    if not isinstance(by, str):
        raise TypeError(f"by says who decides, a str, not {type(by).__name__}")
    return Decision(
        operation=interrupt.operation,
        rows=(open_call.asked_in,),
        interrupt=interrupt.id,
        choice=choice,
        by=valid_unicode(by),
        call_id=open_call.call.id,
        arguments=parse_tool_arguments(open_call.call.arguments)[0],
        tool=open_call.call.name,
        call=open_call.index,
        text=text,
        edited=edited,
    )


def current_outcome(outcome: Outcome, body: Body, session: UUID, late: Record | None) -> Outcome:
    """Return an outcome without what somebody has said since.

    Of several things that a session waits for it tells decisions first, then approvals, then
    answers.

    Args:
        outcome: How the run ended.
        body: What it had written.
        session: Which session it makes.
        late: The record with what came since, None where nothing did.
    """
    if not isinstance(outcome, NeedsApproval | NeedsInput | NeedsDecision):
        return outcome
    if outcome.session != session:
        return outcome
    calls = open_calls(body, session, late=late)
    if not calls and not isinstance(outcome, NeedsDecision):
        return outcome  # its log holds no turn that says more
    return waiting_outcome(calls, outcome, session)


def waiting_outcome(
    calls: Sequence[OpenCall], outcome: NeedsApproval | NeedsInput | NeedsDecision, session: UUID
) -> Outcome:
    """Return the outcome of a session by its open calls; `outcome` where it waits for none.

    Its kind is kept then, with nothing in it: the run goes on when it is given to its agent.
    """
    waiting = {kind: [each for each in calls if each.waits_for == kind] for kind in _ORDER}
    if waiting["decision"]:
        return NeedsDecision(session, tuple(each.call.id for each in waiting["decision"]))
    if waiting["approval"]:
        return NeedsApproval(session, tuple(each.call.id for each in waiting["approval"]))
    if waiting["input"]:
        return NeedsInput(session, waiting["input"][0].question or "")
    match outcome:
        case NeedsApproval():
            return NeedsApproval(session, ())
        case NeedsInput():
            return NeedsInput(session, "")
        case NeedsDecision():
            return NeedsDecision(session, ())
        case _:
            assert_never(outcome)


_ORDER = ("decision", "approval", "input")
