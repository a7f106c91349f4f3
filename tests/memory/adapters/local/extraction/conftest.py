"""Stores with a model that reads their transcripts."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rath import memory
from rath._async.runtime import runtime
from rath.llm.chat_request import RathLLMChatRequest
from rath.memory.adapters.local import LocalMemoryBackend
from rath.memory.adapters.local.store import LocalStore
from rath.testing import ScriptedClient, Turn

SAID = (
    {"role": "user", "content": "I only ever drink oolong."},
    {"role": "assistant", "content": "Noted."},
)
OOLONG = {"content": "The user drinks oolong.", "category": "preferences", "rows": [0]}
OOLONG_URI = "memory://user/memories/extracted/preferences/65bf5d9b"


@contextmanager
def opened(root: Path, chat: object = None, **options: object) -> Generator[memory.MemoryStore]:
    """An open store; its closing waits for what is learned in the background."""
    backend = LocalMemoryBackend()
    store = backend.open(
        memory.MemoryStoreSpec(options={"path": str(root), "chat": chat, **options})
    )
    try:
        yield store
    finally:
        backend.close(store)


class _Watched(LocalMemoryBackend):
    """Shows the store that it opened."""

    native: LocalStore | None = None

    async def aopen(self, spec: memory.MemoryStoreSpec | None) -> LocalStore:
        self.native = await super().aopen(spec)
        return self.native


def resume(root: Path, chat: object) -> None:
    """Open a store, wait until what earlier openings left is done, and close it."""
    backend = _Watched()
    store = backend.open(memory.MemoryStoreSpec(options={"path": str(root), "chat": chat}))
    assert backend.native is not None
    assert backend.native.extraction is not None
    runtime().run(backend.native.extraction.await_all, label="a test")
    backend.close(store)


def answer(*memos: Any) -> str:
    """What a model answers."""
    return json.dumps(memos)


def model(*turns: Turn) -> ScriptedClient:
    """A model that gives these answers; one that finds the tea by default."""
    return ScriptedClient(turns or [answer(OOLONG)])


def commit(
    store: memory.MemoryStore,
    messages: Sequence[object] = SAID,
    *,
    session: str = "s",
    wait: bool = True,
    **options: Any,
) -> memory.MemoryCommitResult:
    """Commit and return the result."""
    result = store.dispatch(memory.MemoryOpCommit(session, messages, wait=wait, **options))
    assert isinstance(result, memory.MemoryCommitResult), result
    return result


def refused(store: memory.MemoryStore, **options: Any) -> memory.MemoryExecutionFailure:
    """Commit, and return the failure."""
    result = store.dispatch(memory.MemoryOpCommit("s", SAID, wait=True, **options))
    assert isinstance(result, memory.MemoryExecutionFailure), result
    return result


def record_at(root: Path) -> dict[str, Any]:
    """The record of the only extraction."""
    [path] = root.glob("session/*/commits/*/extraction.json")
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def notes_in(root: Path) -> dict[str, str]:
    """The notes below a store, by their places."""
    return {
        path.relative_to(root).as_posix(): path.read_text("utf-8")
        for path in sorted(root.rglob("*.md"))
    }


class GatedModel:
    """A model that answers when the test lets it."""

    def __init__(self, *turns: Turn) -> None:
        self.asked = threading.Event()
        self.gate = threading.Event()
        self._inner = model(*turns)

    def complete(self, request: RathLLMChatRequest) -> Any:
        self.asked.set()
        assert self.gate.wait(50)
        return self._inner.complete(request)


@pytest.fixture
def gated() -> Generator[GatedModel]:
    """A model whose gate is open at the end, whatever happens."""
    waiting = GatedModel()
    yield waiting
    waiting.gate.set()


Config = Callable[..., None]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Writes the entry "reader" of `llm.providers`."""

    def write(**entry: str) -> None:
        home = tmp_path / "openrath-home"
        home.mkdir(exist_ok=True)
        path = home / "config.json"
        path.write_text(json.dumps({"llm": {"providers": {"reader": entry}}}))
        path.chmod(0o600)

    return write
