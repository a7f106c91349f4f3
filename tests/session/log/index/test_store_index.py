"""The index says what the logs say, whatever was written and deleted meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.errors import PersistenceError, SessionDamaged
from rath.session import Session
from rath.session.chunk import ChunkRow, assistant_turn_chunk
from rath.session.events import Row
from rath.session.log.index import SessionFilter, StoreIndex, index_file
from rath.session.log.reader import read_lines
from rath.session.outcome import NeedsInput
from rath.session.persistence.store import FileStore, StoredLog
from rath.session.record import ModelCall, ToolRun
from rath.testing import tool_call
from tests.support.api import (
    INDEX_FILE_NAME,
    INDEX_VERSION,
    UNKNOWN_TIME,
    BlobStore,
    Database,
    ParsedLog,
    facts_of,
    index_queue,
    log_writer_module,
    parse_log,
    sum_costs,
)
from tests.support.logs import DAY, LogMaker, MemoryStore, made_logs


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def all_told(index: StoreIndex) -> list[object]:
    """All that can be asked of an index."""
    summaries = index.summaries()
    ids = [each.id for each in summaries]
    return [
        summaries,
        [(index.children(each), index.ancestors(each), index.descendants(each)) for each in ids],
        [sorted(map(repr, index.search(word))) for word in ("fix", "parser", "修复")],
        index.calls(ids),
        index.given_tokens(ids),
        index.runs(),
    ]


@given(st.data())
def test_it_equals_one_that_is_made_anew(data: st.DataObject) -> None:
    store, known = MemoryStore(), list[LogMaker]()
    index = StoreIndex(store)
    for _ in range(data.draw(st.integers(1, 6))):
        match data.draw(st.sampled_from(["write", "write", "append", "delete", "ask"])):
            case "write":
                made = data.draw(made_logs(known=tuple(known)))
                # A shorter log in the place of a longer one is damage, of which a new index that
                # never saw the longer one cannot know.
                if all(made.session != each.session for each in known):
                    known.append(made)
                    store.put(made)
            case "append" if known:
                store.put(data.draw(st.sampled_from(known)).reopened().said("more of the parser"))
            case "delete" if known:
                store.delete(data.draw(st.sampled_from(known)).session)
            case _:
                index.summaries()
    index.refresh()
    assert all_told(index) == all_told(StoreIndex(store.copy()))


def test_only_what_has_changed_is_read_again(store: MemoryStore) -> None:
    logs = [LogMaker().said("one").ended() for _ in range(5)]
    index = StoreIndex(store.put(*logs))
    index.refresh()
    assert store.n_reads == 5
    store.put(logs[0].decided(NeedsInput(uuid4(), "?")))
    index.refresh()
    assert store.n_reads == 6
    assert index.summary(logs[0].session) is not None
    assert store.n_reads == 6


def test_text_is_read_when_somebody_searches_it_and_once(directory: Path) -> None:
    with StoreIndex(FileStore(directory)) as lists, StoreIndex(FileStore(directory)) as searches:
        assert len(lists.summaries()) == N_LOGS
        (hit,) = searches.search("word3")
        assert [each.id for each in lists.summaries(SessionFilter(text="word3"))] == [hit.session]
        assert lists.count(SessionFilter(text="word3")) == 1
        keep(directory, LogMaker().said("word3 again").ended())
        lists.refresh()
        assert len(lists.search("word3")) == 2
        searches.refresh()
        assert len(searches.search("word3")) == 2
    reads = list[int]()
    with StoreIndex(FileStore(directory), progress=lambda done, of: reads.append(of)) as index:
        index.refresh(with_text=True)
        assert (len(index.search("word3")), reads) == (2, [])


def test_a_log_that_another_process_has_read_meanwhile_keeps_its_text(directory: Path) -> None:
    store = FileStore(directory)

    class Slow(FileStore):
        """Has another process search as soon as a log is read."""

        def read(self, session: UUID) -> StoredLog | None:
            found = super().read(session)
            with StoreIndex(store) as other:
                other.refresh(with_text=True)
            return found

    with StoreIndex(Slow(directory)) as index:
        assert len(index.summaries()) == N_LOGS
    with sqlite3.connect(directory / INDEX_FILE_NAME) as connection:
        (counts,) = connection.execute("SELECT count(*), sum(has_text) FROM sessions")
        (n_words,) = connection.execute("SELECT count(*) FROM words").fetchone()
    connection.close()
    assert (counts, n_words) == ((N_LOGS, N_LOGS), N_LOGS)


def indexed(directory: Path) -> set[UUID]:
    """The sessions that stand in the index of a directory, which is not brought up to date."""
    with closing(sqlite3.connect(directory / INDEX_FILE_NAME)) as connection:
        return {UUID(bytes=each) for (each,) in connection.execute("SELECT id FROM sessions")}


def saved(directory: Path, *, path: Path | None = None) -> UUID:
    """Save a session, and wait until its log is indexed, or left out."""
    session = Session.from_user_message("word")
    if path is None:
        session.save(store=FileStore(directory))
    else:
        session.save(path=path)
    index_queue.settled().result(60)
    return session.id


def test_logs_that_end_are_indexed_in_the_background_where_an_index_is(directory: Path) -> None:
    before = saved(directory)
    assert not (directory / INDEX_FILE_NAME).exists()
    assert count(directory) == (N_LOGS + 1, "")
    after = saved(directory)
    assert {before, after} <= indexed(directory)
    alone = saved(directory, path=directory / "alone.jsonl")
    keep(directory, unseen := LogMaker())
    assert {alone, unseen.session}.isdisjoint(indexed(directory))
    reads = list[int]()
    with StoreIndex(FileStore(directory), progress=lambda done, of: reads.append(of)) as index:
        assert unseen.session in {each.id for each in index.summaries()}
        assert reads == [1]
        assert {hit.session for hit in index.search('"word"')} == {before, after}


@pytest.mark.parametrize("is_locked", [False, True])
def test_an_index_that_cannot_be_written_keeps_no_log_from_its_end(
    directory: Path, monkeypatch: pytest.MonkeyPatch, is_locked: bool
) -> None:
    assert count(directory) == (N_LOGS, "")
    monkeypatch.setattr(log_writer_module, "_INDEX_SECONDS", 0.01)
    if is_locked:
        with closing(sqlite3.connect(directory / INDEX_FILE_NAME)) as other:
            other.execute("BEGIN IMMEDIATE")
            session = saved(directory)
            assert session not in indexed(directory)
    else:
        (directory / INDEX_FILE_NAME).write_bytes(b"garbage" * 1000)
        session = saved(directory)
    assert FileStore(directory).holds(session)
    assert count(directory) == (N_LOGS + 1, "")
    assert session in indexed(directory)


def test_progress_is_reported(store: MemoryStore) -> None:
    reported: list[tuple[int, int]] = []
    for n_logs in (0, 120):
        store.put(*[LogMaker() for _ in range(n_logs)])
        StoreIndex(store).refresh(lambda done, of: reported.append((done, of)))
    assert reported == [(50, 120), (100, 120), (120, 120)]


def test_what_is_written_now_is_running_unless_it_has_ended(store: MemoryStore) -> None:
    going_on, ended, empty = LogMaker().begun().said("go"), LogMaker().ended(), uuid4()
    store.put(going_on, ended).put_bytes(empty, b"")
    sessions = going_on.session, ended.session, empty
    store.writers |= {*sessions}
    index = StoreIndex(store)
    found = {each.id: (each.state, each.problem) for each in index.summaries()}
    assert [found[each] for each in sessions] == [
        ("running", ""),
        ("completed", ""),
        ("running", ""),
    ]
    store.writers.clear()
    states = {each.id: each.state for each in index.summaries()}
    assert [states[each] for each in sessions] == ["cut_off", "completed", "damaged"]


def test_a_log_that_cannot_be_read_is_damaged_and_one_that_goes_is_forgotten() -> None:
    class Broken(MemoryStore):
        def read(self, session: UUID) -> StoredLog | None:
            if session == gone.session:
                return None
            raise PersistenceError("the disk is gone")

    gone = LogMaker()
    (found,) = StoreIndex(Broken().put(LogMaker(), gone)).summaries()
    assert (found.state, found.problem) == ("damaged", "the disk is gone")


@pytest.fixture
def family(store: MemoryStore) -> dict[str, LogMaker]:
    """A user's words, two runs on them, one of them failed, and a merge of these."""
    run = uuid4()
    user = LogMaker(at=DAY).said("Fix the parser").ended()
    begins = (user.part(),)
    left = LogMaker(at=DAY + timedelta(hours=1), parents=(user.session,), begins_with=begins)
    left.begun(path="Team.left", run=run).answered("Straße", model="gpt-5-mini").ended()
    right = LogMaker(at=DAY + timedelta(hours=2), parents=(user.session,), begins_with=begins)
    right.begun(path="Team.right", run=run).answered("nothing", model="claude").failed()
    both = LogMaker(
        at=DAY + timedelta(hours=3), parents=(left.session, right.session), operator="merge"
    ).ended()
    agent = LogMaker(at=DAY + timedelta(hours=4)).ended()
    store.put(user, left, right, both, agent)
    return {"user": user, "left": left, "right": right, "both": both, "agent": agent}


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (SessionFilter(), "agent both right left user"),
        (SessionFilter(order="oldest"), "user left right both agent"),
        (SessionFilter(states=("completed", "failed"), limit=3), "agent both right"),
        (SessionFilter(since=DAY + timedelta(hours=2)), "agent both right"),
        (SessionFilter(until=DAY + timedelta(hours=1)), "user"),
        (SessionFilter(operator="op_session_loop", limit=1), "both"),
        (SessionFilter(model="GPT"), "left"),
        (SessionFilter(text="strasse"), ""),
        (SessionFilter(text="straße"), "left"),
        (SessionFilter(text="fix nothing"), ""),
        (SessionFilter(text="---"), ""),
        (SessionFilter(is_said=True), "both right left user"),
    ],
    ids=repr,
)
def test_filters(
    store: MemoryStore, family: dict[str, LogMaker], asked: SessionFilter, names: str
) -> None:
    by_id = {log.session: name for name, log in family.items()}
    index = StoreIndex(store)
    found = [by_id[each.id] for each in index.summaries(asked)]
    assert " ".join(found) == names
    if asked.limit is None:
        assert index.count(asked) == len(found)


