"""Any sequence of writes, forgetting and clocks leaves a store as a small model says."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rath.memory import MemoryOpCommit
from tests.support.forgetting import Clock, files_with, forget, found, listed, opened, read, write


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
        self.store.dispatch(MemoryOpCommit(session, [{"role": "user", "content": word}]))
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
