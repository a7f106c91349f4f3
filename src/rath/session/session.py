"""The session: identity, provenance, bindings and content."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from rath._async.deferred import Deferred
from rath._core.lazy_imports import lazy_function, lazy_modules
from rath._core.references import Reduction, Referenced
from rath._core.text import one_line_preview, short_id
from rath.backend.abc import BackendSandbox, BackendSandboxSpec
from rath.llm.chat_response import RathLLMTokenUsage
from rath.llm.image import ImageSource
from rath.llm.provider import Provider
from rath.session.base import SessionCore
from rath.session.bindings import Placement
from rath.session.body import Body, CostSum
from rath.session.calls.decisions import Deciding
from rath.session.checking import Checking
from rath.session.chunk import (
    ChunkRow,
    ChunkTable,
    show_row,
    system_text_chunk,
    user_text_chunk,
)
from rath.session.derive import Branching
from rath.session.events import GivenUsage
from rath.session.graph.kind import LineageKind
from rath.session.graph.legacy import SessionLineage
from rath.session.graph.recording import (
    Edge,
    LineageRecorder,
    Provenance,
)
from rath.session.log.store import SessionStore
from rath.session.open_calls import OpenCall
from rath.session.operation import next_place
from rath.session.outcome import Completed, Outcome, Suspended, outcome_extras
from rath.session.output import OutputT_co, TypedReading
from rath.session.record import Entry, evidence_of, last_text
from rath.session.tooling import Tool

if TYPE_CHECKING:
    from rath.session import streaming
    from rath.session.files import session_files
    from rath.session.files.session_files import SessionFiles
    from rath.session.streaming import SessionStream
else:
    session_files, streaming = lazy_modules(
        __name__, "rath.session.files.session_files", "rath.session.streaming"
    )


# They are written against the class.
_save = lazy_function("rath.session.loading", "save")
_load_stored = lazy_function("rath.session.loading", "load_stored")
_stored_at = lazy_function("rath.session.loading", "stored_at")
_load_reference = lazy_function("rath.session.loading", "load_reference")
_follow = lazy_function("rath.session.loading", "follow")
_session_html = lazy_function("rath.session.view.notebook", "session_html")
_replay_session = lazy_function("rath.session.run.replay", "replay_session")


EDGE_ROWS = 4
"""Rows shown at either end of a long table."""

MAX_TEXT = 256
"""Characters of a row's text that are shown."""

MAX_ARGUMENTS = 160
"""Characters of a call's arguments that are shown."""


def show_pending(session: UUID, operator: str) -> str:
    """Return the picture of a session whose run is still going."""
    return f"Session(id={short_id(session)}, pending …, operator={operator!r})"


def show_session(session: UUID, table: ChunkTable, operator: str, end: str = "") -> str:
    """Return the picture of a session: its rows, the middle left out when there are many.

    Args:
        session: Its id.
        table: Its rows.
        operator: Name of the operation that made it.
        end: How its run ended, "" where it was completed.
    """
    end = f"  {end},\n" if end else ""
    return (
        f"Session(id={short_id(session)},\n  chunks={_show_rows(table)},\n"
        f"  operator={operator!r},\n{end})"
    )


def show_end(outcome: Outcome, session: UUID, calls: Sequence[OpenCall]) -> str:
    """Return how a run ended, and what it waits for; "" where it was completed.

    Args:
        outcome: What came of it.
        session: Whose it is.
        calls: The calls that have no result.
    """
    if isinstance(outcome, Completed):
        return ""
    if not isinstance(outcome, Suspended):
        return f"outcome={outcome!r}"
    name = f"outcome={type(outcome).__name__}"
    if outcome.session != session:
        return f"{name}, passed on from session {short_id(outcome.session)}"
    waiting = (_show_waiting(call) for call in calls if call.waits_for is not None)
    return ", waits for ".join(filter(None, (name, "; ".join(waiting))))


