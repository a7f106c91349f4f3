"""Session files are written, read and listed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from rath.backend.abc import BackendSandboxSpec
from rath.errors import PersistenceError
from rath.llm.chat_response import RathLLMTokenUsage
from rath.session import run_session_compress
from rath.session.chunk import ChunkRow, ChunkTable, system_text_chunk, user_text_chunk
from rath.session.graph import ancestors_bfs, session_to_jsonl_row
from rath.session.graph.kind import LineageKind
from rath.session.log.index import StoreIndex
from rath.session.log.verify import verify
from rath.session.persistence import (
    PersistedSession,
    PersistedSessionMeta,
    SessionWriter,
    ensure_sessions_dir,
    list_persisted_sessions,
    load_session,
    prune_sessions,
    session_file,
    session_partial_file,
    sessions_dir,
)
from rath.session.persistence.store import FileStore
from rath.session.questions import what_was_seen, where_from
from rath.session.session import Session
from rath.testing import ScriptedClient, tool_call
from tests.support.images import picture
from tests.support.sessions import FunctionTool, run
from tests.support.store_lines import write

GOLDEN = Path(__file__).parents[2] / "data" / "v1"


ANY = UUID(int=0)


HEADER: dict[str, Any] = {
    "record_type": "header",
    "schema_version": 1,
    "id": str(UUID(int=1)),
    "created_at": "2026-11-21T21:36:38+00:00",
}


CHUNK: dict[str, Any] = {
    "record_type": "chunk",
    "index": 0,
    "kind": "user",
    "payload": {"content": "a"},
}


TRAILER: dict[str, Any] = {
    "record_type": "trailer",
    "closed_at": "2026-11-21T21:36:39+00:00",
    "final_chunk_count": 1,
}


def lines_of(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def stored(*texts: str, created_at: datetime | None = None) -> UUID:
    """Write a closed session with these user rows, perhaps begun at another time."""
    session = Session(ChunkTable(map(user_text_chunk, texts)))
    write(FileStore(), session, at=created_at)
    return session.id


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "f.jsonl"


@pytest.mark.parametrize("name", ["plain.jsonl", "separators.jsonl", "crashed.jsonl.__partial__"])
def test_file_cut_at_any_byte_gives_its_complete_lines(path: Path, name: str) -> None:
    data = (GOLDEN / name).read_bytes()
    complete = load_session(ANY, path=GOLDEN / name).chunk_table.rows
    for size in range(len(data)):
        path.write_bytes(data[:size])
        if b"\n" not in data[:size]:
            with pytest.raises(PersistenceError, match=r"f\.jsonl:1: missing header"):
                load_session(ANY, path=path)
            continue
        n_rows = min(data[:size].count(b"\n") - 1, len(complete))
        assert load_session(ANY, path=path).chunk_table.rows == complete[:n_rows]


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (lines_of(HEADER) + b"{x}\n", 2, "invalid JSON"),
        (lines_of(HEADER) + b"\n", 2, "invalid JSON"),
        (lines_of(HEADER) + b'{"a": "\xff"}\n', 2, "invalid JSON"),
        (lines_of(HEADER, [1]), 2, "expected a JSON object"),
        (lines_of(HEADER, HEADER), 2, "duplicate header"),
        (lines_of(CHUNK), 1, "chunk before header"),
        (lines_of(TRAILER), 1, "trailer before header"),
        (lines_of(HEADER, {"record_type": "x"}), 2, "unknown record_type 'x'"),
        (lines_of(HEADER, {**CHUNK, "kind": 1}), 2, "malformed row: kind: expected str"),
        (lines_of(HEADER, {**CHUNK, "kind": ""}), 2, "malformed row: .*bad chunk kind ''"),
        (
            lines_of(HEADER, CHUNK, {**CHUNK, "payload": []}),
            3,
            "malformed row: payload: expected object",
        ),
        (lines_of(HEADER, TRAILER, CHUNK), 3, "after the trailer"),
        (lines_of({**HEADER, "id": "x"}), 1, "malformed header"),
        (lines_of({**HEADER, "sum": ""}), 1, "schema version 1 has no checksums"),
        (lines_of({**HEADER, "schema_version": "1"}), 1, "malformed header"),
        (lines_of({**HEADER, "schema_version": True}), 1, "malformed header"),
        (lines_of({**HEADER, "schema_version": 99}), 1, "newer than CURRENT_SCHEMA_VERSION"),
        (lines_of({**HEADER, "schema_version": -7}), 1, "no header migration"),
        (b"", 1, "missing header"),
    ],
)
def test_damaged_line_is_named(path: Path, content: bytes, line: int, words: str) -> None:
    path.write_bytes(content)
    with pytest.raises(PersistenceError, match=words) as caught:
        load_session(ANY, path=path)
    assert str(caught.value).startswith(f"{path}:{line}: ")


def test_resumed_user_session_has_rows_place_and_usage() -> None:
    spec = BackendSandboxSpec(image="i", entrypoint=("a", "b"), timeout=timedelta(seconds=1.5))
    session = Session(
        ChunkTable((user_text_chunk("a"),)),
        sandbox_backend="local",
        sandbox_spec=spec,
        cumulative_usage=RathLLMTokenUsage(1, 2, 3),
    )
    with SessionWriter(session) as writer:
        writer.write_chunk(0, session.chunk_table[0])
    user, agent = load_session(session.id).to_resumable_pair()
    assert user.id != session.id
    assert user.chunk_table == session.chunk_table
    assert (user.sandbox_backend, user.sandbox_spec) == ("local", spec)
    assert user.cumulative_usage == RathLLMTokenUsage(1, 2, 3)
    assert (user.parent_session_ids, user.lineage_kind) == ((), LineageKind.UNKNOWN)
    assert len(agent.chunk_table) == 0


@pytest.mark.parametrize("name", ["plain.jsonl", "merged.jsonl", "crashed.jsonl.__partial__"])
def test_resumed_user_session_of_version_1_names_its_parents(name: str) -> None:
    loaded = load_session(ANY, path=GOLDEN / name)
    header = json.loads((GOLDEN / name).read_bytes().split(b"\n")[0])
    user, agent = loaded.to_resumable_pair()
    parents = header["parent_session_ids"]
    assert user.id != loaded.header.id
    assert list(map(str, user.parent_session_ids)) == parents
    exported = session_to_jsonl_row(user)
    for field in ("parent_session_ids", "lineage_operator", "lineage_kind"):
        assert exported[field] == header[field] != []
    by_id = {
        each.id: each for each in (user, *(Session(ChunkTable(), id=UUID(p)) for p in parents))
    }
    assert list(map(str, ancestors_bfs(by_id, user.id))) == parents
    assert agent.chunk_table.rows == ()
    user.save()
    assert Session.load(user.id).parent_session_ids == user.parent_session_ids
    with StoreIndex(FileStore()) as index:
        assert list(map(str, index.ancestors(user.id))) == parents


PROMPT = (system_text_chunk("Be brief."), system_text_chunk("Be kind."))


def instructions() -> Session:
    return Session(ChunkTable(PROMPT))


DERIVATIONS: dict[str, Callable[[Session], Session]] = {
    "run": lambda out: out,
    "fork": lambda out: out.fork(),
    "fork of a fork": lambda out: out.fork().fork(),
    "merge": lambda out: out.merge(Session.from_user_message("b")),
    "second of a merge": lambda out: Session.from_user_message("b").merge(out),
    "compress": lambda out: run_session_compress(
        out,
        Session.from_agent_prompt("Sum up."),
        agent_provider=ScriptedClient(["so far"]).provider,
    ),
}


@pytest.mark.parametrize("derive", DERIVATIONS.values(), ids=DERIVATIONS)
def test_a_resumed_pair_goes_on_with_all_evidence(derive: Callable[[Session], Session]) -> None:
    made = derive(run(["a"], agent=instructions()).synchronize())
    made.save()
    user, agent = load_session(made.id).to_resumable_pair()
    assert agent.chunk_table.rows == PROMPT
    again = run(["b"], user=user, agent=agent, persist=True).synchronize()
    loaded = Session.load(again.id)
    assert where_from(loaded).missing == what_was_seen(loaded).missing == ()
    assert loaded.replay().chunk_table == again.chunk_table
    assert load_session(again.id).to_resumable_pair()[1].chunk_table.rows == PROMPT
    bare = run(["c"], user=again, agent=Session(ChunkTable()), persist=True).synchronize()
    assert load_session(bare.id).to_resumable_pair()[1].chunk_table.rows == ()


def test_a_writer_keeps_the_agent_and_the_parents_of_a_run() -> None:
    agent = instructions()
    out = run(["a"], agent=agent).synchronize()
    agent.save()
    writer = SessionWriter(out)
    assert load_session(out.id).to_resumable_pair()[1].chunk_table.rows == PROMPT
    for index, row in enumerate(out.chunk_table):
        writer.write_chunk(index, row)
    writer.close()
    user, agent = load_session(out.id).to_resumable_pair()
    assert (user.parent_session_ids, agent.chunk_table.rows) == (out.parent_session_ids, PROMPT)


@pytest.mark.parametrize(
    ("given_prompt", "expected"), [(None, "stored"), ("given", "given"), ("", "")]
)
def test_resumed_agent_has_a_system_row(
    path: Path, given_prompt: str | None, expected: str
) -> None:
    system = [{**CHUNK, "kind": "system", "payload": {"content": t}} for t in ("stored", "later")]
    path.write_bytes(lines_of(HEADER, CHUNK, *system))
    _, agent = load_session(ANY, path=path).to_resumable_pair(agent_prompt=given_prompt)
    assert agent.chunk_table.rows == (system_text_chunk(expected),)


def test_list_leaves_out_what_it_cannot_read_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    remaining = stored("a")
    directory = ensure_sessions_dir()
    (directory / "notes.jsonl").write_bytes(lines_of(HEADER))
    (directory / f"{uuid4()}.jsonl").write_bytes(b"x\n")
    (directory / f"{uuid4()}.jsonl").write_bytes(lines_of(HEADER))
    (directory / "other.txt").touch()
    assert [meta.id for meta in list_persisted_sessions()] == [remaining]
    assert caplog.text.count("left out of the list") == 2
    assert [meta.id for meta in list_persisted_sessions()] == [remaining]
    assert caplog.text.count("left out of the list") == 4


def listed_of(session_id: UUID) -> PersistedSessionMeta:
    """Return what a listing says of a session, as its log says it."""
    loaded = load_session(session_id)
    header = loaded.header
    return PersistedSessionMeta(
        id=header.id,
        path=loaded.path,
        created_at=header.created_at,
        lineage_operator=header.lineage_operator,
        lineage_kind=header.lineage_kind,
        chunk_count=len(loaded.chunk_table),
        closed=loaded.closed,
    )


def stored_in_all_states() -> list[UUID]:
    """Store sessions that ended, failed, were cut off and go on, and one of version 1."""
    out = run(["a"], persist=True).synchronize()
    fork = out.fork()
    fork.save()
    failed = run([tool_call("f"), RuntimeError("gone")], FunctionTool("f", str), persist=True)
    with pytest.raises(RuntimeError, match="gone"):
        failed.synchronize()
    cut_off = Session.from_user_message("cut off")
    with suppress(ZeroDivisionError), SessionWriter(cut_off) as writer:
        writer.write_chunk(0, cut_off.chunk_table[0])
        raise ZeroDivisionError
    old = UUID("9531c84d-17b6-47a6-b9ad-3e625f957dac")
    shutil.copy(GOLDEN / "tools.jsonl", session_file(old))
    runs = (*out.parent_session_ids, out.id, *failed.parent_session_ids, failed.id)
    return [*runs, fork.id, cut_off.id, old]


def test_list_says_what_loading_says_with_and_without_an_index() -> None:
    stored_ids = stored_in_all_states()
    going_on = Session.from_user_message("goes on")
    with SessionWriter(going_on) as writer:
        expected = {id_: listed_of(id_) for id_ in (*stored_ids, going_on.id)}
        first = list_persisted_sessions()
        (sessions_dir() / "index.sqlite3").unlink()
        (sessions_dir() / "index.sqlite3").mkdir()
        again = list_persisted_sessions()
        writer.write_chunk(0, going_on.chunk_table[0])
        written = {meta.id: meta for meta in list_persisted_sessions()}[going_on.id]
    ended = {meta.id: meta for meta in list_persisted_sessions()}[going_on.id]
    assert {meta.id: meta for meta in first} == expected
    assert first == again == sorted(first, key=lambda meta: meta.created_at)
    assert (written.chunk_count, written.closed) == (1, False)
    assert (ended.chunk_count, ended.closed) == (1, True)
    assert ended.path == session_file(going_on.id)


def test_a_persisted_session_can_be_made_by_hand(path: Path) -> None:
    path.write_bytes(lines_of(HEADER, CHUNK, TRAILER))
    read = load_session(UUID(int=1), path=path)
    made = PersistedSession(
        header=read.header,
        chunk_table=read.chunk_table,
        cumulative_usage=RathLLMTokenUsage(1, 2, 3),
        closed=True,
        path=read.path,
    )
    assert (made.session().id, made.session().chunk_table) == (read.header.id, read.chunk_table)
    assert (len(made.record), made.outcome) == (0, read.outcome)
    user, _ = made.to_resumable_pair()
    assert user.chunk_table == read.chunk_table
    assert user.cumulative_usage == RathLLMTokenUsage(1, 2, 3)


@pytest.fixture
def session() -> Session:
    return Session(
        ChunkTable((user_text_chunk("a"), user_text_chunk("b"))),
        cumulative_usage=RathLLMTokenUsage(1, 2, 3),
        sandbox_backend="local",
        sandbox_spec=BackendSandboxSpec(working_dir="/w"),
    )


def records_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def test_closed_file_has_header_rows_and_trailer(session: Session) -> None:
    writer = SessionWriter(session, sandbox_handle_id="h")
    assert [record["record_type"] for record in records_of(writer.partial_path)] == ["header"]
    writer.write_chunk(0, session.chunk_table[0])
    assert load_session(session.id).chunk_table.rows == session.chunk_table.rows[:1]
    with pytest.raises(PersistenceError, match="is being written by"):
        SessionWriter(session)
    assert writer.chunks_written == 1
    writer.write_chunk(1, session.chunk_table[1])
    for _ in range(2):
        writer.close()
    assert (writer.path, writer.partial_path.exists()) == (session_file(session.id), False)
    with pytest.raises(RuntimeError, match="closed"):
        writer.write_chunk(0, session.chunk_table[0])
    header, *chunks, trailer = records_of(session_file(session.id))
    assert (header["id"], header["sandbox_backend"], header["sandbox_handle_id"]) == (
        str(session.id),
        "local",
        "h",
    )
    assert header["sandbox_spec"]["working_dir"] == "/w"
    assert [(chunk["index"], chunk["payload"]) for chunk in chunks] == [
        (0, {"content": "a"}),
        (1, {"content": "b"}),
    ]
    counts = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    assert (trailer["final_chunk_count"], trailer["cumulative_usage"]) == (2, counts)


def test_abandoned_file_stays_partial_and_without_trailer(session: Session) -> None:
    with pytest.raises(ZeroDivisionError), SessionWriter(session) as writer:
        raise ZeroDivisionError
    writer.close()
    assert writer.partial_path == session_partial_file(session.id)
    assert [record["record_type"] for record in records_of(writer.partial_path)] == ["header"]
    assert not writer.path.exists()
    again = SessionWriter(session)
    again.partial_path.unlink()
    again.close()
    assert not again.path.exists()


def backups_of(path: Path) -> set[int]:
    """Return the numbers of the finished files that stood at a path before."""
    names = (each.name for each in path.parent.iterdir())
    suffixes = (name.removeprefix(f"{path.name}.") for name in names if name != path.name)
    return {int(suffix) for suffix in suffixes if suffix.isdecimal()}


def written_as(session: Session, *texts: str, path: Path | None = None) -> bytes:
    """Write a finished file of the session with these rows, and return its bytes."""
    with SessionWriter(session, path=path) as writer:
        for index, text in enumerate(texts):
            writer.write_chunk(index, user_text_chunk(text))
    return writer.path.read_bytes()


def test_second_writer_keeps_the_first(session: Session, caplog: pytest.LogCaptureFixture) -> None:
    path, display = session_file(session.id), user_text_chunk("look", images=[picture(b"cat")])
    with SessionWriter(session) as writer:
        writer.write_chunk(0, display)
    first = path.read_bytes()
    assert caplog.records == []
    second = written_as(session, "second")
    FileStore().empty_trash()
    written_as(session, "third")
    assert path.with_name(f"{path.name}.1").read_bytes() == first
    assert path.with_name(f"{path.name}.2").read_bytes() == second
    assert load_session(session.id).chunk_table.rows == (user_text_chunk("third"),)
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(warnings) == 2
    assert f"{path} was written again" in warnings[0]
    assert f"kept as {path}.1" in warnings[0]
    assert f"kept as {path}.2" in warnings[1]
    backup = load_session(session.id, path=path.with_name(f"{path.name}.1"))
    assert (backup.closed, backup.chunk_table.rows) == (True, (display,))
    assert backup.chunk_table[0].images[0].blob.data == picture(b"cat")


def test_a_second_writer_keeps_backups_where_links_are_refused(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", fail)
    first, second = written_as(session, "first"), written_as(session, "second")
    third, path = written_as(session, "third"), session_file(session.id)
    assert path.read_bytes() == third
    assert path.with_name(f"{path.name}.1").read_bytes() == first
    assert path.with_name(f"{path.name}.2").read_bytes() == second


def test_backups_are_no_sessions_and_go_with_theirs(session: Session) -> None:
    written_as(session, "an older word")
    written_as(session, "a newer word")
    assert [(meta.id, meta.chunk_count) for meta in list_persisted_sessions()] == [(session.id, 1)]
    with StoreIndex(FileStore()) as index:
        assert [each.id for each in index.summaries()] == [session.id]
        assert [hit.snippet for hit in index.search("word")] == ["a newer word"]
    assert verify(FileStore(), session.id).problems == ()
    assert prune_sessions(older_than=timedelta(hours=-1)) == [session.id]
    assert not list(sessions_dir().glob(f"{session.id}*"))
    assert FileStore().restore(session.id)
    assert backups_of(session_file(session.id)) == {1}


def test_row_that_is_not_json_is_refused_and_the_file_goes_on(session: Session) -> None:
    with SessionWriter(session) as writer:
        with pytest.raises(PersistenceError, match="bytes has no JSON form"):
            writer.write_chunk(0, ChunkRow("user", {"content": b"x"}))
        writer.write_chunk(0, user_text_chunk("x"))
    assert load_session(session.id).chunk_table.rows == (user_text_chunk("x"),)


def test_header_that_cannot_be_written_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    not_text: Any = b"x"
    session = Session(
        ChunkTable(), sandbox_backend="local", sandbox_spec=BackendSandboxSpec(image=not_text)
    )
    with pytest.raises(PersistenceError, match="bytes has no JSON form"):
        SessionWriter(session)
    assert not session_partial_file(session.id).exists()
    monkeypatch.setattr(os, "write", fail)
    other = Session(ChunkTable())
    with pytest.raises(PersistenceError, match="No space left"):
        SessionWriter(other)
    assert not session_partial_file(other.id).exists()
