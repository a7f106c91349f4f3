"""`rath approve`, `deny`, `edit` and `answer`: replies to calls that a stored session waits for."""

from __future__ import annotations

import json
import shlex
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TypeAlias, cast

import typer

from rath._core.dataclasses import dataclass
from rath._core.text import short_id
from rath.cli.render import count_of, head, item, one_line
from rath.cli.stores import SessionText, StoreUrl, load_sessions
from rath.cli.terminal import AsJson, Misuse, misuse_on, say, say_json
from rath.session import Session
from rath.session.calls.decisions import login_name
from rath.session.chunk import readable_json
from rath.session.log.index.database import OUTCOME_STATES
from rath.session.open_calls import OpenCall, WaitsFor
from rath.session.outcome import Outcome, Suspended
from rath.session.run.stored_programs import waiting_sessions

Verb: TypeAlias = Literal["approved", "denied", "edited", "answered"]
CallText = Annotated[
    str, typer.Argument(metavar="CALL", help="The id of the call; `rath show` tells it.")
]
CallIfSeveral = Annotated[
    str | None,
    typer.Argument(metavar="[CALL]", help="The id of the call; needed where several wait."),
]
PlaceOption = Annotated[
    int | None,
    typer.Option("--index", help="Which call of its turn, from 0, where several have one id."),
]
ByOption = Annotated[
    str | None,
    typer.Option(
        "--by",
        metavar="NAME",
        help="Person or program that decides, for the record; by default your login name.",
    ),
]


