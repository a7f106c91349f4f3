"""A session is stored by hand, and says where it stands."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rath.errors import PersistenceError
from rath.llm import Provider
from rath.llm.fold import tool_call_part
from rath.session import Session, assistant_turn_chunk
from rath.session.outcome import NeedsDecision
from rath.session.persistence.store import FileStore
from rath.testing import tool_call
from rath.testing.store import FakeSessionStore
from tests.support.api import Body, partial_beside, provider_without_secrets
from tests.support.logs import LogMaker
from tests.support.sessions import FunctionTool, cancelled_session, run
from tests.support.waiting import PATIENCE


def test_save_says_where_the_session_stands() -> None:
    session = Session.from_user_message("hi")
    assert session.save() == str(FileStore().path(session.id))
    assert Session.load(session.save()).chunk_table == session.chunk_table


def test_save_waits_for_the_run() -> None:
    go = threading.Event()
    out = run([lambda _: "one" if go.wait(PATIENCE) else "late"])
    threading.Timer(0.05, go.set).start()
    assert Session.load(out.save()).text() == "one"


def test_a_failed_session_is_not_saved() -> None:
    with pytest.raises(RuntimeError, match="the model broke"):
        run([RuntimeError("the model broke")]).save()


def test_a_file_of_its_own_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new" / "one.jsonl"
    Session.from_user_message("first").save(path=path)
    second = Session.from_user_message("second")
    assert second.save(path=str(path)) == str(path)
    assert Session.load(path).id == second.id


def test_a_path_and_a_store_are_too_much(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give one of them"):
        Session.from_user_message("hi").save(path=tmp_path / "x", store="elsewhere")


def test_a_store_may_be_given_as_it_is_or_by_its_url(tmp_path: Path) -> None:
    session = run(["done"]).synchronize()
    memory = FakeSessionStore()
    assert session.save(store=memory) == f"{memory.where}/{session.id}"
    assert Session.load(session.id, store=memory).chunk_table == session.chunk_table
    assert session.save(store=f"files://{tmp_path}/s") == f"{tmp_path}/s/{session.id}.jsonl"


def test_a_session_that_is_saved_twice_is_written_once() -> None:
    session = Session.from_user_message("hi")
    before = Path(session.save()).stat().st_mtime_ns
    assert Path(session.save()).stat().st_mtime_ns == before


def test_a_cancelled_session_is_saved_as_one() -> None:
    session = cancelled_session()
    assert Session.load(session.save()).outcome == session.outcome


def test_a_snapshot_is_saved_as_a_run_that_goes_on() -> None:
    where: list[str] = []

    def save(session: Session, _: object) -> str:
        where.append(session.save())
        return "saved"

    out = run([tool_call("save"), tool_call("save"), "done"], FunctionTool("save", save))
    out.synchronize()
    partial = partial_beside(Path(where[0]))
    assert isinstance(Session.load(partial).outcome, NeedsDecision)
    assert out.save() == where[0]
    assert not partial.exists()
    assert list(Session.load(out.id).record) == list(out.record)


def test_a_session_that_waits_is_saved_with_what_it_waits_for(tmp_path: Path) -> None:
    asked = assistant_turn_chunk(tool_calls=(tool_call_part("call_1", "f", "{}"),))
    log = LogMaker().begun().said("go").row(asked).intended("call_1").failed("it broke")
    FileStore().directory.mkdir(parents=True)
    partial_beside(FileStore().path(log.session)).write_bytes(log.data)
    waiting = Session.load(log.session)
    waiting.save(store=str(tmp_path / "other"))
    loaded = Session.load(log.session, store=str(tmp_path / "other"))
    assert loaded.outcome == waiting.outcome == NeedsDecision(log.session, ("call_1",))
    assert loaded.body.result().unfinished == waiting.body.result().unfinished


def test_a_disk_that_is_full_says_so_and_takes_the_session_later() -> None:
    session = run(["done"]).synchronize()
    store = FakeSessionStore(fail_at=2)
    with pytest.raises(PersistenceError, match="No space left"):
        session.save(store=store)
    session.save(store=store)
    assert list(Session.load(session.id, store=store).record) == list(session.record)


@pytest.mark.parametrize("fail_at", range(1, 8))
def test_whatever_write_fails_what_is_there_can_be_read(fail_at: int) -> None:
    session = run([tool_call("f"), "done"], FunctionTool("f", lambda *_: "x")).fork()
    store = FakeSessionStore(fail_at=fail_at)
    try:
        session.save(store=store)
    except PersistenceError:
        session.save(store=store)
    for each in store.stamps():
        Session.load(each, store=store)
    assert list(Session.load(session.id, store=store).record) == list(session.record)


def test_a_provider_is_told_without_secrets() -> None:
    provider = Provider(
        model="m",
        api_key="sk-canary",
        base_url="https://user:canary@host.example/v1?key=canary",
        extra_create_args={"extra_headers": {"x": "canary"}},
        user="canary",
    )
    said = provider_without_secrets(provider)
    assert said == {"model": "m", "base_url": "https://host.example/v1"}


def test_a_session_is_stored_with_its_provider_and_place() -> None:
    session = Session.from_user_message("hi").to("local").to(Provider(model="m", api_key="k"))
    loaded = Session.load(session.save())
    assert loaded.sandbox_backend == "local"
    assert loaded.provider is not None
    assert (loaded.provider.model, loaded.provider.api_key) == ("m", None)


def test_content_without_rows_is_stored() -> None:
    empty = Session.create("empty")
    assert Session.load(empty.save()).body.result() == Body(empty.chunk_table)
