"""The adapter on a real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rath import memory
from rath.memory.notes import EXPIRES_AT, note_op
from tests.support.memories import failed, found, text_at
from tests.support.openviking_models import LEARNED
from tests.support.openviking_service import Service
from tests.support.waiting import at_a_deadline

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def store(openviking: Service) -> Iterator[memory.MemoryStore]:
    """A store of a user whom nobody else is."""
    backend = memory.get("openviking")
    opened = backend.open(openviking.spec())
    yield opened
    backend.close(opened)


def test_a_waited_write_is_found_at_once(store: memory.MemoryStore) -> None:
    uri = "memory://user/memories/places/pond"
    store.dispatch(memory.MemoryOpWrite(uri, "The heron waits at the pond", wait=True))
    assert found(store, "heron pond")[0] == uri


def test_a_search_in_a_session_finds_too(store: memory.MemoryStore) -> None:
    uri = "memory://user/memories/places/pond"
    store.dispatch(memory.MemoryOpWrite(uri, "The heron waits at the pond", wait=True))
    result = store.dispatch(memory.MemoryOpSearch("heron pond", session_id="s1"))
    assert isinstance(result, memory.MemoryFindResult)
    assert uri in [hit.uri for hit in result.hits]


def test_a_memory_is_read_to_the_letter(store: memory.MemoryStore) -> None:
    uri, text = "memory://user/memories/places/odd", "  <!-- x -->\r\n\n鷺 \n\n\n"
    store.dispatch(memory.MemoryOpWrite(uri, text))
    read = store.dispatch(memory.MemoryOpRead(uri, encoding=None))
    assert isinstance(read, memory.MemoryReadResult)
    assert read.data == text.encode()
    store.dispatch(memory.MemoryOpWrite(uri, text[1:]))
    assert text_at(store, uri) == text[1:]


def test_names_that_the_server_would_change_stay_apart(store: memory.MemoryStore) -> None:
    names = ["a b", "a_b", "a:b", "a?b", "a\\b", "report.v1", "...", ".hidden"]
    for name in names:
        store.dispatch(memory.MemoryOpWrite(f"memory://user/memories/odd/{name}", name))
    listed = store.dispatch(memory.MemoryOpList("memory://user/memories/odd"))
    assert isinstance(listed, memory.MemoryListResult)
    assert sorted(entry.name for entry in listed.entries) == sorted(names)
    for name in names:
        assert text_at(store, f"memory://user/memories/odd/{name}") == name


def test_the_complete_store_can_be_listed(store: memory.MemoryStore) -> None:
    uri = "memory://user/memories/places/pond"
    store.dispatch(memory.MemoryOpWrite(uri, "x"))
    listed = store.dispatch(memory.MemoryOpList("memory:/"))
    assert isinstance(listed, memory.MemoryListResult)
    assert [entry.name for entry in listed.entries] == ["agent", "resources", "session", "user"]
    tree = store.dispatch(memory.MemoryOpTree("memory:/", depth=4))
    assert isinstance(tree, memory.MemoryListResult)
    assert uri in [entry.uri for entry in tree.entries]


def test_remembering_twice_keeps_one_note(store: memory.MemoryStore) -> None:
    first, second = (store.dispatch(note_op("Herons wait.", session_id=each)) for each in "ab")
    assert isinstance(first, memory.MemoryWriteResult)
    assert first == second


def test_a_note_that_expires_is_refused(store: memory.MemoryStore) -> None:
    op = note_op("Herons wait.", ttl=60)
    assert EXPIRES_AT in (op.metadata or {})
    assert failed(store, op) == "unsupported"


def test_a_file_is_taken_in_and_found(store: memory.MemoryStore, tmp_path: Path) -> None:
    source = tmp_path / "field notes.md"
    source.write_text("The kingfisher dives for minnows.")
    target = "memory://user/resources"
    first = store.dispatch(memory.MemoryOpResource(str(source), target, reason="birds"))
    again = store.dispatch(memory.MemoryOpResource(source.as_uri(), target))
    assert isinstance(first, memory.MemoryWriteResult)
    assert again == first
    assert first.uri.startswith("memory://user/resources/field_notes-")
    assert any(
        uri.startswith(first.uri) for uri in found(store, "kingfisher minnows", target_uri=target)
    )


def test_two_files_of_one_name_are_both_preserved(
    store: memory.MemoryStore, tmp_path: Path
) -> None:
    uris: set[str] = set()
    for text in ("one", "two"):
        source = tmp_path / "notes.md"
        source.write_text(text)
        taken = store.dispatch(memory.MemoryOpResource(str(source), "memory://user/resources"))
        assert isinstance(taken, memory.MemoryWriteResult)
        uris.add(taken.uri)
    listed = store.dispatch(memory.MemoryOpList("memory://user/resources"))
    assert isinstance(listed, memory.MemoryListResult)
    assert uris <= {entry.uri for entry in listed.entries}


def test_a_directory_is_read_in_short(store: memory.MemoryStore, tmp_path: Path) -> None:
    source = tmp_path / "notes.md"
    source.write_text("The kingfisher dives for minnows.")
    taken = store.dispatch(memory.MemoryOpResource(str(source), "memory://user/resources"))
    assert isinstance(taken, memory.MemoryWriteResult)
    short = store.dispatch(memory.MemoryOpRead(taken.uri, level="abstract"))
    assert isinstance(short, memory.MemoryReadResult)
    assert short.level == "abstract"
    assert short.data
    assert failed(store, memory.MemoryOpRead(taken.uri)) == "not_found"


def test_what_a_waited_commit_learned_is_found_and_forgotten_with_its_session(
    store: memory.MemoryStore,
) -> None:
    used = "memory://user/memories/places/pond"
    store.dispatch(memory.MemoryOpWrite(used, "The heron waits at the pond"))
    said = [
        {"role": "user", "content": "I like green tea"},
        {"role": "assistant", "content": "So?"},
    ]
    done = store.dispatch(memory.MemoryOpCommit("run-1", said, used_uris=(used,), wait=True))
    assert isinstance(done, memory.MemoryCommitResult)
    assert done.extracted_count == 1
    assert done.archived_uri == "memory://session/run-1/history/archive_001"
    assert "I like green tea" in str(text_at(store, done.archived_uri))
    learned = [uri for uri in found(store, "green tea") if uri.endswith("/tea")]
    assert len(learned) == 1
    assert text_at(store, learned[0]) == LEARNED
    forgotten = store.dispatch(memory.MemoryOpForget(session_id="run-1"))
    assert forgotten == memory.MemoryForgetResult(
        tuple(sorted((*learned, "memory://session/run-1")))
    )
    assert learned[0] not in found(store, "green tea")
    assert failed(store, memory.MemoryOpRead(learned[0])) == "not_found"
    assert isinstance(store.dispatch(memory.MemoryOpRead(used)), memory.MemoryReadResult)


def test_a_commit_that_takes_too_long_says_what_was_archived(store: memory.MemoryStore) -> None:
    said = [{"role": "user", "content": "I like green tea"}]

    def run_until(deadline: float) -> memory.MemoryExecutionFailure:
        op = memory.MemoryOpCommit(f"run-{deadline:g}", said, wait=True, timeout_seconds=deadline)
        late = store.dispatch(op)
        assert isinstance(late, memory.MemoryExecutionFailure)
        assert late.kind == "timeout"
        return late

    late = at_a_deadline(
        run_until, lambda late: "archive_001" in late.message, deadlines=(4.0, 8.0, 16.0)
    )
    assert re.search(r"memory://session/run-\d+/history/archive_001", late.message)


def test_users_do_not_see_each_other(openviking: Service, store: memory.MemoryStore) -> None:
    uri = "memory://user/memories/places/pond"
    store.dispatch(memory.MemoryOpWrite(uri, "The heron waits at the pond", wait=True))
    backend = memory.get("openviking")
    other = backend.open(openviking.spec())
    try:
        assert failed(other, memory.MemoryOpRead(uri)) == "not_found"
        assert uri not in found(other, "heron pond")
    finally:
        backend.close(other)


def test_a_wrong_key_is_reported_at_once_and_not_displayed(openviking: Service) -> None:
    spec = openviking.spec(api_key="a-key-that-is-wrong-0123456789")
    with pytest.raises(memory.MemoryBackendError, match="Invalid API Key") as caught:
        memory.get("openviking").open(spec)
    assert "a-key-that-is-wrong" not in str(caught.value)
    assert "a-key-that-is-wrong" not in repr(spec)


def test_keys_of_the_environment_are_not_sent(
    openviking: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENVIKING_API_KEY", openviking.key)
    with pytest.raises(memory.MemoryBackendError, match="Missing API Key"):
        memory.get("openviking").open(
            memory.MemoryStoreSpec(user_id="u", options={"url": openviking.url})
        )


def test_a_second_store_on_the_path_attaches_to_the_server(openviking: Service) -> None:
    spec = memory.MemoryStoreSpec(
        options={"path": str(openviking.path), "server": ["/no/such/program"]}
    )
    backend = memory.get("openviking")
    store = backend.open(spec)
    try:
        uri = "memory://user/memories/places/embedded"
        assert isinstance(store.dispatch(memory.MemoryOpWrite(uri, "x")), memory.MemoryWriteResult)
    finally:
        backend.close(store)
    again = backend.open(spec)  # the first one's user still holds the server
    backend.close(again)
