"""Checking a stored session: what is wrong is named, and what is not is not."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from msgspec import structs

from rath._core.blobs import Blob
from rath.errors import PersistenceError
from rath.llm.chat_response import RathLLMTokenUsage
from rath.session import Session
from rath.session.events import Finished, PendingResult
from rath.session.log.verify import Verification, verify
from rath.session.persistence.store import FileStore
from tests.support.images import picture
from tests.support.session_files import created, tool_run, with_record
from tests.support.sessions import run
from tests.support.stored_lines import header_for, lines_for, write, write_lines


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "sessions")


def found(verified: Verification) -> list[tuple[str, str]]:
    return [(problem.severity, problem.kind) for problem in verified.problems]


def test_what_was_stored_is_sound(store: FileStore) -> None:
    session = run(["hi"], user=Session.from_user_message("go", images=[picture(b"cat")]))
    session.save(store=store)
    verified = verify(store, session.id)
    assert (verified.problems, verified.is_sound, verified.worst) == ((), True, None)
    assert (verified.n_sessions, verified.n_blobs) == (3, 1)
    assert verified.n_lines == sum(
        path.read_bytes().count(b"\n") for path in store.directory.glob("*.jsonl")
    )


def test_content_that_is_gone_or_another_is_missing(store: FileStore) -> None:
    blobs = [Blob.from_bytes(bytes([number]) * 10) for number in range(3)]
    entries = [tool_run(shown=blob) for blob in blobs]
    entries.append(tool_run(shown=Blob.from_bytes(b"not kept", keep=0)))
    session = with_record(*entries)
    write(store, session)
    (store.directory / "blobs" / blobs[0].digest).unlink()
    (store.directory / "blobs" / blobs[1].digest).write_bytes(b"other")
    verified = verify(store, session.id)
    assert found(verified) == [("missing", "blob"), ("missing", "blob")]
    assert blobs[0].digest in verified.problems[0].text
    assert (verified.is_sound, verified.worst, verified.n_blobs) == (False, "missing", 3)


def test_content_of_a_result_that_is_no_row_yet_is_checked_once(store: FileStore) -> None:
    session = Session.from_user_message("go")
    effect = created("a", b"content")
    run = tool_run(effect, shown=Blob.from_bytes(b"content"))
    result = PendingResult(row=0, call=0, run=run, shown=None)
    write_lines(store, [*lines_for(session)[:-1], result], is_finished=False)
    verified = verify(store, session.id)
    assert (found(verified), verified.n_blobs) == ([("note", "unfinished")], 1)
    (store.directory / "blobs" / run.shown.digest).unlink()
    assert ("missing", "blob") in found(verify(store, session.id))


def test_usage_of_the_trailer_is_checked(store: FileStore) -> None:
    session = run(["hi"]).synchronize()
    *lines, last = lines_for(session)
    assert isinstance(last, Finished)
    write_lines(store, [*lines, structs.replace(last, usage=RathLLMTokenUsage(1, 1, 2))])
    verified = verify(store, session.id)
    assert ("damaged", "usage") in found(verified)
    assert "(1, 1, 2)" in verified.problems[0].text


def test_session_that_builds_on_itself_is_damage(store: FileStore) -> None:
    one, two = Session.from_user_message("go"), Session.from_user_message("go")
    for session, parent in ((one, two), (two, one)):
        write_lines(store, [structs.replace(header_for(session), parents=(parent.id,))])
    assert ("damaged", "range") in found(verify(store, one.id))


def test_session_that_is_not_there_cannot_be_checked(store: FileStore) -> None:
    with pytest.raises(PersistenceError, match="not found"):
        verify(store, uuid4())


def test_content_that_cannot_be_read_is_missing(store: FileStore) -> None:
    class Broken(FileStore):
        def blob(self, digest: str) -> bytes | None:
            raise PersistenceError("disk is gone")

    session = with_record(tool_run(shown=Blob.from_bytes(b"x")))
    write(store, session)
    (problem,) = verify(Broken(store.directory), session.id).problems
    assert "disk is gone" in problem.text


def test_size_of_content_is_checked(store: FileStore) -> None:
    session = with_record(tool_run(shown=Blob(Blob.from_bytes(b"content").digest, 3, b"content")))
    write(store, session)
    (problem,) = verify(store, session.id).problems
    assert "is another one" in problem.text
