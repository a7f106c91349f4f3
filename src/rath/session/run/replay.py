"""Replay of a session: strictly from its record, or as a branch that goes on live."""

from __future__ import annotations

import asyncio
import json
import operator
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any
from uuid import UUID

from rath._async.deferred import Deferred
from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath._core.text import did_you_mean, short_id
from rath.errors import PersistenceError, ReplayDifference, SelfWaitError
from rath.llm.base import ChatClient
from rath.llm.client import open_draft
from rath.llm.provider import Provider
from rath.llm.registry import NoClient, make_client
from rath.llm.tool_args import parse_tool_arguments
from rath.session.bindings import Placement
from rath.session.body import Body
from rath.session.calls.oneshot import OneShot
from rath.session.calls.requests import (
    ProviderCandidate,
    RequestBuilder,
    RequestFrame,
    offload,
    side_request,
    turn_request,
)
from rath.session.chunk import ChunkRow, ChunkTable, tool_feedback_chunk, user_text_chunk
from rath.session.compress import run_session_compress
from rath.session.content import AssistantTurn, RowsDigest, ToolFeedback, UserText, encode_result
from rath.session.graph.kind import LineageKind
from rath.session.graph.legacy import SessionLineage
from rath.session.graph.recording import (
    Provenance,
    note_content,
    session_graph_mode_override,
    stamped,
)
from rath.session.loop import run_session_loop
from rath.session.operation import next_place
from rath.session.outcome import Completed, OutputMissing, RoundLimit
from rath.session.output import OutputForm, plan_output
from rath.session.output_schema import OutputSpec, Unfit
from rath.session.record import ModelCall, Operation, report_to
from rath.session.run.cassette import Playback, ReplayedClient, ReplayModels, provider_of
from rath.session.run.driver import LoopPlan, LoopRun
from rath.session.run.recorded import (
    History,
    RecordedNode,
    RecordedOperation,
    RecordedRun,
    RecordEnds,
    history_of,
    rows_differ,
)
from rath.session.scope import replaying_in
from rath.session.session import Session
from rath.session.tooling import Tool, builtin_tools

MANY = 1 << 30


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
    if all(each is None for each in (at, prompt, provider, tool_results, agent, tools)):
        return _replay_strictly(session)
    body = session.core.inherited(session.core.body.result())
    table, results = body.table, dict(tool_results or {})
    start = _start(table, at, results)
    rows = _with_results(table, start, results)
    if prompt is not None:
        rows.append(user_text_chunk(prompt))
    if agent is not None:
        conflicting = [
            name for name, one in (("provider", provider), ("tools", tools)) if one is not None
        ]
        if conflicting:
            raise ValueError(
                f"{' and '.join(conflicting)} cannot be given beside agent=, which has its own; "
                "set them on the agent"
            )
        return agent(_branch(session, body, start, rows))
    operation = _operation(session, body, start)
    provider = provider or session.provider or _recorded_provider(body, operation)
    offered = _tools(operation, tools or ())
    own = {tool.name for tool in tools or ()}
    return run_session_loop(
        _branch(session, body, start, rows),
        Session(ChunkTable(operation.head)),
        agent_provider=provider,
        tools=[tool for name, tool in offered.items() if name in own],
        system_tools=[name for name in offered if name not in own],
    )


def _replay_strictly(session: Session) -> Session:
    """Return `session` as its record makes it again."""
    history = history_of(session)
    if history.runs and runtime().is_own_thread():
        raise SelfWaitError(
            "Session.replay waits for all runs of the record, and that would stop everything on "
            "this event loop of rath; call it with `await asyncio.to_thread(session.replay)`"
        )
    nodes = {node.id: node for node in history.nodes}
    for node in history.nodes:
        _check_derivation(node, nodes)
    replayed = StrictReplay(history.runs, nodes)
    # Nobody above counts what a replay does, and no journal notes it.
    with session_graph_mode_override(False), report_to(_ignore):
        runtime().run(replayed.run, label=f"a replay of session {short_id(session.id)}")
    body = session.core.inherited(session.core.body.result())
    table = replayed.tables.get(session.id, body.table)
    return Session.from_body(
        Deferred.of(replace(body, table=table)),
        session.provenance,
        id=session.id,
        provider=session.provider,
        lineage=session.lineage,
    )