def _show_waiting(call: OpenCall) -> str:
    arguments = one_line_preview(call.call.arguments, MAX_ARGUMENTS)
    what = {"approval": "an approval of", "input": "an answer to", "decision": "a decision on"}
    asked = f" {call.question!r} of" if call.question else ""
    of_call = f"{call.call.name}({arguments!r}), id {call.call.id!r}"
    return f"{what[call.waits_for or 'decision']}{asked} {of_call}"


def _show_rows(table: ChunkTable) -> str:
    n_rows = len(table)
    if n_rows == 0:
        return "[]"
    indices = [*range(n_rows)]
    if n_rows > 2 * EDGE_ROWS + 1:
        indices[EDGE_ROWS:-EDGE_ROWS] = []
    lines = [show_row(index, table[index], MAX_TEXT, MAX_ARGUMENTS) for index in indices]
    if n_rows > len(lines):
        lines.insert(EDGE_ROWS, f"... ({n_rows - len(lines)} chunks omitted) ...")
    return "[\n    " + ",\n    ".join(lines) + "\n  ]"


_INSTEAD = {
    "id": "give it at the start, Session(chunk_table, id=...)",
    "chunk_table": "make a session of other rows, Session(chunk_table)",
    "cumulative_usage": "give it at the start, Session(chunk_table, cumulative_usage=...)",
    "provider": "bind one with session.to(provider)",
    "sandbox": "bind one with session.bind_sandbox(sandbox), or give it back with "
    "session.close_sandbox()",
    "sandbox_backend": "place the session with session.to(backend, spec=...)",
    "sandbox_spec": "place the session with session.to(backend, spec=...)",
    "placement": "place the session with session.to(backend, spec=...)",
    "record": "add to it with session.add_entry(entry)",
    **dict.fromkeys(
        ("provenance", "parent_session_ids", "lineage_operator", "lineage_kind", "lineage_extras"),
        "stamp a new session with LineageRecorder.stamp_new_session(session, ...)",
    ),
}
"""What does the work of a setter, for the public attributes that have something of the kind."""


