"""What somebody has said to an open call: that it may be made, and what it asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from rath.llm.tool_args import parse_tool_arguments
from rath.session.chunk import RowId
from rath.session.content import ToolCall
from rath.session.encode import json_digest
from rath.session.record import Decision, Entry, Interrupt

Allowance = Literal["approve", "deny", "edit"]
"""What is said of a call that somebody must allow: it is made, it is not, or it is made with other
arguments."""

ALLOWANCES = ("approve", "deny", "edit")
ANSWER = "answer"
"""What is said to a question."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question of a call."""

    interrupt: Interrupt
    answer: Decision | None = None
    """The last one that somebody gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a run waited for before it could make, or end, one call; and what was said to it."""

    to_allow: Interrupt | None = None
    """That somebody must allow it first."""

    approval: Decision | None = None
    """The last thing that was said to that."""

    questions: tuple[Asked, ...] = ()
    """What its tool has asked, in order."""

    child: UUID | None = None
    """The session inside it that waits, where it was left for that."""

    n_stopped: int = 0
    """How many entries stand before the last one that says that it stopped to wait; 0 for none."""

    def bound_to(self, index: int) -> str | None:
        """Return the digest of the tool that somebody was asked about, None where nobody was.

        Args:
            index: Which of the calls of its row it is.
        """
        asked = [self.to_allow, *(each.interrupt for each in self.questions)]
        last = next((each for each in reversed(asked) if each is not None), None)
        bound = () if last is None else zip(last.places, last.bound, strict=False)
        return dict(bound).get(index)


@dataclass(frozen=True, slots=True)
class Place:
    """Which call of a session it is, in every respect that a decision is bound to."""

    asked_in: RowId | None
    index: int
    call: ToolCall

    def is_named_by(self, interrupt: Interrupt) -> bool:
        """Tell whether a run waited because of this call."""
        if self.asked_in is None or self.asked_in not in interrupt.rows:
            return False
        named = zip(interrupt.places, interrupt.calls, strict=False)
        return (self.index, self.call.id) in named

    def is_meant_by(self, decision: Decision) -> bool:
        """Tell whether a decision is about exactly this call, as it was asked for."""
        call = self.call
        same_call = (decision.call_id, decision.tool, decision.call) == (
            call.id,
            call.name,
            self.index,
        )
        if not same_call or self.asked_in not in decision.rows:
            return False
        arguments = parse_tool_arguments(call.arguments)[0]
        # By their JSON: to Python 1, 1.0 and True are equal.
        return json_digest(decision.arguments) == json_digest(arguments)


def said_about(place: Place, entries: Sequence[Entry]) -> Said:
    """Return what was said about a call; a decision that is not bound to it does not count.

    Args:
        place: The call.
        entries: Those of its own run since the model asked for it.
    """
    to_allow: Interrupt | None = None
    child: UUID | None = None
    asked: dict[UUID, Asked] = {}
    n_stopped = 0
    for at, entry in enumerate(entries, start=1):
        if not isinstance(entry, Interrupt) or not place.is_named_by(entry):
            continue
        child = entry.child
        if child is None and entry.reason == "approval":
            to_allow = entry
        elif child is None and entry.reason == "input":
            asked[entry.id] = Asked(entry)
        if child is not None or entry.reason == "input":
            n_stopped = at
    approval: Decision | None = None
    for decision in _decisions(place, entries):
        if decision.choice == ANSWER and decision.interrupt in asked:
            question = asked[decision.interrupt].interrupt
            asked[decision.interrupt] = Asked(question, decision)
        elif to_allow is not None and decision.interrupt == to_allow.id:
            is_whole = decision.choice != "edit" or decision.edited is not None
            if decision.choice in ALLOWANCES and is_whole:
                approval = decision
    return Said(
        to_allow=to_allow,
        approval=approval,
        questions=tuple(asked.values()),
        child=child,
        n_stopped=n_stopped,
    )


def _decisions(place: Place, entries: Sequence[Entry]) -> Iterator[Decision]:
    for entry in entries:
        if isinstance(entry, Decision) and place.is_meant_by(entry):
            yield entry
