"""A session with a long way behind it, and sessions of which one kind of entry was left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from msgspec import structs

from rath._async.deferred import Deferred
from rath._core.vector import Vector
from rath.session import Session, run_session_compress, select_session
from rath.session.graph.recording import Edge, Provenance
from rath.session.questions import EvidenceKind
from rath.session.record import ModelCall, Operation, RecalledNote, Summary, ToolRun, Verdict
from rath.testing import ScriptedClient
from tests.support.api import CHECK_ORIGIN, Body, Entry, Record, with_late
from tests.support.session_files import placed, worked, writing

KINDS: dict[EvidenceKind, type[Entry]] = {
    "model calls": ModelCall,
    "tool runs": ToolRun,
    "operations": Operation,
    "summaries": Summary,
    "verdicts": Verdict,
}
NOTE = RecalledNote("memory://user/tea", "the user drinks tea", 0.75)
MENU = ("write code", "drink tea")


def recall(_: Session) -> Sequence[RecalledNote]:
    """Recall the one note that there is."""
    return (NOTE,)


def long_session() -> Session:
    """Return a session that was checked, forked, merged, compressed and asked on.

    Turns 1 and 2 write a file with notes recalled, 3 and 4 are one branch, 5 and 6 the other, 7 is
    the compression, 8 the answer.
    """
    base = worked(placed({"x": "0\n"}), writing("a", "hello\nworld\n", id="one"), recall=recall)
    base.check("tests", "true")
    left = worked(base.fork(workspace="copy"), writing("b", "left\n", id="two"))
    right = worked(base.fork(workspace="copy"), writing("c", "right\n", id="three"))
    merged = left.merge(right, files="three-way")
    model = ScriptedClient(["hello was written", "1"])
    agent = Session.from_agent_prompt("Be short.")
    short = run_session_compress(merged, agent, agent_provider=model.provider)
    done = worked(short).synchronize()
    select_session(done, agent, *MENU, agent_provider=model.provider)
    return done


def without(session: Session, kind: EvidenceKind) -> Session:
    """Return a session as if entries of a kind had never been noted, nor in what it came from."""
    return filtered(session, lambda entry: not isinstance(entry, KINDS[kind]))


def filtered(session: Session, keep: Callable[[Entry], bool]) -> Session:
    """Return a session whose record, and those of all that it came from, hold only some entries."""
    body = with_late(session.record, session.synchronize().core.body.result())
    counts = _counts(session.id, body, session.provenance, keep)
    change = partial(_filter_record, keep=keep, counts=counts)
    return Session.from_body(
        Deferred.of(replace(body, record=change(body.record))),
        _filter_parents(session.provenance, change),
        id=session.id,
        placement=session.core.placement.share(),
    )


def is_check(entry: Entry) -> bool:
    """Tell whether an entry is the command of a check."""
    return isinstance(entry, ToolRun) and entry.origin == CHECK_ORIGIN


def _filter_record(
    record: Record, *, keep: Callable[[Entry], bool], counts: dict[UUID, int]
) -> Record:
    return Vector(
        structs.replace(
            entry,
            n_ours=counts.get(entry.id, entry.n_ours),
            theirs=None
            if entry.theirs is None
            else _filter_record(entry.theirs, keep=keep, counts=counts),
        )
        if isinstance(entry, Operation)
        else entry
        for entry in record
        if keep(entry)
    )


def _counts(
    session: UUID, body: Body, provenance: Provenance, keep: Callable[[Entry], bool]
) -> dict[UUID, int]:
    """Return how many entries of the first side stay, by operation, in whose session they count."""
    found = {
        entry.id: sum(map(keep, body.record.prefix(entry.n_ours)))
        for entry in body.record
        if isinstance(entry, Operation) and entry.n_ours is not None and entry.session == session
    }
    for edge in provenance.parents:
        above = None if edge.body is None else edge.body.latest
        if isinstance(above, Body) and edge.provenance is not None:
            found |= _counts(edge.id, above, edge.provenance, keep)
    return found


def _filter_parents(provenance: Provenance, change: Callable[[Record], Record]) -> Provenance:
    edges: list[Edge] = []
    for edge in provenance.parents:
        above = None if edge.body is None else edge.body.latest
        if isinstance(above, Body):
            body = replace(above, record=change(above.record))
            late = None if edge.late is None else change(edge.late)
            parents = edge.provenance and _filter_parents(edge.provenance, change)
            edges.append(Edge(edge.id, Deferred.of(body), parents, late))
        else:
            edges.append(edge)
    return replace(provenance, parents=tuple(edges))


Json = dict[str, Any]
