"""`rath ls` and `log`: many sessions of a store, read from its index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import typer
from rich.text import Text

from rath._core.text import did_you_mean, short_id
from rath.cli.lineage import (
    DERIVED,
    Branch,
    branches_of,
    draw_graph,
    fold_conversations,
    fold_siblings,
    lineage_of,
    newest_first,
)
from rath.cli.lists import Page, say_page
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
from rath.cli.terminal import AsJson, Misuse, NoPager, paged, time_of
from rath.session.autosave import HOW_TO_RECORD
from rath.session.graph.kind import LineageKind
from rath.session.log.index import SessionFilter, SessionSummary, StoreIndex
from rath.session.log.store import SessionStore

JobName = Annotated[
    str | None, typer.Option("--job", metavar="JOB", help="Only runs of the items of this job.")
]
STATES = (
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

_SESSIONS_A_LINE = 5
"""Sessions that are looked at for each line of a limit."""

_LEAST_GRAPH = 12
"""Columns that a graph may take on any terminal."""

StateNames = Annotated[
    list[str] | None,
    typer.Option(
        "--state", metavar="STATE", help="Only in this state, such as failed. Repeatable."
    ),
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="WHEN", help="Started since: a date, or an age such as 7d."),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="WHEN", help="Started before: a date, or an age such as 7d."),
]
NewestLimit = Annotated[
    int, typer.Option("--limit", "-n", min=0, help="Only the newest so many; 0 for all.")
]


def ls(
    text: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Only where this was said.")
    ] = None,
    states: StateNames = None,
    since: Since = None,
    until: Until = None,
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
    limit: NewestLimit = 50,
    is_all: Annotated[
        bool,
        typer.Option(
            "--all", "-a", help="Each turn and branch, instructions too, and without a limit."
        ),
    ] = False,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List sessions, the newest first, as a tree of their lineage.

    A conversation is one line, its last session, and so are many branches of one shape.
    """
    _check_states(states)
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
            runs=runs_of(job, store),
            is_said=not is_all,
            # A line may stand for many sessions.
            limit=None if is_all or limit == 0 else limit * _SESSIONS_A_LINE + 1,
        )
        found = index.summaries(query)
        has_more = query.limit is not None and len(found) == query.limit
        n_found = index.count(query) if has_more else len(found)
        lines, n_turns = branches_of(found), dict[UUID, int]()
        if not is_all:
            lines = fold_conversations(lines)
            lines = fold_siblings(lines) if by == "lineage" and not as_json else lines
            lines = lines[:limit] if limit else lines
            n_turns = {each.id: _count_turns(each.id, index) for each in lines if each.turns}
        n_left_out = n_found - sum(each.n_sessions for each in lines)
    is_narrow = query != SessionFilter(is_said=query.is_said, limit=query.limit)

    def show(shown: Sequence[Branch]) -> None:
        if by == "run":
            say_lines(_run_lines(shown, n_turns))
            return
        branches = lineage_of(shown) if by == "lineage" else [("", each) for each in shown]
        say_lines(_session_lines(branches, shown, n_turns))

    say_page(
        Page(lines, n_found, n_left_out, "session", "newest"),
        "sessions",
        show,
        as_json=as_json,
        empty=_empty_note(store, is_narrow=is_narrow),
        facts={"store": store.where},
        encode=lambda each: {**_jsonable(each.session), "n_turns": n_turns.get(each.id, 1)},
    )


def _empty_note(store: SessionStore, *, is_narrow: bool) -> str:
    if is_narrow:
        return f"no session of {store.where} fits"
    return f"there are no sessions in {store.where}. {HOW_TO_RECORD}"


def _check_states(states: Sequence[str] | None) -> None:
    """Refuse what is no state of a session.

    Raises:
        Misuse: One of them is none; the text names the nearest.
    """
    for state in states or ():
        if state not in STATES:
            near = did_you_mean(state, STATES)
            raise Misuse(f"no state {state!r}.{near} Expected one of {', '.join(STATES)}")


def runs_of(job: str | None, store: SessionStore) -> list[UUID] | None:
    """Return the runs of a job, None where none is asked for.

    Raises:
        CommandError: There is no such job.
    """
    if job is None:
        return None
    from rath.jobs.record import attempts_of  # noqa: PLC0415  # most lists are of no job

    return [*attempts_of(find_job(job, store).record)]


