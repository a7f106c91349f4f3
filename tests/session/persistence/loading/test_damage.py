"""A store that was cut or changed anywhere gives a beginning of the truth, or a named error."""

from __future__ import annotations

import contextlib
import copy
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rath import autosave
from rath.errors import PersistenceError, SessionDamaged
from rath.flow import Agent
from rath.session import Session
from rath.session.loading import load
from rath.session.log.index import StoreIndex
from rath.session.log.verify import verify
from rath.session.outcome import Completed, NeedsApproval
from rath.session.persistence import load_session, session_file
from rath.session.persistence.store import FileStore, StoredLog
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.api import LogSource, ParsedLog, build, chained, closure, dump, session_of
from tests.support.approvals import Noting
from tests.support.session_files import operation
from tests.support.sessions import FunctionTool, run
from tests.support.waiting_program import allow, problems

FULL = os.environ.get("RATH_FULL") == "1"


EVERY = 1 if FULL else 61


"""Which bytes are changed: each, or one in so many, which is enough to touch every line."""


@dataclass(frozen=True)
class Truth:
    """What a session says when nothing is wrong."""

    rows: tuple[object, ...]
    entries: tuple[UUID, ...]
    is_finished: bool


class Memory(FileStore):
    """A store whose logs are read once, so that one of them can be another."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.logs = {session: self._log(session) for session in self.stamps()}
        self.contents = {session: self._content(session) for session in self.logs}

    def _log(self, session: UUID) -> StoredLog:
        log = super().read(session)
        assert log is not None
        return log

    def _content(self, session: UUID) -> ParsedLog:
        content = LogSource(self).find(session)
        assert content is not None
        return content

    def read(self, session: UUID) -> StoredLog | None:
        return self.logs.get(session)


@dataclass(frozen=True)
class Changed:
    """A store in which one log is another."""

    store: Memory
    session: UUID
    data: bytes
    is_finished: bool = True
    """Whether it has the name of a log that its writer has finished."""


def reply(_: Session, arguments: Mapping[str, Any]) -> object:
    return {"said": dict(arguments)}


def truth_of(session: Session) -> Truth:
    body = session.core.body.result()
    rows = tuple((row.kind_name, dict(row.payload), row.id) for row in body.table)
    ids = tuple(entry.id for entry in session.record)
    return Truth(rows, ids, body.unfinished is None)


def is_beginning(part: Truth, complete: Truth) -> bool:
    rows, entries = len(part.rows), len(part.entries)
    return (part.rows, part.entries) == (complete.rows[:rows], complete.entries[:entries])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Memory:
    """A loop with tools, two forks of it, and their merge; with a late entry on the first."""
    directory = tmp_path_factory.mktemp("sessions")
    files = FileStore(directory)
    turns: list[Turn] = [tool_call("f", {"x": 1}, tool_call("f", {})), "done"]
    root = run(turns, FunctionTool("f", reply), user=Session.from_user_message("go")).synchronize()
    one, other = root.fork(), root.fork()
    one.add_entry(operation(kind="check"))
    merged = run(["a"], user=one).merge(run(["b"], user=other)).synchronize()
    merged.save(store=files)
    return Memory(directory)


@pytest.fixture(scope="module")
def last(store: Memory) -> UUID:
    """The merge, which came from all others."""
    (found,) = [each for each in store.logs if load(store, each).header.operator == "Session.merge"]
    return found


@pytest.fixture(scope="module")
def truth(store: Memory) -> dict[UUID, Truth]:
    return {session: truth_of(load(store, session).session) for session in store.logs}


def with_log(store: Memory, session: UUID, data: bytes) -> Memory:
    changed, log = copy.copy(store), store.logs[session]
    changed.logs = {**store.logs, session: StoredLog(session, data, log.is_finished, log.where)}
    return changed


def loaded(changed: Changed, asked: UUID, *, recover: bool) -> Session:
    """Return what `load` gives; the logs that were not changed are decoded once for all times."""
    source = LogSource(changed.store, recover)

    def find(session: UUID) -> ParsedLog:
        if session != changed.session:
            return changed.store.contents[session]
        content = source.content(changed.data, "the changed log", is_finished=changed.is_finished)
        content.require(session)
        return content

    def find_ancestor(session: UUID) -> ParsedLog | None:
        try:
            return find(session)
        except SessionDamaged:
            if recover:
                return None
            raise

    contents = closure(find(asked), find_ancestor)
    return session_of(build(contents, recover=recover)[asked])


def found_in(changed: Changed, asked: UUID, truth: Truth, *, recover: bool) -> str:
    """Return what is loaded: all, a beginning, or an error; anything else is wrong."""
    try:
        found = truth_of(loaded(changed, asked, recover=recover))
    except SessionDamaged as exc:
        return f"damaged in line {exc.line}"
    if found == truth:
        return "all"
    is_part = is_beginning(found, truth)
    return "beginning" if is_part else f"{found} where {truth} was written"


def results(changed: Changed, last: UUID, truth: dict[UUID, Truth]) -> set[str]:
    """Return what is loaded of the changed session and of what came from it."""
    asked = {changed.session, last}
    saved = {found_in(changed, each, truth[each], recover=True) for each in asked}
    # Of a first line that is damaged nothing is left, not even whose log it is.
    assert saved <= {"all", "beginning", "damaged in line 1"}
    return {found_in(changed, each, truth[each], recover=False) for each in asked}


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1 << at % 8
    return bytes(changed)


@pytest.mark.timeout(1200 if FULL else 120)
def test_a_cut_log_is_a_part_or_an_error(
    store: Memory, last: UUID, truth: dict[UUID, Truth]
) -> None:
    found: set[str] = set()
    for session, log in store.logs.items():
        breaks = [at + 1 for at, byte in enumerate(log.data) if byte == 0x0A]
        sizes = range(0, len(log.data), 1 if FULL else 4 * EVERY)
        for size in sorted({*sizes, *breaks, *(at - 1 for at in breaks)}):
            cut = Changed(store, session, log.data[:size], is_finished=False)
            found |= results(cut, last, truth)
    # A child is damaged where its first line says what its parent has not got any more.
    assert found == {"all", "beginning", "damaged in line 1"}


@pytest.mark.timeout(1200 if FULL else 120)
def test_a_changed_log_is_an_error(store: Memory, last: UUID, truth: dict[UUID, Truth]) -> None:
    for session, log in store.logs.items():
        for at in range(0, len(log.data), EVERY):
            changed = Changed(store, session, flipped(log.data, at))
            found = results(changed, last, truth)
            # Without its line feed the last line was cut off.
            is_last = at == len(log.data) - 1
            expected = ("all", "beginning", "damaged") if is_last else ("damaged",)
            assert all(each.startswith(expected) for each in found), (session, at)
            assert found != {"all"}


@pytest.mark.timeout(1200 if FULL else 120)
def test_verify_names_every_change(store: Memory, last: UUID) -> None:
    assert verify(store, last).problems == ()
    for session, log in store.logs.items():
        for at in range(0, len(log.data) - 1, EVERY * 7):
            found = verify(with_log(store, session, flipped(log.data, at)), last)
            assert found.worst == "damaged", (session, at)
            assert str(session) in "".join(problem.text for problem in found.problems)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def member_of(record: dict[str, Any], data: st.DataObject) -> tuple[dict[str, Any], str]:
    """Return a member of a record, or of an object in it."""
    name = data.draw(st.sampled_from(sorted(record)))
    inner: object = record[name]
    if isinstance(inner, dict) and inner and data.draw(st.booleans()):
        return member_of(cast("dict[str, Any]", inner), data)
    return record, name


@pytest.mark.timeout(600 if FULL else 120)
@settings(max_examples=2000 if FULL else 100)
@given(data=st.data())
def test_forged_lines_are_read_or_refused(store: Memory, last: UUID, data: st.DataObject) -> None:
    """Whoever can write a file can make checksums that are right."""
    session = data.draw(st.sampled_from(sorted(store.logs)))
    records: list[dict[str, Any]] = list(map(json.loads, store.logs[session].data.splitlines()))
    record, name = member_of(data.draw(st.sampled_from(records)), data)
    record[name] = data.draw(json_values)
    bare = [{name: value for name, value in each.items() if name != "sum"} for each in records]
    forged, _ = chained((dump(each) for each in bare), "", is_compact=True)
    changed = Changed(store, session, forged)
    for asked in (session, last):
        for recover in (False, True):
            with contextlib.suppress(PersistenceError):
                body = loaded(changed, asked, recover=recover).core.body.result()
                assert len(body.table) == len(list(body.table))
    verify(with_log(store, session, forged), last)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def agent_of(tool: Noting) -> Agent:
    turns: list[Turn] = [tool_call("f", {"n": 1}, id="c1"), "done", "done again"]
    return Agent("test", ScriptedClient(turns).provider, [tool], system_tools=False)


def done(tool: Noting) -> Session:
    """A finished run that has called a tool whose calls must not be repeated."""
    with autosave():
        return agent_of(tool)(Session.from_user_message("go")).synchronize()


def done_after_an_approval(tool: Noting) -> tuple[Session, bytes]:
    """A finished run, and its log as it was while it waited."""
    with autosave():
        agent = agent_of(tool)
        out = agent(Session.from_user_message("go")).synchronize()
        assert isinstance(out.outcome, NeedsApproval)
        allow(out)
        before = session_file(out.id).read_bytes()
        out = agent(Session.load(out.id)).synchronize()
        assert out.outcome == Completed()
        return out, before


def beginnings(session: UUID) -> list[bytes]:
    """The log of a session, cut off after each of its lines that has others behind it."""
    lines = session_file(session).read_bytes().splitlines(keepends=True)
    return [b"".join(lines[:n]) for n in range(1, len(lines))]


def goes_on(session: UUID, tool: Noting) -> Session:
    with autosave():
        return agent_of(tool)(Session.load(session)).synchronize()


def test_a_finished_log_that_is_cut_at_any_line_is_damage_and_nothing_is_repeated() -> None:
    tool = Noting(approval="never")
    out = done(tool)
    for cut in beginnings(out.id):
        session_file(out.id).write_bytes(cut)
        with pytest.raises(SessionDamaged, match="was finished, and its last line is not the end"):
            goes_on(out.id, tool)
        (problem,) = problems(FileStore(), out.id)
        assert "was finished" in problem
        (listed,) = [each for each in StoreIndex(FileStore()).summaries() if each.id == out.id]
        assert (listed.state, "was finished" in listed.problem) == ("damaged", True)
        rows = load_session(out.id, recover=True).chunk_table
        assert tuple(rows) == tuple(out.chunk_table)[: len(rows)]
    assert tool.calls == [1]


@pytest.mark.parametrize("is_looked_at", [False, True], ids=["at once", "after a listing"])
def test_what_the_index_has_seen_of_a_log_is_missed(is_looked_at: bool) -> None:
    tool = Noting()
    out, before = done_after_an_approval(tool)
    with StoreIndex(FileStore()) as index:
        index.refresh()
    session_file(out.id).write_bytes(before)
    if is_looked_at:
        with StoreIndex(FileStore()) as index:
            found = index.summary(out.id)
        assert found is not None
        assert (found.state, "its end was cut off" in found.problem) == ("damaged", True)
    assert [each for each in problems(FileStore(), out.id) if "its end was cut off" in each]
    with pytest.raises(SessionDamaged, match="when the index read it"):
        goes_on(out.id, tool)
    assert tool.calls == [1]


def test_what_came_from_a_log_knows_what_it_had() -> None:
    tool = Noting()
    out, before = done_after_an_approval(tool)
    fork = out.fork()
    fork.save()
    session_file(out.id).write_bytes(before)
    (problem,) = problems(FileStore(), out.id)
    assert f"session {fork.id} begins with rows of it up to 4, and it has only 2" in problem
    with pytest.raises(SessionDamaged, match=f"session {fork.id} begins with rows"):
        goes_on(out.id, tool)
    assert tool.calls == [1]