class Session(Branching, Checking, Deciding, TypedReading[OutputT_co], Referenced):
    """The value that flows through a program, and the record of what happened to it.

    Operations return new sessions. A session made by a run is there at once while the run goes
    on: what needs its rows waits for them, `id`, `provenance`, placement and `repr` never do. A
    failed run raises the same error at every read.

    Args:
        chunk_table: The rows.
        id: By default a new UUID; inside a workflow call it follows from the place.
        sandbox: An open sandbox; the session holds one count on it.
        sandbox_backend: Name of the backend on which a sandbox is opened at first use.
        sandbox_spec: What that sandbox shall be.
        provider: Model to use where an operation is given none.
        lineage: The documented DTO of a run's parents.
        parent_session_ids: Parents that are known by their ids alone.
        cumulative_usage: Usage that the session comes with, in tokens.
    """

    __slots__ = ("__weakref__",)

    def __init__(
        self,
        chunk_table: ChunkTable,
        *,
        id: UUID | None = None,
        sandbox: BackendSandbox | None = None,
        sandbox_backend: str | None = None,
        sandbox_spec: BackendSandboxSpec | None = None,
        provider: Provider | None = None,
        lineage: SessionLineage | None = None,
        parent_session_ids: tuple[UUID, ...] = (),
        lineage_operator: str = "implicit",
        lineage_kind: LineageKind = LineageKind.UNKNOWN,
        lineage_extras: tuple[tuple[str, Any], ...] = (),
        cumulative_usage: RathLLMTokenUsage | None = None,
    ) -> None:
        if not isinstance(chunk_table, ChunkTable):
            raise TypeError(
                f"a Session is made from a ChunkTable, not from {type(chunk_table).__name__}; "
                "for text use Session.from_user_message(...)"
            )
        session_id = id or next_place().new_id()
        parents = tuple(Edge(parent) for parent in parent_session_ids)
        prior_usage = (
            () if cumulative_usage is None else (GivenUsage(session_id, cumulative_usage),)
        )
        table = chunk_table.named(session_id)
        core = SessionCore(
            session_id,
            Deferred.of(Body(table, given=prior_usage)),
            Provenance(lineage_operator, lineage_kind, parents, lineage_extras),
            Placement(sandbox_backend, sandbox_spec, sandbox=sandbox),
            provider,
            lineage,
        )
        self._core = core

    def __setattr__(self, name: str, value: object) -> None:
        # Subclasses may have attributes of their own; those of a session are read-only.
        if name[:1] != "_" and hasattr(Session, name):
            instead = _INSTEAD.get(name, "operations return a new session, session.fork() a copy")
            raise AttributeError(f"session.{name} cannot be set; {instead}", name=name, obj=self)
        object.__setattr__(self, name, value)

    @classmethod
    def from_user_message(
        cls, message: str, *, images: Sequence[ImageSource] | None = ()
    ) -> Session:
        """Return a session in which the user says `message` and shows `images`, paths or bytes."""
        return cls(ChunkTable((user_text_chunk(_check_text(message), images=images),)))

    @classmethod
    def from_agent_prompt(cls, prompt: str) -> Session:
        """Return a session that holds an agent's instructions."""
        return cls(ChunkTable((system_text_chunk(str(_check_text(prompt))),)))

    @classmethod
    def create(cls, kind: str = "user", text: str = "") -> Session:
        """Return a leaf of the lineage graph.

        Args:
            kind: "user", "system", or "empty" for a session without rows.
            text: What the row says; ignored for "empty".
        """
        leaves = {"user": LineageKind.LEAF_USER, "system": LineageKind.LEAF_SYSTEM}
        if kind == "empty":
            return cls(ChunkTable())
        if kind not in leaves:
            raise ValueError(f"unknown kind {kind!r}: expected 'user', 'system' or 'empty'")
        return leaf(text, kind=leaves[kind], operator="Session.create")

    def replay(
        self,
        *,
        at: int | None = None,
        prompt: str | None = None,
        provider: Provider | None = None,
        tool_results: Mapping[str, object] | None = None,
        agent: Callable[[Session], Session] | None = None,
        tools: Sequence[Tool] | None = None,
    ) -> Session:
        """Run this session again: from its record alone, or from a row on with another course.

        `replay()` runs every recorded operation of this session, and of those that it came from,
        by the same code: models and tools answer from the record, so there is no network, no key
        and no effect. Each request is rendered again and must have the recorded sha256; rows,
        record and outcome must come out the same. Waits.

        `replay(at=...)` makes a branch with the rows before one row, and lets a model go on from
        there, live. Calls of tools whose results are cut off read as interrupted, unless
        `tool_results` has another one. The branch works in the sandbox of this session, with the
        files as they are now. Returns at once.

        Args:
            at: Index of the first row that the branch leaves out; a negative one counts from the
                end. Needed with all that follows, but for `tool_results`: there the first row
                with another result is meant.
            prompt: What the user says next.
            provider: Model to ask; by default the session's, else the recorded one, if this
                machine would ask it at the recorded endpoint.
            tool_results: By call id, what tools are to have given instead.
            agent: Goes on in the place of the recorded agent, with tools and a model of its own.
            tools: The tools that the recorded agent had beside the built-in ones.

        Returns:
            The replayed session, with the same id and rows; or the new one of the branch.

        Raises:
            ReplayDifference: The replay is not what the record says; tells the first difference.
            PersistenceError: The record does not hold what is needed.
            ValueError: There is no such row or call, or arguments exclude each other; or a tool
                that the recorded agent had was not given.
        """
        replayed: Session = _replay_session(self, at, prompt, provider, tool_results, agent, tools)
        return replayed

    @classmethod
    def load(
        cls,
        session: UUID | str | Path,
        *,
        store: SessionStore | str | None = None,
        recover: bool = False,
    ) -> Session:
        """Return a session as it is stored, with rows, record, outcome and all it came from.

        One whose run was cut off waits: its outcome is `NeedsDecision`, with the calls of which it
        is not known whether they took effect. Blocks while the logs are read; contents of files
        and images are read when somebody wants them.

        Args:
            session: Its id, or the path of its file.
            store: Where it is, or the URL of that; by default the store of the home. For a path:
                where its parents are, by default beside it.
            recover: Where a log cannot be believed, take what stands before.

        Raises:
            PersistenceError: It is not there or cannot be read.
            SessionDamaged: Its log, or that of one it came from, is not what was written.
        """
        loaded: Session = _load_stored(session, store=store, recover=recover).session
        return loaded

    @classmethod
    def follow(cls, session: UUID | str, *, store: SessionStore | str | None = None) -> Session:
        """Return a session whose run goes on elsewhere, as it is recorded there.

        It is pending as long as somebody writes its log, and grows with it: `stream()` gives what
        comes, `partial_table` the rows so far, and reading it waits for the end of the run. Where
        the writer dies, it is the session as `load` gives it. `cancel()` ends the reading alone,
        and the end of the program does not wait for it.

        Args:
            session: Its id.
            store: Where it is recorded, or the URL of that; by default the store of the home.

        Raises:
            PersistenceError: It is not there or cannot be read.
        """
        followed: Session = _follow(session, store)
        return followed

    def save(
        self,
        *,
        path: Path | str | None = None,
        store: SessionStore | str | None = None,
    ) -> str:
        """Store this session and all it came from, and return where it stands; waits for the run.

        What is stored already is not written again. What comes to the record later is added there.

        Args:
            path: A file that holds all of the session, also what it began with; its parents are
                named in it and not stored. What stands there is replaced.
            store: Where it is stored, or the URL of that; by default the store of the home.

        Raises:
            ValueError: Both were given.
            PersistenceError: It cannot be written.
        """
        self.core.body.result()
        where: str = _save(self, path=path, store=store)
        return where

    @property
    def rows(self) -> tuple[ChunkRow, ...]:
        """All rows; `chunk_table` without a copy. Waits for the run."""
        return self.chunk_table.rows

    def __len__(self) -> int:
        """Return the number of rows; waits for the run."""
        return len(self.chunk_table)

    def __iter__(self) -> Iterator[ChunkRow]:
        """Return an iterator over the rows; waits for the run."""
        return iter(self.chunk_table)

    def __bool__(self) -> bool:
        """Return True, also for a session without rows; never waits."""
        return True

    @property
    def usage(self) -> RathLLMTokenUsage:
        """Tokens of all model calls behind this session, 0 where there are none; waits."""
        return self.cumulative_usage or RathLLMTokenUsage(0, 0, 0)

    @property
    def cumulative_usage(self) -> RathLLMTokenUsage | None:
        """The same as `usage`, each call counted once; None where there is none to tell of."""
        return self.core.inherited(self.core.body.result()).usage()

    @property
    def cumulative_cost(self) -> CostSum:
        """The cost of these calls, in US dollars, as far as it is known; waits for the run."""
        return self.core.inherited(self.core.body.result()).cost()

    @property
    def files(self) -> SessionFiles:
        """The file changes of the session, read from the record; reads of it wait for the run."""
        return session_files.SessionFiles(self)

    def evidence_of(self, row: ChunkRow) -> Entry | None:
        """Return the entry of the record that made `row`, None for one that was written; waits."""
        return evidence_of(self.record, row)

    def text(self) -> str:
        """Return the last text of the model, or a summary that no model text follows; waits.

        Returns:
            The text unstripped, "" when there is none.
        """
        return last_text(self.chunk_table, self.record) or ""

    def _pickle_reference(self) -> Reduction:
        """Return store and id; waits until the session is written there.

        Raises:
            TypeError: Its run goes on, or it is stored nowhere.
        """
        return session_again, _stored_at(self)

    def __await__(self) -> Generator[Any, Any, Self]:
        """Wait in any event loop; cancelling the wait leaves the run alone."""
        yield from self.core.body.__await__()
        return self

    async def wait(self) -> Self:
        """Wait in any event loop and return this session; for what takes a coroutine.

        Example:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(session.wait()) for session in sessions]
        """
        await self.core.body
        return self

    def stream(self) -> SessionStream:
        """Return the events of this session: those that are there, and then as they come.

        For `for`, and for `async for` in any event loop, until the run ends; then its error is
        raised if it failed. Events are rows and record entries, `TextDelta` with the text of the
        answers of this run, `ToolStart` and `ToolEnd`. Any number may read at once, each at its own
        pace: whoever is slow misses nothing, and gets more text at a time. Leaving the loop leaves
        the run alone.

        A model is asked for a streamed answer where somebody reads when it is asked; so is one of
        an agent with `on_event` or `streaming=True` always, with `streaming=False` never. Else the
        text of an answer comes at once, when it is there.

        Example:
            for event in agent(session).stream():
                if isinstance(event, TextDelta):
                    print(event.text, end="")

        Raises:
            SelfWaitError: It is read inside the run that makes this session.
        """
        return streaming.SessionStream(self.id, self.core.body)

    def cancel(self) -> Session:
        """End the run, its model call and its child processes; what was written stays.

        Returns at once; `outcome` is Cancelled then, unless the run had ended before.
        """
        self.core.body.cancel()
        return self

    @property
    def parent_session_ids(self) -> tuple[UUID, ...]:
        """Ids of the parents, in the order of the operation's arguments."""
        return self.core.provenance.parent_ids

    @property
    def lineage_operator(self) -> str:
        """Name of the operation that made this session."""
        return self.core.provenance.operator

    @property
    def lineage_kind(self) -> LineageKind:
        """Kind of the operation that made this session."""
        return self.core.provenance.kind

    @property
    def lineage_extras(self) -> tuple[tuple[str, Any], ...]:
        """Details of the operation; shows the outcome too once that is known."""
        body = self.core.body.latest if self.core.body.done() else None
        is_of_run = self.core.lineage is not None
        outcome_fields = outcome_extras(body.outcome) if body is not None and is_of_run else ()
        return self.core.provenance.extras + outcome_fields

    def __repr__(self) -> str:
        if self.is_pending:
            return show_pending(self.id, self.lineage_operator)
        return show_session(self.id, self.partial_table, self.lineage_operator, self._show_end())

    def _show_end(self) -> str:
        error = self.core.body.error(is_read=False)
        if error is not None:
            text = one_line_preview(f"{type(error).__name__}: {error}", MAX_TEXT)
            return f"failed={text!r}"
        outcome = self.outcome
        calls = self.open_calls if isinstance(outcome, Suspended) else ()
        return show_end(outcome, self.id, calls)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the rows, how the run ended, what it took; never waits."""
        shown: str = _session_html(self)
        return shown


def leaf(text: str, *, kind: LineageKind, operator: str) -> Session:
    """Return a session of one row that `operator` made, stamped as a leaf of the graph."""
    is_user = kind is LineageKind.LEAF_USER
    session = Session.from_user_message(text) if is_user else Session.from_agent_prompt(text)
    LineageRecorder.stamp_new_session(
        session,
        parent_session_ids=(),
        lineage_operator=operator,
        lineage_kind=kind,
        lineage_extras=(("source", operator),),
    )
    return session


def session_again(url: str, session: UUID) -> Session:
    """Return the session that a reference means: it is loaded at once, and that blocks."""
    loaded: Session = _load_reference(url, session)
    return loaded


def _check_text(text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"expected text as a str, not {type(text).__name__}: {text!r:.80}")
    return text
