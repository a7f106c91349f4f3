"""Tool calls of a session that are not answered, and the decisions on them."""

from __future__ import annotations

from collections.abc import Iterator, Reversible, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal, assert_never
from uuid import UUID

from rath._core.dataclasses import dataclass
from rath.llm.tool_args import parse_tool_arguments
from rath.session.body import Body
from rath.session.chunk import ChunkRow, ChunkTable, RowId
from rath.session.content import AssistantTurn, ToolCall, ToolFeedback, json_digest
from rath.session.outcome import NeedsApproval, NeedsDecision, NeedsInput, Outcome
from rath.session.record import (
    Change,
    Decision,
    Entry,
    Interrupt,
    ModelCall,
    Operation,
    Record,
    ToolRun,
)

if TYPE_CHECKING:
    from rath.session.events import PendingResult


Allowance = Literal["approve", "deny", "edit"]
"""Decision on a call that needs an approval: it is made, it is not, or it is made with other
arguments."""

ALLOWANCES = ("approve", "deny", "edit")
ANSWER = "answer"
"""The decision that answers a question."""


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question of a call."""

    interrupt: Interrupt
    answer: Decision | None = None
    """The last one that somebody gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDecisions:
    """The interrupts of one call, and the decisions about them."""

    to_allow: Interrupt | None = None
    """Approval that it needs first."""

    approval: Decision | None = None
    """The last thing that was said to that."""

    questions: tuple[AskedQuestion, ...] = ()
    """Questions of its tool, in order."""

    child: UUID | None = None
    """The session inside it that waits, where it was left for that."""

    n_stopped: int = 0
    """How many entries stand before the last one that says that it stopped to wait; 0 for none."""

    def bound_to(self, index: int) -> str | None:
        """Return the digest of the tool that somebody was asked about, None where nobody was.

        Args:
            index: Which of the calls of its row it is.
        """
        interrupts = [self.to_allow, *(each.interrupt for each in self.questions)]
        last = next((each for each in reversed(interrupts) if each is not None), None)
        bound = () if last is None else zip(last.places, last.bound, strict=False)
        return dict(bound).get(index)


@dataclass(frozen=True, slots=True)
class CallPlace:
    """Identity of a call of a session, in every respect that a decision is bound to."""

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


def decisions_for(place: CallPlace, entries: Sequence[Entry]) -> CallDecisions:
    """Return the decisions about a call; one that is not bound to it does not count.

    Args:
        place: The call.
        entries: Those of its own run since the model asked for it.
    """
    to_allow: Interrupt | None = None
    child: UUID | None = None
    questions: dict[UUID, AskedQuestion] = {}
    n_stopped = 0
    for at, entry in enumerate(entries, start=1):
        if not isinstance(entry, Interrupt) or not place.is_named_by(entry):
            continue
        child = entry.child
        if child is None and entry.reason == "approval":
            to_allow = entry
        elif child is None and entry.reason == "input":
            questions[entry.id] = AskedQuestion(entry)
        if child is not None or entry.reason == "input":
            n_stopped = at
    approval: Decision | None = None
    for decision in _decisions(place, entries):
        if decision.choice == ANSWER and decision.interrupt in questions:
            question = questions[decision.interrupt].interrupt
            questions[decision.interrupt] = AskedQuestion(question, decision)
        elif to_allow is not None and decision.interrupt == to_allow.id:
            is_complete = decision.choice != "edit" or decision.edited is not None
            if decision.choice in ALLOWANCES and is_complete:
                approval = decision
    return CallDecisions(
        to_allow=to_allow,
        approval=approval,
        questions=tuple(questions.values()),
        child=child,
        n_stopped=n_stopped,
    )


def _decisions(place: CallPlace, entries: Sequence[Entry]) -> Iterator[Decision]:
    for entry in entries:
        if isinstance(entry, Decision) and place.is_meant_by(entry):
            yield entry


CallState = Literal["asked", "begun", "suspended", "known"]
"""`asked`: nothing was done. `begun`: whether it took effect is not known. `suspended`: it stopped
to wait, and is made again from its start. `known`: there is a result that is no row yet."""

WaitsFor = Literal["approval", "input", "decision"]
"""Decision that is missing: whether a call may be made, the answer to its tool, or what became of
it."""

DECISIONS = ("retry", "skip", "done")
"""Decisions on a call of which it is not known whether it took effect."""

