"""`rath cost`: what model calls took, each counted once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import typer

from rath._core.text import short_id
from rath.cli.layout import cut, money, number, one_line, padded, room
from rath.cli.sessions import (
    AsJson,
    Damaged,
    StoreUrl,
    find_run,
    opened_index,
    opened_store,
    session_id_of,
)
from rath.cli.terminal import Misuse, Problem, note, say_json, say_lines
from rath.session.log.index import (
    CallFacts,
    SessionFilter,
    SessionSummary,
    StoreIndex,
)

__all__ = ["app"]

By = Literal["model", "session", "run", "day"]
Line = list[tuple[str, str]]

app = typer.Typer(add_completion=False)


@app.command()
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
    by: Annotated[By, typer.Option("--by", help="What the lines are for.")] = "model",
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Tell how many calls were made, how many tokens they took, and what they cost.

    A call counts once, in however many logs it stands. What is not known is told, and not counted
    as free. Of a damaged log counts what can be believed; the exit status is 4 then.
    """
    if session is not None and run is not None:
        raise Misuse("expected at most one of SESSION and --run")
    with opened_store(store_url) as store, opened_index(store) as index:
        if session is not None:
            ident = session_id_of(session, store)
            known = index.known([ident, *index.ancestors(ident)])
            if ident not in {each.id for each in known}:
                raise Problem(f"session {ident} is not in {store.where}; `rath ls` lists what is")
        else:
            called = None if run is None else find_run(run, index)
            known = list(index.summaries(SessionFilter(run=called, order="oldest")))
        total, groups = _summed(index, known, by)
    _show(total, groups, by, as_json=as_json)
    damaged = [each for each in known if each.state == "damaged"]
    if damaged:
        more = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        raise Damaged(
            f"session {damaged[0].id} is damaged{more}: {damaged[0].problem}; calls that stand "
            "behind that are not counted"
        )


def _show(total: _Sum, groups: Sequence[_Sum], by: By, *, as_json: bool) -> None:
    if as_json:
        say_json(
            {
                "by": by,
                "groups": [each.as_jsonable() for each in groups],
                "total": total.as_jsonable(),
            }
        )
        return
    say_lines(_table(groups, total))
    _tell_unknown(total)


@dataclass(slots=True)
class _Sum:
    """Calls that belong together."""

    name: str
    n_calls: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    usd: Decimal = Decimal(0)
    unpriced: Counter[str] = field(default_factory=Counter[str])
    """Calls without a known price, by model."""

    uncounted: Counter[str] = field(default_factory=Counter[str])
    """Calls of which no endpoint said how many tokens they took, by model."""

    given_tokens: int = 0

    def add(self, call: CallFacts) -> None:
        self.n_calls += 1
        self.prompt += call.prompt_tokens
        self.cached += call.cached_tokens
        self.completion += call.completion_tokens
        self.usd += call.usd or 0
        if call.price == "unpriced":
            self.unpriced[call.model] += 1
        elif call.price == "uncounted":
            self.uncounted[call.model] += 1

    @property
    def is_complete(self) -> bool:
        return not (self.unpriced or self.uncounted or self.given_tokens)

    def as_jsonable(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "n_calls": self.n_calls,
            "prompt_tokens": self.prompt,
            "cached_tokens": self.cached,
            "completion_tokens": self.completion,
            "usd": str(self.usd),
            "is_complete": self.is_complete,
            "unpriced": dict(sorted(self.unpriced.items())),
            "uncounted": dict(sorted(self.uncounted.items())),
            "given_tokens": self.given_tokens,
        }


def _summed(
    index: StoreIndex, known: Collection[SessionSummary], by: By
) -> tuple[_Sum, list[_Sum]]:
    """Return the sum over all calls of these sessions, and those of their groups, dearest first."""
    sessions = {each.id: each for each in sorted(known, key=lambda each: each.created_at)}
    # A call of a run inside a run stands in both logs, and belongs to the one that was begun later.
    rank = {ident: number for number, ident in enumerate(sessions)}
    calls: dict[UUID, tuple[UUID, CallFacts]] = {}
    for session, call in index.calls(sessions):
        before = calls.get(call.id)
        if before is None or rank[before[0]] < rank[session]:
            calls[call.id] = session, call
    total = _Sum("total", given_tokens=sum(index.given_tokens(sessions).values()))
    groups: dict[str, _Sum] = {}
    for session, call in calls.values():
        name = _group(by, sessions[session], call)
        groups.setdefault(name, _Sum(name)).add(call)
        total.add(call)
    return total, sorted(groups.values(), key=lambda each: (-each.usd, -each.n_calls, each.name))


def _group(by: By, session: SessionSummary, call: CallFacts) -> str:
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


def _table(groups: Sequence[_Sum], total: _Sum) -> Iterator[Line]:
    columns = room()
    cells = [_cells(each, is_narrow=columns is not None and columns < 60) for each in groups]
    cells.append(_cells(total, is_narrow=columns is not None and columns < 60))
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
    taken = sum(widths) + 2 * len(widths)
    names = max(len(each.name) for each in (*groups, total))
    width = names if columns is None else max(8, min(names, columns - taken))
    for each, row in zip((*groups, total), cells, strict=True):
        numbers = "".join(f"  {cell:>{size}}" for cell, size in zip(row, widths, strict=True))
        style = "bold" if each is total else ""
        yield [(padded(cut(each.name, width), width), style), (numbers, style)]


def _cells(each: _Sum, *, is_narrow: bool) -> list[str]:
    usd = money(each.usd) + ("" if each.is_complete else " + ?")
    tokens = number(each.prompt + each.completion, "token")
    if is_narrow:
        return [tokens, usd]
    return [number(each.n_calls, "call"), tokens, usd]


def _tell_unknown(total: _Sum) -> None:
    for model, calls in sorted(total.unpriced.items()):
        note(
            f"{number(calls, 'call')} of {model!r} have no known price"
            if calls > 1
            else f"1 call of {model!r} has no known price"
        )
    for model, calls in sorted(total.uncounted.items()):
        note(f"of {number(calls, 'call')} of {model!r} nobody said how many tokens they took")
    if total.given_tokens:
        note(
            f"{number(total.given_tokens, 'token')} came without a call, as from a file of version "
            "1, and what they cost is not known"
        )