def test_lineage(store: MemoryStore, family: dict[str, LogMaker]) -> None:
    user, left, right, both = (family[name].session for name in ("user", "left", "right", "both"))
    lost = uuid4()
    child = LogMaker(parents=(lost,))
    index = StoreIndex(store.put(child))
    assert index.children(user) == (left, right)
    assert index.ancestors(both) == (left, right, user)
    assert index.ancestors(child.session) == (lost,)
    assert index.descendants(user) == (left, right, both)
    assert {each.id for each in index.known([user, uuid4()])} == {user}
    assert index.summary(uuid4()) is None
    (run,) = index.runs()
    assert [each.id for each in index.made_in(run)] == [left, right]
    of_user = SessionFilter(parent=user, order="oldest")
    assert [each.id for each in index.summaries(of_user)] == [left, right]


def test_sessions_that_came_from_each_other_end_every_walk(store: MemoryStore) -> None:
    one, other = LogMaker().said("one"), LogMaker().said("other")
    first = LogMaker(one.session, parents=(other.session,), begins_with=(other.part(),))
    second = LogMaker(other.session, parents=(one.session,), begins_with=(one.part(),))
    index = StoreIndex(store.put(first, second))
    assert index.ancestors(one.session) == (other.session,)
    assert [each.title for each in index.summaries()] == ["", ""]


