"""Replay of a session: strictly from its record, or as a branch that goes on live."""

from __future__ import annotations

import json
import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any
from uuid import UUID

from rath._async.lazy import Deferred
from rath._async.runtime import runtime
from rath._core.text import did_you_mean, short_id
from rath.errors import PersistenceError, ReplayDifference
from rath.llm.base import ChatClient
from rath.llm.chat_request import RathLLMChatRequest, RathLLMFunctionTool
from rath.llm.chat_response import RathLLMChatResponse
from rath.llm.clients import Unusable, make_client
from rath.llm.draft import open_draft
from rath.llm.provider import Provider
from rath.llm.tool_args import parse_tool_arguments
from rath.session.body import Body
from rath.session.calls.oneshot import OneShot
from rath.session.calls.requests import Candidate, side_request
from rath.session.chunk import ChunkRow, ChunkTable, tool_feedback_chunk, user_text_chunk
from rath.session.compress import run_session_compress
from rath.session.content import (
    AssistantTurn,
    ToolCall,
    ToolFeedback,
    UserText,
    encode_result,
    rows_digest,
)
from rath.session.graph.kind import LineageKind
from rath.session.graph.recording import (
    Provenance,
    note_content,
    session_graph_mode_override,
    stamped,
)
from rath.session.loop import run_session_loop
from rath.session.operation import Place, next_place
from rath.session.outcome import Completed, OutputMissing, RoundLimit
from rath.session.output import OutputForm
from rath.session.output_schema import OutputSpec, Unfit
from rath.session.record import (
    Change,
    Decision,
    Entry,
    Interrupt,
    ModelCall,
    Operation,
    ToolRun,
    report_to,
)
from rath.session.run.recorded import (
    RecordedNode,
    RecordedOperation,
    RecordedRun,
    excerpt,
    history_of,
    name_of,
    rows_differ,
)
from rath.session.run.replay_models import (
    RecordedStandIn,
    ReplayModels,
    provider_of,
    recorded_candidates,
)
from rath.session.scope import DerivedKind, ServedKind, ServedRun, replaying_in
from rath.session.session import Session
from rath.session.tooling import Tool, builtin_tools

_BEFORE = "cannot be used: "
_AFTER = (". Give the whole answer", ". Call ")
MANY = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class RecordedForm(OutputForm):
    """Reads each answer as the record says it was read."""

    def read_said(self, text: str) -> Any:
        """Return what the run read in a text.

        Raises:
            Unfit: It did not fit.
        """
        return self.read(text)


def recorded_form(run: RecordedOperation, spec: OutputSpec) -> tuple[RecordedForm, int]:
    """Return the form of a run's typed answer, and how many tries may follow one that fails."""
    reads = deque(_reads(run, spec))

    def read(text: str) -> Any:
        found = reads.popleft() if reads else None
        if isinstance(found, Unfit):
            raise found
        return found

    form = RecordedForm(spec.name, spec.schema, spec, False, read)
    outcome = run.outcome
    is_missing = isinstance(outcome, Completed) and isinstance(outcome.output, OutputMissing)
    n_turns = sum(1 for _ in _judged(run, spec))
    return form, n_turns - 1 if is_missing else MANY


def _judged(
    run: RecordedOperation, spec: OutputSpec
) -> Iterator[tuple[ModelCall, AssistantTurn, list[ToolCall]]]:
    """Yield the turns that were taken for answers, with the calls that gave them."""
    for call in run.calls:
        row = run.rows.get(call.rows[0]) if call.rows else None
        turn = None if row is None else row.content
        if not isinstance(turn, AssistantTurn) or call.evidence.finish_reason == "pause_turn":
            continue
        own = [each for each in turn.calls if each.name == spec.tool.name]
        if own or not turn.calls:
            yield call, turn, own


def _reads(run: RecordedOperation, spec: OutputSpec) -> Iterator[Any]:
    runs = deque(entry for entry in run.own if isinstance(entry, ToolRun))
    for call, turn, own in _judged(run, spec):
        if not own:
            yield _read_text(run, call, turn)
        for each in own:
            arguments, is_error = parse_tool_arguments(each.arguments)
            made = next((r for r in runs if (r.call_id, r.tool) == (each.id, each.name)), None)
            if made is not None:
                runs.remove(made)
            if not is_error:
                yield _read_call(run, made, arguments)