def _check_derivation(node: RecordedNode, nodes: Mapping[UUID, RecordedNode]) -> None:
    """Compare the rows of a fork, a merge or an input with what its parents make.

    Raises:
        ReplayDifference: They are not the same.
    """
    operator, edges = node.provenance.operator, node.provenance.parents
    above = [nodes[edge.id].body for edge in edges if edge.id in nodes]
    if not above or len(above) != len(edges):
        return
    made = node.body.table
    if operator == "Session.fork":
        expected = above[0].table
    elif operator == "Session.merge":
        expected = above[0].merged(above[1]).table
    elif operator == "input":
        expected = above[0].table
        made = made.prefix(max(0, len(made) - 1))
    else:
        return
    where, what = f"session {short_id(node.id)}", f"what {operator} made"
    differs = rows_differ(expected, made, where=where, what=what)
    if differs is not None:
        raise differs


class _ScriptPlayback(Playback):
    """Serves the one run that it is given, with the models that it had."""

    def __init__(self, script: RecordedRun, models: tuple[ProviderCandidate, ...]) -> None:
        super().__init__(History())
        self._script = script
        self._models = models

    def client(self, provider: Provider) -> ChatClient:
        """Return a client of the record."""
        return self._models[0].client

    def candidates(self, given: tuple[ProviderCandidate, ...]) -> tuple[ProviderCandidate, ...]:
        """Return the models of the record."""
        return self._models

    def begin(self, *_: Any, **__: Any) -> RecordedRun:
        """Return the run."""
        return self._script