@pytest.mark.parametrize(
    ("question", "n_hits"),
    [("修复", 1), ("复修", 0), ("请", 1), ("ARGER", 1), ('"the parser"', 1), ('"parser the"', 0)],
)
def test_search_folds_accents_and_finds_words(
    store: MemoryStore, question: str, n_hits: int
) -> None:
    log = LogMaker().said("Ärger mit the parser, 请修复 bug")
    index = StoreIndex(store.put(log))
    hits = index.search(question)
    assert [(hit.session, hit.row, hit.kind) for hit in hits] == [(log.session, 0, "user")] * n_hits
    assert all("请修复" in hit.snippet for hit in hits)


@given(st.text(max_size=20))
def test_any_question_can_be_asked(question: str) -> None:
    store = MemoryStore().put(LogMaker().said("a word").ended())
    with StoreIndex(store) as index:
        index.search(question)
        index.summaries(SessionFilter(text=question))


def test_more_sessions_than_fit_into_one_statement(store: MemoryStore) -> None:
    logs = [LogMaker().answered("x") for _ in range(600)]
    index = StoreIndex(store.put(*logs))
    ids = [log.session for log in logs]
    assert len(index.known(ids)) == len(index.calls(ids)) == 600


def test_usage_of_version_1_without_calls_is_indexed(store: MemoryStore, tmp_path: Path) -> None:
    file = Path(__file__).parents[3] / "data" / "v1" / "tools.jsonl"
    session = UUID("9531c84d-17b6-47a6-b9ad-3e625f957dac")
    store.put_bytes(session, file.read_bytes())
    index = StoreIndex(store)
    assert index.given_tokens([session]) == {session: 75}
    assert [each.is_priced for each in index.summaries()] == [False]