def _read_call(run: RecordedOperation, made: ToolRun | None, arguments: object) -> Any:
    if made is None or made.status == "done":
        return arguments
    row = run.rows.get(made.rows[0]) if made.rows else None
    body = row.content.body if row is not None and isinstance(row.content, ToolFeedback) else "{}"
    return Unfit(_problem(str(json.loads(body).get("message", ""))))


def _read_text(run: RecordedOperation, call: ModelCall, turn: AssistantTurn) -> Any:
    after = call.rows[0].index + 1
    following = run.rows.get(type(call.rows[0])(call.rows[0].session, after))
    if following is not None and isinstance(following.content, UserText):
        return Unfit(_problem(following.content.text))
    outcome = run.outcome
    if isinstance(outcome, Completed) and isinstance(outcome.output, OutputMissing):
        return Unfit("it did not fit")
    return turn.text


def _problem(said: str) -> str:
    """Return what was wrong, out of what the model was told of it."""
    _, _, told = said.partition(_BEFORE)
    ends = [at for end in _AFTER if (at := told.rfind(end)) >= 0]
    return told[: min(ends)] if ends else told.removesuffix(".")


def replay_strictly(session: Session) -> Session:
    """Return `session` as its record makes it again; see `Session.replay`."""
    history = history_of(session)
    nodes = {node.id: node for node in history.nodes}
    for node in history.nodes:
        _check_derivation(node, nodes)
    tables: dict[UUID, ChunkTable] = {}
    # Nobody above counts what a replay does, and no journal notes it.
    with session_graph_mode_override(False), report_to(_ignore):
        for run in history.runs:
            table = _replayed(run, nodes)
            if table is not None:
                tables[run.operation.session] = table
    body = session.inherited(session.body.result())
    return Session.from_body(
        Deferred.of(replace(body, table=tables.get(session.id, body.table))),
        session.provenance,
        id=session.id,
        provider=session.provider,
        lineage=session.lineage,
    )


def _replayed(run: RecordedOperation, nodes: Mapping[UUID, RecordedNode]) -> ChunkTable | None:
    """Run an operation again and return the rows of what it makes; None where it makes none."""
    match run.operation.kind:
        case "loop" if run.is_found:
            return _replay_loop(run)
        case "compress" if run.is_found:
            parent = nodes.get(run.parents[0]) if run.parents else None
            return None if parent is None else _replay_compression(run, parent)
        case "select" if run.is_found:
            _replay_selection(run)
            return None
        case _:
            return None


def _replay_loop(run: RecordedOperation) -> ChunkTable:
    operation, body = run.operation, run.node.body
    n_own = 0
    for row in reversed(body.table):
        if row.id is None or row.id.session != operation.session:
            break
        n_own += 1
    user = Body(body.table.prefix(len(body.table) - n_own), body.record.prefix(run.at))
    _check_input(run, user.table)
    context = OneRun(run)
    output, retries = None, 2
    if operation.output is not None:
        output, retries = recorded_form(run, operation.output)
    outcome = run.outcome
    with replaying_in(context):
        out = run_session_loop(
            _session(user, run.parents[0] if run.parents else None),
            _session(Body(ChunkTable(operation.head))),
            agent_provider=Provider(model="recorded"),
            tools=[_Offered(tool) for tool in operation.tools],
            executor=_Schemas(operation.tools),
            max_tool_rounds=outcome.max_tool_rounds if isinstance(outcome, RoundLimit) else MANY,
            system_tools=False,
            output=output,
            output_retries=retries,
        )
    return _compared(run, context.script, out)


def _replay_compression(run: RecordedOperation, parent: RecordedNode) -> ChunkTable:
    _check_input(run, parent.body.table)
    context = OneRun(run)
    question = next((call.seen.question for call in run.calls if call.seen is not None), None)
    with replaying_in(context):
        out = run_session_compress(
            _session(parent.body, parent.id),
            _session(Body(ChunkTable(run.operation.head))),
            agent_provider=Provider(model="recorded"),
            compress_instruction=question,
            register_sessions=False,
            lazy=True,
        )
    return _compared(run, context.script, out)