class StrictReplay:
    """The runs of a history, each made again from its record and compared with it; in one task."""

    def __init__(
        self, runs: Sequence[RecordedOperation], nodes: Mapping[UUID, RecordedNode]
    ) -> None:
        self._runs = runs
        self._nodes = nodes
        self.tables: dict[UUID, ChunkTable] = {}
        """The rows that the runs made, by their sessions."""

        self._models = ReplayModels()
        self._digest = RowsDigest()
        self._last_builder: tuple[object, RequestBuilder, ChunkTable] | None = None
        """The requests of the last run, what must be the same to go on from them, and its rows."""

    async def run(self) -> None:
        """Run all of them again.

        Raises:
            ReplayDifference: Something is not as the record says.
        """
        makers = {"loop": self._loop, "compress": self._compress, "select": self._select}
        for run in self._runs:
            make = makers.get(run.operation.kind)
            if make is None or not run.is_found:
                continue
            script = self._models.script = RecordedRun(run)
            body = await make(script, _recorded_models(script.calls, self._models))
            if body is not None:
                await offload(len(run.entries), partial(script.compare, body))
                self.tables[run.operation.session] = body.table
            await asyncio.sleep(0)  # a long replay shares the loop with others

    async def _loop(self, script: RecordedRun, models: tuple[ProviderCandidate, ...]) -> Body:
        run = script.run
        operation, own = run.operation, run.own_rows
        user = Body(run.input, run.node.body.record.prefix(run.at))
        input_digest = self._digest.of(user.table.vector)
        run.check_input(user.table, input_digest)
        output, rounds, outcome = None, MANY, script.outcome
        if isinstance(outcome, RoundLimit):
            rounds = outcome.max_tool_rounds
        if operation.output is not None:
            tool_names = [tool.name for tool in operation.tools]
            output = plan_output(
                _form(operation.output, own), MANY, candidates=(), tool_names=tool_names
            )
            if isinstance(outcome, Completed) and isinstance(outcome.output, OutputMissing):
                rounds = sum(isinstance(row.content, AssistantTurn) for row in own)
        builder = await self._requests(script, models[0], user)
        plan = LoopPlan(
            session=operation.session,
            user=lambda body: body,
            cells=(Deferred.of(user), Deferred.of(Body(ChunkTable(operation.head)))),
            provider=models[0].provider,
            candidates=(replace(models[0], builder=builder), *models[1:]),
            dispatch_tool=None,
            tools={},
            schemas=operation.tools,
            output=output,
            max_tool_rounds=rounds,
            on_event=None,
            recall=script.recall(None),
            timeout=None,
            placement=Placement(),
            provenance=Provenance(),
            session_provider=None,
            lineage=SessionLineage(operation.session, operation.session),
            place=script.place,
            started_at="Session.replay",
            recording=None,
            served=script,
            input_digest=input_digest,
        )
        cell: Deferred[Body] = Deferred(operation.session, ())
        return await _end_of(script, cell, LoopRun(plan, cell).execute())

    async def _compress(
        self, script: RecordedRun, models: tuple[ProviderCandidate, ...]
    ) -> Body | None:
        run = script.run
        parent = self._nodes.get(run.parents[0]) if run.parents else None
        if parent is None:
            return None
        table = parent.body.table
        run.check_input(table, self._digest.of(table.vector))
        recorded_input = next((call.seen for call in script.calls if call.seen is not None), None)
        agent = Body(ChunkTable(run.operation.head))
        with replaying_in(_ScriptPlayback(script, models)):
            out = run_session_compress(
                Session.from_body(Deferred.of(parent.body), Provenance(), id=parent.id),
                Session.from_body(Deferred.of(agent), Provenance()),
                agent_provider=Provider(model="recorded"),
                compress_instruction=None if recorded_input is None else recorded_input.question,
                register_sessions=False,
                lazy=True,
            )
        return await _end_of(script, out.core.body, out.core.body)

    async def _select(self, script: RecordedRun, models: tuple[ProviderCandidate, ...]) -> None:
        run = script.run
        operation, body = run.operation, run.node.body
        run.check_input(body.table, self._digest.of(body.table.vector))
        user, agent = (
            replace(body, record=body.record.prefix(run.at)),
            Body(ChunkTable(operation.head)),
        )
        is_answered = bool(script.calls) and script.calls[-1].status == "done"
        for call in script.calls if is_answered else ():
            if call.status == "done":
                shot = OneShot(
                    purpose="select",
                    operation=operation.operation,
                    candidates=models,
                    question=(call.seen and call.seen.question) or "",
                )
                await shot.ask(user, agent, _ignore)

    async def _requests(
        self, script: RecordedRun, model: ProviderCandidate, user: Body
    ) -> RequestBuilder | None:
        """Return the requests of a run, which go on from those of the run before where they can."""
        operation, table = script.run.operation, script.run.node.body.table
        before, self._last_builder = self._last_builder, None
        if script.notes or not script.calls:
            return None
        same = (_model_of(script.calls[0]), operation.head, operation.tools, operation.output)
        if before is not None and before[0] == same:
            builder = before[1]
            # What is said before a question stands in no request where no answer follows.
            if user.table.vector.common_prefix(before[2].vector) > builder.n_rows:
                self._last_builder = (same, builder, table)
                return builder
        request = partial(turn_request, operation.tools, operation.output)
        frame = RequestFrame(head=operation.head, request=request)
        builder = await offload(len(user.table), partial(RequestBuilder, model, frame, user))
        self._last_builder = (same, builder, table)
        return builder


async def _end_of(script: RecordedRun, cell: Deferred[Body], running: Awaitable[Body]) -> Body:
    """Wait for a run and return what it made, also where it failed or was cut off as recorded."""
    try:
        return await running
    except RecordEnds:
        return script.cut_off(cell.latest or Body(ChunkTable()), script.run.operation.session)
    except Exception as exc:
        if isinstance(exc, ReplayDifference) or not script.run.node.has_failed:
            raise
    return cell.latest or Body(ChunkTable())


