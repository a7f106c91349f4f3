"""Sessions read while their runs go on: rows, entries, text and tool calls as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Self
from uuid import UUID

from rath._async.deferred import Deferred
from rath.llm.tool_args import parse_tool_arguments
from rath.session.body import Body, CallKey
from rath.session.chunk import ChunkRow
from rath.session.content import AssistantTurn, ToolFeedback
from rath.session.events import StreamEvent as StreamEvent
from rath.session.events import TextDelta as TextDelta
from rath.session.events import ToolEnd as ToolEnd
from rath.session.events import ToolStart as ToolStart
from rath.session.record import Entry, ModelCall, Operation, ToolRun


class SessionStream:
    """The events of a session, those that are there and then as they come; see `Session.stream`.

    For `for`, and for `async for` in any event loop. It counts as a reader from when it is made,
    and in `with` to the end of the block.
    """

    __slots__ = ("_events", "_progress", "_ready")

    def __init__(self, session: UUID, body: Deferred[Body]) -> None:
        self._progress = body.progress()
        self._events = EventReader(session)
        self._ready: deque[StreamEvent] = deque()

    def __iter__(self) -> Iterator[StreamEvent]:
        return self

    def __next__(self) -> StreamEvent:
        while not self._ready:
            self._ready += self._events.read(next(self._progress))
        return self._ready.popleft()

    def __aiter__(self) -> AsyncIterator[StreamEvent]:
        return self

    async def __anext__(self) -> StreamEvent:
        while not self._ready:
            self._ready += self._events.read(await anext(self._progress))
        return self._ready.popleft()

    def close(self) -> None:
        """Read no more; the run goes on."""
        self._ready.clear()
        self._progress.close()

    async def aclose(self) -> None:
        """Read no more; the run goes on."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class EventReader:
    """Finds the events between one content of a session and the next.

    A reader may miss contents in between: whatever has ended has begun, and text that no delta has
    told stands in its row.

    Args:
        session: The session that is read.
    """

    def __init__(self, session: UUID) -> None:
        self._session = session
        self._n_rows = self._n_entries = 0
        self._text = ""
        """The beginning of an answer that deltas have told."""

        self._sessions: dict[UUID, UUID] = {}
        """By operation, the session that a run of it makes; set once the session's own run has
        begun, so that what was before it tells no calls."""

        self._open: dict[CallKey | UUID, tuple[UUID, str]] = {}
        """Calls that have begun: operation and id."""

        self._ended: set[UUID] = set()
        """The entries of the calls whose end was told."""

    def read(self, body: Body) -> Iterator[StreamEvent]:
        """Yield what has come since the last content."""
        rows, entries = body.table.since(self._n_rows), body.record.since(self._n_entries)
        self._n_rows += len(rows)
        self._n_entries += len(entries)
        at_row = {row.id: at for at, row in enumerate(rows)}
        n_told = 0
        for entry in entries:
            named = max((at_row.get(each, -1) for each in entry.rows), default=-1)
            for row in rows[n_told : named + 1]:
                yield from self._row(row)
            n_told = max(n_told, named + 1)
            yield from self._entry(entry, rows[named] if named >= 0 else None)
        for row in rows[n_told:]:
            yield from self._row(row)
        if body.unfinished is not None:
            yield from self._going_on(body)

    def _row(self, row: ChunkRow) -> Iterator[StreamEvent]:
        is_own = row.id is not None and row.id.session == self._session
        if is_own and isinstance(row.content, AssistantTurn):
            whole = row.content.text or ""
            # A text that a hook has changed was told as the model said it.
            rest = whole[len(self._text) :] if whole.startswith(self._text) else ""
            self._text = ""
            if rest:
                yield TextDelta(rest, self._session)
        yield row

    def _entry(self, entry: Entry, row: ChunkRow | None) -> Iterator[StreamEvent]:
        match entry:
            case Operation(session=session, operation=operation):
                if session == self._session or self._sessions:
                    self._sessions[operation] = session
            case ModelCall(rows=()):
                self._text = ""  # the answer was given up
            case ToolRun() if entry.operation in self._sessions and entry.id not in self._ended:
                key = next(
                    (key for key, call in self._open.items()
                     if call == (entry.operation, entry.call_id)),
                    entry.id,
                )  # fmt: skip
                yield from self._end(key, entry, row)
            case _:
                pass
        yield entry

    def _going_on(self, body: Body) -> Iterator[StreamEvent]:
        """Yield the calls that go on, and text of the answer that is coming."""
        unfinished = body.unfinished
        assert unfinished is not None
        for result in unfinished.results:
            if result.run.id not in self._ended:
                yield from self._end((result.row, result.call), result.run, result.shown)
        for intent in unfinished.intents:
            key = intent.row, intent.call
            if key not in self._open:
                turn = body.table[intent.row].content
                calls = turn.calls if isinstance(turn, AssistantTurn) else ()
                given = calls[intent.call].arguments if intent.call < len(calls) else None
                arguments = parse_tool_arguments(given)[0] or {}
                self._open[key] = intent.operation, intent.call_id
                yield ToolStart(self._session, intent.call_id, intent.tool, arguments)
        text = unfinished.partial_text
        if text.startswith(self._text) and len(text) > len(self._text):
            yield TextDelta(text[len(self._text) :], self._session)
            self._text = text

    def _end(
        self, key: CallKey | UUID, run: ToolRun, row: ChunkRow | None
    ) -> Iterator[StreamEvent]:
        session = self._sessions.get(run.operation, self._session)
        if self._open.pop(key, None) is None:
            yield ToolStart(session, run.call_id, run.tool, run.arguments or {})
        self._ended.add(run.id)
        if row is not None and isinstance(row.content, ToolFeedback):
            text = row.content.body
        else:
            text = (run.shown.data or b"").decode(errors="replace")
        yield ToolEnd(session, run.call_id, run.tool, run.status, text, run.duration_ms)
