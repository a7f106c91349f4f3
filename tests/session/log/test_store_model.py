"""Any sequence of operations leaves files and memory with the same logs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rath.errors import PersistenceError
from rath.session.persistence.store import FileStore, SessionLog, SessionStore
from rath.testing import FakeSessionStore

FULL = os.environ.get("RATH_FULL") == "1"
SESSIONS = st.sampled_from([UUID(int=1), UUID(int=2)])
LINES = st.binary(max_size=6).map(lambda line: line.replace(b"\n", b"") + b"\n")


class Stores(RuleBasedStateMachine):
    """The same is asked of two stores, and they have to answer alike."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.stores: tuple[SessionStore, SessionStore] = (
            FileStore(Path(self.directory.name) / "sessions"),
            FakeSessionStore(),
        )
        self.logs: dict[UUID, tuple[SessionLog, SessionLog]] = {}

    def both(self, ask: Callable[[SessionStore], object]) -> list[object]:
        """Return what both stores answer; a refusal is an answer."""
        answers: list[object] = []
        for store in self.stores:
            try:
                answers.append(ask(store))
            except PersistenceError:
                answers.append("refused")
        return answers

    def agree(self, ask: Callable[[SessionStore], object]) -> None:
        first, second = self.both(ask)
        assert first == second

    def open(self, session: UUID, ask: Callable[[SessionStore], object]) -> None:
        first, second = self.both(ask)
        if isinstance(first, SessionLog) and isinstance(second, SessionLog):
            self.logs[session] = first, second
        assert isinstance(first, SessionLog) == isinstance(second, SessionLog)

    @rule(session=SESSIONS)
    def create(self, session: UUID) -> None:
        if session not in self.logs:  # files wait a moment for a writer to end
            self.open(session, lambda store: store.create(session))

    @rule(session=SESSIONS, keep=st.integers(0, 12))
    def reopen(self, session: UUID, keep: int) -> None:
        if session not in self.logs:
            self.open(session, lambda store: store.reopen(session, keep))

    @rule(session=SESSIONS, line=LINES, durable=st.booleans())
    def append(self, session: UUID, line: bytes, durable: bool) -> None:
        for log in self.logs.get(session, ()):
            log.append(line, durable=durable)

    @rule(session=SESSIONS)
    def finish(self, session: UUID) -> None:
        for log in self.logs.pop(session, ()):
            log.finish()

    @rule(session=SESSIONS)
    def abandon(self, session: UUID) -> None:
        for log in self.logs.pop(session, ()):
            log.abandon()

    @rule(session=SESSIONS, size=st.integers(0, 12), line=LINES)
    def add(self, session: UUID, size: int, line: bytes) -> None:
        self.agree(lambda store: store.append_to_finished(session, size, line))

    @rule(session=SESSIONS, size=st.integers(0, 12), line=LINES)
    def rewrite(self, session: UUID, size: int, line: bytes) -> None:
        if session not in self.logs:
            self.agree(lambda store: store.rewrite(session, line, size=size))

    @rule(session=SESSIONS)
    def delete(self, session: UUID) -> None:
        if session not in self.logs:
            self.agree(lambda store: store.delete(session))

    @rule(session=SESSIONS)
    def restore(self, session: UUID) -> None:
        if session not in self.logs:
            self.agree(lambda store: store.restore(session))

    @rule()
    def empty_trash(self) -> None:
        self.agree(lambda store: store.empty_trash())

    @invariant()
    def read_the_same(self) -> None:
        for session in (UUID(int=1), UUID(int=2)):
            found = [store.read(session) for store in self.stores]
            first, second = [
                None if each is None else (each.data, each.is_finished) for each in found
            ]
            assert first == second
            self.agree(lambda store: store.is_being_written(session))  # noqa: B023  # called at once

    def teardown(self) -> None:
        for logs in self.logs.values():
            for log in logs:
                log.abandon()
        self.directory.cleanup()


TestStores = Stores.TestCase
TestStores.settings = settings(max_examples=3000 if FULL else 30, stateful_step_count=30)