def _model_of(call: ModelCall) -> tuple[str | None, ...]:
    """Return by what a model is known in the record."""
    evidence = call.evidence
    where = (evidence.provider_kind, evidence.endpoint)
    return (*where, evidence.requested_model, evidence.adapter)


def _recorded_models(
    calls: Sequence[ModelCall], models: ReplayModels
) -> tuple[ProviderCandidate, ...]:
    """Return the models that a run asked, in the order of their first calls.

    The last one stands there more than once where one of the same name took its place.
    """
    first: dict[tuple[str | None, ...], Provider] = {}
    longest = chain = 1
    for call in calls:
        key = _model_of(call)
        if key not in first:
            first[key] = provider_of(call.evidence)
        chain = chain + 1 if call.status == "failed" else 1
        longest = max(longest, chain if call is not calls[-1] else chain - 1)
    providers = [*first.values()] or [Provider(model="none")]
    providers += providers[-1:] * (longest - len(providers))
    return tuple(ProviderCandidate(ReplayedClient(each, models), each) for each in providers)


@dataclass(frozen=True, slots=True, eq=False)
class RecordedForm(OutputForm):
    """Reads each answer as the record says it was read."""

    def read_answer(self, text: str) -> Any:
        """Return the value that the run read in a text.

        Raises:
            Unfit: It did not fit.
        """
        return self.read(text)


def _form(spec: OutputSpec, rows: Sequence[ChunkRow]) -> RecordedForm:
    """Return the form of a run's typed answer, by the rows that the run made."""
    problems = deque(_problems(spec.tool.name, rows))

    def read(text: str) -> Any:
        problem = problems.popleft() if problems else None
        if problem is not None:
            raise Unfit(problem)
        return text

    return RecordedForm(spec.name, spec.schema, spec, False, read)


def _problems(tool: str, rows: Sequence[ChunkRow]) -> Iterator[str | None]:
    """Yield for each answer that was read why it did not fit, None where it did."""
    contents = [row.content for row in rows]
    for at, turn in enumerate(contents):
        if not isinstance(turn, AssistantTurn):
            continue
        after = list(takewhile(lambda one: not isinstance(one, AssistantTurn), contents[at + 1 :]))
        if not turn.calls and after and isinstance(after[0], UserText):
            yield _problem(after[0].text)
        results = (one for one in after if isinstance(one, ToolFeedback) and one.name == tool)
        for call in turn.calls:
            if call.name == tool:
                result = next(results, None)
                if not parse_tool_arguments(call.arguments)[1]:
                    message = json.loads(result.body).get("message") if result else None
                    yield None if message is None else _problem(message)


def _problem(text: str) -> str:
    """Return the problem named in a message to the model."""
    problem = text.partition("cannot be used: ")[2]
    ends = [at for end in (". Give the whole answer", ". Call ") if (at := problem.rfind(end)) >= 0]
    return problem[: min(ends)] if ends else problem.removesuffix(".")


def _ignore(*_: object) -> None:
    return


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
    if not results:
        return []
    before = takewhile(_is_result, reversed(table.prefix(start)))
    n_results = sum(1 for _ in before)
    turn = table[start - n_results - 1].content if n_results < start else None
    calls = turn.calls if isinstance(turn, AssistantTurn) else ()
    for call_id in results:
        if all(call.id != call_id for call in calls):
            raise _no_such_call(call_id, table.prefix(start))
    rows_of_call: dict[str, deque[ChunkRow]] = {}
    for row in takewhile(_is_result, table.since(start)):
        assert isinstance(row.content, ToolFeedback)
        bare = ChunkRow(row.kind, row.payload).with_images(row.images)
        rows_of_call.setdefault(row.content.call_id, deque()).append(bare)
    rows: list[ChunkRow] = []
    for call in calls[n_results:]:
        if call.id in results:
            result_text = encode_result(results[call.id])
            rows.append(
                tool_feedback_chunk(
                    call.id, call.name, result_text.shown, images=result_text.images
                )
            )
        elif rows_of_call.get(call.id):
            rows.append(rows_of_call[call.id].popleft())
    return rows


