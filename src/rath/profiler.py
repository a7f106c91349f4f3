"""A profile of runs, by module path: where time, tokens and money went; made from the record."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, fields
from datetime import datetime
from decimal import Decimal
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args
from uuid import UUID

from rath._async.deferred import Deferred
from rath._core import html
from rath._core.dataclasses import dataclass
from rath._core.files import atomic_write_text
from rath._core.text import short_id
from rath.session.body import Body, model_of
from rath.session.loop import on_run_submit
from rath.session.record import ModelCall, ToolRun
from rath.session.session import Session
from rath.session.timeline import (
    Interval,
    IntervalKind,
    intervals_of,
    name_paths,
    workflows_of,
)
from rath.session.view.flame import Box, flame_data
from rath.session.view.page import profile_html

__all__ = ["KeyAverage", "Profile", "ProfileEvent", "profile", "profile_sessions"]

GroupBy: TypeAlias = Literal["path", "model", "tool"]
SortBy: TypeAlias = Literal[
    "wall", "own", "model", "tool", "queue", "first_token", "tokens", "usd", "calls", "key"
]
_SLOP_US = 500
"""Two clocks tell the times: calls that follow each other may seem to overlap by so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileEvent:
    """One workflow call, run, model call or tool call; times in milliseconds."""

    kind: IntervalKind
    name: str
    """Of the module, the model or the tool."""

    path: str
    """Module path; what a tool call contains stands behind `TOOL()`."""

    id: UUID
    parent: UUID | None
    trace: UUID
    session: UUID
    start: datetime
    end: datetime
    wall_ms: float
    own_ms: float
    """The wall time in which none of its parts went on, and which it did not spend waiting."""

    queue_ms: float = 0.0
    """Of a model call: the wait for a limit to let it through."""

    first_token_ms: float | None = None
    """Of a streamed model call: from its passing the limits to the first token."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    usd: Decimal | None = None
    """Cost of a model call in dollars; None where it is not known."""

    error: str | None = None


@dataclass(slots=True, kw_only=True)
class KeyAverage:
    """The sums over the events of one module path, model or tool; times in milliseconds."""

    key: str
    calls: int = 0
    """How often the module ran; of a model or a tool, how often it was called."""

    model_calls: int = 0
    tool_calls: int = 0
    wall_ms: float = 0.0
    """From beginning to end, summed over the calls: parallel ones count each."""

    model_ms: float = 0.0
    """In model calls, without the queue."""

    tool_ms: float = 0.0
    """In tools, without runs inside of them, which have a path of their own."""

    queue_ms: float = 0.0
    """Waiting for limits, before model calls."""

    own_ms: float = 0.0
    """Neither in a model call, nor in a tool, nor in a module below, nor waiting for somebody."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    usd: Decimal = Decimal(0)
    unpriced_calls: int = 0
    """Model calls whose cost is not known; `usd` lacks them."""

    errors: int = 0
    first_tokens: list[float] = field(default_factory=list[float])

    @property
    def first_token_ms(self) -> float | None:
        """The mean time to the first token of the calls that were streamed."""
        return sum(self.first_tokens) / len(self.first_tokens) if self.first_tokens else None

    @property
    def cached_share(self) -> float | None:
        """Share of the prompt tokens that the endpoints had in their caches, from 0 to 1."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens."""
        return self.prompt_tokens + self.completion_tokens

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON values; money as text."""
        names = [each.name for each in fields(self) if each.name not in ("first_tokens", "usd")]
        return {
            **{name: _rounded(getattr(self, name)) for name in names},
            "tokens": self.tokens,
            "cached_share": _rounded(self.cached_share),
            "first_token_ms": _rounded(self.first_token_ms),
            "usd": str(self.usd),
        }

    def add(self, event: ProfileEvent) -> None:
        """Count the times, tokens and money of an event."""
        if event.kind == "model":
            self.model_calls += 1
            self.model_ms += event.wall_ms - event.queue_ms
            self.queue_ms += event.queue_ms
            self.prompt_tokens += event.prompt_tokens
            self.cached_tokens += event.cached_tokens
            self.completion_tokens += event.completion_tokens
            self.usd += event.usd or 0
            self.unpriced_calls += event.usd is None
            self.first_tokens += () if event.first_token_ms is None else (event.first_token_ms,)
        elif event.kind == "tool":
            self.tool_calls += 1
            self.tool_ms += event.own_ms
        else:
            self.own_ms += event.own_ms
        self.errors += event.error is not None


class Profile:
    """Profile of the runs of a `profile()` block, or of stored sessions.

    Every answer is made anew from the record: of a run that still goes on, from what it has done.
    """

    def __init__(self) -> None:
        self._sources: dict[UUID, tuple[Deferred[Body], UUID | None]] = {}
        self._done: dict[UUID, tuple[Interval, ...]] = {}

    def add(self, session: Session, *, own: bool = False) -> None:
        """Take a session into account; costs nothing until something is asked.

        Args:
            session: It may be running.
            own: Count the run that made it only, and not those that it came from.
        """
        self._sources[session.id] = session.core.body, session.id if own else None

    def events(self) -> tuple[ProfileEvent, ...]:
        """Return workflow calls, runs, model calls and tool calls, by when they began."""
        found: dict[UUID, Interval] = {}
        for ident, (cell, only) in tuple(self._sources.items()):
            known = self._done.get(ident)
            if known is None:
                is_done, body = cell.done(), cell.latest
                known = () if body is None else intervals_of(body.record, body.table, only)
                if is_done:
                    self._done[ident] = known
            found |= {each.id: each for each in known if each.kind != "workflow"}
        intervals = name_paths([*workflows_of(found.values()), *found.values()])
        inner = _children(intervals)
        made = (_event(each, inner.get(each.id, ())) for each in intervals)
        return tuple(sorted(made, key=lambda each: (each.start, -each.wall_ms)))

    def key_averages(self, group_by: GroupBy = "path") -> tuple[KeyAverage, ...]:
        """Return the sums by module path, by model, or by tool, the longest first.

        Raises:
            ValueError: `group_by` is something else.
        """
        _check("group_by", group_by, get_args(GroupBy))
        events = self.events()
        paths = {event.id: event.path for event in events if event.kind in ("workflow", "run")}
        rows: dict[str, KeyAverage] = {}
        for event in events:
            if group_by != "path" and event.kind != group_by:
                continue
            key = event.path if group_by == "path" else event.name
            row = rows.setdefault(key, KeyAverage(key=key))
            row.add(event)
            is_module = event.kind in ("workflow", "run")
            is_within = event.parent is not None and paths.get(event.parent) == event.path
            if (is_module and not is_within) or group_by != "path":
                row.calls += 1
                row.wall_ms += event.wall_ms
        return tuple(sorted(rows.values(), key=lambda row: -row.wall_ms))

    def table(
        self, *, sort_by: SortBy = "wall", row_limit: int = 100, group_by: GroupBy = "path"
    ) -> str:
        """Return a table of the sums, with a last line of all.

        Args:
            sort_by: The column by which rows are sorted, the largest first; `key` from a to z.
            row_limit: So many rows at most; the sums at the end are those of all.
            group_by: What a row is for.

        Raises:
            ValueError: An argument is out of its range.
        """
        _check("sort_by", sort_by, get_args(SortBy))
        if row_limit < 1:
            raise ValueError(f"row_limit must be at least 1, not {row_limit}")
        rows = list(self.key_averages(group_by))
        rows.sort(key=_sort_key(sort_by), reverse=sort_by != "key")
        cells = [_HEAD, *map(_cells, rows[:row_limit]), _cells(_total(rows), is_total=True)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(
                cell.rjust(width) if at else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        ]
        rule = "-" * max(map(len, lines))
        more = len(rows) - row_limit
        left_out = [f"({more} more)"] if more > 0 else []
        return "\n".join([lines[0], rule, *lines[1:-1], *left_out, rule, lines[-1]])

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the table of modules."""
        return html.table(_HEAD, map(_cells, self.key_averages()))

    def to_json(self) -> dict[str, Any]:
        """Return the sums by path, model and tool as JSON values; money as text."""
        return {
            group: [row.to_json() for row in self.key_averages(group)]
            for group in get_args(GroupBy)
        }

    def export_chrome_trace(self, path: str | PathLike[str]) -> None:
        """Write the events as a Chrome trace, which Perfetto and `chrome://tracing` open.

        Each outermost workflow call is a process there, each session a thread; calls of a session
        that went on at the same time stand on threads of their own.

        Raises:
            OSError: The file cannot be written.
        """
        atomic_write_text(Path(path), json.dumps(chrome_trace(self.events())))

    def flame_data(self) -> str:
        """Return the data of the flame view and of the table below it, as `write_page` takes it."""
        boxes = [
            Box(
                id=str(event.id),
                parent=None if event.parent is None else str(event.parent),
                kind=event.kind,
                name=event.name,
                path=event.path,
                start=event.start.timestamp(),
                end=event.end.timestamp(),
                facts=_facts(event),
            )
            for event in self.events()
        ]
        rows = [[*_HEAD], *([*_cells(row)] for row in self.key_averages())]
        return flame_data(boxes, rows)

    def export_html(self, path: str | PathLike[str], *, title: str = "Profile") -> None:
        """Write a page with a flame view and the sums; one file that needs no network.

        Raises:
            OSError: The file cannot be written.
        """
        atomic_write_text(Path(path), profile_html(self.flame_data(), title=title))


