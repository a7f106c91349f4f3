"""`rath cost`: model calls, tokens and money of the sessions of a store, from its index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import field
from decimal import Decimal
from typing import Annotated, Literal
from uuid import UUID

import typer
from rich.text import Text

from rath._core.dataclasses import dataclass
from rath._core.text import short_id, visible
from rath.cli.listing import JobName, runs_of
from rath.cli.render import UNPRICED, count_of, money, one_line, room, say_table
from rath.cli.stores import (
    StoreUrl,
    find_run,
    known_with_ancestors,
    session_id_of,
    use_index,
    use_store,
)
from rath.cli.terminal import AsJson, Damaged, Misuse, note, say_json
from rath.session.log.index import IndexedCall, SessionFilter, SessionSummary, StoreIndex

By = Literal["model", "session", "run", "day"]


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
    """Sum up model calls, tokens and cost, by model, session or day.

    A call counts once, in however many logs it stands. What is not known is told, and not counted
    as free. Of a damaged log counts what can be believed; the exit status is 4 then.
    """
    if sum(each is not None for each in (session, run, job)) > 1:
        raise Misuse("expected at most one of SESSION, --run and --job")
    with use_store(store_url) as store, use_index(store) as index:
        if session is not None:
            known = known_with_ancestors(index, session_id_of(session, store))
        else:
            runs = runs_of(job, store)
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
        usd = money(each.usd, is_complete=each.is_complete)
        rows.append([Text(visible(each.name, but=""), style), *calls, tokens, usd])
    say_table(rows, ["cut", *["right"] * (len(rows[0]) - 1)])
    total = costs.total
    for model, n_calls in total.unpriced.items():
        note(f"{_calls_are(n_calls, model)} {UNPRICED}: no price of that model there is known")
    for model, n_calls in total.uncounted.items():
        took = "the answer did not say how many tokens it took"
        if n_calls > 1:
            took = "the answers did not say how many tokens they took"
        note(f"{_calls_are(n_calls, model)} {UNPRICED}: {took}")
    if total.given_tokens:
        note(
            f"{count_of(total.given_tokens, 'token')} came without a call, as from a file of "
            "version 1, and what they cost is not known"
        )


def _calls_are(n_calls: int, model: str) -> str:
    return f"{count_of(n_calls, 'call')} of {model!r} {'is' if n_calls == 1 else 'are'}"
