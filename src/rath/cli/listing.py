"""`rath ls`, `log` and `cost`: many sessions of a store, read from its index.

Lines of `rath log --graph` lead from sessions to what they were made from:

●    a merge
├─╮
│ ●  a branch
● │  another one
├─╯
●    what both were made from
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import field
from decimal import Decimal
from itertools import pairwise
from typing import Annotated, Any, Literal
from uuid import UUID

import typer
from rich.text import Text

from rath._core.dataclasses import dataclass
from rath._core.text import short_id
from rath.cli.render import (
    STATE_STYLES,
    count_of,
    cut,
    line,
    moment,
    money,
    one_line,
    room,
    say_lines,
    say_table,
)
from rath.cli.stores import (
    StoreUrl,
    find_job,
    find_run,
    known_with_ancestors,
    session_id_of,
    use_index,
    use_store,
)
from rath.cli.terminal import AsJson, Damaged, Misuse, note, say_json, time_of, visible
from rath.session.graph.kind import LineageKind
from rath.session.log.index import IndexedCall, SessionFilter, SessionSummary, StoreIndex
from rath.session.log.store import SessionStore

JobName = Annotated[
    str | None, typer.Option("--job", metavar="JOB", help="Only runs of the items of this job.")
]
By = Literal["model", "session", "run", "day"]

_STATES = (
    "completed", "round_limit", "budget_exceeded", "deadline_exceeded", "cancelled",
    "needs_approval", "needs_input", "needs_decision", "failed", "cut_off", "running", "damaged",
)  # fmt: skip
_JSON_FIELDS = (
    "id", "created_at", "updated_at", "state", "problem", "operator", "kind", "parents", "run",
    "path", "ordinal", "title", "n_rows", "n_calls", "n_tool_runs", "tokens", "usd", "is_priced",
    "models", "backend", "size",
)  # fmt: skip
_MAX_DEPTH = 30
"""Columns that the lines of a tree may take; what is deeper is not indented further."""

_DERIVED = {
    LineageKind.OP_FORK,
    LineageKind.OP_DETACH,
    LineageKind.OP_MERGE,
    LineageKind.OP_DELEGATE,
    LineageKind.OP_INPUT,
    LineageKind.OP_SESSION_COMPRESS,
}


def ls(
    text: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Only where this was said.")
    ] = None,
    states: Annotated[
        list[str] | None,
        typer.Option("--state", help="Only in this state, such as failed or running. Repeatable."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Begun since: a date, or an age such as 7d.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Begun before: a date, or an age such as 7d.")
    ] = None,
    operator: Annotated[
        str | None, typer.Option("--operator", help="Made by this operation, or of this kind.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Answered by a model with this in its name.")
    ] = None,
    parent: Annotated[
        str | None, typer.Option("--parent", metavar="SESSION", help="Made from this session.")
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Made in this workflow call.")
    ] = None,
    job: JobName = None,
    by: Annotated[
        Literal["lineage", "run", "time"],
        typer.Option("--by", help="Order: a tree, by workflow call, or a plain list."),
    ] = "lineage",
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="Only the newest; 0 for all.")
    ] = 50,
    is_all: Annotated[
        bool, typer.Option("--all", "-a", help="All, also those with instructions alone.")
    ] = False,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List sessions, the newest first, each below what it was made from."""
    for state in states or ():
        if state not in _STATES:
            raise Misuse(f"no state {state!r}; expected one of {', '.join(_STATES)}")
    with use_store(store_url) as store, use_index(store, with_text=bool(text)) as index:
        query = SessionFilter(
            states=states or (),
            since=time_of("--since", since),
            until=time_of("--until", until),
            operator=operator,
            model=model,
            text=" ".join(text) if text else None,
            parent=None if parent is None else session_id_of(parent, store),
            run=find_run(run, index),
            runs=_runs_of(job, store),
            is_said=not is_all,
            limit=None if is_all or limit == 0 else limit + 1,
        )
        found = index.summaries(query)
        has_more = query.limit is not None and len(found) == query.limit
        found = found[:limit] if has_more else found
        if as_json:
            say_json({"store": store.where, "sessions": [*map(_jsonable, found)]})
        else:
            say_lines(_run_lines(found) if by == "run" else _tree_lines(found, by == "lineage"))
        if has_more:
            n_all = index.count(query)
            note(f"the newest {len(found):,} of {n_all:,} sessions; --all lists every one")
        elif not found:
            is_narrow = query != SessionFilter(is_said=query.is_said, limit=query.limit)
            no = "no session of {} fits" if is_narrow else "there are no sessions in {}"
            note(no.format(store.where))