def _replay_selection(run: RecordedOperation) -> None:
    body = run.node.body
    _check_input(run, body.table)
    cast = ReplayModels()
    cast.script = RecordedRun(run)
    shot = OneShot(
        purpose="select",
        operation=run.operation.operation,
        candidates=recorded_candidates(run, cast),
        question="",
    )
    user = replace(body, record=body.record.prefix(run.at))
    agent = Body(ChunkTable(run.operation.head))
    if not run.calls or run.calls[-1].status != "done":
        return
    for call in run.calls:
        if call.status == "done":
            question = (call.seen and call.seen.question) or ""
            ask = partial(replace(shot, question=question).ask, user, agent, _ignore)
            runtime().run(ask, label="a replayed selection")


def _compared(run: RecordedOperation, script: RecordedRun, out: Session) -> ChunkTable:
    """Wait for a replay and return its rows, once they and its record are the recorded ones."""
    try:
        out.synchronize()
    except ReplayDifference:
        raise
    except Exception:
        if not run.node.has_failed:
            raise
    where = f"session {short_id(run.operation.session)}"
    found = out.partial_table
    recorded = run.node.body.table
    differs = rows_differ(recorded.rows, found.rows, where=where, what="the session")
    differs = differs or script.left() or _entries_differ(run, out, where)
    if differs is not None:
        raise differs
    expected, latest = run.outcome, out.body.latest
    if expected is not None and latest is not None and expected != latest.outcome:
        raise ReplayDifference(
            "the run ended in another way",
            where=where,
            expected=excerpt(repr(expected), repr(latest.outcome)),
            found=excerpt(repr(latest.outcome), repr(expected)),
        )
    return found


def _entries_differ(run: RecordedOperation, out: Session, where: str) -> ReplayDifference | None:
    """Compare what a run noted itself: its operation, calls and summaries."""
    mine = [entry for entry in run.own if _counts(entry)]
    own = run.operation.operation
    record = out.partial_record.since(run.at if run.operation.kind == "loop" else 0)
    theirs = [entry for entry in record if entry.operation == own and _counts(entry)]
    for expected, found in zip(mine, theirs, strict=False):
        difference = _entry_differs(expected, found)
        if difference is not None:
            name, first, second = difference
            return ReplayDifference(
                f"{name} of a {type(expected).__name__} is not the recorded one",
                where=f"{where}, {type(expected).__name__} {expected.id}",
                expected=excerpt(first, second),
                found=excerpt(second, first),
            )
    return None


def _counts(entry: Entry) -> bool:
    # Calls that were cut off are noted anew, a run that went on had waited for somebody, and what
    # hooks did is only told again.
    if isinstance(entry, Interrupt | Decision | Change):
        return False
    return not isinstance(entry, ToolRun) or bool(entry.rows)


_NOT_COMPARED = frozenset({"id", "at", "n_ours", "place", "theirs", "duration_ms", "evidence"})


def _entry_differs(expected: Entry, found: Entry) -> tuple[str, str, str] | None:
    if type(expected) is not type(found):
        return "the kind", type(expected).__name__, type(found).__name__
    if expected is found:
        return None
    for name in _compared_names(type(expected)):
        mine, theirs = getattr(expected, name), getattr(found, name)
        if mine is not theirs and mine != theirs:
            return name, repr(mine), repr(theirs)
    return None


def _compared_names(kind: type[Entry]) -> Sequence[str]:
    names = _names.get(kind)
    if names is None:
        every = kind.__struct_fields__
        names = _names[kind] = tuple(name for name in every if name not in _NOT_COMPARED)
    return names


_names: dict[type[Entry], tuple[str, ...]] = {}


def _check_input(run: RecordedOperation, table: ChunkTable) -> None:
    digest = rows_digest(table)
    if run.operation.input_digest not in (None, digest):
        raise ReplayDifference(
            f"the {len(table)} rows with which it begins are not those that the run began with",
            where=f"session {short_id(run.operation.session)}, {name_of(run.operation)}",
            expected=f"sha256 {run.operation.input_digest}",
            found=f"sha256 {digest}",
        )


