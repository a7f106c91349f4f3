"""Forgetting on request removes notes, directories and sessions."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rath import memory
from rath.memory.adapters.local import LocalMemoryBackend, forgetting, notes
from rath.memory.adapters.local.catalog import Catalog, RebuildReport, rebuild, time_of
from rath.memory.adapters.local.store import LocalStore
from rath.memory.driver import OperationFailed
from rath.memory.notes import SESSION_ID
from tests.support.memories import Clock, files_with, forget, found, listed, opened, read, write

A = "memory://user/memories/facts/a"


class Embedding:
    """Gives each text the same vector."""

    model = "same"

    def embed(self, texts: list[str]) -> list[list[float]]:
        return [[0.6, 0.8] for _ in texts]


def vectors_in(root: Path) -> list[bytes]:
    """What the files of vectors hold after their heads."""
    return [path.read_bytes()[64:] for path in root.glob("vectors-*")]


def test_a_note_goes_with_all_that_stands_next_to_it(store: memory.MemoryStore, root: Path) -> None:
    write(store, A, "zebra", session="s", rows=(3,))
    (root / "user/memories/facts/a.vec").write_text("zebra")
    assert forget(store, A) == (A,)
    assert read(store, A) is None
    assert list((root / "user/memories/facts").iterdir()) == []
    assert files_with(root, "zebra") == []


def test_a_name_of_a_note_and_of_a_directory_means_the_note_first(
    store: memory.MemoryStore,
) -> None:
    for uri in (A, f"{A}/b"):
        write(store, uri, "x")
    assert forget(store, A) == (A,)
    write(store, A, "x")
    assert forget(store, A, recursive=True) == (A, f"{A}/b")


def test_a_scope_can_be_forgotten_and_the_complete_store_cannot(store: memory.MemoryStore) -> None:
    write(store, A, "x")
    write(store, "memory://agent/b", "y")
    assert forget(store, "memory:/", recursive=True) == "invalid_uri"
    assert forget(store, "memory://user", recursive=True) == (A,)
    assert listed(store, "memory://agent") == ["memory://agent/b"]
    write(store, A, "again")
    assert listed(store) == [A]


def test_a_resource_is_a_directory(store: memory.MemoryStore, root: Path, tmp_path: Path) -> None:
    source = tmp_path / "talk.txt"
    source.write_text("zebra")
    result = store.dispatch(memory.MemoryOpResource(str(source)))
    assert isinstance(result, memory.MemoryWriteResult)
    assert forget(store, result.uri) == "unsupported"
    gone = forget(store, result.uri, recursive=True)
    assert gone == (f"{result.uri}/meta", f"{result.uri}/source.txt")
    assert files_with(root, "zebra") == []


def test_a_file_that_is_no_note_is_forgotten_by_its_complete_name(
    store: memory.MemoryStore, root: Path
) -> None:
    write(store, A, "x")
    (root / "user/data.json").write_text("{}")
    assert forget(store, "memory://user/data.json") == ("memory://user/data.json",)
    assert forget(store, "memory://user/data.json") == "not_found"


def test_what_the_store_keeps_for_itself_is_not_there(
    store: memory.MemoryStore, root: Path
) -> None:
    write(store, A, "x", session="s")
    assert forget(store, f"{A}.meta.json") == "not_found"
    assert (root / "user/memories/facts/a.meta.json").exists()


def test_a_transcript_is_named_by_its_directory(store: memory.MemoryStore, root: Path) -> None:
    for text in ("zebra", "giraffe"):
        store.dispatch(memory.MemoryOpCommit("s", [{"role": "user", "content": text}]))
    first, second = sorted((root / "session/s/commits").iterdir())
    uri = f"memory://session/s/commits/{first.name}"
    assert forget(store, f"{uri}/messages.json") == (uri,)
    assert found(store, "zebra giraffe") == [
        f"memory://session/s/commits/{second.name}/messages.json"
    ]


def test_links_are_removed_and_never_followed(
    store: memory.MemoryStore, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.md").write_text("x")
    write(store, A, "x")
    (root / "user/link").symlink_to(outside)
    (root / "user/memories/out.md").symlink_to(outside / "a.md")
    for uri in ("memory://user/link", "memory://user/link/a", "memory://user/memories/out"):
        assert forget(store, uri, recursive=True) == "invalid_uri"
    forget(store, "memory://user", recursive=True)
    assert not (root / "user").exists()
    assert (outside / "a.md").read_text() == "x"


def test_a_link_within_the_store_leads_to_the_note_and_is_removed_itself(
    store: memory.MemoryStore, root: Path
) -> None:
    write(store, "memory://agent/a", "zebra")
    (root / "user").mkdir()
    (root / "user/link").symlink_to(root / "agent")
    (root / "user/store").symlink_to(root)
    assert forget(store, "memory://user/store/index.sqlite") == "invalid_uri"
    assert forget(store, "memory://user/link/a") == ("memory://agent/a",)
    assert files_with(root, "zebra") == []
    assert forget(store, "memory://user/link") == ("memory://user/link",)
    assert (root / "agent").is_dir()


def test_an_expired_note_is_removed_and_yet_not_found(
    store: memory.MemoryStore, root: Path, clock: Clock
) -> None:
    write(store, A, "zebra", until=clock.after(1))
    write(store, f"{A}/b", "giraffe", until=clock.after(1))
    clock.turn(1)
    assert forget(store, A) == "not_found"
    assert forget(store, A, recursive=True) == ()
    assert files_with(root, "zebra") + files_with(root, "giraffe") == []


def test_all_from_a_session_is_erased(store: memory.MemoryStore, root: Path) -> None:
    store.dispatch(memory.MemoryOpCommit("s", [{"role": "user", "content": "zebra"}]))
    store.dispatch(memory.MemoryOpCommit("s", [{"role": "user", "content": "giraffe"}]))
    write(store, A, "zebra note", session="s", rows=(1,))
    archives = [
        f"memory://session/s/commits/{each.name}" for each in (root / "session/s/commits").iterdir()
    ]
    assert forget(store, session="s") == tuple(sorted([*archives, A]))
    assert found(store, "zebra giraffe") == []
    assert not (root / "session/s").exists()
    assert files_with(root, "zebra") + files_with(root, "giraffe") == []
    assert forget(store, session="s") == ()


@pytest.mark.parametrize("session", ["", "a/b", "..", "."])
def test_what_names_no_session_is_refused(store: memory.MemoryStore, session: str) -> None:
    assert forget(store, session=session) == "invalid_uri"


def test_files_by_other_hands_do_not_stop_an_erasing(store: memory.MemoryStore, root: Path) -> None:
    write(store, A, "zebra", session="s")
    (root / "user/other.meta.json").write_text("[")
    (root / "user/dir.meta.json").mkdir()
    (root / "user/gone.meta.json").write_bytes(
        (root / "user/memories/facts/a.meta.json").read_bytes()
    )
    assert forget(store, session="s") == (A,)
    assert (root / "user/other.meta.json").exists()
    assert not (root / "user/gone.meta.json").exists()


def test_several_threads_forget_at_once(store: memory.MemoryStore, root: Path) -> None:
    uris = [f"memory://user/{number}" for number in range(16)]
    for uri in uris:
        write(store, uri, "zebra")
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(partial(forget, store), uris)) == [(uri,) for uri in uris]
    assert listed(store) == []
    assert files_with(root, "zebra") == []


def test_vectors_of_what_is_forgotten_are_overwritten(root: Path) -> None:
    options = {"path": str(root), "embedding": Embedding()}
    backend = LocalMemoryBackend()
    opened_store = backend.open(memory.MemoryStoreSpec(options=options))
    try:
        opened_store.dispatch(memory.MemoryOpWrite(A, "zebra", wait=True))
        assert any(any(vectors) for vectors in vectors_in(root))
        assert forget(opened_store, A) == (A,)
        assert not any(any(vectors) for vectors in vectors_in(root))
        assert files_with(root, "zebra") == []
    finally:
        backend.close(opened_store)


def test_a_model_that_reads_an_erased_transcript_brings_nothing_back(root: Path) -> None:
    class Reader:
        """A model that is at work while the session is erased."""

        def complete(self, request: object) -> str:
            with opened(root, Clock()) as other:
                forget(other, session="s")
            return '[{"content": "likes zebras", "category": "taste", "rows": [0]}]'

    backend = LocalMemoryBackend()
    spec = memory.MemoryStoreSpec(options={"path": str(root), "chat": Reader()})
    reading = backend.open(spec)
    try:
        said = [{"role": "user", "content": "I like zebras."}]
        result = reading.dispatch(memory.MemoryOpCommit("s", said, rows=(0,), wait=True))
        assert isinstance(result, memory.MemoryExecutionFailure)
        assert result.kind == "not_found"
        assert found(reading, "zebras") == []
    finally:
        backend.close(reading)
    assert files_with(root, "zebra") == []


def test_more_notes_than_a_batch(
    store: memory.MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forgetting, "BATCH", 2)
    uris = tuple(f"memory://user/{number}" for number in range(5))
    for uri in uris:
        write(store, uri, "x", session="s")
    assert forget(store, session="s") == uris


def test_a_note_that_comes_too_late_from_an_erased_session_is_not_written(root: Path) -> None:
    catalog = Catalog(root)
    store = LocalStore(root, catalog)
    try:
        archive = root / "session/s/commits/1"
        archive.mkdir(parents=True)
        op = memory.MemoryOpWrite(A, "zebra", metadata={SESSION_ID: "s"})
        assert isinstance(notes.write(store, op, only_if=archive.is_dir), memory.MemoryWriteResult)
        forgetting.forget(store, memory.MemoryOpForget(session_id="s"))
        with pytest.raises(OperationFailed, match="is gone"):
            notes.write(store, op, only_if=archive.is_dir)
        assert files_with(root, "zebra") == []
    finally:
        catalog.close()


def test_a_directory_need_not_be_read_again_for_what_rath_removed(root: Path) -> None:
    root.mkdir()
    native = LocalStore(root, Catalog(root))
    for name in "ab":
        notes.write(native, memory.MemoryOpWrite(f"memory://user/{name}", name))
    forgetting.forget(native, memory.MemoryOpForget("memory://user/a"))
    known = native.catalog.use(lambda index: index.directory_time("user"))
    native.catalog.close()
    assert known == time_of(root / "user")


def test_many_notes_of_a_directory_leave_what_others_have(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rath.memory.adapters.local.index._FEW", 0)
    root.mkdir()
    native = LocalStore(root, Catalog(root))
    for place, text in (("d/a", "alpha beta"), ("d/b", "beta gamma"), ("c", "alpha")):
        notes.write(native, memory.MemoryOpWrite(f"memory://user/{place}", text))
    forgetting.forget(native, memory.MemoryOpForget("memory://user/d", recursive=True))
    left = native.catalog.use(lambda index: index.rows("SELECT word FROM vocabulary"))
    native.catalog.close()
    assert left == [("alpha",)]
    assert rebuild(root) == RebuildReport(n_files=1, n_wrong=0)


@dataclass
class Expected:
    """A note as it should be."""

    word: str
    until: float | None = None
    sources: set[str] = field(default_factory=set[str])
    is_remembered: bool = True


NAMES = ("a", "b", "dir/a", "dir/c")
names = st.sampled_from(NAMES)
# Long enough to be looked for in the bytes of a store.
words = st.sampled_from([f"zq{letter * 6}qz" for letter in "abcd"])
sessions = st.sampled_from(["s-1", "s-2"])
spans = st.none() | st.integers(1, 20)


class ForgettingMachine(RuleBasedStateMachine):
    """A store beside a small model of it."""

    def __init__(self) -> None:
        super().__init__()
        self.exits = ExitStack()
        self.root = Path(self.exits.enter_context(tempfile.TemporaryDirectory())).resolve()
        self.clock = Clock()
        self.opened = ExitStack()
        self.store = self.opened.enter_context(opened(self.root, self.clock))
        self.notes: dict[str, Expected] = {}
        self.transcripts: dict[str, set[str]] = {}

    def teardown(self) -> None:
        self.opened.close()
        self.exits.close()

    def seconds(self) -> float:
        return self.clock.now.timestamp()

    def alive(self) -> dict[str, Expected]:
        now = self.seconds()
        return {
            name: note for name, note in self.notes.items() if not note.until or note.until > now
        }

    def drop(self, *gone: str) -> None:
        for name in gone:
            del self.notes[name]

    @rule(name=names, word=words, span=spans, session=st.none() | sessions)
    def write(self, name: str, word: str, span: int | None, session: str | None) -> None:
        until = None if span is None else self.clock.after(span)
        write(self.store, f"memory://user/{name}", f"{word} note", until=until, session=session)
        end = None if span is None else self.seconds() + span
        new = Expected(word, end, {session} if session else set(), session is None)
        old = self.alive().get(name)
        if old is not None and old.word == word:
            new.until = None if None in {old.until, end} else max(old.until or 0, end or 0)
            new.sources |= old.sources
            new.is_remembered |= old.is_remembered
        self.notes[name] = new

    @rule(session=sessions, word=words)
    def commit(self, session: str, word: str) -> None:
        self.store.dispatch(memory.MemoryOpCommit(session, [{"role": "user", "content": word}]))
        self.transcripts.setdefault(session, set()).add(word)

    @rule(name=names)
    def forget_note(self, name: str) -> None:
        uri = f"memory://user/{name}"
        gone = forget(self.store, uri)
        assert gone == ((uri,) if name in self.alive() else "not_found")
        self.notes.pop(name, None)

    @rule()
    def forget_directory(self) -> None:
        below = {name for name in self.notes if name.startswith("dir/")}
        seen = tuple(sorted(f"memory://user/{name}" for name in below & self.alive().keys()))
        gone = forget(self.store, "memory://user/dir", recursive=True)
        assert gone == seen or (gone == "not_found" and not seen)
        self.drop(*below)

    @rule(session=sessions)
    def erase(self, session: str) -> None:
        gone = {n for n, note in self.notes.items() if note.sources == {session}}
        gone = {name for name in gone if not self.notes[name].is_remembered}
        seen = {f"memory://user/{name}" for name in gone & self.alive().keys()}
        for note in self.notes.values():
            note.sources.discard(session)
            note.is_remembered |= not note.sources
        erased = forget(self.store, session=session)
        assert seen == {uri for uri in erased if uri.startswith("memory://user/")}
        self.drop(*gone)
        self.transcripts.pop(session, None)

    @rule(seconds=st.integers(-5, 30))
    def turn_clock(self, seconds: int) -> None:
        self.clock.turn(seconds)

    @rule()
    def reopen(self) -> None:
        self.opened.close()
        self.store = self.opened.enter_context(opened(self.root, self.clock))
        # Expired notes were removed: no clock brings them back.
        self.notes = self.alive()

    @rule()
    def write_after_a_while(self) -> None:
        self.clock.turn(100)
        write(self.store, "memory://agent/else", "else")
        self.notes = self.alive()

    @invariant()
    def notes_are_as_expected(self) -> None:
        alive = self.alive()
        uris = {f"memory://user/{name}": note for name, note in alive.items()}
        assert set(listed(self.store)) == uris.keys()
        assert {uri for uri in found(self.store, "note") if "/user/" in uri} == uris.keys()
        for name in NAMES:
            result = read(self.store, f"memory://user/{name}")
            note = alive.get(name)
            if note is None:
                assert result is None
                continue
            assert result is not None
            assert result.data == f"{note.word} note"
            assert result.expires_at == note.until
            assert {source.session_id for source in result.sources} == note.sources

    @rule()
    def nothing_else_is_in_the_files(self) -> None:
        forget(self.store, session="s-none")
        write(self.store, "memory://agent/trigger", "trigger")
        forget(self.store, "memory://agent/trigger")
        known = {note.word for note in self.notes.values()}
        known |= {word for said in self.transcripts.values() for word in said}
        for letter in "abcd":
            word = f"zq{letter * 6}qz"
            assert bool(files_with(self.root, word)) == (word in known)


ForgettingMachine.TestCase.settings = settings(
    max_examples=8, stateful_step_count=15, deadline=None
)
test_any_sequence_of_changes = ForgettingMachine.TestCase