@contextmanager
def profile() -> Generator[Profile]:
    """Profile the runs that are submitted inside, in the whole process.

    Nothing is measured for it: the record has all times. So the block costs next to nothing, and
    the same table comes from stored sessions later (`rath profile`).

    Yields:
        The profile, which may be asked inside the block and after it.
    """
    made = Profile()
    take_back = on_run_submit(lambda session: made.add(session, own=True))
    try:
        yield made
    finally:
        take_back()


def profile_sessions(sessions: Iterable[Session]) -> Profile:
    """Return the profile of sessions, such as loaded ones, and of all that they came from.

    What several of them came from counts once.
    """
    if isinstance(sessions, Session):  # type: ignore[unreachable]  # a wrong call
        raise TypeError("profile_sessions takes sessions, and one was given; write [session]")
    made = Profile()
    for session in sessions:
        made.add(session)
    return made


def chrome_trace(events: Sequence[ProfileEvent]) -> dict[str, Any]:
    """Return events in the Trace Event Format of Chrome; times in microseconds from the first."""
    if not events:
        return {"traceEvents": [], "displayTimeUnit": "ms"}
    began = events[0].start
    names = {event.trace: event.name for event in events if event.kind == "workflow"}
    processes: dict[UUID, int] = {}
    threads: dict[tuple[UUID, int], int] = {}
    made: list[dict[str, Any]] = []
    for event, lane, start, end in _lanes(events, began):
        if event.trace not in processes:
            processes[event.trace] = process = len(processes) + 1
            name = f"{names.get(event.trace, 'session')} {short_id(event.trace)}"
            made.append(_metadata("process_name", process, 0, name))
        process = processes[event.trace]
        owner = event.trace if event.kind == "workflow" else event.session
        if (owner, lane) not in threads:
            threads[owner, lane] = thread = len(threads) + 1
            what = "workflow" if event.kind == "workflow" else f"session {short_id(owner)}"
            made.append(
                _metadata("thread_name", process, thread, what + (f" +{lane}" if lane else ""))
            )
        made.append(
            {
                "ph": "X",
                "name": event.name,
                "cat": event.kind,
                "ts": start,
                "dur": end - start,
                "pid": process,
                "tid": threads[owner, lane],
                "args": _facts(event),
            }
        )
    return {
        "traceEvents": made,
        "displayTimeUnit": "ms",
        "otherData": {"began": began.isoformat()},
    }


