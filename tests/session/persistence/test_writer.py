"""Writing a session file."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from rath._async.lazy import Deferred
from rath.backend.abc import BackendSandboxSpec
from rath.errors import PersistenceError
from rath.llm.chat_response import RathLLMTokenUsage
from rath.session.chunk import ChunkRow, ChunkTable, user_text_chunk
from rath.session.graph.recording import Provenance
from rath.session.log.index import StoreIndex
from rath.session.log.verify import verify
from rath.session.persistence import (
    SessionWriter,
    delete_session,
    list_persisted_sessions,
    load_session,
    prune_sessions,
    session_file,
    session_partial_file,
    sessions_dir,
)
from rath.session.persistence.store import FileStore
from rath.session.session import Session
from rath.testing import tool_call
from tests.support.api import Body
from tests.support.images import picture
from tests.support.sessions import FunctionTool, run

on_posix = pytest.mark.skipif(os.name != "posix", reason="permission bits are a POSIX matter")


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


def write_all(writer: SessionWriter, session: Session) -> None:
    for index, row in enumerate(session.chunk_table):
        writer.write_chunk(index, row)


def test_closed_file_has_header_rows_and_trailer(session: Session) -> None:
    with SessionWriter(session, sandbox_handle_id="h") as writer:
        write_all(writer, session)
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
    assert trailer["final_chunk_count"] == 2
    assert trailer["cumulative_usage"] == {
        "prompt_tokens": 1,
        "completion_tokens": 2,
        "total_tokens": 3,
    }


def test_header_is_on_disk_at_once(session: Session) -> None:
    writer = SessionWriter(session)
    assert [record["record_type"] for record in records_of(writer.partial_path)] == ["header"]
    writer.abandon()


def test_rows_are_readable_before_the_file_is_closed(session: Session) -> None:
    writer = SessionWriter(session)
    writer.write_chunk(0, session.chunk_table[0])
    assert load_session(session.id).chunk_table.rows == session.chunk_table.rows[:1]
    assert writer.chunks_written == 1
    writer.abandon()


def test_close_gives_the_file_its_name(session: Session) -> None:
    writer = SessionWriter(session)
    writer.close()
    assert writer.path == session_file(session.id)
    assert writer.path.exists()
    assert not writer.partial_path.exists()


def test_close_twice_is_close_once(session: Session) -> None:
    writer = SessionWriter(session)
    writer.close()
    before = writer.path.read_bytes()
    writer.close()
    assert writer.path.read_bytes() == before


def test_abandoned_file_stays_partial_and_without_trailer(session: Session) -> None:
    writer = SessionWriter(session)
    writer.abandon()
    writer.close()
    assert writer.partial_path == session_partial_file(session.id)
    assert [record["record_type"] for record in records_of(writer.partial_path)] == ["header"]
    assert not writer.path.exists()


def test_exception_in_the_block_abandons(session: Session) -> None:
    with pytest.raises(ZeroDivisionError), SessionWriter(session):
        raise ZeroDivisionError
    assert session_partial_file(session.id).exists()
    assert not session_file(session.id).exists()


def test_write_after_close_is_an_error(session: Session) -> None:
    writer = SessionWriter(session)
    writer.close()
    with pytest.raises(RuntimeError, match="closed"):
        writer.write_chunk(0, session.chunk_table[0])


def test_second_writer_is_refused(session: Session) -> None:
    with SessionWriter(session), pytest.raises(PersistenceError, match="another process"):
        SessionWriter(session)


def test_writer_in_another_process_is_refused(session: Session, home: Path) -> None:
    code = (
        "import sys; from uuid import UUID; from rath.session import ChunkTable, Session; "
        "from rath.session.persistence import SessionWriter; "
        "SessionWriter(Session(ChunkTable(), id=UUID(sys.argv[1])))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENRATH_HOME": str(home)}
    with SessionWriter(session):
        ended = subprocess.run(
            [sys.executable, "-c", code, str(session.id)],
            env=env,
            check=False,
            capture_output=True,
            text=True,
        )
    assert ended.returncode == 1
    assert "another process" in ended.stderr


def test_session_can_be_written_again_after_close(session: Session) -> None:
    SessionWriter(session).close()
    with SessionWriter(session) as writer:
        write_all(writer, session)
    assert load_session(session.id).chunk_table == session.chunk_table


def test_session_can_be_written_again_after_abandon_and_nothing_is_lost(session: Session) -> None:
    SessionWriter(session).abandon()
    first = session_partial_file(session.id).read_bytes()
    SessionWriter(session).abandon()
    with SessionWriter(session) as writer:
        write_all(writer, session)
    assert load_session(session.id).chunk_table == session.chunk_table
    kept = session_partial_file(session.id)
    assert kept.with_name(f"{kept.name}.1").read_bytes() == first
    assert kept.with_name(f"{kept.name}.2").exists()


def test_writers_that_race_for_one_file_leave_only_whole_files(session: Session) -> None:
    def write_often() -> int:
        n_refused = 0
        for _ in range(60):
            try:
                with SessionWriter(session) as writer:
                    write_all(writer, session)
            except PersistenceError:
                n_refused += 1
            else:
                assert load_session(session.id).closed
        return n_refused

    with ThreadPoolExecutor(3) as pool:
        refused = [pool.submit(write_often) for _ in range(3)]
    n_written = 3 * 60 - sum(future.result() for future in refused)
    assert n_written > 0
    assert load_session(session.id).chunk_table == session.chunk_table
    assert not list(session_file(session.id).parent.glob("*__partial__*"))
    assert backups_of(session_file(session.id)) == set(range(1, n_written))


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


def test_second_writer_keeps_the_finished_file_and_says_where(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    path = session_file(session.id)
    first = written_as(session, "first")
    assert caplog.records == []
    second = written_as(session, "second")
    written_as(session, "third")
    assert path.with_name(f"{path.name}.1").read_bytes() == first
    assert path.with_name(f"{path.name}.2").read_bytes() == second
    assert load_session(session.id).chunk_table.rows == (user_text_chunk("third"),)
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(warnings) == 2
    assert f"{path} was written again" in warnings[0]
    assert f"kept as {path}.1" in warnings[0]
    assert f"kept as {path}.2" in warnings[1]


def test_backup_is_read_by_its_path(session: Session) -> None:
    path = session_file(session.id)
    written_as(session, "first")
    written_as(session, "second")
    backup = load_session(session.id, path=path.with_name(f"{path.name}.1"))
    assert (backup.closed, backup.chunk_table.rows) == (True, (user_text_chunk("first"),))


def test_backup_takes_the_name_of_no_other_file(session: Session, tmp_path: Path) -> None:
    path, other = tmp_path / "run.jsonl", tmp_path / "run.jsonl.1"
    other.write_bytes(b"of somebody else")
    first = written_as(session, "first", path=path)
    written_as(session, "second", path=path)
    assert other.read_bytes() == b"of somebody else"
    assert (tmp_path / "run.jsonl.2").read_bytes() == first


def test_finished_file_stays_until_the_second_one_is_complete(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    first = written_as(session, "first")
    SessionWriter(session).abandon()
    writer = SessionWriter(session)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(PersistenceError, match="No space left"):
            writer.close()
    assert session_file(session.id).read_bytes() == first
    assert backups_of(session_file(session.id)) == set()


def test_finished_file_is_kept_where_there_are_no_hard_links(
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


def test_writers_in_two_processes_keep_each_file_of_the_other(session: Session, home: Path) -> None:
    code = """if True:
        import sys
        from uuid import UUID
        from rath.errors import PersistenceError
        from rath.session import ChunkTable, Session
        from rath.session.persistence import SessionWriter

        session, n_written = Session(ChunkTable(), id=UUID(sys.argv[1])), 0
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(30):
            try:
                SessionWriter(session).close()
                n_written += 1
            except PersistenceError:
                pass
        print(n_written)
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENRATH_HOME": str(home)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(session.id)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    n_written = sum(int(process.communicate()[0]) for process in processes)
    assert n_written > 1
    assert backups_of(session_file(session.id)) == set(range(1, n_written))


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


