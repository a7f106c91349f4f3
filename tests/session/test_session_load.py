"""`Session.load`: by id, by text, by path, out of any store."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from rath.errors import PersistenceError, SessionDamaged
from rath.llm.provider import Provider
from rath.session import Session, load_session
from rath.session.outcome import Completed, NeedsDecision
from rath.session.persistence.store import FileStore
from tests.support.session_files import operation
from tests.support.sessions import run

GOLDEN = Path(__file__).parents[1] / "data" / "v1"


@pytest.fixture
def saved() -> Session:
    """A run whose parent is stored too."""
    session = run(["hi"], user=Session.from_user_message("go")).synchronize()
    session.save()
    return session


def test_session_is_loaded_by_its_id_as_uuid_or_text(saved: Session) -> None:
    for name in (saved.id, str(saved.id), saved.id.hex):
        loaded = Session.load(name)
        assert (loaded.id, loaded.text(), loaded.outcome) == (saved.id, "hi", Completed())


def test_session_is_loaded_from_a_file_and_its_parents_from_beside_it(
    saved: Session, tmp_path: Path
) -> None:
    path = FileStore().path(saved.id)
    for name in (path, str(path)):
        assert Session.load(name).provenance.parents[0].n_rows == 1
    copy = tmp_path / "copy.jsonl"
    shutil.copy(path, copy)
    with pytest.raises(SessionDamaged, match="which is not there"):
        Session.load(copy)
    assert Session.load(copy, store=FileStore()).record == saved.record
    assert len(Session.load(copy, recover=True).chunk_table) == 0


def test_store_is_given_as_such_or_by_its_url(saved: Session, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    saved.save(store=str(elsewhere))
    for store in (FileStore(elsewhere), str(elsewhere), f"files://{elsewhere}"):
        assert Session.load(saved.id, store=store).chunk_table == saved.chunk_table


def test_file_that_stands_alone_is_loaded_alone(saved: Session, tmp_path: Path) -> None:
    alone = tmp_path / "alone" / "run.jsonl"
    saved.fork().merge(saved.fork()).save(path=alone)
    loaded = Session.load(alone)
    assert loaded.chunk_table == saved.chunk_table
    assert loaded.cumulative_usage == saved.cumulative_usage
    assert [edge.body for edge in loaded.provenance.parents] == [None, None]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PersistenceError, match="not found"):
        Session.load(uuid4())
    with pytest.raises(PersistenceError, match="not found"):
        Session.load(tmp_path / "none.jsonl")
    with pytest.raises(PersistenceError, match="cannot be read"):
        Session.load(tmp_path)


@pytest.mark.parametrize("name", ["plain", "tools", "separators", "merged"])
def test_files_of_version_1_are_sessions_too(name: str) -> None:
    path = GOLDEN / f"{name}.jsonl"
    persisted = load_session(UUID(int=0), path=path)
    loaded = Session.load(path)
    assert (loaded.id, loaded.chunk_table) == (persisted.header.id, persisted.chunk_table)
    assert loaded.cumulative_usage == persisted.cumulative_usage
    assert loaded.parent_session_ids == persisted.header.parent_session_ids
    assert (loaded.outcome, len(loaded.record)) == (Completed(), 0)


def test_file_of_version_1_that_was_cut_off_waits() -> None:
    loaded = Session.load(GOLDEN / "crashed.jsonl.__partial__")
    assert loaded.outcome == NeedsDecision(loaded.id, ())


def test_loaded_session_goes_on_like_any_other(saved: Session) -> None:
    loaded = Session.load(saved.id)
    further = run(["more"], user=loaded).synchronize()
    assert further.text() == "more"
    assert further.parent_session_ids[0] == saved.id
    assert saved.merge(loaded).chunk_table == saved.chunk_table


def test_what_is_made_of_a_loaded_session_is_stored_by_what_is_new(saved: Session) -> None:
    store = FileStore()
    first = run(["more"], user=Session.load(saved.id)).synchronize()
    first.save()
    second = Session.load(first.id).fork().merge(Session.load(saved.id))
    second.save()
    read = load_session(second.id).loaded
    assert read is not None
    assert sum(part.stop - part.start for part in read.header.rows) == len(second.chunk_table)
    assert store.path(second.id).stat().st_size < 3000
    again = Session.load(second.id)
    assert (again.chunk_table, again.record) == (second.chunk_table, second.record)


def test_late_entries_of_a_loaded_session_are_loaded_too(saved: Session) -> None:
    Session.load(saved.id).add_entry(operation(kind="check"))
    assert len(Session.load(saved.id).record) == len(saved.record) + 1


def test_persisted_session_gives_the_session_itself(saved: Session) -> None:
    persisted = load_session(saved.id)
    assert persisted.session().id == saved.id
    assert (persisted.record, persisted.outcome) == (saved.record, Completed())
    assert (persisted.closed, persisted.path) == (True, FileStore().path(saved.id))
    assert persisted.cumulative_usage == saved.cumulative_usage
    assert persisted.trailer_raw is not None
    assert persisted.trailer_raw["final_chunk_count"] == 2


def test_resumable_pair_has_the_record_and_counts_its_calls_once(saved: Session) -> None:
    user, _ = load_session(saved.id).to_resumable_pair()
    assert user.id != saved.id
    assert user.record == saved.record
    assert user.merge(saved).cumulative_usage == saved.cumulative_usage


def test_provider_comes_back_without_its_key() -> None:
    provider = Provider(model="m", api_key="secret", temperature=0.5, timeout=7.0)
    session = Session.from_user_message("go").to(provider)
    session.save()
    loaded = Session.load(session.id).provider
    assert loaded == Provider(model="m", temperature=0.5, timeout=7.0)
    assert "secret" not in FileStore().path(session.id).read_text()