def _metadata(name: str, process: int, thread: int, value: str) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": {"name": value}}


def _lanes(
    events: Sequence[ProfileEvent], began: datetime
) -> Generator[tuple[ProfileEvent, int, int, int]]:
    """Yield each event with the first lane of its session in which it nests, and its times."""
    lanes: dict[UUID, list[list[int]]] = {}
    order = sorted(events, key=lambda each: (each.start, -each.wall_ms, each.kind == "run"))
    for event in order:
        start, end = (
            round((time - began).total_seconds() * 1e6) for time in (event.start, event.end)
        )
        own = lanes.setdefault(event.trace if event.kind == "workflow" else event.session, [])
        lane, start = _lane_for(own, start, end)
        own[lane].append(end)
        yield event, lane, start, end


def _lane_for(lanes: list[list[int]], start: int, end: int) -> tuple[int, int]:
    """Return the first lane, of the ends of what is open there, with room; and the start there."""
    for lane, ends in enumerate(lanes):
        kept, began = len(ends), start
        while kept and ends[kept - 1] <= began + _SLOP_US and ends[kept - 1] < end:
            kept -= 1
            began = max(began, ends[kept])
        if not kept or end <= ends[kept - 1]:
            del ends[kept:]
            return lane, began
    lanes.append([])
    return len(lanes) - 1, start


def _children(
    intervals: Iterable[Interval],
) -> dict[UUID, list[tuple[datetime, datetime]]]:
    inner: dict[UUID, list[tuple[datetime, datetime]]] = {}
    for each in intervals:
        if each.parent is not None:
            inner.setdefault(each.parent, []).append((each.start, each.end))
    return inner


