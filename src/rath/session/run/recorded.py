"""A recorded run as a script of answers and results, and how a replay differs from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import zip_longest
from types import MappingProxyType
from typing import Any
from uuid import UUID

from rath._core.text import one_line_preview, short_id
from rath.errors import ReplayDifference
from rath.llm.chat_request import RathLLMChatRequest, RathLLMFunctionTool
from rath.llm.draft import ChatDraft
from rath.llm.tool_args import parse_tool_arguments
from rath.session.body import Body
from rath.session.calls.asking import CurrentCall
from rath.session.calls.results import CallResult, CheckedCall
from rath.session.chunk import ChunkRow, RowId, format_chunk_row_brief
from rath.session.content import ResultText, ToolCall, ToolFeedback
from rath.session.derive import with_late
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

MAX_SHOWN = 200
"""Characters of a row or of parameters that an error shows."""

_KINDS: Mapping[str, str] = {
    "loop": "run_session_loop",
    "compress": "run_session_compress",
    "select": "select_session",
    "check": "check",
}


def name_of(operation: Operation) -> str:
    """Return how a recorded operation is named in an error."""
    return named(operation.kind, operation.place.path, operation.place.ordinal, operation.session)


def named(kind: str, path: str, ordinal: int, session: object = None) -> str:
    """Return how an operation is named in an error: its kind, place and session."""
    place = f" at {path}#{ordinal}" if path else ""
    of = "" if session is None else f" of session {short_id(session)}"  # type: ignore[arg-type]  # a UUID
    return f"{_KINDS.get(kind, kind)}{place}{of}"


def rows_differ(
    recorded: Sequence[ChunkRow], found: Sequence[ChunkRow], *, where: str, what: str
) -> ReplayDifference | None:
    """Return the error for the first row that differs, None where all are equal.

    Args:
        recorded: Rows of the record.
        found: Rows of the replay.
        where: The session.
        what: Whose rows they are, such as "the input".
    """
    for index, (mine, theirs) in enumerate(zip_longest(recorded, found)):
        if mine != theirs:
            return ReplayDifference(
                f"row {index} of {what} is not the recorded one",
                where=f"{where}, row {index}",
                expected=shown_row(index, mine, theirs),
                found=shown_row(index, theirs, mine),
            )
    return None


def tools_differ(
    recorded: Sequence[RathLLMFunctionTool],
    found: Sequence[RathLLMFunctionTool],
    *,
    where: str,
) -> ReplayDifference | None:
    """Return the error for the first tool schema that differs, None where all are equal."""
    mine, theirs = ({tool.name: tool for tool in tools} for tools in (recorded, found))
    for name in sorted({*mine, *theirs}):
        expected, given = mine.get(name), theirs.get(name)
        if expected != given:
            first, second = _schema(expected), _schema(given)
            return ReplayDifference(
                f"the schema of tool {name!r} is not the recorded one",
                where=where,
                expected=excerpt(first, second),
                found=excerpt(second, first),
            )
    return None


def parameters_differ(
    recorded: Mapping[str, Any], found: Mapping[str, Any], *, where: str
) -> ReplayDifference | None:
    """Return the error for the first parameter of a request that differs, None without any."""
    for name in dict.fromkeys((*recorded, *found)):
        expected, given = _json(recorded.get(name)), _json(found.get(name))
        if expected != given:
            return ReplayDifference(
                f"the parameter {name!r} of the request is not the recorded one",
                where=where,
                expected=excerpt(expected, given),
                found=excerpt(given, expected),
            )
    return None


def shown_row(index: int, row: ChunkRow | None, other: ChunkRow | None) -> str:
    """Return a row as an error shows it: where it begins to differ from `other`."""
    if row is None:
        return "no such row"
    mine = format_chunk_row_brief(index, row, max_payload=1 << 20)
    theirs = "" if other is None else format_chunk_row_brief(index, other, max_payload=1 << 20)
    return excerpt(mine, theirs)


def excerpt(text: str, other: str) -> str:
    """Return the part of `text` around the first character in which it differs from `other`."""
    at = next((n for n, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), None)
    at = min(len(text), len(other)) if at is None else at
    start = max(0, at - MAX_SHOWN // 2) if len(text) > MAX_SHOWN else 0
    shown = text[start : start + MAX_SHOWN]
    before = "..." if start else ""
    after = "..." if start + MAX_SHOWN < len(text) else ""
    return one_line_preview(f"{before}{shown}{after}", MAX_SHOWN + 6)


def _schema(tool: RathLLMFunctionTool | None) -> str:
    if tool is None:
        return "no such tool"
    return _json({"description": tool.description, "parameters": tool.parameters})


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=repr, sort_keys=True)


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
    def calls(self) -> tuple[ModelCall, ...]:
        """Its model calls."""
        return tuple(entry for entry in self.own if isinstance(entry, ModelCall))

    @property
    def answers_changed(self) -> Mapping[RowId, Sequence[Change]]:
        """What hooks had made of its answers, by their rows."""
        found: dict[RowId, list[Change]] = {}
        for entry in self.own:
            if isinstance(entry, Change) and entry.what == "answer":
                for row in entry.rows:
                    found.setdefault(row, []).append(entry)
        return found

    @property
    def is_found(self) -> bool:
        """Whether the session that it made or served is there, and not only what it left."""
        return self.operation.session == self.node.id

    @property
    def outcome(self) -> Outcome | None:
        """How it ended, None where it failed, or made no session, or that is not known."""
        is_known = self.is_found and not self.node.has_failed
        return self.node.body.outcome if is_known and not self.is_beginning else None

    @property
    def is_beginning(self) -> bool:
        """Whether more came of it: what one of its tool calls made knows it up to that call."""
        body = self.node.body
        return body.outcome == Completed() and bool(open_calls(body, self.node.id))

    @property
    def parents(self) -> tuple[UUID, ...]:
        """The sessions that it was made of; for one that serves a session, that one."""
        if self.operation.kind in ("select", "check"):
            return (self.operation.session,)
        return self.node.provenance.parent_ids if self.is_found else ()


@dataclass(frozen=True, slots=True)
class History:
    """What sessions and those that they came from say together; each session stands once."""

    nodes: tuple[RecordedNode, ...]
    """Parents stand before what was made of them."""

    runs: tuple[RecordedOperation, ...]
    """In the order of the records; what happened inside tool calls is left out."""


def history_of(*sessions: Session) -> History:
    """Return the history of sessions; waits for their runs. O(rows and entries), each once.

    A run that failed counts with what it had written.
    """
    nodes = tuple(_nodes(_ended(session) for session in sessions))
    rows: dict[RowId, ChunkRow] = {}
    runs: list[RecordedOperation] = []
    known: set[UUID] = set()
    by_id = {node.id: node for node in nodes}
    for node in nodes:
        above = [by_id[edge.id] for edge in node.provenance.parents if edge.id in by_id]
        table, record = node.body.table, node.body.record
        n_rows = max((table.common_prefix(each.body.table) for each in above), default=0)
        rows.update((row.id, row) for row in table.since(n_rows) if row.id is not None)
        shared = max((record.common_prefix(each.body.record) for each in above), default=0)
        since = enumerate(record.since(shared), start=shared)
        new = [(at, entry) for at, entry in since if entry.id not in known]
        known.update(entry.id for _, entry in new)
        runs += _runs(new, node, rows)
    found = {run.operation.operation: by_id.get(run.operation.session, run.node) for run in runs}
    return History(nodes, tuple(_at(run, found[run.operation.operation]) for run in runs))


def _runs(
    numbered: list[tuple[int, Entry]], node: RecordedNode, rows: Mapping[RowId, ChunkRow]
) -> Iterator[RecordedOperation]:
    """Yield the operations among entries that stand next to each other in a record."""
    entries = [entry for _, entry in numbered]
    inner = inner_operations(entries)
    last = {entry.operation: at for at, entry in enumerate(entries)}
    for index, (at, entry) in enumerate(numbered):
        if isinstance(entry, Operation) and entry.operation not in inner:
            part = tuple(entries[index : last[entry.operation] + 1])
            yield RecordedOperation(operation=entry, entries=part, at=at, node=node, rows=rows)


def _at(run: RecordedOperation, node: RecordedNode) -> RecordedOperation:
    """Return a run with the session that it made, where that is in the history."""
    return run if run.node is node else replace(run, node=node)


def _ended(session: Session) -> RecordedNode:
    cell = session.body
    with suppress(Exception):  # whoever reads the session gets its error; here counts what it wrote
        session.synchronize()
    body = Body(session.partial_table) if cell.latest is None else session.inherited(cell.latest)
    left = body.unfinished
    # One that was loaded has no error, but its log tells of it.
    told = left is not None and left.failure is not None and left.failure.how == "failed"
    return RecordedNode(session.id, body, session.provenance, told or cell.error() is not None)


def _nodes(roots: Iterable[RecordedNode]) -> Iterator[RecordedNode]:
    """Yield nodes and all that they came from, each once, parents first; no recursion."""
    todo: list[tuple[RecordedNode, bool]] = [(root, False) for root in roots][::-1]
    known: set[UUID] = set()
    while todo:
        node, is_open = todo.pop()
        if is_open:
            yield node
            continue
        if node.id in known:
            continue
        known.add(node.id)
        todo.append((node, True))
        above = [_of_edge(edge) for edge in node.provenance.parents]
        todo += [(each, False) for each in reversed(above) if each is not None]


def _of_edge(edge: Edge) -> RecordedNode | None:
    body: object = None if edge.body is None else edge.body.latest
    if not isinstance(body, Body):
        return None
    return RecordedNode(edge.id, with_late(edge.late, body), edge.provenance or Provenance())


_NO_PARAMETERS = frozenset({"messages", "system", "tools"})


def body_parameters(body: bytes) -> dict[str, Any] | None:
    """Return the parameters in the body of a request, None for one that is no JSON object."""
    try:
        said: dict[str, Any] = dict(json.loads(body))
    except (TypeError, ValueError):
        return None
    return {name: value for name, value in said.items() if name not in _NO_PARAMETERS}


_NOTHING_GIVEN: Mapping[int, CurrentCall] = MappingProxyType({})


class RecordEnds(asyncio.CancelledError):
    """The recorded run was ended from outside at this point."""


class RecordedRun:
    """Serves the entries of one run in their order; used on the runtime loop only.

    Args:
        run: What was recorded.
        found: Is told of the first difference, also where nobody reads the run.
    """

    def __init__(
        self, run: RecordedOperation, *, found: Callable[[ReplayDifference], object] | None = None
    ) -> None:
        self.run = run
        self._entries: Sequence[Entry] = run.entries[1:]
        self._at = 0
        self._own = run.operation.operation
        self._found = found
        self._served: set[UUID] = set()
        self._is_cut = False
        self._rewritten = frozenset(
            entry.call_id
            for entry in run.own
            if isinstance(entry, Change)
            or (isinstance(entry, Decision) and entry.edited is not None)
        )
        """Ids of calls to which hooks or somebody gave other arguments, or another result."""

        self._answers_changed = run.answers_changed
        self.n_calls = 0
        """Model calls that were served so far."""

        self.where = f"session {short_id(run.operation.session)}"

    @property
    def place(self) -> Place:
        """Where the recorded run was made; it gives its id to the session that is made."""
        operation = self.run.operation
        return replace(operation.place, made=operation.session)

    @property
    def run_id(self) -> UUID:
        """The operation of the recorded run."""
        return self._own

    @property
    def rounds(self) -> Callable[..., ToolRounds]:
        """Makes what stands for the tools of the run."""
        return partial(ServedRounds, script=self)

    def recall(self, given: Recall | None) -> Recall | None:
        """Return what gives the recorded notes; the one that was given is let go."""
        waiting: object = given
        if isinstance(waiting, HoldingRecall):
            waiting.close()
        seen = next((call.seen for call in self.run.calls if call.seen is not None), None)
        notes: tuple[RecalledNote, ...] = () if seen is None else seen.recalled
        return (lambda _: notes) if notes else None

    def next_call(self) -> ModelCall | None:
        """Return the model call that comes next, None where there is none."""
        return next((call for _, call in self._calls_ahead()), None)

    def serve_call(
        self, written: ChatDraft, request: RathLLMChatRequest
    ) -> tuple[ModelCall, ChunkRow | None]:
        """Return the next call and the row that it made, once the request is the recorded one.

        Args:
            written: The request, as the replay would send it.
            request: What it was made of, without the messages.

        Raises:
            ReplayDifference: The request is another one, or the record has no further call.
        """
        digest = written.digest
        call = self._take_call()
        if call is None:
            raise self.end("the run asks for another model call than the record has")
        where = f"{self.where}, model call {self.n_calls}"
        seen = call.seen
        if seen is not None and seen.request_digest != digest:
            raise self.differs(self._explained(call, written, request, where))
        row = self.run.rows.get(call.rows[0]) if call.rows else None
        return call, row

    def serve_round(
        self, calls: Sequence[ToolCall], places: Sequence[int], rounds: ToolRounds
    ) -> dict[int, CallResult]:
        """Return what became of the calls of a turn, by their place in it.

        Raises:
            ReplayDifference: A call is not in the record, or its result is not the recorded one.
            CancelledError: The recorded run was cut off before all of them had a result.
        """
        left = self._runs_of_turn()
        done: dict[int, CallResult] = {}
        cut: list[str] = []
        for at, call in zip(places, calls, strict=True):
            # One that was cut off may have been made again when the run went on.
            made = [each for each in left if self._is_of(each, call)]
            run = next((each for each in made if each.rows), made[0] if made else None)
            if run is None:
                raise self.end(f"the run makes tool call {call.id!r} ({call.name}) which is new")
            left.remove(run)
            self._served.add(run.id)
            finished = self._finished(call, run, rounds)
            if finished is None:
                cut.append(call.id)
            else:
                done[at] = finished
        if cut:
            calls_cut = ", ".join(map(repr, cut))
            end = self.end(f"the record has no result of tool calls {calls_cut}")
            raise _Cut(done, end)
        return done

    def end(self, problem: str = "") -> BaseException:
        """Return what ends a run that asks for more than the record has."""
        outcome = self.run.outcome
        ended_outside = isinstance(outcome, BudgetExceeded | DeadlineExceeded | Suspended)
        if ended_outside or outcome is None:
            self._is_cut = True
            return RecordEnds()
        return self.differs(
            ReplayDifference(problem, where=f"{self.where}, {name_of(self.run.operation)}")
        )

    def differs(self, difference: ReplayDifference) -> ReplayDifference:
        """Note a difference and return it."""
        if self._found is not None:
            self._found(difference)
        return difference

    def changes_of(self, row: RowId) -> Sequence[Change]:
        """Return what hooks had made of the answer that a row holds."""
        return self._answers_changed.get(row, ())

    def cut_off(self, latest: Body, session: UUID) -> Body:
        """Return the content of the replay where it was ended, as the recorded run was."""
        outcome = self.run.outcome
        if not self._is_cut or outcome is None:
            return latest.cancelled(session)
        if not isinstance(outcome, Suspended):
            return replace(latest, outcome=outcome)
        # It waits as the recorded one did: for the same things, with the same results kept.
        ours = latest.with_entries(*self._waited_for())
        return replace(ours, outcome=outcome, unfinished=self.run.node.body.unfinished)

    def left(self) -> ReplayDifference | None:
        """Return the error for what the record has and the replay did not ask for, if anything."""
        for entry in self._entries[self._at :]:
            if entry.operation != self._own or entry.id in self._served:
                continue
            if isinstance(entry, ModelCall):
                return ReplayDifference(
                    "the record has a model call that the replay did not make",
                    where=self.where,
                    expected=f"{entry.purpose} call of {entry.evidence.requested_model!r}",
                    found="the end of the run",
                )
        return None

    def _waited_for(self) -> list[Entry]:
        """Return what the record says of waiting since its last model call."""
        told: list[Entry] = []
        for entry in reversed(self._entries):
            if entry.operation != self._own:
                continue
            if isinstance(entry, ModelCall):
                break
            if isinstance(entry, Interrupt | Decision):
                told.append(entry)
        return told[::-1]

    def _take_call(self) -> ModelCall | None:
        """Step to the next model call of the run; what happened before it is noted again."""
        for at, call in self._calls_ahead():
            self._note_inner(at)
            self._at = at + 1
            self.n_calls += 1
            later = (after.evidence.fallback_from for _, after in self._calls_ahead())
            # The run may have ended here and gone on later: then the question was asked again.
            if call.purpose == "compress":
                is_past = None in later
            else:
                is_past = call.status != "done" and next(later, "") is None
            if not is_past:
                return call
            parent_sink()(call, None)
        return None

    def _calls_ahead(self) -> Iterator[tuple[int, ModelCall]]:
        for at in range(self._at, len(self._entries)):
            entry = self._entries[at]
            if isinstance(entry, ModelCall) and entry.operation == self._own:
                yield at, entry

    def _note_inner(self, until: int) -> None:
        """Tell the run again of what others had done inside it."""
        note = parent_sink()
        for entry in self._entries[self._at : until]:
            if entry.operation != self._own or _is_beside(entry):
                note(entry, None)
        self._at = until

    def _runs_of_turn(self) -> list[ToolRun]:
        """Return the tool runs before the next model call; what happened inside is noted again."""
        runs: list[ToolRun] = []
        until = self._at
        for at in range(self._at, len(self._entries)):
            entry = self._entries[at]
            if entry.operation != self._own:
                continue
            if isinstance(entry, ModelCall):
                break
            if isinstance(entry, ToolRun):
                runs.append(entry)
                until = at + 1
        self._note_inner(until)
        return runs

    def _finished(self, call: ToolCall, run: ToolRun, rounds: ToolRounds) -> CallResult | None:
        """Return what became of a call, None where it was cut off."""
        offer = rounds.table.get(call.name)
        where = f"{self.where}, tool call {call.id!r}"
        schemas = (run.schema_digest, None if offer is None else offer.schema_digest)
        if None not in schemas and schemas[0] != schemas[1]:
            raise self.differs(
                ReplayDifference(
                    f"the schema of tool {call.name!r} is not the recorded one",
                    where=where,
                    expected=f"sha256 {schemas[0]}",
                    found=f"sha256 {schemas[1]}",
                )
            )
        if not run.rows:
            return None
        row = self.run.rows.get(run.rows[0])
        if row is None or not isinstance(row.content, ToolFeedback):
            raise self.differs(
                ReplayDifference("the record has no row with the result", where=where)
            )
        self._check_result(run, row, where)
        said = row.content
        shown = ResultText(
            said.body, failure=run.error_kind, exit_code=run.exit_code, images=said.images
        )
        return CallResult(
            CheckedCall(call, offer, None if run.arguments is None else dict(run.arguments)),
            shown,
            run.status,
            run.duration_ms,
            run.file_effects,
            run.effect_gaps,
            run.sandbox,
            decision=run.decision,
            recorded=(run, row),
        )

    def _is_of(self, run: ToolRun, call: ToolCall) -> bool:
        """Tell whether a recorded run is that of a call."""
        if (run.call_id, run.tool) != (call.id, call.name):
            return False
        if run.arguments is None or call.id in self._rewritten:
            return True
        return dict(run.arguments) == (parse_tool_arguments(call.arguments)[0] or {})

    def _check_result(self, run: ToolRun, row: ChunkRow, where: str) -> None:
        assert isinstance(row.content, ToolFeedback)
        digest = sha256(row.content.body.encode()).hexdigest()
        if digest != run.shown.digest:
            index = run.rows[0].index
            raise self.differs(
                ReplayDifference(
                    f"the result of tool {run.tool!r} in row {index} is not what its run gave",
                    where=f"{where}, row {index}",
                    expected=f"{run.shown.size} bytes with sha256 {run.shown.digest}",
                    found=f"sha256 {digest}: {excerpt(row.content.body, '')}",
                )
            )

    def _explained(
        self, call: ModelCall, written: ChatDraft, request: RathLLMChatRequest, where: str
    ) -> ReplayDifference:
        """Say what of a request is another than what was sent, as far as that is known."""
        seen = call.seen
        assert seen is not None
        offered = request.tools or ()
        recorded = self.run.operation.tools if self.run.operation.kind == "loop" else ()
        output = self.run.operation.output
        if output is not None:
            offered = tuple(tool for tool in offered if tool.name != output.tool.name)
        tools = tools_differ(recorded, offered, where=where)
        said = body_parameters(written.body())
        parameters = call.evidence.parameters
        differ = None if said is None else parameters_differ(parameters, said, where=where)
        return (
            tools
            or differ
            or ReplayDifference(
                f"the request is not the one that was sent: the agent's rows, rows 0 to "
                f"{seen.n_rows} of the session, recalled notes, or how they are written, changed",
                where=where,
                expected=f"sha256 {seen.request_digest}",
                found=f"sha256 {written.digest}",
            )
        )


class _Cut(RecordEnds):
    """A round that was cut off, with what had come by then."""

    def __init__(self, done: dict[int, CallResult], end: BaseException) -> None:
        super().__init__()
        self.done = done
        self.end = end


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
        row: int = 0,
        places: Sequence[int] | None = None,
        given: Mapping[int, CurrentCall] = _NOTHING_GIVEN,
    ) -> list[CallResult]:
        """Give the recorded results; see `ToolRounds.run`."""
        assert self.script is not None
        at = range(len(calls)) if places is None else places
        try:
            served = self.script.serve_round(calls, at, self)
        except _Cut as cut:
            done.update(cut.done)
            raise cut.end from None
        done.update(served)
        return [served[place] for place in at]


def _is_beside(entry: Entry) -> bool:
    """Tell whether an entry of a run is told again with what others had done inside it.

    What hooks made of an answer is told with that answer.
    """
    return isinstance(entry, Change) and entry.what != "answer"
