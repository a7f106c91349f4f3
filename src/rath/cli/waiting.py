"""What a session waits for, and how a command line says it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from rath.session import Session
from rath.session.chunk import readable_json
from rath.session.open_calls import OpenCall

__all__ = ["how_to_say", "told_waiting", "waits_in_words"]


def told_waiting(session: Session) -> list[dict[str, Any]]:
    """Return the calls of a session that wait, as JSON."""
    return [_told(session, each) for each in session.open_calls if each.waits]


def waits_in_words(call: OpenCall) -> str:
    """Return what a call waits for, in a line."""
    shown = f"{call.call.name} {readable_json(call.call.arguments)}"
    match call.waits_for:
        case "approval":
            return f"{call.call.id} waits for an approval: {shown}"
        case "input":
            return f"{call.call.id} asks: {call.question} ({shown})"
        case _:
            return f"{call.call.id} waits for a decision: {shown}"


def how_to_say(session: Session, call: OpenCall) -> Iterator[str]:
    """Yield the commands that say what a call waits for."""
    # An id may begin like an option: models choose them.
    where = f"-- {session.id}" if call.call.id.startswith("-") else str(session.id)
    where += f" {shlex.quote(call.call.id)}"
    match call.waits_for:
        case "approval":
            yield f"rath approve {where}"
            yield f"rath deny {where} REASON"
            yield f"rath edit {where} ARGUMENTS"
        case "input":
            yield f"rath answer {where} VALUE"
        case _:
            decided = shlex.quote(f"{call.call.id}=CHOICE")
            yield f"rath resume {session.id} MODULE:WORKFLOW --decide {decided}"


def _told(session: Session, call: OpenCall) -> dict[str, Any]:
    told: dict[str, Any] = {
        "session": str(session.id),
        "call": call.call.id,
        "index": call.index,
        "tool": call.call.name,
        "arguments": call.call.arguments,
        "waits_for": call.waits_for,
    }
    if call.waits_for == "input":
        schema = call.said.questions[-1].interrupt.schema
        told["question"] = call.question
        told["schema"] = None if schema is None else dict(schema)
    return told
