"""A session run again from its record, with nothing else, and compared with it row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from rath._async.lazy import Deferred
from rath._async.runtime import runtime
from rath._core.text import short_id
from rath.errors import ReplayDifference
from rath.llm.base import ChatClient
from rath.llm.chat_request import RathLLMChatRequest, RathLLMFunctionTool
from rath.llm.chat_response import RathLLMChatResponse
from rath.llm.provider import Provider
from rath.session.body import Body
from rath.session.chunk import ChunkTable
from rath.session.compress import run_session_compress
from rath.session.encode import rows_digest
from rath.session.graph.provenance import Provenance
from rath.session.graph.recording import session_graph_mode_override
from rath.session.loop import run_session_loop
from rath.session.operation import Place
from rath.session.outcome import RoundLimit
from rath.session.record import Change, Decision, Entry, Interrupt, ToolRun
from rath.session.replay.again import RecordedStandIn, recorded_candidates
from rath.session.replay.client import Cast
from rath.session.replay.differences import excerpt, name_of, rows_differ
from rath.session.replay.history import Node, RecordedRun, history_of
from rath.session.replay.script import Script
from rath.session.replay.stage import DerivedKind, ServedKind, ServedRun, staged
from rath.session.replay.typed import MANY, recorded_form
from rath.session.running.candidates import Candidate
from rath.session.running.oneshot import OneShot
from rath.session.running.uplink import collecting
from rath.session.session import Session


def replay_strictly(session: Session) -> Session:
    """Return `session` as its record makes it again; see `Session.replay`."""
    history = history_of(session)
    nodes = {node.id: node for node in history.nodes}
    for node in history.nodes:
        _check_derivation(node, nodes)
    tables: dict[UUID, ChunkTable] = {}
    # Nobody above counts what a replay does, and no journal notes it.
    with session_graph_mode_override(False), collecting(_ignore):
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


def _replayed(run: RecordedRun, nodes: Mapping[UUID, Node]) -> ChunkTable | None:
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


def _replay_loop(run: RecordedRun) -> ChunkTable:
    operation, body = run.operation, run.node.body
    n_own = 0
    for row in reversed(body.table):
        if row.id is None or row.id.session != operation.session:
            break
        n_own += 1
    user = Body(body.table.prefix(len(body.table) - n_own), body.record.prefix(run.at))
    _check_input(run, user.table)
    stage = OneRun(run)
    output, retries = None, 2
    if operation.output is not None:
        output, retries = recorded_form(run, operation.output)
    outcome = run.outcome
    with staged(stage):
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
    return _compared(run, stage.script, out)


def _replay_compression(run: RecordedRun, parent: Node) -> ChunkTable:
    _check_input(run, parent.body.table)
    stage = OneRun(run)
    question = next((call.seen.question for call in run.calls if call.seen is not None), None)
    with staged(stage):
        out = run_session_compress(
            _session(parent.body, parent.id),
            _session(Body(ChunkTable(run.operation.head))),
            agent_provider=Provider(model="recorded"),
            compress_instruction=question,
            register_sessions=False,
            lazy=True,
        )
    return _compared(run, stage.script, out)


def _replay_selection(run: RecordedRun) -> None:
    body = run.node.body
    _check_input(run, body.table)
    cast = Cast()
    cast.script = Script(run)
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


def _compared(run: RecordedRun, script: Script, out: Session) -> ChunkTable:
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


def _entries_differ(run: RecordedRun, out: Session, where: str) -> ReplayDifference | None:
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
        every = kind.__dataclass_fields__
        names = _names[kind] = tuple(name for name in every if name not in _NOT_COMPARED)
    return names


_names: dict[type[Entry], tuple[str, ...]] = {}


def _check_input(run: RecordedRun, table: ChunkTable) -> None:
    digest = rows_digest(table)
    if run.operation.input_digest not in (None, digest):
        raise ReplayDifference(
            f"the {len(table)} rows with which it begins are not those that the run began with",
            where=f"session {short_id(run.operation.session)}, {name_of(run.operation)}",
            expected=f"sha256 {run.operation.input_digest}",
            found=f"sha256 {digest}",
        )


def _check_derivation(node: Node, nodes: Mapping[UUID, Node]) -> None:
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
    """The stage for one run that is known beforehand."""

    def __init__(self, run: RecordedRun) -> None:
        self._cast = Cast()
        self.script = self._cast.script = Script(run)
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