def _check_derivation(node: RecordedNode, nodes: Mapping[UUID, RecordedNode]) -> None:
    """Compare the rows of a fork or a merge with what its parents make."""
    parents = [nodes.get(edge.id) for edge in node.provenance.parents]
    above = [each.body for each in parents if each is not None]
    if not above or len(above) != len(parents):
        return
    table, operator = node.body.table, node.provenance.operator
    if operator == "Session.fork":
        expected = above[0].table
    elif operator == "Session.merge":
        expected = above[0].merged(above[1]).table
    else:
        return
    if table.vector.common_prefix(expected.vector) == len(table) == len(expected):
        return
    where = f"session {short_id(node.id)}"
    differs = rows_differ(expected.rows, table.rows, where=where, what=f"what {operator} made")
    if differs is not None:
        raise differs


@dataclass(frozen=True, slots=True)
class _Schemas:
    """Offers the recorded tool schemas in their order; nothing is asked of it or called."""

    recorded: tuple[RathLLMFunctionTool, ...]

    def tool_schemas(self) -> tuple[RathLLMFunctionTool, ...]:
        return self.recorded

    def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        raise RuntimeError("a replay asks nobody")

    def dispatch_tool(
        self, session: Session, tool: object, arguments: Mapping[str, object]
    ) -> object:
        raise RuntimeError("a replay calls no tool")


@dataclass(frozen=True, slots=True)
class _Offered:
    """A recorded tool, of which only the schema is left."""

    schema: RathLLMFunctionTool

    @property
    def name(self) -> str:
        return self.schema.name

    @property
    def description(self) -> str | None:
        return self.schema.description

    @property
    def parameters(self) -> Mapping[str, object]:
        return self.schema.parameters

    def resource_key(self, arguments: Mapping[str, object]) -> tuple[str, ...]:
        return (self.name,)

    def __call__(self, session: object, arguments: Mapping[str, object]) -> object:
        raise RuntimeError("a replay calls no tool")