def _is_result(row: ChunkRow) -> bool:
    return isinstance(row.content, ToolFeedback)


def _branch(session: Session, body: Body, start: int, rows: Sequence[ChunkRow]) -> Session:
    """Return the child of `session` with its first rows and then `rows`."""
    place = next_place()
    session_id = place.new_id()
    table = body.table.prefix(start).born_in(session_id, rows)
    entry = Operation(
        operation=session_id,
        id=session_id,
        kind="fork",
        place=place,
        session=session_id,
        workspace="share",
    )
    content = replace(body, table=table, outcome=Completed()).with_entries(entry)
    parents = (session.core.as_parent(),)
    extras = (("at", start),)
    branch = Session.from_body(
        Deferred.of(content),
        stamped(session_id, "Session.replay", LineageKind.OP_FORK, parents, extras),
        id=session_id,
        placement=session.core.placement.share(),
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
    own = (entry for entry in body.record if entry.operation in runs)
    operation_of: dict[object, Operation] = {
        row: runs[each.operation] for each in own for row in each.rows
    }
    near = (row.id for row in (*body.table.since(start), *reversed(body.table.prefix(start))))
    nearest = next(
        (operation_of[row] for row in near if row in operation_of),
        next(reversed(runs.values()), None),
    )
    if nearest is None:
        raise PersistenceError(
            f"session {session.id} has no run in its record, so its agent is not known; give "
            "agent= to go on"
        )
    return nearest


def _recorded_provider(body: Body, operation: Operation) -> Provider:
    """Return a provider for the model that answered first in a run.

    Raises:
        ValueError: This machine would ask it somewhere else, or cannot ask it.
    """
    calls = (entry for entry in body.record if isinstance(entry, ModelCall))
    first = next((call for call in calls if call.operation == operation.operation), None)
    if first is None:
        raise ValueError("the run asked no model, so give the one to ask with provider=")
    evidence = first.evidence
    provider = replace(provider_of(evidence), output_mode=None)
    client = make_client(provider)
    if isinstance(client, NoClient):
        raise ValueError(  # noqa: TRY004  # a value of the record, and no type of the caller's
            f"the recorded model {evidence.requested_model!r} of kind {evidence.provider_kind!r} "
            f"cannot be asked here: {client.problem}. Give another one with provider="
        )
    facts = open_draft(client, side_request(ProviderCandidate(client, provider))).facts
    if facts.endpoint != evidence.endpoint:
        raise ValueError(
            f"the record asked {evidence.requested_model!r} at {evidence.endpoint}, and this "
            f"machine would ask it at {facts.endpoint}; say which one is meant with provider="
        )
    return provider


def _tools(operation: Operation, given: Sequence[Tool]) -> dict[str, Tool]:
    """Return the tools that a run had, by name: those that were given, else the built-in ones.

    Raises:
        ValueError: One of them is neither.
    """
    own = {tool.name: tool for tool in given}
    available = {**builtin_tools(), **own}
    recorded = {tool.name for tool in operation.tools}
    missing = [tool.name for tool in operation.tools if tool.name not in available]
    if missing:
        raise ValueError(
            f"the recorded agent had the tools {', '.join(map(repr, missing))}, which are not "
            "built in; give them with tools=[...], or go on with agent="
        )
    return {name: tool for name, tool in available.items() if name in recorded or name in own}


def _no_such_call(call_id: str, table: ChunkTable) -> ValueError:
    turns = (row.content for row in table if isinstance(row.content, AssistantTurn))
    call_ids = list(dict.fromkeys(call.id for turn in turns for call in turn.calls))
    return ValueError(
        f"no open call {call_id!r} stands before the row at which the replay goes on."
        f"{did_you_mean(call_id, call_ids)} Calls of the rows before: "
        f"{', '.join(call_ids) or 'none'}"
    )
