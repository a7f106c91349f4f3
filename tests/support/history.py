"""A session with a long way behind it, and sessions of which one kind of entry was left out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args
from uuid import UUID

from msgspec import structs

from rath._async.deferred import Deferred
from rath._core.vector import Vector
from rath.session import Session, run_session_compress, select_session
from rath.session.graph.recording import Edge, Provenance
from rath.session.questions import EvidenceKind
from rath.session.record import ModelCall, Operation, RecalledNote, Summary, ToolRun, Verdict
from rath.testing import ScriptedClient
from tests.support.api import CHECK_ORIGIN, Body, Entry, Record, chained, with_late
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
    body = with_late(session.record, session.synchronize().body.result())
    counts = _counts(session.id, body, session.provenance, keep)
    change = partial(_filter_record, keep=keep, counts=counts)
    return Session.from_body(
        Deferred.of(replace(body, record=change(body.record))),
        _filter_parents(session.provenance, change),
        id=session.id,
        placement=session.placement.share(),
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
_ENTRIES = {each.__struct_config__.tag for each in get_args(Entry)}
_UNCHANGED = ("row", "agent_rows", "tool_schemas", "call_setup", "intent", "placement")


def leave_out(kind: EvidenceKind, source: Path, target: Path) -> None:
    """Copy a store, without the entries of a kind; what counts or hashes entries does so anew.

    Args:
        kind: What is left out.
        source: Directory of the store.
        target: Directory that is made.
    """
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.sqlite3*"))
    name = KINDS[kind].__struct_config__.tag
    logs = {
        path.stem: [json.loads(line) for line in path.read_bytes().splitlines()]
        for path in target.glob("*.jsonl")
    }
    store = _Store(logs, lambda record: record["event"] != name)
    for session in logs:
        data, _ = chained(map(_bytes, store.rewrite(session)), "", is_compact=True)
        (target / f"{session}.jsonl").write_bytes(data)


class _Store:
    """The logs of a store, and which of their entries stay."""

    def __init__(self, logs: dict[str, list[Json]], keep: Callable[[Json], bool]) -> None:
        self._logs = logs
        self._keep = keep
        self._entries: dict[str, list[tuple[str, bool]]] = {}

    def rewrite(self, session: str) -> Iterator[Json]:
        """Yield the lines of a log without what is left out."""
        header = self._logs[session][0]
        for line in self._logs[session]:
            record = {name: value for name, value in line.items() if name not in ("sum", "more")}
            match record.get("event", "header"):
                case "header":
                    record["entries"] = [self._part(*part) for part in header.get("entries") or ()]
                case "finished":
                    count = record["final_entry_count"]
                    record["final_entry_count"] = self._n_left(session, count)
                case kind if kind in _ENTRIES:
                    if not self._keep(record):
                        continue
                    self._count_anew(record, header)
                case other:
                    # Results of rounds of several calls would have to be split into rows.
                    assert other in _UNCHANGED, other
            yield record

    def entries(self, session: str) -> list[tuple[str, bool]]:
        """Return the ids of the entries of a session, and which of them stay."""
        if session not in self._entries:
            lines = self._logs[session]
            inherited = [
                entry
                for source, start, stop, _ in lines[0].get("entries") or ()
                for entry in self.entries(source)[start:stop]
            ]
            own = [
                (line["id"], self._keep(line)) for line in lines if line.get("event") in _ENTRIES
            ]
            self._entries[session] = [*inherited, *own]
        return self._entries[session]

    def _part(self, source: str, start: int, stop: int, _: str) -> list[Any]:
        ids = [id for id, stays in self.entries(source)[start:stop] if stays]
        digest = sha256(b"".join(UUID(id).bytes for id in ids)).hexdigest()
        return [source, self._n_left(source, start), self._n_left(source, stop), digest]

    def _count_anew(self, record: Json, header: Json) -> None:
        if record.get("n_ours") is not None:
            record["n_ours"] = self._n_left(header["id"], record["n_ours"])
        if "n_theirs" in record:
            other = header["parent_session_ids"][1]
            record["n_theirs"] = self._n_left(other, record["n_theirs"])

    def _n_left(self, session: str, count: int) -> int:
        return sum(stays for _, stays in self.entries(session)[:count])


def _bytes(record: Json) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
