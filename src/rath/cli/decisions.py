"""`rath approve`, `deny`, `edit` and `answer`: replies to calls that a stored session waits for."""

from __future__ import annotations

import json
import shlex
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, cast

import typer

from rath.cli.render import head, item
from rath.cli.stores import SessionText, StoreUrl, load_sessions
from rath.cli.terminal import AsJson, Misuse, misuse_on, say_json
from rath.session import Session
from rath.session.chunk import readable_json
from rath.session.log.index.database import OUTCOME_STATES
from rath.session.open_calls import OpenCall, WaitsFor
from rath.session.outcome import Outcome, Suspended
from rath.session.run.stored_programs import waiting_sessions

CallText = Annotated[
    str, typer.Argument(metavar="CALL", help="The id of the call; `rath show` tells it.")
]
PlaceOption = Annotated[
    int | None,
    typer.Option("--index", help="Which call of its turn, from 0, where several have one id."),
]
ByOption = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who decides.")]


def approve_call(
    session: SessionText,
    call: CallText,
    index: PlaceOption = None,
    by: ByOption = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Allow a tool call that waits for it; it is made when the run goes on."""
    with _waiting_call(session, (call, index), "approval", store, as_json=as_json) as (found, each):
        found.approve(each, **_who(by))


def deny_call(
    session: SessionText,
    call: CallText,
    reason: Annotated[str, typer.Argument(help="Why, as the model shall read it.")] = "",
    index: PlaceOption = None,
    by: ByOption = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Have a tool call that waits for an approval not made; the model reads that, and why."""
    with _waiting_call(session, (call, index), "approval", store, as_json=as_json) as (found, each):
        found.deny(each, reason, **_who(by))


def edit_call(
    session: SessionText,
    call: CallText,
    arguments: Annotated[str, typer.Argument(metavar="ARGUMENTS", help="A JSON object.")],
    index: PlaceOption = None,
    by: ByOption = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Allow a tool call with other arguments; the model reads which."""
    new = _parse_json(arguments)
    if not isinstance(new, dict):
        raise Misuse(f"ARGUMENTS must be a JSON object, not {arguments:.80}")
    with _waiting_call(session, (call, index), "approval", store, as_json=as_json) as (found, each):
        found.edit(each, cast("dict[str, Any]", new), **_who(by))


def answer_question(
    session: SessionText,
    call: CallText,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The answer, as JSON.")],
    is_text: Annotated[bool, typer.Option("--text", help="Take the answer as a text.")] = False,
    index: PlaceOption = None,
    by: ByOption = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Answer what a tool has asked; it goes on with that when the run does.

    The answer is JSON, `"red"`, `3` or `{"a": 1}`; with --text it is the text as it stands.
    """
    answer = value if is_text else _parse_json(value, "; for a text give --text")
    with _waiting_call(session, (call, index), "input", store, as_json=as_json) as (found, each):
        found.answer(answer, each, **_who(by))


def _parse_json(text: str, hint: str = "") -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise Misuse(f"{text:.80} is no JSON: {exc}{hint}") from exc


@contextmanager
def _waiting_call(
    text: str,
    place: tuple[str, int | None],
    waits_for: WaitsFor,
    store: str | None,
    *,
    as_json: bool,
) -> Generator[tuple[Session, OpenCall]]:
    """Find a call of a stored session, have it replied to, and show what still waits.

    Raises:
        Misuse: No such call waits for that, or several do; or it takes no such reply.
    """
    with load_sessions(text, store=store) as (named,):
        found, call = _find_call(waiting_sessions(named) or (named,), *place, waits_for)
        with misuse_on(ValueError, TypeError):
            yield found, call
        waiting = waiting_sessions(named)
        outcome = outcome_json(found.outcome)
        if as_json:
            facts = {"session": found.id, "call": call.call.id, **outcome}
            say_json({**facts, "waiting": waiting_calls(waiting)})
            return
        head(f"{found.id}: {outcome['state']}")
        if not sum(say_waiting(session) for session in waiting):
            item("nothing waits any more; the run goes on with `rath resume`, or agent(session)")


def _who(by: str | None) -> dict[str, str]:
    return {} if by is None else {"by": by}


def _find_call(
    sessions: Iterable[Session], call: str, index: int | None, waits_for: WaitsFor
) -> tuple[Session, OpenCall]:
    """Return the one call that is meant, and the session that waits for it.

    One that was decided about may be meant too: the later word takes the place of the earlier.
    """
    calls = [(session, each) for session in sessions for each in session.open_calls]
    found = [
        (session, each)
        for session, each in calls
        if each.call.id == call and index in (None, each.index)
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        waiting = [
            f"{waiting_text(each)}, in session {session.id}"
            for session, each in calls
            if each.waits
        ]
        known = "; ".join(waiting) or "nothing"
        raise Misuse(f"no call {call!r} waits for an {waits_for}; what waits: {known}")
    places = ", ".join(f"--index {each.index}" for _, each in found)
    raise Misuse(f"{len(found)} open calls have the id {call!r}; say which one: {places}")


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """Return the state of a session that has ended or waits, as JSON."""
    state = OUTCOME_STATES[type(outcome).__name__]
    return {"state": state, "waits": isinstance(outcome, Suspended)}


def say_waiting(session: Session) -> int:
    """Show the calls of a session that wait, with the commands to reply, and count them."""
    waiting = [each for each in session.open_calls if each.waits]
    for each in waiting:
        item(waiting_text(each))
        for command in reply_commands(session, each):
            item(command, depth=2)
    return len(waiting)


def waiting_calls(sessions: Sequence[Session]) -> list[dict[str, Any]]:
    """Return the calls of sessions that wait, as JSON."""
    return [
        _call_json(session, each)
        for session in sessions
        for each in session.open_calls
        if each.waits
    ]


def _call_json(session: Session, call: OpenCall) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "session": session.id,
        "call": call.call.id,
        "index": call.index,
        "tool": call.call.name,
        "arguments": call.call.arguments,
        "waits_for": call.waits_for,
    }
    if call.waits_for == "input":
        schema = call.said.questions[-1].interrupt.schema
        facts["question"] = call.question
        facts["schema"] = None if schema is None else dict(schema)
    return facts


def waiting_text(call: OpenCall) -> str:
    """Return on one line what a call waits for."""
    text = f"{call.call.name} {readable_json(call.call.arguments)}"
    match call.waits_for:
        case "approval":
            return f"{call.call.id} waits for an approval: {text}"
        case "input":
            return f"{call.call.id} asks: {call.question} ({text})"
        case _:
            return f"{call.call.id} waits for a decision: {text}"


def reply_commands(session: Session, call: OpenCall) -> Iterator[str]:
    """Yield the commands that decide about a waiting call, or answer it."""
    # An id may begin like an option: models choose them.
    place = f"-- {session.id}" if call.call.id.startswith("-") else str(session.id)
    place += f" {shlex.quote(call.call.id)}"
    match call.waits_for:
        case "approval":
            yield f"rath approve {place}"
            yield f"rath deny {place} REASON"
            yield f"rath edit {place} ARGUMENTS"
        case "input":
            yield f"rath answer {place} VALUE"
        case _:
            decided = shlex.quote(f"{call.call.id}=CHOICE")
            yield f"rath resume {session.id} MODULE:WORKFLOW --decide {decided}"
