"""A session that goes on from one of its rows, live, with something changed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from rath._async.lazy import Deferred
from rath._core.text import did_you_mean
from rath.errors import PersistenceError
from rath.llm.clients import Unusable, make_client
from rath.llm.draft import open_draft
from rath.llm.provider import Provider
from rath.session.body import Body
from rath.session.chunk import ChunkRow, ChunkTable, tool_feedback_chunk, user_text_chunk
from rath.session.content import AssistantTurn, ToolCall, ToolFeedback
from rath.session.encode import encode_result
from rath.session.graph.kind import LineageKind
from rath.session.graph.provenance import stamped
from rath.session.graph.recording import note_content
from rath.session.loop import run_session_loop
from rath.session.operation import next_place
from rath.session.outcome import Completed
from rath.session.record import ModelCall, Operation
from rath.session.replay.again import provider_of
from rath.session.running.candidates import Candidate, side_request
from rath.session.session import Session
from rath.session.tooling import Tool, builtin_tools


@dataclass(frozen=True, slots=True)
class Course:
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


def replay_live(session: Session, at: int | None, course: Course) -> Session:
    """Return the run that goes on from row `at`; see `Session.replay`."""
    body = session.inherited(session.body.result())
    table = body.table
    results = dict(course.tool_results or {})
    start = _start(table, at, results)
    rows = _with_results(table, start, results)
    if course.prompt is not None:
        rows.append(user_text_chunk(course.prompt))
    if course.agent is not None:
        _refuse_beside_agent(course)
        return course.agent(_branch(session, body, start, rows))
    begun = _operation(session, body, start)
    provider = course.provider or session.provider or _recorded_provider(body, begun)
    tools = _tools(begun, course.tools or ())
    branch = _branch(session, body, start, rows)
    agent = Session(ChunkTable(begun.head))
    names = {tool.name for tool in course.tools or ()}
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


def _refuse_beside_agent(course: Course) -> None:
    beside = [name for name in ("provider", "tools") if getattr(course, name) is not None]
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