def test_image_of_a_backup_stays(session: Session) -> None:
    shown = user_text_chunk("look", images=[picture(b"cat")])
    with SessionWriter(session) as writer:
        writer.write_chunk(0, shown)
    written_as(session, "nothing to see")
    FileStore().empty_trash()
    path = session_file(session.id)
    backup = load_session(session.id, path=path.with_name(f"{path.name}.1"))
    assert backup.chunk_table[0].images[0].blob.data == picture(b"cat")


def test_delete_by_path_leaves_a_number_beside_it(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    written_as(session, "a", path=path)
    (tmp_path / "run.jsonl.1").write_bytes(b"of somebody else")
    assert delete_session(session.id, path=path)
    assert (tmp_path / "run.jsonl.1").read_bytes() == b"of somebody else"


def test_partial_file_that_its_last_writer_renames_meanwhile_is_not_written(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    system_open = os.open

    def open_then_lose(path: str, flags: int, mode: int = 0o777) -> int:
        fd = system_open(path, flags, mode)
        monkeypatch.setattr(os, "open", system_open)
        session_partial_file(session.id).unlink()
        return fd

    monkeypatch.setattr(os, "open", open_then_lose)
    with SessionWriter(session) as writer:
        write_all(writer, session)
    assert load_session(session.id).chunk_table == session.chunk_table


def test_file_that_cannot_be_forced_to_disk_stays_partial(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = SessionWriter(session)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(PersistenceError, match="No space left"):
        writer.close()
    assert writer.closed
    assert not writer.path.exists()
    assert writer.partial_path.exists()


def test_leftovers_that_cannot_be_kept_stay_where_they_are(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int, length: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    SessionWriter(session).abandon()
    before = session_partial_file(session.id).read_bytes()
    monkeypatch.setattr(os, "ftruncate", fail)
    with pytest.raises(PersistenceError, match="cannot be written"):
        SessionWriter(session)
    assert session_partial_file(session.id).read_bytes() == before


def test_explicit_path_has_its_partial_file_beside_it(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "new" / "run.jsonl"
    with SessionWriter(session, path=path) as writer:
        assert writer.partial_path == tmp_path / "new" / "run.jsonl.__partial__"
        assert writer.partial_path.exists()
    assert load_session(session.id, path=path).closed


def test_partial_file_that_is_gone_is_no_obstacle_to_close(session: Session) -> None:
    writer = SessionWriter(session)
    writer.partial_path.unlink()
    writer.close()
    assert not writer.path.exists()


@on_posix
def test_file_is_private(session: Session) -> None:
    with SessionWriter(session) as writer:
        pass
    assert stat.S_IMODE(writer.path.stat().st_mode) == 0o600


def test_row_that_is_not_json_is_refused_and_the_file_goes_on(session: Session) -> None:
    with SessionWriter(session) as writer:
        with pytest.raises(PersistenceError, match="bytes has no JSON form"):
            writer.write_chunk(0, ChunkRow("user", {"content": b"x"}))
        writer.write_chunk(0, user_text_chunk("x"))
    assert load_session(session.id).chunk_table.rows == (user_text_chunk("x"),)


def test_place_that_cannot_be_written_is_a_persistence_error(
    session: Session, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PersistenceError, match="cannot be created"):
        SessionWriter(session, path=tmp_path / "file" / "run.jsonl")


def test_the_record_is_written_when_the_file_is_closed(tmp_path: Path) -> None:
    out = run([tool_call("f"), "done"], FunctionTool("f", lambda *_: "x")).synchronize()
    path = tmp_path / "run.jsonl"
    with SessionWriter(out, path=path) as writer:
        write_all(writer, out)
    assert list(Session.load(path).record) == list(out.record)


def test_file_is_free_again_when_the_session_failed() -> None:
    empty = Body(ChunkTable())

    async def fail(_: Deferred[Body]) -> Body:
        raise ZeroDivisionError

    cell = Deferred[Body].start(fail, owner=uuid4(), label="a run", on_cancel=lambda _: empty)
    failed = Session.from_body(cell, Provenance())
    with pytest.raises(ZeroDivisionError):
        SessionWriter(failed).close()
    SessionWriter(failed).abandon()


@on_posix
def test_failed_write_never_gets_a_trailer(session: Session) -> None:
    writer = SessionWriter(session)
    writer.write_chunk(0, session.chunk_table[0])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(PersistenceError, match="cannot be written"):
            writer.write_chunk(1, user_text_chunk("x" * 5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    with pytest.raises(PersistenceError, match="stays unfinished"):
        writer.close()
    loaded = load_session(session.id)
    assert (loaded.closed, loaded.chunk_table.rows) == (False, session.chunk_table.rows[:1])


def test_header_that_cannot_be_written_leaves_no_file() -> None:
    not_text: Any = b"x"
    spec = BackendSandboxSpec(image=not_text)
    session = Session(ChunkTable(), sandbox_backend="local", sandbox_spec=spec)
    with pytest.raises(PersistenceError, match="bytes has no JSON form"):
        SessionWriter(session)
    assert not session_partial_file(session.id).exists()


def test_a_header_that_the_disk_refuses_leaves_no_file(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        with pytest.raises(PersistenceError, match="No space left"):
            SessionWriter(session)
    assert not session_partial_file(session.id).exists()
    SessionWriter(session).abandon()
