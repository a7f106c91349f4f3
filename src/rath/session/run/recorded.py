"""Recorded runs: read from sessions, served again, and compared with a replay."""

from __future__ import annotations

import asyncio
import builtins
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import cache, cached_property, partial
from hashlib import sha256
from itertools import islice, takewhile, zip_longest
from typing import Any, NamedTuple, cast
from uuid import UUID, uuid4

import rath.errors
from rath._core.dataclasses import dataclass
from rath._core.text import one_line_preview, short_id
from rath.errors import ProviderError, ReplayDifference, StreamInterrupted
from rath.llm.base import ChatDraft
from rath.llm.chat_request import RathLLMChatRequest, RathLLMFunctionTool
from rath.llm.chat_response import (
    RathLLMAssistantMessage,
    RathLLMChatChoice,
    RathLLMChatResponse,
    RathLLMFinishReason,
    tool_call_part,
)
from rath.llm.errors import network_error_class
from rath.llm.evidence import CallEvidence
from rath.llm.tool_args import parse_tool_arguments
from rath.session.base import with_late
from rath.session.body import Body
from rath.session.calls.results import CallResult, CheckedCall
from rath.session.chunk import ChunkRow, ChunkTable, RowId, format_chunk_row_brief
from rath.session.content import (
    AssistantTurn,
    ResultText,
    ToolCall,
    ToolFeedback,
    UserText,
    json_digest,
)
from rath.session.files.changes import inner_operations
from rath.session.graph.recording import Edge, Provenance
from rath.session.open_calls import open_calls
from rath.session.operation import Place
from rath.session.outcome import BudgetExceeded, Completed, DeadlineExceeded, Outcome, Suspended
from rath.session.recall import HoldingRecall, Recall
from rath.session.record import (
    Change,
    Decision,
    Entry,
    Interrupt,
    ModelCall,
    Operation,
    RecalledNote,
    ToolRun,
    parent_sink,
)
from rath.session.run.rounds import ToolRounds
from rath.session.session import Session
from rath.session.tooling import ToolOffer

MAX_SHOWN = 200
"""Characters of a row or of parameters that an error shows."""

_KINDS: Mapping[str, str] = {
    "loop": "run_session_loop",
    "compress": "run_session_compress",
    "select": "select_session",
}


def name_of(operation: Operation) -> str:
    """Return the name of a recorded operation in an error."""
    session = short_id(operation.session)
    return f"{kind_at(operation.kind, operation.place)} of session {session}"


def kind_at(kind: str, place: Place) -> str:
    """Return the kind and the place of an operation for an error."""
    at = f" at {place.path}#{place.ordinal}" if place.path else ""
    return f"{_KINDS.get(kind, kind)}{at}"


def difference(problem: str, where: str, recorded: str, found: str) -> ReplayDifference:
    """Return an error that shows of two texts the part around where they begin to differ."""
    expected, actual = _excerpt(recorded, found), _excerpt(found, recorded)
    return ReplayDifference(problem, where=where, expected=expected, found=actual)


def rows_differ(
    recorded: ChunkTable, replayed: ChunkTable, *, where: str, what: str
) -> ReplayDifference | None:
    """Return the error for the first row that differs, None where all are equal.

    Args:
        recorded: Rows of the record.
        replayed: Rows of the replay.
        where: The session.
        what: Whose rows they are, such as "the input".
    """
    shared = recorded.vector.common_prefix(replayed.vector)
    pairs = zip_longest(recorded.since(shared), replayed.since(shared))
    for index, (mine, theirs) in enumerate(pairs, shared):
        if mine != theirs:
            problem = f"row {index} of {what} is not the recorded one"
            texts = _row_text(index, mine), _row_text(index, theirs)
            return difference(problem, f"{where}, row {index}", *texts)
    return None


def _row_text(index: int, row: ChunkRow | None) -> str:
    if row is None:
        return "no such row"
    return format_chunk_row_brief(index, row, max_payload=1 << 20)