def content(data: bytes) -> ParsedLog:
    """What the codec and the loader make of a log."""
    return parse_log(read_lines(data, "log"), lambda row: row)


def is_believed(data: bytes) -> bool:
    """Whether the codec and the loader believe a log."""
    try:
        content(data)
    except SessionDamaged:
        return False
    return True


@given(made_logs())
def test_the_facts_are_those_of_the_lines(log: LogMaker) -> None:
    facts, read = facts_of(log.session, log.data), content(log.data)
    ran = [entry for entry in read.entries if isinstance(entry, ModelCall)]
    costs, calls = sum_costs(read.entries), facts.calls.values()
    assert facts.n_rows == read.state.n_rows
    assert facts.n_tool_runs == sum(isinstance(entry, ToolRun) for entry in read.entries)
    assert list(facts.calls) == [call.id for call in ran]
    usages = [call.evidence.usage for call in ran]
    tokens = [0 if usage is None else usage.total_tokens for usage in usages]
    assert [call.total_tokens for call in calls] == tokens
    assert sum(call.usd or 0 for call in calls) == costs.usd
    assert sum(call.price == "known" for call in calls) == costs.n_priced
    assert sum(call.price == "unpriced" for call in calls) == sum(n for _, n in costs.unpriced)
    assert sum(call.price == "uncounted" for call in calls) == sum(n for _, n in costs.uncounted)
    assert facts.is_open == (read.state.trailer is None)
    assert facts.updated_at >= read.state.last_at


@given(made_logs(), st.data())
def test_a_log_is_damaged_where_loading_says_so(log: LogMaker, data: st.DataObject) -> None:
    at, bit = data.draw(st.integers(0, len(log.data) - 1)), data.draw(st.integers(0, 7))
    changed = log.data[:at] + bytes([log.data[at] ^ 1 << bit]) + log.data[at + 1 :]
    assert (facts_of(log.session, changed).state != "damaged") == is_believed(changed)
    cut = log.data[:at]
    facts = facts_of(log.session, cut)
    assert (facts.state != "damaged") == is_believed(cut)
    complete = read_lines(cut, "log").reader.n_good if is_believed(cut) else 0
    again = facts_of(log.session, cut[:complete])
    assert (facts.texts, facts.calls, facts.state) == (again.texts, again.calls, again.state)