def _event(interval: Interval, inner: Sequence[tuple[datetime, datetime]]) -> ProfileEvent:
    busy = _union_ms([*inner, *interval.waits], interval.start, interval.end)
    wall = (interval.end - interval.start).total_seconds() * 1000
    entry = interval.entry
    return ProfileEvent(
        kind=interval.kind,
        name=_name(interval),
        path=interval.path,
        id=interval.id,
        parent=interval.parent,
        trace=interval.trace,
        session=interval.operation.session,
        start=interval.start,
        end=interval.end,
        wall_ms=wall,
        own_ms=max(0.0, wall - busy),
        error=None if entry is None or entry.status == "done" else _error(entry),
        **(_of_model(entry) if isinstance(entry, ModelCall) else {}),
    )


def _name(interval: Interval) -> str:
    if isinstance(interval.entry, ModelCall):
        return model_of(interval.entry.evidence)
    if isinstance(interval.entry, ToolRun):
        return interval.entry.tool
    return interval.path.rpartition(".")[2] or interval.path


def _error(entry: ModelCall | ToolRun) -> str:
    told = entry.evidence.error if isinstance(entry, ModelCall) else entry.error_kind
    return told or entry.status


def _of_model(call: ModelCall) -> Mapping[str, Any]:
    evidence, usage = call.evidence, call.evidence.usage
    first = evidence.first_token_ms
    return {
        "queue_ms": min(evidence.queued_ms, evidence.duration_ms),
        "first_token_ms": None if first is None else max(0.0, first - evidence.queued_ms),
        "prompt_tokens": 0 if usage is None else usage.prompt_tokens,
        "completion_tokens": 0 if usage is None else usage.completion_tokens,
        "cached_tokens": evidence.cached_tokens or 0,
        "usd": None if evidence.cost is None else evidence.cost.usd,
    }


def _union_ms(spans: Iterable[tuple[datetime, datetime]], start: datetime, end: datetime) -> float:
    """Return how much of the time from `start` to `end` the spans cover."""
    covered, at = 0.0, start
    for began, ended in sorted(spans):
        since, until = max(began, at), min(ended, end)
        if until > since:
            covered += (until - since).total_seconds() * 1000
            at = until
    return covered


_HEAD = (
    "module", "calls", "wall", "own", "models", "model time", "tools", "tool time", "queue",
    "first token", "tokens", "cached", "cost",
)  # fmt: skip


def _cells(row: KeyAverage, *, is_total: bool = False) -> tuple[str, ...]:
    """Return a line of the table; the sums of all have no wall time: modules stand in others."""
    share, first = row.cached_share, row.first_token_ms
    usd = f"${row.usd:.4f}" if row.usd or not row.unpriced_calls else ""
    usd = " + ".join(filter(None, (usd, "unpriced" if row.unpriced_calls else "")))
    return (
        row.key,
        "" if is_total else f"{row.calls:,}",
        "" if is_total else _ms(row.wall_ms),
        _ms(row.own_ms),
        f"{row.model_calls:,}",
        _ms(row.model_ms),
        f"{row.tool_calls:,}",
        _ms(row.tool_ms),
        _ms(row.queue_ms),
        "" if first is None else _ms(first),
        f"{row.tokens:,}",
        "" if share is None else f"{share:.0%}",
        usd if row.model_calls else "",
    )


def _ms(value: float) -> str:
    return f"{value / 1000:,.2f} s" if value >= 1000 else f"{value:.1f} ms"


def _total(rows: Sequence[KeyAverage]) -> KeyAverage:
    total = KeyAverage(key="all")
    for row in rows:
        for each in fields(KeyAverage):
            if each.name != "key":
                mine = getattr(total, each.name)
                setattr(total, each.name, mine + getattr(row, each.name))
    return total


def _facts(event: ProfileEvent) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "path": event.path,
        "session": str(event.session),
        "own_ms": _rounded(event.own_ms),
    }
    if event.kind == "model":
        facts |= {
            "queue_ms": _rounded(event.queue_ms),
            "first_token_ms": _rounded(event.first_token_ms),
            "prompt_tokens": event.prompt_tokens,
            "cached_tokens": event.cached_tokens,
            "completion_tokens": event.completion_tokens,
            "usd": None if event.usd is None else str(event.usd),
        }
    return facts if event.error is None else {**facts, "error": event.error}


def _sort_key(sort_by: SortBy) -> Callable[[KeyAverage], Any]:
    names = {"wall", "own", "model", "tool", "queue", "first_token"}
    name = f"{sort_by}_ms" if sort_by in names else sort_by

    def value(row: KeyAverage) -> Any:
        return getattr(row, name) or 0  # no time to a first token where nothing was streamed

    return value


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _check(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