class OneRun:
    """The context of the replay of one run that is known beforehand."""

    def __init__(self, run: RecordedOperation) -> None:
        self._cast = ReplayModels()
        self.script = self._cast.script = RecordedRun(run)
        self._run = run

    def client(self, provider: Provider) -> ChatClient:
        """Return what is never asked."""
        return RecordedStandIn(provider)

    def candidates(self, given: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """Return the recorded models."""
        return recorded_candidates(self._run, self._cast)

    def begin(
        self,
        kind: ServedKind,
        place: Place,
        sessions: tuple[Session, Session],
        candidates: Sequence[Candidate],
    ) -> ServedRun:
        """Return the run."""
        return self.script

    def call(self, segment: str, session: Session) -> UUID | None:
        """Say nothing: a run calls no workflow."""
        return None

    def derive(self, kind: DerivedKind, place: Place, parents: Sequence[Session]) -> Place:
        """Leave it as it is: within a run nothing is derived."""
        return place

    def check(self, session: object, name: str, judge: str) -> tuple[Entry, ...]:
        """Refuse: a run makes no checks."""
        raise RuntimeError("a replay makes no checks")

    def remember(self, what: str) -> None:
        """Refuse: a run asks no memory."""
        raise RuntimeError("a replay asks no memory")


def _session(body: Body, id: UUID | None = None) -> Session:
    return Session.from_body(Deferred.of(body), Provenance(), id=id)


def _ignore(*_: object) -> None:
    return


@dataclass(frozen=True, slots=True)
class Overrides:
    """What is to be another than it was."""

    prompt: str | None = None
    provider: Provider | None = None
    tool_results: Mapping[str, object] | None = None
    agent: Callable[[Session], Session] | None = None
    tools: Sequence[Tool] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was asked for."""
        return all(getattr(self, each.name) is None for each in fields(self))


def replay_session(
    session: Session,
    at: int | None,
    prompt: str | None,
    provider: Provider | None,
    tool_results: Mapping[str, object] | None,
    agent: Callable[[Session], Session] | None,
    tools: Sequence[Tool] | None,
) -> Session:
    """Return the session that is replayed from its record, or a branch; see `Session.replay`."""
    overrides = Overrides(prompt, provider, tool_results, agent, tools)
    if at is None and overrides.is_empty:
        return replay_strictly(session)
    return replay_live(session, at, overrides)


def replay_live(session: Session, at: int | None, overrides: Overrides) -> Session:
    """Return the run that goes on from row `at`."""
    body = session.inherited(session.body.result())
    table = body.table
    results = dict(overrides.tool_results or {})
    start = _start(table, at, results)
    rows = _with_results(table, start, results)
    if overrides.prompt is not None:
        rows.append(user_text_chunk(overrides.prompt))
    if overrides.agent is not None:
        _refuse_beside_agent(overrides)
        return overrides.agent(_branch(session, body, start, rows))
    begun = _operation(session, body, start)
    provider = overrides.provider or session.provider or _recorded_provider(body, begun)
    tools = _tools(begun, overrides.tools or ())
    branch = _branch(session, body, start, rows)
    agent = Session(ChunkTable(begun.head))
    names = {tool.name for tool in overrides.tools or ()}
    return run_session_loop(
        branch,
        agent,
        agent_provider=provider,
        tools=[tool for tool in tools if tool.name in names],
        system_tools=[tool.name for tool in tools if tool.name not in names],
    )


def _start(table: ChunkTable, at: int | None, results: Mapping[str, object]) -> int:
    """Return how many rows the branch keeps.

    Raises:
        ValueError: There is no such row, or nothing says which one is meant.
    """
    if at is not None:
        start = operator.index(at)
        start += len(table) if start < 0 else 0
        if not 0 <= start <= len(table):
            raise ValueError(
                f"at={at} is no row of a session of {len(table)} rows; expected 0 to {len(table)}"
            )
        return start
    for index, row in enumerate(table):
        if isinstance(row.content, ToolFeedback) and row.content.call_id in results:
            return index
    if results:
        raise _no_such_call(next(iter(results)), table)
    raise ValueError(
        "say at which row the replay goes on: replay(at=len(session.chunk_table)) for its end; "
        "replay() without arguments replays the record"
    )


def _with_results(table: ChunkTable, start: int, results: Mapping[str, object]) -> list[ChunkRow]:
    """Return the rows that come after the first `start`: results for the turn that stands last.

    Where some are given, the others of that turn keep what the record has.

    Raises:
        ValueError: A result is given for a call that the turn did not make.
    """
    calls, n_results = _last_calls(table, start)
    if not results:
        return []
    for call_id in results:
        if all(call.id != call_id for call in calls):
            raise _no_such_call(call_id, table.prefix(start))
    known = _recorded_results(table, start)
    rows: list[ChunkRow] = []
    for call in calls[n_results:]:
        if call.id in results:
            made = encode_result(results[call.id])
            rows.append(tool_feedback_chunk(call.id, call.name, made.shown, images=made.images))
        elif known.get(call.id):
            rows.append(known[call.id].pop(0))
    return rows


def _last_calls(table: ChunkTable, start: int) -> tuple[Sequence[ToolCall], int]:
    """Return the calls of the turn that stands last before a row, and how many have results."""
    for n_results, row in enumerate(reversed(table.prefix(start))):
        if isinstance(row.content, AssistantTurn):
            return row.content.calls, n_results
        if not isinstance(row.content, ToolFeedback):
            break
    return (), 0


def _recorded_results(table: ChunkTable, start: int) -> dict[str, list[ChunkRow]]:
    """Return the results that follow a row in the same round, by call id."""
    found: dict[str, list[ChunkRow]] = {}
    for row in table.since(start):
        if not isinstance(row.content, ToolFeedback):
            break
        bare = ChunkRow(row.kind, row.payload).with_images(row.images)
        found.setdefault(row.content.call_id, []).append(bare)
    return found


def _branch(session: Session, body: Body, start: int, rows: Sequence[ChunkRow]) -> Session:
    """Return the child of `session` with its first rows and then `rows`."""
    place = next_place()
    made = place.new_id()
    table = body.table.prefix(start).born_in(made, rows)
    entry = Operation(
        operation=made, id=made, kind="fork", place=place, session=made, workspace="share"
    )
    content = replace(body, table=table, outcome=Completed()).with_entries(entry)
    parents = (session.as_parent(),)
    extras = (("at", start),)
    branch = Session.from_body(
        Deferred.of(content),
        stamped(made, "Session.replay", LineageKind.OP_FORK, parents, extras),
        id=made,
        placement=session.placement.share(),
        provider=session.provider,
    )
    note_content(branch)
    return branch


def _operation(session: Session, body: Body, start: int) -> Operation:
    """Return the run that wrote the row at which the branch begins, else the last one before it.

    Raises:
        PersistenceError: The record has no run.
    """
    runs = {
        entry.operation: entry
        for entry in body.record
        if isinstance(entry, Operation) and entry.kind == "loop"
    }
    made: dict[object, Operation] = {}
    for entry in body.record:
        if entry.operation in runs:
            made.update(dict.fromkeys(entry.rows, runs[entry.operation]))
    own = (row.id for row in (*body.table.since(start), *reversed(body.table.prefix(start))))
    found = next((made[row] for row in own if row in made), next(reversed(runs.values()), None))
    if found is None:
        raise PersistenceError(
            f"session {session.id} has no run in its record, so its agent is not known; give "
            "agent= to go on"
        )
    return found


def _recorded_provider(body: Body, begun: Operation) -> Provider:
    """Return a provider for the model that answered first in a run.

    Raises:
        ValueError: This machine would ask it somewhere else, or cannot ask it.
    """
    calls = [
        entry
        for entry in body.record
        if isinstance(entry, ModelCall) and entry.operation == begun.operation
    ]
    if not calls:
        raise ValueError("the run asked no model, so give the one to ask with provider=")
    evidence = calls[0].evidence
    provider = replace(provider_of(evidence), output_mode=None)
    client = make_client(provider)
    if isinstance(client, Unusable):
        raise ValueError(  # noqa: TRY004  # a value of the record, and no type of the caller's
            f"the recorded model {evidence.requested_model!r} of kind {evidence.provider_kind!r} "
            f"cannot be asked here: {client.problem}. Give another one with provider="
        )
    facts = open_draft(client, side_request(Candidate(client, provider))).facts
    if facts.endpoint != evidence.endpoint:
        raise ValueError(
            f"the record asked {evidence.requested_model!r} at {evidence.endpoint}, and this "
            f"machine would ask it at {facts.endpoint}; say which one is meant with provider="
        )
    return provider


def _tools(begun: Operation, given: Sequence[Tool]) -> list[Tool]:
    """Return the tools that a run had, by name: those that were given, else the built-in ones.

    Raises:
        ValueError: One of them is neither.
    """
    known: dict[str, Tool] = {**builtin_tools(), **{tool.name: tool for tool in given}}
    missing = [tool.name for tool in begun.tools if tool.name not in known]
    if missing:
        raise ValueError(
            f"the recorded agent had the tools {', '.join(map(repr, missing))}, which are not "
            "built in; give them with tools=[...], or go on with agent="
        )
    recorded = {tool.name for tool in begun.tools}
    return [tool for name, tool in known.items() if name in recorded or tool in given]


def _refuse_beside_agent(overrides: Overrides) -> None:
    beside = [name for name in ("provider", "tools") if getattr(overrides, name) is not None]
    if beside:
        raise ValueError(
            f"{' and '.join(beside)} cannot be given beside agent=, which has its own; set them "
            "on the agent"
        )


def _no_such_call(call_id: str, table: ChunkTable) -> ValueError:
    turns = (row.content for row in table if isinstance(row.content, AssistantTurn))
    known = list(dict.fromkeys(call.id for turn in turns for call in turn.calls))
    return ValueError(
        f"no open call {call_id!r} stands before the row at which the replay goes on."
        f"{did_you_mean(call_id, known)} Calls of the rows before: {', '.join(known) or 'none'}"
    )