OLD_HEADER = (
    b'{"record_type": "header", "schema_version": 1, "id": "%s", "created_at": "2026-01-01"}\n'
)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"record_type": "intent"}', "unknown record_type 'intent'"),
        (b'{"record_type": "trailer"}', "malformed"),
        (
            b'{"record_type": "trailer", "closed_at": "2026-01-01"}\n{"record_type": "chunk"}',
            "stands after the trailer",
        ),
    ],
)
def test_a_bad_line_of_version_1_is_named(line: bytes, problem: str) -> None:
    session = uuid4()
    facts = facts_of(session, OLD_HEADER % str(session).encode() + line + b"\n")
    assert facts.state == "damaged"
    assert problem in facts.problem
    assert facts.problem.startswith(("line 2", "line 3"))
    assert facts.created_at != UNKNOWN_TIME


def test_texts_of_rows_are_those_that_can_be_searched() -> None:
    row = ChunkRow("assistant", {"content": 7, "tool_calls": [{"function": {"name": None}}, {}]})
    called = assistant_turn_chunk(tool_calls=tool_call("f", {"x": 1}).tool_calls)
    log = LogMaker().said("word " * 100_000).row(row).row(called)
    log.row(ChunkRow("odd", {"content": "unread"}))
    long, odd, call = (each.text for each in facts_of(log.session, log.data).texts or ())
    assert (len(long), odd.split(), call) == (100_000, ["7"], 'f {"x": 1}')


def test_a_line_that_contradicts_those_before_is_damage() -> None:
    log = LogMaker().said("go")
    facts = facts_of(log.session, log.add(Row(7, log.rows[0])).data)
    assert (facts.state, facts.n_lines) == ("damaged", 2)
    assert "row 7 stands where row 1 is expected" in facts.problem


