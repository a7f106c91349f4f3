"""`rath approve`, `deny`, `edit` and `answer`: what a stored session waits for is said."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Annotated, Any, cast

import typer

from rath.cli.loaded import loaded
from rath.cli.outcomes import told_outcome
from rath.cli.outline import head, item
from rath.cli.sessions import AsJson, SessionText, StoreUrl
from rath.cli.terminal import Misuse, say_json
from rath.cli.waiting import how_to_say, told_waiting, waits_in_words
from rath.session import Session
from rath.session.open_calls import OpenCall, WaitsFor
from rath.session.run.stored_programs import waiting_sessions

__all__ = ["answer", "approve", "deny", "edit"]

approve, deny, edit, answer = (typer.Typer(add_completion=False) for _ in range(4))

CallText = Annotated[
    str, typer.Argument(metavar="CALL", help="The id of the call; `rath show` tells it.")
]
PlaceOption = Annotated[
    int | None,
    typer.Option("--index", help="Which call of its turn, from 0, where several have one id."),
]
ByOption = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who decides.")]

Say = Callable[[Session, OpenCall, dict[str, str]], Session]
"""Says it to the session that waits; the last argument holds `by`, where that was given."""


@approve.command("approve")
def approve_call(
    session: SessionText,
    call: CallText,
    index: PlaceOption = None,
    by: ByOption = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Allow a tool call that waits for it; it is made when the run goes on."""

    def say(found: Session, each: OpenCall, who: dict[str, str]) -> Session:
        return found.approve(each, **who)

    _say(session, call, "approval", say, (index, by, store), as_json=as_json)


@deny.command("deny")
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

    def say(found: Session, each: OpenCall, who: dict[str, str]) -> Session:
        return found.deny(each, reason, **who)

    _say(session, call, "approval", say, (index, by, store), as_json=as_json)


@edit.command("edit")
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
    given = _json(arguments)
    if not isinstance(given, dict):
        raise Misuse(f"ARGUMENTS must be a JSON object, not {arguments:.80}")
    new = cast("dict[str, Any]", given)

    def say(found: Session, each: OpenCall, who: dict[str, str]) -> Session:
        return found.edit(each, new, **who)

    _say(session, call, "approval", say, (index, by, store), as_json=as_json)


@answer.command("answer")
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
    given = value if is_text else _json(value, "; for a text give --text")

    def say(found: Session, each: OpenCall, who: dict[str, str]) -> Session:
        return found.answer(given, each, **who)

    _say(session, call, "input", say, (index, by, store), as_json=as_json)


def _say(
    text: str,
    call: str,
    wanted: WaitsFor,
    say: Say,
    options: tuple[int | None, str | None, str | None],
    *,
    as_json: bool,
) -> None:
    """Say something to a call of a stored session, and tell what still waits.

    Raises:
        Misuse: No such call waits for that, or several do; or it cannot be said to it.
    """
    index, by, store = options
    with loaded(text, store=store) as (named,):
        waiting = waiting_sessions(named) or (named,)
        found, asked = _found(waiting, call, index, wanted)
        try:
            say(found, asked, {} if by is None else {"by": by})
        except (ValueError, TypeError) as exc:
            raise Misuse(str(exc)) from exc
        _tell(found, asked, waiting_sessions(named), as_json=as_json)


def _found(
    sessions: Iterable[Session], call: str, index: int | None, wanted: WaitsFor
) -> tuple[Session, OpenCall]:
    """Return the one call that is meant, and the session that waits for it.

    One that was decided about may be meant too: the later word takes the place of the earlier.
    """
    listed: list[str] = []
    found: list[tuple[Session, OpenCall]] = []
    for session in sessions:
        for each in session.open_calls:
            is_named = each.call.id == call and index in (None, each.index)
            if is_named:
                found.append((session, each))
            if each.waits:
                listed.append(f"{waits_in_words(each)}, in session {session.id}")
    if len(found) == 1:
        return found[0]
    known = "; ".join(listed) or "nothing"
    if not found:
        raise Misuse(f"no call {call!r} waits for an {wanted}; what waits: {known}")
    places = ", ".join(f"--index {each.index}" for _, each in found)
    raise Misuse(f"{len(found)} open calls have the id {call!r}; say which one: {places}")


def _tell(found: Session, asked: OpenCall, waiting: Iterable[Session], *, as_json: bool) -> None:
    left = [(session, each) for session in waiting for each in session.open_calls if each.waits]
    outcome = told_outcome(found.outcome)
    if as_json:
        told = {"session": str(found.id), "call": asked.call.id, **outcome}
        sessions = {session.id: session for session, _ in left}
        say_json(
            {**told, "waiting": [one for each in sessions.values() for one in told_waiting(each)]}
        )
        return
    head(f"{found.id}: {outcome['state']}")
    for session, each in left:
        item(waits_in_words(each))
        for line in how_to_say(session, each):
            item(line, depth=2)
    if not left:
        item("nothing waits any more; the run goes on with `rath resume`, or agent(session)")


def _json(text: str, hint: str = "") -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise Misuse(f"{text:.80} is no JSON: {exc}{hint}") from exc