def _runs_of(job: str | None, store: SessionStore) -> list[UUID] | None:
    """Return the runs of a job, None where none is asked for.

    Raises:
        CommandError: There is no such job.
    """
    if job is None:
        return None
    from rath.jobs.record import attempts_of  # noqa: PLC0415  # most lists are of no job

    return [*attempts_of(find_job(job, store).record)]


def log(
    session: Annotated[
        str | None,
        typer.Argument(
            metavar="[SESSION]",
            help="Only this one and what it came from: an id, or the beginning of one.",
        ),
    ] = None,
    is_graph: Annotated[
        bool, typer.Option("--graph", "-g", help="Draw lines to what each was made from.")
    ] = False,
    has_descendants: Annotated[
        bool, typer.Option("--descendants", help="With SESSION: also what came from it.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="Only the newest; 0 for all.")
    ] = 100,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show sessions by time, the newest first, each after all that was made from it."""
    with use_store(store_url) as store:
        ident = None if session is None else session_id_of(session, store)
        with use_index(store) as index:
            ordered = newest_first(
                index.summaries(SessionFilter(is_said=True))
                if ident is None
                else known_with_ancestors(index, ident, has_descendants=has_descendants)
            )
    newest = ordered[:limit] if limit else ordered
    if as_json:
        say_json({"sessions": [*map(_jsonable, newest)]})
    elif is_graph:
        say_lines(_graph_lines(newest))
    else:
        say_lines(_log_line("", each) for each in newest)
    if len(newest) < len(ordered):
        note(f"the newest {len(newest):,} of {len(ordered):,} sessions; -n 0 shows all")


def _jsonable(session: SessionSummary) -> dict[str, Any]:
    return {name: getattr(session, name) for name in _JSON_FIELDS}


def _tree_lines(sessions: Sequence[SessionSummary], is_tree: bool) -> Iterator[Text]:
    branches = lineage_of(sessions) if is_tree else [("", each) for each in sessions]
    return _session_lines(branches, sessions)


def _run_lines(sessions: Sequence[SessionSummary]) -> Iterator[Text]:
    runs: dict[UUID | None, list[SessionSummary]] = {}
    for session in sessions:
        runs.setdefault(session.run, []).append(session)
    for run, members in runs.items():
        members.sort(key=lambda session: (session.created_at, session.id))
        usd = sum((each.usd for each in members), Decimal(0))
        top = members[0].path.partition(".")[0]
        name = "no workflow call" if run is None else f"run {short_id(run)}  {top}"
        yield line((f"{name}  {count_of(len(members), 'session')}, {money(usd)}", "bold"))
        branches = [(f"{'└' if each is members[-1] else '├'}─ ", each) for each in members]
        yield from _session_lines(branches, sessions)


def _session_lines(
    branches: Iterable[tuple[str, SessionSummary]], sessions: Sequence[SessionSummary]
) -> Iterator[Text]:
    columns = room() or 100
    width = max((len(session.state) for session in sessions), default=0) if columns >= 50 else 0
    for before, session in branches:
        at = moment(session.created_at, is_short=columns < 100) + "  " if columns >= 50 else ""
        yield line(
            (before[-_MAX_DEPTH:], "dim"),
            (f"{short_id(session.id)}  ", "bold"),
            (f"{session.state:<{width}}  ", STATE_STYLES.get(session.state, "")),
            (at, "dim"),
            _about(session, is_wide=columns >= 100),
        )


def _about(session: SessionSummary, *, is_wide: bool) -> str:
    """Return the place and subject of a session, and on a wide line what it took."""
    place = _place(session)
    parts = [
        place,
        one_line(session.problem or session.title or ("" if place else session.operator)),
    ]
    if is_wide:
        took = [count_of(session.n_rows, "row")]
        if session.n_calls:
            unknown = "" if session.is_priced else " + unknown"
            took += [count_of(session.n_calls, "call"), money(session.usd) + unknown]
        merged = "".join(f" +{short_id(parent)}" for parent in session.parents[1:])
        parts.append(f"({', '.join(took)}){merged}")
    return "  ".join(filter(None, parts))


def _place(session: SessionSummary) -> str:
    """Return the place in a workflow, and the operation if that is no run."""
    place = f"{session.path}#{session.ordinal}" if session.path else ""
    operation = session.operator.rpartition(".")[2] if session.kind in _DERIVED else ""
    return " ".join(filter(None, (place, operation)))


def _graph_lines(sessions: Sequence[SessionSummary]) -> Iterator[Text]:
    lines = list(draw_graph(sessions))
    width = max((len(before) for before, _ in lines), default=0)
    # Beside a wide graph there would be no place for words.
    if (columns := room()) is not None:
        width = min(width, columns // 2)
    for before, session in lines:
        graph = Text(before)
        cut(graph, width)
        graph.truncate(width, pad=True)
        yield (
            line((graph.plain, "yellow"))
            if session is None
            else _log_line(f"{graph.plain}  ", session)
        )


def _log_line(before: str, session: SessionSummary) -> Text:
    is_wide = (room() or 80) >= 80
    return line(
        (before, "yellow"),
        (f"{short_id(session.id)}  ", "bold"),
        (f"{session.state}  ", STATE_STYLES.get(session.state, "")),
        (f"{moment(session.created_at)}  " if is_wide else "", "dim"),
        f"{_place(session) or session.operator}  {one_line(session.problem or session.title)}",
    )


def cost(
    session: Annotated[
        str | None,
        typer.Argument(
            metavar="[SESSION]", help="Only its calls and those of all that it came from."
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Only calls of this workflow call.")
    ] = None,
    job: JobName = None,
    by: Annotated[By, typer.Option("--by", help="What the lines are for.")] = "model",
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Tell how many calls were made, how many tokens they took, and what they cost.

    A call counts once, in however many logs it stands. What is not known is told, and not counted
    as free. Of a damaged log counts what can be believed; the exit status is 4 then.
    """
    if sum(each is not None for each in (session, run, job)) > 1:
        raise Misuse("expected at most one of SESSION, --run and --job")
    with use_store(store_url) as store, use_index(store) as index:
        if session is not None:
            known = known_with_ancestors(index, session_id_of(session, store))
        else:
            runs = _runs_of(job, store)
            query = SessionFilter(run=find_run(run, index), runs=runs, order="oldest")
            known = [*index.summaries(query)]
        costs = _costs(index, known, by)
    if as_json:
        say_json(costs)
    else:
        _show(costs)
    damaged = [each for each in known if each.state == "damaged"]
    if damaged:
        more = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        raise Damaged(
            f"session {damaged[0].id} is damaged{more}: {damaged[0].problem}; calls that stand "
            "behind that are not counted"
        )


@dataclass(slots=True)
class _Sum:
    """Calls added up."""

    name: str
    n_calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    usd: Decimal = Decimal(0)
    is_complete: bool = True
    """Whether the price of all of them is known."""

    unpriced: Counter[str] = field(default_factory=Counter[str])
    """Calls without a known price, by model."""

    uncounted: Counter[str] = field(default_factory=Counter[str])
    """Calls without a number of tokens, by model."""

    given_tokens: int = 0
    """Tokens of files of version 1, which hold no calls."""

    def add(self, call: IndexedCall) -> None:
        self.n_calls += 1
        self.prompt_tokens += call.prompt_tokens
        self.cached_tokens += call.cached_tokens
        self.completion_tokens += call.completion_tokens
        self.usd += call.usd or 0
        if call.price in ("unpriced", "uncounted"):
            (self.unpriced if call.price == "unpriced" else self.uncounted)[call.model] += 1
            self.is_complete = False


@dataclass(frozen=True, slots=True)
class _Costs:
    """Sums of groups, the dearest first, and that of all calls."""

    by: By
    groups: list[_Sum]
    total: _Sum


def _costs(index: StoreIndex, known: Collection[SessionSummary], by: By) -> _Costs:
    sessions = {each.id: each for each in sorted(known, key=lambda each: each.created_at)}
    # A call of a run inside a run stands in both logs, and belongs to the one that was begun later.
    rank = {ident: number for number, ident in enumerate(sessions)}
    calls: dict[UUID, tuple[UUID, IndexedCall]] = {}
    for session, call in index.calls(sessions):
        before = calls.get(call.id)
        if before is None or rank[before[0]] < rank[session]:
            calls[call.id] = session, call
    n_given = sum(index.given_tokens(sessions).values())
    total = _Sum("total", is_complete=not n_given, given_tokens=n_given)
    groups: dict[str, _Sum] = {}
    # By the name of the model, so that what is not known is told in one order.
    for session, call in sorted(calls.values(), key=lambda each: each[1].model):
        name = _group(by, sessions[session], call)
        groups.setdefault(name, _Sum(name)).add(call)
        total.add(call)
    dearest = sorted(groups.values(), key=lambda each: (-each.usd, -each.n_calls, each.name))
    return _Costs(by, dearest, total)


def _group(by: By, session: SessionSummary, call: IndexedCall) -> str:
    match by:
        case "model":
            return call.model
        case "day":
            return call.at.date().isoformat()
        case "run":
            top = session.path.partition(".")[0]
            return "no workflow call" if session.run is None else f"{short_id(session.run)}  {top}"
        case _:
            return f"{short_id(session.id)}  {one_line(session.title or session.operator)}"


def _show(costs: _Costs) -> None:
    is_narrow = (room() or 60) < 60
    rows: list[list[str | Text]] = []
    for each in (*costs.groups, costs.total):
        style = "bold" if each is costs.total else ""
        calls = [] if is_narrow else [count_of(each.n_calls, "call")]
        tokens = count_of(each.prompt_tokens + each.completion_tokens, "token")
        usd = money(each.usd) + ("" if each.is_complete else " + ?")
        rows.append([Text(visible(each.name, but=""), style), *calls, tokens, usd])
    say_table(rows, ["cut", *["right"] * (len(rows[0]) - 1)])
    total = costs.total
    for model, n_calls in total.unpriced.items():
        have = "has" if n_calls == 1 else "have"
        note(f"{count_of(n_calls, 'call')} of {model!r} {have} no known price")
    for model, n_calls in total.uncounted.items():
        note(f"of {count_of(n_calls, 'call')} of {model!r} nobody said how many tokens they took")
    if total.given_tokens:
        note(
            f"{count_of(total.given_tokens, 'token')} came without a call, as from a file of "
            "version 1, and what they cost is not known"
        )


def lineage_of(sessions: Sequence[SessionSummary]) -> list[tuple[str, SessionSummary]]:
    """Return sessions in the order of a tree, each with the lines that lead to it.

    Each stands below the first of its parents that is among them, roots in their order. One that
    is the only one made of its parent stands straight below it, so that a long chain stays
    readable: only where there are several does the tree grow wider.
    """
    known = {session.id for session in sessions}
    children: dict[UUID, list[SessionSummary]] = {}
    roots: list[SessionSummary] = []
    for session in sessions:
        parent = next((each for each in session.parents if each in known), None)
        if parent is None or parent == session.id:
            roots.append(session)
        else:
            children.setdefault(parent, []).append(session)
    reached: list[tuple[str, SessionSummary]] = []
    seen: set[UUID] = set()
    waiting = [("", "", root) for root in reversed(roots)]
    while waiting:
        before, below, session = waiting.pop()
        if session.id in seen:
            continue
        seen.add(session.id)
        reached.append((before, session))
        listed = sorted(
            children.get(session.id, ()), key=lambda each: (each.created_at, each.id), reverse=True
        )
        is_chain = len(listed) == 1 and before != ""
        for number, child in enumerate(listed):
            if is_chain:
                waiting.append((below, below, child))
            elif number == 0:
                waiting.append((f"{below}└─ ", f"{below}   ", child))
            else:
                waiting.append((f"{below}├─ ", f"{below}│  ", child))
    # What came from itself, by a store that cannot be believed, hangs below no root.
    return [*reached, *(("", session) for session in sessions if session.id not in seen)]


def newest_first(sessions: Sequence[SessionSummary]) -> list[SessionSummary]:
    """Return sessions by time, the newest first, but none before what was made from it.

    What came from itself, by a store that cannot be believed, stands last.
    """
    known = {session.id: session for session in sessions}
    parents = _parents_among(sessions)
    n_waiting = dict.fromkeys(known, 0)
    for made_from in parents.values():
        for parent in made_from:
            n_waiting[parent] += 1

    def key(ident: UUID) -> tuple[float, UUID]:
        return -known[ident].created_at.timestamp(), ident

    ready = [key(ident) for ident, count in n_waiting.items() if not count]
    heapq.heapify(ready)
    ordered: list[SessionSummary] = []
    while ready:
        _, ident = heapq.heappop(ready)
        ordered.append(known.pop(ident))
        for parent in parents[ident]:
            n_waiting[parent] -= 1
            if not n_waiting[parent]:
                heapq.heappush(ready, key(parent))
    return [*ordered, *known.values()]


def draw_graph(
    sessions: Sequence[SessionSummary],
) -> Iterator[tuple[str, SessionSummary | None]]:
    """Yield the lines of the graph, each with the session that it is about, if any.

    Sessions stand after all that was made from each; parents not among them are not drawn.
    """
    parents_of = _parents_among(sessions)
    lanes: list[UUID | None] = []

    def free() -> int:
        """Return the first lane that leads nowhere, or open a new one."""
        if None not in lanes:
            lanes.append(None)
        return lanes.index(None)

    def marks(left: int = 0, right: int = 0) -> list[str]:
        """Return the marks of all lanes, with a line across what lies between two of them."""
        drawn = [" " if waited is None else "│" for waited in lanes]
        for at in range(left + 1, right):
            drawn[at] = "┼" if drawn[at] == "│" else "─"
        return drawn

    for session in sessions:
        here = [at for at, waited in enumerate(lanes) if waited == session.id]
        at = here[0] if here else free()
        if len(here) > 1:  # the lanes that wait for it become one
            drawn = marks(here[0], here[-1])
            drawn[at] = "├"
            for joined in here[1:]:
                lanes[joined] = None
                drawn[joined] = "╯" if joined == here[-1] else "┴"
            yield _join_marks(drawn), None
        lanes[at] = session.id
        drawn = marks()
        drawn[at] = "●"
        yield " ".join(drawn).rstrip(), session
        parents = [each for each in parents_of[session.id] if each != session.id]
        lanes[at] = parents[0] if parents else None
        for parent in parents[1:]:  # a lane to it leaves here
            to = lanes.index(parent) if parent in lanes else free()
            is_new = lanes[to] is None
            drawn = marks(min(at, to), max(at, to))
            lanes[to] = parent
            drawn[at] = "├" if to > at else "┤"
            if is_new:
                drawn[to] = "╮" if to > at else "╭"
            else:
                drawn[to] = "┤" if to > at else "├"
            yield _join_marks(drawn), None
        while lanes and lanes[-1] is None:
            lanes.pop()


def _parents_among(sessions: Sequence[SessionSummary]) -> dict[UUID, list[UUID]]:
    known = {session.id for session in sessions}
    return {
        session.id: [parent for parent in dict.fromkeys(session.parents) if parent in known]
        for session in sessions
    }


def _join_marks(marks: Sequence[str]) -> str:
    """Return the marks of lanes with what goes on between them."""
    joined = marks[0]
    for left, right in pairwise(marks):
        joined += "─" if left in "├─┼┴╰╭" and right in "─┼┴╯╮┤" else " "
        joined += right
    return joined.rstrip()