N_LOGS = 7


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a few logs."""
    made = tmp_path / "sessions"
    made.mkdir()
    for number in range(N_LOGS):
        keep(made, LogMaker().said(f"word{number}").ended())
    return made


def keep(directory: Path, log: LogMaker) -> None:
    """Write a finished log."""
    (directory / f"{log.session}.jsonl").write_bytes(log.data)


def count(directory: Path, **options: float) -> tuple[int, str]:
    """How many sessions an index of a directory knows, and what it notes."""
    with StoreIndex(FileStore(directory), **options) as index:  # type: ignore[arg-type]  # a float
        return len(index.summaries()), index.note


def test_the_index_of_files_stands_next_to_them_for_their_owner_alone(directory: Path) -> None:
    assert count(directory) == (N_LOGS, "")
    file = directory / INDEX_FILE_NAME
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert index_file(FileStore(directory)) == file
    read: list[int] = []
    with StoreIndex(FileStore(directory), progress=lambda done, of: read.append(of)) as index:
        assert len(index.summaries()) == N_LOGS
    assert read == []
    assert count(directory / "none") == (0, "")
    assert not (directory / "none").exists()


def test_without_a_home_it_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENRATH_HOME", os.devnull)
    with StoreIndex(MemoryStore().put(LogMaker())) as index:
        assert index.path is None
        assert len(index.summaries()) == 1
        assert index.note == ""


def other_version(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute(f"PRAGMA user_version = {INDEX_VERSION + 1}")
        connection.execute("DELETE FROM sessions")
    connection.close()


def database_of_others(file: Path) -> None:
    file.unlink()
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE sessions (x)")
    connection.close()


def noise_at(place: int) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        data = bytearray(file.read_bytes())
        at = place % len(data)
        data[at : at + 2000] = b"\xff" * min(2000, len(data) - at)
        file.write_bytes(data)

    return write


def overwritten(data: bytes) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        file.write_bytes(data)

    return write


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
@pytest.mark.parametrize(
    "harm",
    [
        other_version, database_of_others, overwritten(b""), overwritten(b"garbage" * 1000),
        overwritten(b"SQLite format 3\0" + b"x" * 5000),
        *map(noise_at, [0, 100, 4096, 8192, 20000, -3000]),
    ],
)  # fmt: skip
def test_a_damaged_index_is_remade(
    directory: Path, harm: Callable[[Path], None], is_open: bool
) -> None:
    index = StoreIndex(FileStore(directory))
    index.refresh()
    index.close()
    harm(directory / INDEX_FILE_NAME)
    keep(directory, LogMaker().said("one more").ended())
    with index if is_open else StoreIndex(FileStore(directory)) as index:
        assert len(index.summaries()) == N_LOGS + 1
        assert len(index.search("one more")) == 1
        assert index.note == ""


@pytest.mark.parametrize(
    ("content", "folder", "note"),
    [(None, "", "is no regular file"), (b"garbage" * 1000, "-wal", "cannot be used")],
    ids=["no file", "not removable"],
)
def test_an_index_that_cannot_be_written_is_made_in_memory_with_a_note(
    directory: Path, content: bytes | None, folder: str, note: str
) -> None:
    if content is not None:
        (directory / INDEX_FILE_NAME).write_bytes(content)
    (directory / f"{INDEX_FILE_NAME}{folder}").mkdir()
    with StoreIndex(FileStore(directory)) as index:
        assert len(index.summaries()) == N_LOGS
        assert note in index.note
        assert INDEX_FILE_NAME in index.note
        with pytest.raises(OverflowError):
            index.summaries(SessionFilter(limit=1 << 70))


def test_one_that_others_hold_is_made_in_memory(directory: Path) -> None:
    count(directory)
    keep(directory, LogMaker().ended())
    other = Database(directory / INDEX_FILE_NAME)
    with other.writing():
        n_sessions, noted = count(directory, busy_seconds=0.01)
    other.close()
    assert n_sessions == N_LOGS + 1
    assert "locked" in noted


def test_what_sqlite_refuses_in_memory_too_is_an_error(directory: Path) -> None:
    too_many = SessionFilter(states=[str(number) for number in range(300_000)])
    with StoreIndex(FileStore(directory)) as index:
        with pytest.raises(sqlite3.OperationalError, match="too many SQL variables"):
            index.summaries(too_many)
        assert len(index.summaries()) == N_LOGS
        # Now it is in memory.
        with pytest.raises(sqlite3.OperationalError, match="too many SQL variables"):
            index.summaries(too_many)


def _read_and_write(directory: str, number: int) -> None:
    path = Path(directory)
    for _ in range(5):
        keep(path, LogMaker().said(f"from {number}").ended())
        _, noted = count(path)
        assert noted == ""


@pytest.mark.full
@pytest.mark.parametrize("is_damaged", [False, True])
def test_several_processes_use_one_index(directory: Path, is_damaged: bool) -> None:
    if is_damaged:
        (directory / INDEX_FILE_NAME).write_bytes(b"garbage" * 5000)
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        pool.starmap(_read_and_write, [(str(directory), number) for number in range(3)])
    assert count(directory) == (N_LOGS + 15, "")


def test_a_sweep_of_contents_takes_the_index_for_no_session(directory: Path) -> None:
    digest = "ab" * 32
    keep(directory, LogMaker().said(f'{{"record_type": "header"}} {digest}').ended())
    count(directory)
    for file in directory.glob("*.jsonl"):
        file.unlink()
    blobs = directory / "blobs"
    blobs.mkdir()
    (blobs / digest).write_bytes(b"x")
    BlobStore(directory).sweep()
    assert not (blobs / digest).exists()