def approve_call(
    session: SessionText,
    call: CallIfSeveral = None,
    index: PlaceOption = None,
    by: ByOption = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Approve a tool call that waits; it is made when the run is resumed."""
    with _decision("approved", session, (call, index), store, by, as_json=as_json) as made:
        made.session.approve(made.call, by=made.by)


def deny_call(
    session: SessionText,
    call: CallIfSeveral = None,
    reason: Annotated[
        str, typer.Argument(metavar="[REASON]", help="Why, as the model shall read it.")
    ] = "",
    index: PlaceOption = None,
    by: ByOption = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Deny a tool call that waits; the model reads that, and the reason."""
    with _decision("denied", session, (call, index), store, by, as_json=as_json) as made:
        made.session.deny(made.call, reason, by=made.by)
        made.more = reason


def edit_call(
    session: SessionText,
    call: CallText,
    arguments: Annotated[str, typer.Argument(metavar="ARGUMENTS", help="A JSON object.")],
    index: PlaceOption = None,
    by: ByOption = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Approve a tool call with other arguments; the model reads which."""
    new = _parse_json(arguments)
    if not isinstance(new, dict):
        raise Misuse(f"ARGUMENTS must be a JSON object, not {arguments:.80}")
    with _decision("edited", session, (call, index), store, by, as_json=as_json) as made:
        made.session.edit(made.call, cast("dict[str, Any]", new), by=made.by)
        made.more = f"approved with {readable_json(arguments)}"


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
    """Answer a question that a tool has asked; the run can be resumed then.

    The answer is JSON, `"red"`, `3` or `{"a": 1}`; with --text it is the text as it stands.
    """
    answer = value if is_text else _parse_json(value, "; for a text give --text")
    with _decision("answered", session, (call, index), store, by, as_json=as_json) as made:
        made.session.answer(answer, made.call, by=made.by)
        made.more = readable_json(json.dumps(answer, ensure_ascii=False))


def _parse_json(text: str, hint: str = "") -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise Misuse(f"{text:.80} is no JSON: {exc}{hint}") from exc


@dataclass(slots=True)
class _Made:
    """A decision about a call of a stored session."""

    session: Session
    call: OpenCall
    by: str
    more: str = ""
    """A reason, new arguments or an answer, for the report."""


@contextmanager
def _decision(
    verb: Verb,
    text: str,
    place: tuple[str | None, int | None],
    store: str | None,
    by: str | None,
    *,
    as_json: bool,
) -> Generator[_Made]:
    """Find the call to decide about, have that done, and report it with what comes next.

    Raises:
        Misuse: No such call waits for that, or several do; or it takes no such reply.
    """
    waits_for: WaitsFor = "input" if verb == "answered" else "approval"
    with load_sessions(text, store=store) as (named,):
        sessions = waiting_sessions(named) or (named,)
        found, call = _find_call(sessions, *place, waits_for, store)
        _require_fit(found, call, waits_for, store)
        made = _Made(found, call, by or login_name())
        with misuse_on(ValueError, TypeError):
            yield made
        waiting = waiting_sessions(named)
        if as_json:
            facts = {"session": found.id, "call": call.call.id, "decision": verb, "by": made.by}
            say_json({**facts, **outcome_json(found.outcome), "waiting": waiting_calls(waiting)})
            return
        more = f": {one_line(made.more)}" if made.more else ""
        head(f"{verb} {call.call.id} of session {short_id(found.id)} by {made.by}{more}")
        item(f"{call.call.name} {readable_json(call.call.arguments)}")
        n_waiting = sum(each.waits for session in waiting for each in session.open_calls)
        if n_waiting:
            head(f"{count_of(n_waiting, 'call')} still to decide")
            for session in waiting:
                say_waiting(session, store)
            return
        head("nothing waits any more; to resume the run:")
        say(f"  rath resume {store_option(store)}{named.id} MODULE:WORKFLOW")
        item("or in a program: agent(session), workflow.resume(session)")


def _find_call(
    sessions: Iterable[Session],
    call: str | None,
    index: int | None,
    waits_for: WaitsFor,
    store: str | None,
) -> tuple[Session, OpenCall]:
    """Return the one call that is meant, and the session that waits for it.

    One that was decided about may be meant too: the later word takes the place of the earlier.
    Without an id it is the only one that waits for such a decision.
    """
    calls = [(session, each) for session in sessions for each in session.open_calls]
    found = [
        (session, each)
        for session, each in calls
        if index in (None, each.index)
        and (each.waits_for == waits_for if call is None else each.call.id == call)
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        waiting = _commands(((session, each) for session, each in calls if each.waits), store)
        known = f"what waits:{waiting}" if waiting else "nothing waits in this session"
        named = "" if call is None else f" {call!r}"
        raise Misuse(f"no call{named} waits for {_DECISIONS[waits_for]}; {known}")
    if call is None:
        listed = _commands(found, store)
        raise Misuse(
            f"{len(found)} calls wait for {_DECISIONS[waits_for]}; give the id of one:{listed}"
        )
    places = ", ".join(f"--index {each.index}" for _, each in found)
    raise Misuse(f"{len(found)} open calls have the id {call!r}; say which one: {places}")


_DECISIONS: Mapping[WaitsFor, str] = {
    "approval": "an approval", "input": "an answer", "decision": "a decision"
}  # fmt: skip


def _require_fit(session: Session, call: OpenCall, given: WaitsFor, store: str | None) -> None:
    """Refuse a reply of another kind than the one that a call waits for.

    Raises:
        Misuse: It is one; the text has the commands that fit.
    """
    if call.waits_for is not None and call.waits_for != given:
        commands = _commands([(session, call)], store)
        wanted = _DECISIONS[call.waits_for]
        raise Misuse(
            f"call {call.call.id!r} waits for {wanted}, not for {_DECISIONS[given]}:{commands}"
        )


def _commands(calls: Iterable[tuple[Session, OpenCall]], store: str | None) -> str:
    """Return lines that say of calls what each waits for, with the commands to reply."""
    return "".join(
        f"\n  {waiting_text(each)}"
        + "".join(f"\n    {command}" for command in reply_commands(session, each, store))
        for session, each in calls
    )


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """Return the state of a session that has ended or waits, as JSON."""
    state = OUTCOME_STATES[type(outcome).__name__]
    return {"state": state, "waits": isinstance(outcome, Suspended)}


def say_waiting(session: Session, store: str | None) -> None:
    """Show the calls of a session that wait, with the commands to reply."""
    for each in session.open_calls:
        if each.waits:
            item(waiting_text(each))
            for command in reply_commands(session, each, store):
                say(f"    {command}")


def store_option(store: str | None) -> str:
    """Return the option that names a store in a command, with a blank; empty for the default."""
    return "" if store is None else f"--store {shlex.quote(store)} "


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


def reply_commands(session: Session, call: OpenCall, store: str | None = None) -> Iterator[str]:
    """Yield the commands that decide about a waiting call, or answer it."""
    shown = store_option(store)
    # An id may begin like an option: models choose them.
    place = shown + (f"-- {session.id}" if call.call.id.startswith("-") else str(session.id))
    place += f" {shlex.quote(call.call.id)}"
    match call.waits_for:
        case "approval":
            yield f"rath approve {place}"
            yield f"rath deny {place} REASON"
            yield f"rath edit {place} ARGUMENTS"
        case "input":
            # Without a schema the answer is most often a text, which JSON would want in quotes.
            text = "--text " if call.said.questions[-1].interrupt.schema is None else ""
            yield f"rath answer {text}{place} VALUE"
        case _:
            decided = shlex.quote(f"{call.call.id}=CHOICE")
            yield f"rath resume {shown}{session.id} MODULE:WORKFLOW --decide {decided}"