def _count_turns(session: UUID, index: StoreIndex) -> int:
    """Return how often a user has spoken on the way to a session."""
    way = index.known([session, *index.ancestors(session)])
    return 1 + sum(each.kind is LineageKind.OP_INPUT for each in way)


def log(
    session: Annotated[
        str | None,
        typer.Argument(
            metavar="[SESSION]",
            help="Only this one and its ancestors: an id, or the beginning of one.",
        ),
    ] = None,
    is_graph: Annotated[
        bool, typer.Option("--graph", "-g", help="Draw lines to what each was made from.")
    ] = False,
    has_descendants: Annotated[
        bool, typer.Option("--descendants", help="With SESSION: also what came from it.")
    ] = False,
    states: StateNames = None,
    since: Since = None,
    until: Until = None,
    limit: NewestLimit = 100,
    is_all: Annotated[
        bool, typer.Option("--all", "-a", help="Each turn and branch, and without a limit.")
    ] = False,
    no_pager: NoPager = False,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the history of sessions, newest first; --graph draws it.

    A conversation is one line, its last session. In a graph so are many branches of one shape.
    """
    _check_states(states)
    query = SessionFilter(
        states=states or (),
        since=time_of("--since", since),
        until=time_of("--until", until),
        is_said=True,
    )
    with use_store(store_url) as store:
        ident = None if session is None else session_id_of(session, store)
        with use_index(store) as index:
            if ident is None:
                found = index.summaries(query)
            else:
                way = known_with_ancestors(index, ident, has_descendants=has_descendants)
                found = tuple(each for each in way if _fits(each, query))
            lines, n_turns = branches_of(found), dict[UUID, int]()
            if ident is None and not is_all and not as_json:
                lines = fold_conversations(lines)
                n_turns = {each.id: _count_turns(each.id, index) for each in lines if each.turns}
    if is_graph and not is_all and not as_json:
        lines = fold_siblings(lines)
    ordered = newest_first(lines)
    newest = ordered[:limit] if limit and not is_all else ordered

    def show(shown: Sequence[Branch]) -> None:
        known = {each.id: each.session for each in shown}
        with paged(is_off=no_pager):
            if is_graph:
                say_lines(_graph_lines(shown, known, n_turns))
            else:
                say_lines(_log_line("", each, known, n_turns) for each in shown)

    say_page(
        Page(newest, len(ordered), len(ordered) - len(newest), "session", "newest"),
        "sessions",
        show,
        as_json=as_json,
        empty=_empty_note(store, is_narrow=any((session, states, since, until))),
        encode=lambda each: _jsonable(each.session),
    )


def _fits(session: SessionSummary, query: SessionFilter) -> bool:
    return (
        (not query.states or session.state in query.states)
        and (query.since is None or session.created_at >= query.since)
        and (query.until is None or session.created_at < query.until)
    )


def _jsonable(session: SessionSummary) -> dict[str, Any]:
    return {name: getattr(session, name) for name in _JSON_FIELDS}


def _run_lines(lines: Sequence[Branch], n_turns: Mapping[UUID, int]) -> Iterator[Text]:
    runs: dict[UUID | None, list[Branch]] = {}
    for each in lines:
        runs.setdefault(each.session.run, []).append(each)
    for run, members in runs.items():
        members.sort(key=lambda each: (each.created_at, each.id))
        sums = [each.session for each in members]
        top = sums[0].path.partition(".")[0]
        name = "no workflow call" if run is None else f"run {short_id(run)}  {top}"
        yield line((f"{name}  {count_of(len(members), 'session')}, {_price_of(sums)}", "bold"))
        branches = [(f"{'└' if each is members[-1] else '├'}─ ", each) for each in members]
        yield from _session_lines(branches, lines, n_turns)


def _session_lines(
    branches: Sequence[tuple[str, Branch]], lines: Sequence[Branch], n_turns: Mapping[UUID, int]
) -> Iterator[Text]:
    columns = room() or 100
    known = {each.id: each.session for each in lines}
    width = max((len(each.session.state) for each in lines), default=0) if columns >= 50 else 0
    for before, each in branches:
        session = each.session
        if each.siblings:
            yield line((before[-_MAX_DEPTH:], "dim"), *_siblings_text(each))
            continue
        at = moment(session.created_at, is_short=columns < 100) + "  " if columns >= 50 else ""
        yield line(
            (before[-_MAX_DEPTH:], "dim"),
            (f"{short_id(session.id)}  ", "bold"),
            (f"{session.state:<{width}}  ", STATE_STYLES.get(session.state, "")),
            (at, "dim"),
            _about(each, known, n_turns, is_wide=columns >= 100),
        )


def _siblings_text(branch: Branch) -> Iterator[tuple[str, str]]:
    """Yield what is said of branches that share a line, each part with its style."""
    states = Counter(each.state for each in branch.siblings)
    counts = ", ".join(f"{count} {state}" for state, count in states.most_common())
    yield f"{len(branch.siblings)} branches  ", "bold"
    yield f"{counts}  ", STATE_STYLES.get(next(iter(states)), "") if len(states) == 1 else ""
    session = branch.session
    yield f"{session.path or session.operator}, the newest {short_id(session.id)}", ""


def _about(
    branch: Branch,
    known: Mapping[UUID, SessionSummary],
    n_turns: Mapping[UUID, int],
    *,
    is_wide: bool,
) -> str:
    """Return the place and subject of a session, and on a wide line what it took."""
    session = branch.session
    parts = [_subject(branch, known)]
    turns = n_turns.get(session.id, 1)
    took = [count_of(turns, "turn")] if turns > 1 else []
    if is_wide:
        took.append(count_of(session.n_rows, "row"))
        if session.n_calls:
            took += [count_of(session.n_calls, "call"), _price_of([session])]
        merged = "".join(f" +{short_id(parent)}" for parent in session.parents[1:])
        parts.append(f"({', '.join(took)}){merged}")
    elif took:
        parts.insert(0, took[0])
    return "  ".join(filter(None, parts))


def _subject(branch: Branch, known: Mapping[UUID, SessionSummary]) -> str:
    """Return what tells a session from others of its run: place, operation, words of the user.

    The words stand where they were said, and not again in what was made from that.
    """
    session = branch.session
    place = f"{session.path}#{session.ordinal}" if session.path else ""
    operation = session.operator.rpartition(".")[2]
    if session.kind not in DERIVED:
        operation = ""
    place = " ".join(filter(None, (place, operation)))
    is_repeated = any(
        parent in known and known[parent].title == session.title for parent in branch.parents
    )
    # In a tree or a graph a line stands near those that it came from.
    words = session.problem or ("" if is_repeated else session.title)
    return "  ".join(filter(None, (place, one_line(words)))) or session.operator


def _price_of(sessions: Sequence[SessionSummary]) -> str:
    """Return what sessions cost, as far as it is known."""
    is_known = all(each.is_priced for each in sessions)
    return money(sum((each.usd for each in sessions), Decimal(0)), is_complete=is_known)


def _graph_lines(
    lines: Sequence[Branch], known: Mapping[UUID, SessionSummary], n_turns: Mapping[UUID, int]
) -> Iterator[Text]:
    drawn = list(draw_graph(lines))
    width = max((len(before) for before, _ in drawn), default=0)
    # Beside a wide graph there would be no place for words.
    if (columns := room()) is not None and width > (most := max(_LEAST_GRAPH, columns // 3)):
        drawn = list(draw_graph(lines, is_narrow=True))
        width = min(max(len(before) for before, _ in drawn), most)
    for before, each in drawn:
        graph = Text(before)
        cut(graph, width)
        if each is not None and "●" not in graph.plain:
            graph.truncate(width - 1)
            graph.append("●")
        graph.truncate(width, pad=True)
        yield (
            line((graph.plain, "yellow"))
            if each is None
            else _log_line(f"{graph.plain}  ", each, known, n_turns)
        )


def _log_line(
    before: str,
    branch: Branch,
    known: Mapping[UUID, SessionSummary],
    n_turns: Mapping[UUID, int],
) -> Text:
    is_wide = (room() or 80) >= 80
    session = branch.session
    if branch.siblings:
        return line((before, "yellow"), *_siblings_text(branch))
    turns = n_turns.get(session.id, 1)
    return line(
        (before, "yellow"),
        (f"{short_id(session.id)}  ", "bold"),
        (f"{session.state}  ", STATE_STYLES.get(session.state, "")),
        (f"{moment(session.created_at)}  " if is_wide else "", "dim"),
        f"{count_of(turns, 'turn')}  " if turns > 1 else "",
        _subject(branch, known),
    )
