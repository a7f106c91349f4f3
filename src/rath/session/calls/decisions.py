"""Decisions on calls: approve, deny, edit, answer, retry, skip; and the outcome then."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast, get_args
from uuid import UUID

from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_function, lazy_modules
from rath._core.text import valid_unicode
from rath.llm.tool_args import parse_tool_arguments
from rath.session.base import SessionBase
from rath.session.open_calls import (
    ANSWER,
    Allowance,
    OpenCall,
    last_interrupt,
    open_calls,
    own_operation,
)
from rath.session.outcome import NeedsDecision, Suspended
from rath.session.record import Decision, Entry, Interrupt
from rath.session.tooling import ArgumentChecker, BadArguments, check_value

if TYPE_CHECKING:
    import getpass
else:
    (getpass,) = lazy_modules(__name__, "getpass")


Choice = Literal["retry", "skip", "done"]
"""`retry`: the call is made again. `skip`: it is not, and the model reads so. `done`: it was
carried out, and the model reads so."""


S = TypeVar("S", bound=SessionBase)


# Loads what writes logs, where anything is decided.
_require_waiting = lazy_function("rath.session.log.ancestors", "require_waiting")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuestion:
    """A question of a tool that nobody has answered."""

    call_id: str
    tool: str
    question: str
    schema: Mapping[str, Any] | None
    """JSON Schema of the answer, None where any JSON value will do."""

    call: OpenCall = field(repr=False)


class Deciding(SessionBase):
    """The decisions that a session which waits can take."""

    __slots__ = ()

    def decide(
        self,
        call: str | OpenCall,
        choice: Choice,
        *,
        result: str | None = None,
        by: str | None = None,
    ) -> Self:
        """Decide about a call of which it is not known whether it took effect.

        Nothing runs yet: the decision is added to the record, and the run goes on when the session
        is given to its agent again, or to `workflow.resume`. It holds for exactly this call, by
        id, tool, arguments and place, and until it is made again; a later one takes its place.

        Args:
            call: The id of the call, or one of `open_calls`, which tells calls of one id apart.
            choice: `retry`: it is made again. `skip`: it is not, and the model reads that.
                `done`: it was carried out, and the model reads that.
            result: With `done`: what came of it, as the model shall read it.
            by: Who decides, a person or a program, for the record; by default the login name.

        Returns:
            This session, which still waits.

        Raises:
            ValueError: The session waits for nothing, or has gone on; there is no such open call,
                or more than one; or the choice is unknown; or a result was given that does not
                fit it.
            TypeError: `result` is no text.
        """
        if choice not in get_args(Choice):
            raise ValueError(f"unknown choice {choice!r}: expected 'retry', 'skip' or 'done'")
        if result is not None and not isinstance(result, str):
            raise TypeError(
                f"result is what the model reads, a str, not {type(result).__name__}; for JSON "
                "give json.dumps(...)"
            )
        if result is not None and choice != "done":
            raise ValueError(f"a result goes with the choice 'done', not with {choice!r}")
        _require_waiting(self.core.body, self.id)
        outcome = self.outcome
        if not isinstance(outcome, Suspended):
            why = f"waits for no decision; its outcome is {outcome!r}"
            raise ValueError(f"session {self.id} {why}")  # noqa: TRY004  # the session does not fit
        if outcome.session != self.id:
            raise _passes_on(self.id, outcome.session, "decide")
        open_call = _find_unknown_call(self, call)
        operation = own_operation(self.record, self.id)
        assert operation is not None, "a session with open calls has an operation"
        interrupt = last_interrupt(self.record, operation.operation)
        entries: list[Entry] = []
        if interrupt is None:
            calls = outcome.calls if isinstance(outcome, NeedsDecision) else (open_call.call.id,)
            interrupt = Interrupt(operation=operation.operation, reason="decision", calls=calls)
            entries.append(interrupt)
        entries.append(_decision(interrupt, open_call, choice, by=by, text=result))
        self.add_entry(*entries)
        return self

    @property
    def questions(self) -> tuple[OpenQuestion, ...]:
        """The unanswered questions of tools that called `rath.ask`, in call order; waits."""
        return tuple(
            OpenQuestion(
                call_id=each.call.id,
                tool=each.call.name,
                question=each.question or "",
                schema=each.said.questions[-1].interrupt.schema,
                call=each,
            )
            for each in open_calls(self.core.body.result(), self.id, late=self.record)
            if each.waits_for == "input"
        )

    def approve(self, call_id: str | OpenCall, *, by: str | None = None) -> Self:
        """Allow a call that waits for it.

        Nothing runs yet: the decision is added to the record, and the run goes on when nothing
        waits any more and the session is given to its agent again, or to `workflow.resume`. It
        holds for exactly this call, by session, place, id, tool and arguments, and for one making
        of it; a later decision takes its place, as long as the run has not gone on.

        Args:
            call_id: The id of the call, or one of `open_calls`, which tells calls of one id apart.
            by: Who allows it, a person or a program, for the record; by default the login name.

        Returns:
            This session, which still waits.

        Raises:
            ValueError: There is no such call that waits for an approval, or more than one; or the
                run has gone on without it.
            TypeError: `by` is no text.
            PersistenceError: It is stored, and cannot be written or was changed by somebody else.
        """
        return _allow(self, call_id, "approve", by=by)

    def deny(self, call_id: str | OpenCall, reason: str = "", *, by: str | None = None) -> Self:
        """Have a call that waits for an approval not made; see `approve`.

        Args:
            call_id: The id of the call, or one of `open_calls`.
            reason: Why, as the model shall read it.
            by: Who denies it, for the record; see `approve`.

        Raises:
            ValueError: There is no such call that waits for an approval, or more than one; or the
                run has gone on without it.
            TypeError: `reason` is no text.
        """
        if not isinstance(reason, str):
            raise TypeError(f"reason is what the model reads, a str, not {type(reason).__name__}")
        return _allow(self, call_id, "deny", by=by, text=valid_unicode(reason) or None)

    def edit(
        self,
        call_id: str | OpenCall,
        arguments: Mapping[str, Any],
        *,
        by: str | None = None,
    ) -> Self:
        """Allow a call with other arguments, of which the model is told; see `approve`.

        Args:
            call_id: The id of the call, or one of `open_calls`.
            arguments: All arguments of the call, as JSON has them.
            by: Who changes it, for the record; see `approve`.

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
        self, value: Any, call_id: str | OpenCall | None = None, *, by: str | None = None
    ) -> Self:
        """Answer what a tool has asked with `rath.ask`; see `approve`.

        Args:
            value: The answer, as JSON has it: None, bool, int, float, str, list or dict.
            call_id: The id of the call that asks, or one of `open_calls`; None where only one does.
            by: Who answers, for the record; see `approve`.

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
        self.add_entry(_decision(question, open_call, ANSWER, by=by, text=text))
        return self


def _passes_on(session: UUID, waiting: UUID, verb: str) -> ValueError:
    return ValueError(
        f"session {session} only passes on that session {waiting} waits; {verb} there, for "
        "example Session.load(...) with that id"
    )


def _find_unknown_call(session: SessionBase, call: str | OpenCall) -> OpenCall:
    undone = [one for one in session.open_calls if one.state != "known"]
    matching = [one for one in undone if _is_meant(one, call)]
    for one in matching:
        if one.waits_for in ("approval", "input"):
            raise ValueError(
                f"call {one} of session {session.id} waits for an {one.waits_for}, and not for a "
                f"decision of what became of it; use session.{_WAITS[one.waits_for][1]}"
            )
    if len(matching) == 1:
        return matching[0]
    listed = "; ".join(map(str, undone)) or "none"
    if not matching:
        raise ValueError(
            f"session {session.id} has no open call {_name_of(call)}; open are: {listed}. A call "
            "whose result is recorded is not decided about"
        )
    raise ValueError(
        f"{len(matching)} open calls of session {session.id} have the id {_name_of(call)}: "
        f"{listed}. Give one of session.open_calls instead"
    )


def _allow(
    session: S,
    call: str | OpenCall,
    choice: Allowance,
    *,
    by: str | None,
    text: str | None = None,
    edited: Mapping[str, Any] | None = None,
) -> S:
    open_call = _find_waiting_call(session, call, "approval")
    if edited is not None:
        _check_edited(session, open_call, edited)
    interrupt = open_call.said.to_allow
    assert interrupt is not None, "a call that waits for an approval says since when"
    session.add_entry(_decision(interrupt, open_call, choice, by=by, text=text, edited=edited))
    return session


def _check_edited(session: SessionBase, open_call: OpenCall, edited: Mapping[str, Any]) -> None:
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


def _find_waiting_call(session: SessionBase, call: str | OpenCall | None, wanted: str) -> OpenCall:
    """Return the call that is meant, once it is sure that it waits for just that.

    Raises:
        ValueError: It does not.
    """
    _require_waiting(session.core.body, session.id)
    outcome = session.outcome
    if isinstance(outcome, Suspended) and outcome.session != session.id:
        raise _passes_on(session.id, outcome.session, "say it")
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


_WAITS = {
    "approval": ("an approval", "approve, deny or edit"),
    "input": ("an answer", "answer"),
    "decision": ("a decision", "decide"),
}
"""By what a call waits for: its name, and the methods with which it is given."""


def _not_waiting(
    session: SessionBase, call: str | OpenCall | None, wanted: str, calls: Sequence[OpenCall]
) -> str:
    """Say what a session waits for, and how that is said."""
    waiting = [(each, *_WAITS[each.waits_for]) for each in calls if each.waits_for is not None]
    listed = "; ".join(f"{each} for {name}: session.{methods}" for each, name, methods in waiting)
    what = "a call" if call is None else f"a call {_name_of(call)}"
    where = f"; what waits: {listed}" if listed else "; nothing waits in it"
    return f"session {session.id} has not {what} that waits for {_WAITS[wanted][0]}{where}"


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


def login_name() -> str:
    """Return the login name of the user; the number of one who has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return f"user {os.getuid()}" if hasattr(os, "getuid") else "unknown user"


def _decision(
    interrupt: Interrupt,
    open_call: OpenCall,
    choice: str,
    *,
    by: str | None,
    text: str | None = None,
    edited: Mapping[str, Any] | None = None,
) -> Decision:
    by = login_name() if by is None else by
    if not isinstance(by, str):
        raise TypeError(f"by says who decides, a str, not {type(by).__name__}")
    return Decision(
        operation=interrupt.operation,
        rows=() if open_call.asked_in is None else (open_call.asked_in,),
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