def _excerpt(text: str, other: str) -> str:
    """Return the part of `text` around the first character in which it differs from `other`."""
    pairs = enumerate(zip(text, other, strict=False))
    at = next((n for n, (a, b) in pairs if a != b), min(len(text), len(other)))
    start = max(0, at - MAX_SHOWN // 2) if len(text) > MAX_SHOWN else 0
    excerpt = text[start : start + MAX_SHOWN]
    before = "..." if start else ""
    after = "..." if start + MAX_SHOWN < len(text) else ""
    return one_line_preview(f"{before}{excerpt}{after}", MAX_SHOWN + 6)


@dataclass(frozen=True, slots=True)
class RecordedNode:
    """A session as its record tells it."""

    id: UUID
    body: Body
    """With late entries."""

    provenance: Provenance
    has_failed: bool = False
    """Whether its run ended with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOperation:
    """One operation, and what it left."""

    operation: Operation
    entries: tuple[Entry, ...]
    """From the operation to the last entry of it; what happened inside stands between."""

    at: int
    """Its index in the record in which it was found."""

    node: RecordedNode
    """The session that it made or served, else the one in whose record it was found."""

    rows: Mapping[RowId, ChunkRow] = field(repr=False)
    """All rows of the history."""

    @property
    def own(self) -> Iterator[Entry]:
        """The entries that belong to it itself, in order."""
        return (entry for entry in self.entries if entry.operation == self.operation.operation)

    @property
    def is_found(self) -> bool:
        """Whether the session that it made or served is there, and not only what it left."""
        return self.operation.session == self.node.id

    @property
    def outcome(self) -> Outcome | None:
        """How it ended, None where it failed, or made no session, or that is not known."""
        body = self.node.body
        if not self.is_found or self.node.has_failed:
            return None
        # What one of its tool calls made knows it up to that call, and nothing of its end.
        is_beginning = body.outcome == Completed() and bool(open_calls(body, self.node.id))
        return None if is_beginning else body.outcome

    @property
    def parents(self) -> tuple[UUID, ...]:
        """The sessions that it was made of; for one that serves a session, that one."""
        if self.operation.kind in ("select", "check"):
            return (self.operation.session,)
        return self.node.provenance.parent_ids if self.is_found else ()

    @property
    def own_rows(self) -> tuple[ChunkRow, ...]:
        """The rows that it made, at the end of its session."""
        table, session = self.node.body.table, self.operation.session
        own = takewhile(lambda row: row.id and row.id.session == session, reversed(table))
        return table.since(len(table) - sum(1 for _ in own))

    @property
    def input(self) -> ChunkTable:
        """The rows with which it began, as far as its own session tells."""
        table = self.node.body.table
        is_run = self.operation.kind == "loop" and self.is_found
        return table.prefix(len(table) - len(self.own_rows)) if is_run else table

    def row_of(self, entry: Entry) -> ChunkRow | None:
        """Return the first row that an entry made, None where it made none."""
        return self.rows.get(entry.rows[0]) if entry.rows else None

    def check_input(self, table: ChunkTable, digest: str) -> None:
        """Compare rows with those with which it began.

        Args:
            table: The rows.
            digest: Their digest.

        Raises:
            ReplayDifference: They are not the same.
        """
        recorded = self.operation.input_digest
        if recorded not in (None, digest):
            rows = f"the {len(table)} rows with which it begins"
            problem = f"{rows} are not those that the run began with"
            where = f"session {short_id(self.operation.session)}, {name_of(self.operation)}"
            raise difference(problem, where, f"sha256 {recorded}", f"sha256 {digest}")


@dataclass(frozen=True, slots=True)
class History:
    """The runs of sessions and of their ancestors; each session stands once."""

    nodes: tuple[RecordedNode, ...] = ()
    """Parents stand before what was made of them."""

    runs: tuple[RecordedOperation, ...] = ()
    """In the order of the records; what happened inside tool calls is left out."""


def history_of(*sessions: Session) -> History:
    """Return the history of sessions; waits for their runs. O(rows and entries), each once.

    A run that failed counts with what it had written.
    """
    nodes = tuple(_nodes(_node_of(session) for session in sessions))
    rows: dict[RowId, ChunkRow] = {}
    runs: list[RecordedOperation] = []
    entry_ids: set[UUID] = set()
    by_id = {node.id: node for node in nodes}
    for node in nodes:
        above = [by_id[edge.id] for edge in node.provenance.parents if edge.id in by_id]
        table, record = node.body.table, node.body.record
        n_rows = max((table.common_prefix(each.body.table) for each in above), default=0)
        rows.update((row.id, row) for row in table.since(n_rows) if row.id is not None)
        shared = max((record.common_prefix(each.body.record) for each in above), default=0)
        since = enumerate(record.since(shared), start=shared)
        new = [(at, entry) for at, entry in since if entry.id not in entry_ids]
        entry_ids.update(entry.id for _, entry in new)
        runs += _runs(new, by_id, node, rows)
    return History(nodes, tuple(runs))


def _runs(
    numbered: list[tuple[int, Entry]],
    nodes: Mapping[UUID, RecordedNode],
    node: RecordedNode,
    rows: Mapping[RowId, ChunkRow],
) -> Iterator[RecordedOperation]:
    """Yield the operations among entries that stand next to each other in the record of a node."""
    entries = [entry for _, entry in numbered]
    inner = inner_operations(entries)
    last = {entry.operation: at for at, entry in enumerate(entries)}
    for index, (at, entry) in enumerate(numbered):
        if isinstance(entry, Operation) and entry.operation not in inner:
            part = tuple(entries[index : last[entry.operation] + 1])
            owner = nodes.get(entry.session, node)
            yield RecordedOperation(operation=entry, entries=part, at=at, node=owner, rows=rows)


def _node_of(session: Session) -> RecordedNode:
    core, cell = session.core, session.core.body
    with suppress(Exception):  # whoever reads the session gets its error; here counts what it wrote
        session.synchronize()
    body = Body(session.partial_table) if cell.latest is None else core.inherited(cell.latest)
    # One that was loaded has no error, but its log tells of it.
    failure = None if body.unfinished is None else body.unfinished.failure
    has_failed = cell.error() is not None or (failure is not None and failure.how == "failed")
    return RecordedNode(session.id, body, session.provenance, has_failed)


def _nodes(roots: Iterable[RecordedNode]) -> Iterator[RecordedNode]:
    """Yield nodes and all that they came from, each once, parents first; no recursion."""
    todo: list[tuple[RecordedNode, bool]] = [(root, False) for root in roots][::-1]
    visited: set[UUID] = set()
    while todo:
        node, is_open = todo.pop()
        if is_open:
            yield node
        elif node.id not in visited:
            visited.add(node.id)
            todo.append((node, True))
            above = map(_of_edge, reversed(node.provenance.parents))
            todo += [(each, False) for each in above if each is not None]


def _of_edge(edge: Edge) -> RecordedNode | None:
    body: object = None if edge.body is None else edge.body.latest
    if not isinstance(body, Body):
        return None
    return RecordedNode(edge.id, with_late(edge.late, body), edge.provenance or Provenance())


_OWN_ERROR = re.compile(r"\S+:\S+ failed: (\w+): (.*)", re.DOTALL)
"""How the record tells of an error that a client of the program raised itself."""


def response_of(call: ModelCall, row: ChunkRow | None) -> RathLLMChatResponse:
    """Return the response of a model.

    Args:
        call: An answered call.
        row: The row that the answer became, None where it became none: then the call says it.
    """
    evidence = call.evidence
    message = _message(call, row)
    reason = evidence.finish_reason or ("tool_calls" if message and message.tool_calls else "stop")
    # The record holds the reason in the words of the type.
    finish = cast("RathLLMFinishReason", reason)
    return RathLLMChatResponse(
        id=evidence.response_id or "",
        choices=() if message is None else (RathLLMChatChoice(0, finish, message),),
        created=0,
        model=evidence.served_model or evidence.requested_model or "",
        service_tier=evidence.service_tier,
        system_fingerprint=evidence.fingerprint,
        usage=evidence.usage,
    )


def _message(call: ModelCall, row: ChunkRow | None) -> RathLLMAssistantMessage | None:
    reasoning = call.evidence.reasoning
    content = None if row is None else row.content
    if isinstance(content, AssistantTurn):
        parts = tuple(
            tool_call_part(each.id, each.name, each.arguments, kind=each.type)
            for each in content.calls
        )
        return RathLLMAssistantMessage(
            content=content.text,
            refusal=content.text if call.evidence.finish_reason == "refusal" else None,
            reasoning_content=reasoning,
            tool_calls=parts or None,
        )
    text = content.text if isinstance(content, UserText) else call.answer  # a summary, or no row
    if text is None:
        return None
    return RathLLMAssistantMessage(content=text, reasoning_content=reasoning)


def error_of(evidence: CallEvidence) -> Exception:
    """Return the error with which a recorded call failed, of the class that it had.

    The own error of a client is made again where it was one of Python's; of another one the record
    has the text, and the class of rath for it.
    """
    name, _, message = (evidence.error or "").partition(": ")
    kind = getattr(rath.errors, name, None)
    own = _OWN_ERROR.fullmatch(message)
    builtin = None if own is None else getattr(builtins, own[1], None)
    if own is not None and isinstance(builtin, type) and issubclass(builtin, Exception):
        with suppress(TypeError):  # one that is made of more than a text
            network_error = builtin(own[2])
            if network_error_class(network_error) is kind:
                return network_error
    status = evidence.attempts[-1].status if evidence.attempts else None
    error: ProviderError
    if not (isinstance(kind, type) and issubclass(kind, ProviderError)):
        error = ProviderError(evidence.error or "the call failed", endpoint=evidence.endpoint)
    elif issubclass(kind, StreamInterrupted):
        text = evidence.partial_text
        error = kind(message, endpoint=evidence.endpoint, partial_text=text)
    else:
        error = kind(message, endpoint=evidence.endpoint, status=status)
    error.evidence = evidence
    return error


class RecordEnds(asyncio.CancelledError):
    """The recorded run was ended from outside at this point."""


class EmptyRun:
    """A run that is made without a question: its input was cut off, waits, or had no budget.

    Args:
        place: Where the recorded run was made, and which session it made.
        outcome: How it ended, None where that is not known.
    """

    def __init__(self, place: Place, outcome: Outcome | None) -> None:
        self.place = place
        self.run_id: UUID = uuid4()
        """The operation of the recorded run."""

        self.rounds: Callable[..., Any] = ToolRounds
        """Makes what stands for the tools of the run."""
        self.offered: frozenset[str] = frozenset()
        self.notes: tuple[RecalledNote, ...] = ()
        """What was recalled for it."""

        self._ends_as = outcome

    def recall(self, given: Recall | None) -> Recall | None:
        """Return a recall of the recorded notes; the one that was given is let go."""
        waiting: object = given
        if isinstance(waiting, HoldingRecall):
            waiting.close()
        return (lambda _: self.notes) if self.notes else None

    def changes_of(self, row: RowId) -> Sequence[Change]:
        """Return the changes of hooks to the answer that a row holds."""
        return ()

    def result_order(self, calls: Sequence[ToolCall]) -> Sequence[int]:
        """Return the places of the calls of a turn in the order in which their results stand."""
        return range(len(calls))

    def cut_off(self, latest: Body, session: UUID) -> Body:
        """Return the content of the replay where it was ended, as the recorded run was."""
        if self._ends_as is None:
            return latest.cancelled(session)
        return replace(latest, outcome=self._ends_as)


class _Step(NamedTuple):
    """A model call of a run, and the tool runs that came of it."""

    at: int
    """Index of the call among the entries of the run."""

    call: ModelCall
    runs: list[tuple[int, ToolRun]]
    """With their indices."""


class RecordedRun(EmptyRun):
    """Serves the entries of one run in their order; used on the runtime loop only.

    Args:
        run: What was recorded.
        note: Is told of the first difference, also where nobody reads the run, and returns it.
    """

    def __init__(
        self,
        run: RecordedOperation,
        note: Callable[[ReplayDifference], ReplayDifference] = lambda difference: difference,
    ) -> None:
        operation = run.operation
        super().__init__(replace(operation.place, made=operation.session), None)
        self.run = run
        self.run_id: UUID = operation.operation
        self.rounds: Callable[..., Any] = partial(ServedRounds, script=self)
        self.offered = frozenset(tool.name for tool in operation.tools)
        self.where: str = f"session {short_id(operation.session)}"
        self._note = note
        self._entries: Sequence[Entry] = run.entries[1:]
        self._at = 0
        """How many of them were served, or told again."""

        self._steps: list[_Step] = []
        self.n_calls: int = 0
        """Model calls that were served so far."""

        self._rewritten: set[str | None] = set()
        """Ids of calls to which hooks or somebody gave other arguments, or another result."""

        self._answers: dict[RowId, list[Change]] = {}
        for at, entry in enumerate(self._entries):
            if entry.operation == self.run_id:
                self._take(at, entry)
        first_input = next(
            (step.call.seen for step in self._steps if step.call.seen is not None), None
        )
        self.notes = () if first_input is None else first_input.recalled
        self._schemas: dict[str, str] | None = None

    def _take(self, at: int, entry: Entry) -> None:
        match entry:
            case ModelCall():
                self._steps.append(_Step(at, entry, []))
            case ToolRun() if self._steps:
                self._steps[-1].runs.append((at, entry))
            case Change():
                self._rewritten.add(entry.call_id)
                for row in entry.rows if entry.what == "answer" else ():
                    self._answers.setdefault(row, []).append(entry)
            case Decision() if entry.edited is not None:
                self._rewritten.add(entry.call_id)
            case _:
                pass

    def changes_of(self, row: RowId) -> Sequence[Change]:
        """Return the changes of hooks to the answer that a row holds."""
        return self._answers.get(row, ())

    def result_order(self, calls: Sequence[ToolCall]) -> Sequence[int]:
        """Return the places of the calls of a turn in the order in which their results stand.

        That of a call which was cut off, and made when the run went on, stands behind the others.
        """
        remaining = [run for _, run in self._steps[self.n_calls - 1].runs if run.rows]
        stands = dict[int, int]()
        for place, call in enumerate(calls):
            index = next((at for at, run in enumerate(remaining) if self._is_of(run, call)), None)
            stands[place] = sys.maxsize if index is None else remaining[index].rows[0].index
            remaining = (
                remaining if index is None else [*remaining[:index], *remaining[index + 1 :]]
            )
        return sorted(stands, key=stands.__getitem__)

    def cut_off(self, latest: Body, session: UUID) -> Body:
        """Return the content of the replay where it was ended, as the recorded run was."""
        if not isinstance(self._ends_as, Suspended):
            return super().cut_off(latest, session)
        # It waits as the recorded one did: for the same things, with the same results kept.
        last = self._steps[-1].at if self._steps else 0
        waits = (
            entry
            for entry in self._entries[last:]
            if entry.operation == self.run_id and isinstance(entry, Interrupt | Decision)
        )
        ours = latest.with_entries(*waits)
        return replace(ours, outcome=self._ends_as, unfinished=self.run.node.body.unfinished)

    @property
    def calls(self) -> list[ModelCall]:
        """All model calls of the run."""
        return [step.call for step in self._steps]

    def next_call(self) -> ModelCall | None:
        """Return the model call that comes next, None where there is none."""
        return self._steps[self.n_calls].call if self.n_calls < len(self._steps) else None

    def take_call(self) -> ModelCall:
        """Step to the next model call; what happened before it is noted again.

        Raises:
            ReplayDifference: The record has no further call.
            RecordEnds: It was ended here.
        """
        while (call := self.next_call()) is not None:
            at = self._steps[self.n_calls].at
            self._note_inner(at)
            self._at = at + 1
            self.n_calls += 1
            after = islice(self._steps, self.n_calls, None)
            later = (step.call.evidence.fallback_from for step in after)
            # The run may have ended here and gone on later: then the question was asked again.
            if call.purpose == "compress":
                is_past = None in later
            else:
                is_past = call.status != "done" and next(later, "") is None
            if not is_past:
                return call
            parent_sink()(call, None)
        raise self.end("the run asks for another model call than the record has")

    def check_request(
        self, call: ModelCall, written: ChatDraft, request: RathLLMChatRequest
    ) -> None:
        """Compare a request with the one that a call had sent.

        Args:
            call: The call.
            written: The request, as the replay would send it.
            request: What it was made of, without the messages.

        Raises:
            ReplayDifference: It is another one; the text says in what, as far as that is known.
        """
        recorded_input, digest = call.seen, written.digest
        if recorded_input is None or recorded_input.request_digest == digest:
            return
        operation, where = self.run.operation, f"{self.where}, model call {self.n_calls}"
        own = None if operation.output is None else operation.output.tool.name
        offered = [tool for tool in request.tools or () if tool.name != own]
        recorded = _parts(
            operation.tools if operation.kind == "loop" else (), call.evidence.parameters
        )
        actual = _parts(offered, _parameters_in(written.body()) or call.evidence.parameters)
        for part in dict.fromkeys((*recorded, *actual)):
            kind, name = part
            texts = [parts.get(part, f"no such {kind.split()[-1]}") for parts in (recorded, actual)]
            if texts[0] != texts[1]:
                problem = f"the {kind} {name!r} of the request is not the recorded one"
                raise self._note(difference(problem, where, *texts))
        problem = (
            f"the request is not the one that was sent: the agent's rows, rows 0 to "
            f"{recorded_input.n_rows} of the session, recalled notes, or how they are written, "
            "changed"
        )
        digests = f"sha256 {recorded_input.request_digest}", f"sha256 {digest}"
        raise self._note(difference(problem, where, *digests))

    def serve_round(
        self,
        calls: Mapping[int, ToolCall],
        table: Mapping[str, ToolOffer],
        done: dict[int, CallResult],
    ) -> None:
        """Put into `done` what became of the calls of a turn, by their place in it.

        Raises:
            ReplayDifference: A call is not in the record, or its result is not the recorded one.
            RecordEnds: The recorded run was cut off before all of them had a result.
        """
        runs = self._steps[self.n_calls - 1].runs if self.n_calls else []
        remaining = [run for _, run in runs]
        self._note_inner(max((at + 1 for at, _ in runs), default=self._at))
        cut: list[str] = []
        for at, call in calls.items():
            # One that was cut off may have been made again when the run went on.
            candidates = [run for run in remaining if self._is_of(run, call)]
            run = next(
                (each for each in candidates if each.rows), candidates[0] if candidates else None
            )
            if run is None:
                raise self.end(f"the run makes tool call {call.id!r} ({call.name}) which is new")
            remaining.remove(run)
            self._check_schema(call, run, table.get(call.name))
            if run.rows:
                done[at] = self._result(call, run)
            else:
                cut.append(repr(call.id))
        if cut:
            raise self.end(f"the record has no result of tool calls {', '.join(cut)}")

    @cached_property
    def outcome(self) -> Outcome | None:
        """How the run ended, None where that is not known."""
        return self.run.outcome

    def end(self, problem: str = "") -> BaseException:
        """Return the error for a run that asks for more than the record has."""
        outcome = self.outcome
        if outcome is None or isinstance(outcome, BudgetExceeded | DeadlineExceeded | Suspended):
            self._ends_as = outcome
            return RecordEnds()
        where = f"{self.where}, {name_of(self.run.operation)}"
        return self._note(ReplayDifference(problem, where=where))

    def left(self) -> ReplayDifference | None:
        """Return the error for a model call that the replay did not make, if there is one."""
        call = self.next_call()
        if call is None:
            return None
        problem = "the record has a model call that the replay did not make"
        recorded = f"{call.purpose} call of {call.evidence.requested_model!r}"
        return difference(problem, self.where, recorded, "the end of the run")

    def compare(self, body: Body) -> None:
        """Compare what was made again with the record: rows, calls, own entries and outcome.

        Raises:
            ReplayDifference: Something is not the recorded one.
        """
        recorded = self.run.node.body.table
        differs = rows_differ(recorded, body.table, where=self.where, what="the session")
        differs = differs or self.left() or self._entries_differ(body)
        outcome = self.outcome
        if differs is None and outcome is not None and outcome != body.outcome:
            problem = "the run ended in another way"
            differs = difference(problem, self.where, repr(outcome), repr(body.outcome))
        if differs is not None:
            raise differs

    def _entries_differ(self, body: Body) -> ReplayDifference | None:
        """Compare what a run noted itself: its operation, calls and summaries."""
        run = self.run
        since = body.record.since(run.at if run.operation.kind == "loop" else 0)
        own = (entry for entry in since if entry.operation == self.run_id)
        # A call that was cut off when it was answered is noted as one that was cut off before.
        there = (entry for entry in run.own if not entry.rows or run.row_of(entry) is not None)
        for mine, theirs in zip(filter(_counts, there), filter(_counts, own), strict=False):
            kind = type(mine).__name__
            at = f"{self.where}, {kind} {mine.id}"
            if type(mine) is not type(theirs):
                problem = f"the kind of a {kind} is not the recorded one"
                return difference(problem, at, kind, type(theirs).__name__)
            for name in _compared(type(mine)):
                expected, actual = getattr(mine, name), getattr(theirs, name)
                if expected is not actual and expected != actual:
                    problem = f"{name} of a {kind} is not the recorded one"
                    return difference(problem, at, repr(expected), repr(actual))
        return None

    def _note_inner(self, until: int) -> None:
        """Tell the run again of what others had done inside it, and hooks with its tool calls."""
        for entry in self._entries[self._at : until]:
            # What hooks made of an answer is told with that answer.
            is_unrelated = isinstance(entry, Change) and entry.what != "answer"
            if is_unrelated or entry.operation != self.run_id:
                parent_sink()(entry, None)
        self._at = until

    def _is_of(self, run: ToolRun, call: ToolCall) -> bool:
        """Tell whether a recorded run is that of a call."""
        if (run.call_id, run.tool) != (call.id, call.name):
            return False
        if run.arguments is None or call.id in self._rewritten:
            return True
        return dict(run.arguments) == (parse_tool_arguments(call.arguments)[0] or {})

    def _check_schema(self, call: ToolCall, run: ToolRun, offer: ToolOffer | None) -> None:
        """Compare the schema of a tool with the one that it had in a call."""
        if self._schemas is None:
            tools = self.run.operation.tools
            self._schemas = {tool.name: json_digest(tool.parameters) for tool in tools}
        digest = self._schemas.get(call.name) if offer is None else offer.schema_digest
        if None not in (run.schema_digest, digest) and run.schema_digest != digest:
            problem = f"the schema of tool {call.name!r} is not the recorded one"
            where = f"{self.where}, tool call {call.id!r}"
            digests = f"sha256 {run.schema_digest}", f"sha256 {digest}"
            raise self._note(difference(problem, where, *digests))

    def _result(self, call: ToolCall, run: ToolRun) -> CallResult:
        """Return the result of a call, once its row agrees with the run."""
        row, where = self.run.row_of(run), f"{self.where}, tool call {call.id!r}"
        if row is None or not isinstance(row.content, ToolFeedback):
            raise self._note(ReplayDifference("the record has no row with the result", where=where))
        body = row.content.body
        digest = sha256(body.encode()).hexdigest()
        if digest != run.shown.digest:
            index = run.rows[0].index
            problem = f"the result of tool {run.tool!r} in row {index} is not what its run gave"
            recorded = f"sha256 {run.shown.digest}, {run.shown.size} bytes"
            actual = f"sha256 {digest}: {one_line_preview(body[:MAX_SHOWN], MAX_SHOWN)}"
            raise self._note(difference(problem, f"{where}, row {index}", recorded, actual))
        prepared = CheckedCall(call, None)
        return CallResult(
            prepared, ResultText(body), run.status, decision=run.decision, recorded=(run, row)
        )


def _counts(entry: Entry) -> bool:
    # Calls that were cut off are noted anew, a run that went on had waited for somebody, and what
    # hooks did is only told again.
    if isinstance(entry, Interrupt | Decision | Change):
        return False
    return not isinstance(entry, ToolRun) or bool(entry.rows)


_NOT_COMPARED = frozenset({"id", "at", "n_ours", "place", "theirs", "duration_ms", "evidence"})


@cache
def _compared(kind: type[Entry]) -> tuple[str, ...]:
    return tuple(name for name in kind.__struct_fields__ if name not in _NOT_COMPARED)


def _parameters_in(body: bytes) -> dict[str, Any] | None:
    """Return the parameters in the body of a request, None for one that is no JSON object."""
    try:
        fields: dict[str, Any] = dict(json.loads(body))
    except (TypeError, ValueError):
        return None
    return {name: fields[name] for name in fields if name not in ("messages", "system", "tools")}


def _parts(
    tools: Iterable[RathLLMFunctionTool], parameters: Mapping[str, Any]
) -> dict[tuple[str, str], str]:
    """Return the parts of a request beside its messages, as JSON, by the kind and name of each."""
    parts: dict[tuple[str, str], Any] = {
        ("schema of tool", tool.name): [tool.description, tool.parameters] for tool in tools
    }
    parts |= {("parameter", name): value for name, value in parameters.items()}
    to_text = partial(json.dumps, ensure_ascii=False, default=repr, sort_keys=True)
    return {part: to_text(value) for part, value in parts.items()}


@dataclass(slots=True)
class ServedRounds(ToolRounds):
    """The tool rounds of a replay: no tool is called."""

    script: RecordedRun | None = None

    async def run(
        self,
        calls: Sequence[ToolCall],
        session: Session,
        done: dict[int, CallResult],
        *,
        places: Sequence[int] | None = None,
        **_: object,
    ) -> list[CallResult]:
        """Give the recorded results; see `ToolRounds.run`."""
        assert self.script is not None
        by_place = dict(zip(range(len(calls)) if places is None else places, calls, strict=True))
        self.script.serve_round(by_place, self.table, done)
        return [done[at] for at in by_place]
