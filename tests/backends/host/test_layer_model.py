"""Forks of forks against dictionaries of what they hold."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule

from rath.backend import Backend, BackendSandbox
from rath.backend.local import LocalBackend
from rath.backend.snapshots import NewFile
from tests.support.workspaces import (
    CopyingBackend,
    content_of,
    forked,
    has,
    opened,
    put,
    sh,
    text_of,
    wait_for,
)

FILE = 0o100644


class Forking(RuleBasedStateMachine):
    """Sandboxes and their forks against dictionaries of what they hold."""

    backend: Backend
    sandboxes: Bundle[BackendSandbox] = Bundle("sandboxes")
    paths = st.sampled_from(["a", "b", "d/a", "d/e/b"])
    texts = st.text("xyz", max_size=3)

    def __init__(self) -> None:
        super().__init__()
        self.models: dict[int, dict[str, str]] = {}
        self.opened: list[BackendSandbox] = []

    def known(self, sandbox: BackendSandbox, model: dict[str, str]) -> BackendSandbox:
        self.opened.append(sandbox)
        self.models[id(sandbox)] = model
        return sandbox

    @initialize(target=sandboxes)
    def begin(self) -> BackendSandbox:
        return self.known(opened(self.backend), {})

    @rule(target=sandboxes, source=sandboxes)
    def fork(self, source: BackendSandbox) -> BackendSandbox:
        return self.known(forked(source), dict(self.models[id(source)]))

    @rule(target=sandboxes, source=sandboxes, path=paths, text=texts)
    def fork_with_a_change(self, source: BackendSandbox, path: str, text: str) -> BackendSandbox:
        changes = {path: NewFile(text.encode(), FILE)}
        return self.known(forked(source, changes), {**self.models[id(source)], path: text})

    @rule(sandbox=sandboxes, path=paths, text=texts)
    def write(self, sandbox: BackendSandbox, path: str, text: str) -> None:
        put(sandbox, path, text)
        self.models[id(sandbox)][path] = text

    @rule(sandbox=sandboxes, path=paths, text=texts)
    def append(self, sandbox: BackendSandbox, path: str, text: str) -> None:
        sh(sandbox, f"mkdir -p $(dirname {path}); printf %s '{text}' >> {path}")
        model = self.models[id(sandbox)]
        model[path] = model.get(path, "") + text

    @rule(sandbox=sandboxes, path=paths)
    def remove(self, sandbox: BackendSandbox, path: str) -> None:
        sh(sandbox, f"rm -f {path}")
        self.models[id(sandbox)].pop(path, None)

    @rule(sandbox=sandboxes)
    def look(self, sandbox: BackendSandbox) -> None:
        frozen = sandbox.freeze()
        found = wait_for(frozen.amanifest)
        read = {path: content_of(frozen, path).decode() for path in found}
        assert read == self.models[id(sandbox)]

    @rule(sandbox=sandboxes, path=paths)
    def read(self, sandbox: BackendSandbox, path: str) -> None:
        model = self.models[id(sandbox)]
        assert has(sandbox, path) == (path in model)
        if path in model:
            assert text_of(sandbox, path) == model[path]

    def teardown(self) -> None:
        for sandbox in self.opened:
            self.look(sandbox)
            self.backend.close(sandbox)


class ForkingByCopies(Forking):
    backend = CopyingBackend()


class ForkingByOverlays(Forking):
    backend = LocalBackend()


FEW = settings(max_examples=8, stateful_step_count=15, deadline=None)
TestForkingByCopies = ForkingByCopies.TestCase
TestForkingByCopies.settings = FEW
TestForkingByOverlays = ForkingByOverlays.TestCase
TestForkingByOverlays.settings = FEW