REPEATABLE = ("read_only", "idempotent")
"""The effects of tools whose calls may be made again when their outcome is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall:
    """A call that a model asked for and whose result it has not read."""

    row: int
    """Index of the row in which the model asked."""

    index: int
    """Index of the call in that row."""

    asked_in: RowId | None
    call: ToolCall
    state: CallState
    effects: str
    """Effects that its tool declared when it was called; `non_idempotent` where not known."""

    decision: Decision | None = None
    """The last one about whether it took effect that somebody made about exactly this call."""

    said: CallDecisions = field(default=CallDecisions(), repr=False)  # immutable, so one serves all
    """Approvals, denials and answers that it was given."""

    result: PendingResult | None = None
    """Set where the state is `known`."""

    is_let: bool = False
    """Whether hooks had let it pass before the run waited for others; `call` has the arguments that
    they gave it."""

    @property
    def has_passed(self) -> bool:
        """Whether hooks let it pass as it is here: it was begun, or the run waited after that."""
        return self.was_begun or self.is_let or self.said.approval is not None

    @property
    def was_begun(self) -> bool:
        """Whether its tool was called, by which it had passed all that stands before that."""
        return self.state in ("begun", "suspended")

    @property
    def is_allowed(self) -> bool:
        """Whether somebody has said of a call that it is made, or not: no rule is asked again.

        A decision of what became of it allows no call that had not begun.
        """
        return self.said.approval is not None or (self.was_begun and self.decision is not None)

    @property
    def waits(self) -> bool:
        """Whether the run cannot go on before somebody has decided about the call."""
        return self.waits_for is not None

    @property
    def waits_for(self) -> WaitsFor | None:
        """The decision that the call needs before the run can go on; None for none."""
        if self.state == "known":
            return None
        is_unsure = self.state == "begun" and self.effects not in REPEATABLE
        if is_unsure and self.decision is None:
            return "decision"
        decisions = self.said
        if self.is_settled:
            return None
        if decisions.to_allow is not None and decisions.approval is None:
            return "approval"
        return None if self.question is None else "input"

    @property
    def is_made(self) -> bool:
        """Whether it is made, perhaps once more, when the run goes on."""
        return self.state != "known" and not self.is_settled

    @property
    def is_settled(self) -> bool:
        """Whether it was decided that the call is not made, or not once more."""
        approval, decision = self.said.approval, self.decision
        if decision is not None and decision.choice in ("skip", "done"):
            return True
        return approval is not None and approval.choice == "deny"

    @property
    def question(self) -> str | None:
        """The last question of its tool, where nobody has answered that."""
        last = self.said.questions[-1:]
        if self.state == "known" or not last or last[0].answer is not None:
            return None
        return last[0].interrupt.question

    @property
    def allowed_by(self) -> Decision | None:
        """The decision by which it is made, or is not; None where none was needed."""
        return self.decision or self.said.approval

    def __str__(self) -> str:
        return f"{self.call.id!r} ({self.call.name} {self.call.arguments})"


def own_operation(record: Reversible[Entry], session: UUID) -> Operation | None:
    """Return the operation that makes a session; None where the record does not begin one."""
    for entry in reversed(record):
        if isinstance(entry, Operation) and entry.session == session and _makes(entry):
            return entry
    return None


def entries_since(record: Record, session: UUID) -> Sequence[Entry]:
    """Return the entries from the operation on that makes `session`, also those that came late.

    Where none makes it these are the entries from the first one on that serves it; none where
    there is neither. O(entries since).
    """
    found_entries: list[Entry] = []
    n_serving = 0
    for entry in reversed(record):
        found_entries.append(entry)
        if not isinstance(entry, Operation) or entry.session != session:
            continue
        n_serving = len(found_entries)
        if _makes(entry):
            break
    return tuple(found_entries[:n_serving][::-1])


def open_calls(body: Body, session: UUID, *, late: Record | None = None) -> tuple[OpenCall, ...]:
    """Return the calls of the last turn of a session that have no result in it; O(last round).

    Args:
        body: What the run of the session had written.
        session: Which session it makes.
        late: The record with the entries that came since.
    """
    last_turn = _last_turn(body.table, session)
    if last_turn is None:
        return ()
    at, turn = last_turn
    row = body.table[at]
    entries = _since(body.record if late is None else late, row, session)
    cut_off = _cut_off(entries)
    decisions = _decisions_in_force(
        body, entries, () if late is None else late.since(len(body.record))
    )
    calls: list[OpenCall] = []
    for index in _without_rows(turn.calls, body.table.since(at + 1)):
        changed, is_let = _changed(entries, row.id, index)
        call = turn.calls[index]
        if changed is not None:
            call = replace(call, arguments=changed)
        state, effects, result = _unrecorded_state(body, at, index)
        place = CallPlace(row.id, index, call)
        call_decisions = decisions_for(place, entries)
        if state == "asked" and call_decisions.n_stopped:
            state = "suspended"
        if state in ("asked", "suspended") and cut_off.get(call.id):
            n_before, cut = cut_off[call.id].pop(0)
            if n_before > call_decisions.n_stopped:
                state, effects = "begun", cut.effects_declared
        about = [each for each in decisions if place.is_meant_by(each)]
        calls.append(
            OpenCall(
                row=at,
                index=index,
                asked_in=row.id,
                call=call,
                state=state,
                effects=effects,
                decision=about[-1] if about else None,
                said=call_decisions,
                result=result,
                is_let=is_let,
            )
        )
    return tuple(calls)


def last_interrupt(record: Record, operation: UUID) -> Interrupt | None:
    """Return that a run waits for decisions by its record, None where that does not say so."""
    for entry in reversed(record):
        if entry.operation != operation:
            continue
        if isinstance(entry, Interrupt) and entry.reason == "decision":
            return entry
        # What it waited for before its last call is past.
        if isinstance(entry, Operation | ModelCall | ToolRun):
            return None
    return None


def _makes(operation: Operation) -> bool:
    """Tell whether an operation makes a session; a selection or a check only serves one."""
    return operation.kind not in ("select", "check", "memory")


def _last_turn(table: ChunkTable, session: UUID) -> tuple[int, AssistantTurn] | None:
    """Return the last turn of the run of `session`, if only results stand after it."""
    for offset, row in enumerate(reversed(table), start=1):
        if row.id is None or row.id.session != session:
            return None
        if isinstance(row.content, AssistantTurn):
            return len(table) - offset, row.content
        if not isinstance(row.content, ToolFeedback):
            return None
    return None


def _without_rows(calls: Sequence[ToolCall], rows: Sequence[ChunkRow]) -> list[int]:
    """Return which calls have no result.

    Results stand in call order, but for that of a call that was cut off beside others and made
    when the run went on: it stands behind theirs.
    """
    results = [row.content for row in rows]
    named = [(each.call_id, each.name) for each in results if isinstance(each, ToolFeedback)]
    missing: list[int] = []
    for index, call in enumerate(calls):
        if (call.id, call.name) in named:
            named.remove((call.id, call.name))
        else:
            missing.append(index)
    return missing


def _unrecorded_state(
    body: Body, row: int, index: int
) -> tuple[CallState, str, PendingResult | None]:
    """Return the state of a call that is no entry yet, from the lines of a file."""
    unfinished = body.unfinished
    for result in () if unfinished is None else unfinished.results:
        if (result.row, result.call) == (row, index):
            # One that was cut off, or stopped to wait, has a result that no model reads.
            effects = result.run.effects_declared
            if result.shown is not None:
                return "known", effects, result
            return ("suspended" if result.run.status == "suspended" else "begun"), effects, None
    for intent in () if unfinished is None else unfinished.intents:
        if (intent.row, intent.call) == (row, index):
            return "begun", intent.effects, None
    return "asked", "non_idempotent", None


def _since(record: Record, row: ChunkRow, session: UUID) -> list[Entry]:
    """Return the entries of the run of a session after the model call that made `row`."""
    own = own_operation(record, session)
    later: list[Entry] = []
    for entry in reversed(record):
        if isinstance(entry, ModelCall) and row.id in entry.rows:
            break
        # Agents inside a call have calls of their own, perhaps under the same ids.
        if own is not None and entry.operation == own.operation:
            later.append(entry)
    return later[::-1]


def _changed(entries: Sequence[Entry], row: RowId | None, index: int) -> tuple[str | None, bool]:
    """Return the arguments that hooks gave to a call in the end, None where they left them.

    And whether all of them were asked: the run waited after that. One that was cut off between two
    hooks has what the first one gave, and has not passed.
    """
    has_waited = False
    for entry in reversed(entries):
        if row not in entry.rows:
            continue
        if isinstance(entry, Interrupt):
            has_waited = True
        is_of_it = isinstance(entry, Change) and (entry.what, entry.call) == ("arguments", index)
        if isinstance(entry, Change) and is_of_it and entry.after.data is not None:
            return entry.after.data.decode(), has_waited
    return None, False


def _cut_off(entries: Sequence[Entry]) -> dict[str, list[tuple[int, ToolRun]]]:
    """Return the runs that were cut off after they had begun, by the id of their call.

    With each one how many entries there are up to it.
    """
    runs_of_call: dict[str, list[tuple[int, ToolRun]]] = {}
    for at, entry in enumerate(entries, start=1):
        # One that was cut off before it began took no time at all.
        if not isinstance(entry, ToolRun) or entry.rows or entry.status != "interrupted":
            continue
        if entry.duration_ms:
            runs_of_call.setdefault(entry.call_id, []).append((at, entry))
    return runs_of_call


def _decisions_in_force(
    body: Body, entries: Sequence[Entry], late: Sequence[Entry]
) -> list[Decision]:
    """Return the decisions that still hold: one is used up when its call was begun again."""
    later_ids = {entry.id for entry in late}
    unfinished = body.unfinished
    # Of a call that is open by the lines of its log these tell whether a decision still holds.
    is_open = set[tuple[int, int | None]]()
    if unfinished is not None and not unfinished.has_ended:
        is_open.update((each.row, each.call) for each in unfinished.intents)
        is_open.update((each.row, each.call) for each in unfinished.results)
    holding: list[Decision] = []
    for entry in entries:
        if isinstance(entry, ToolRun):
            holding = [each for each in holding if each.call_id != entry.call_id]
        elif isinstance(entry, Decision) and entry.choice in DECISIONS:
            places = ((row.index, entry.call) for row in entry.rows)
            is_decided = unfinished is not None and entry.call_id in unfinished.decided
            if entry.id in later_ids or is_decided or is_open.isdisjoint(places):
                holding.append(entry)
    return holding


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
