"""Backends of third parties: with today's hooks, and with the older ones."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from rath.backend import (
    Backend,
    BackendSandbox,
    BackendSandboxClosed,
    BackendSandboxSpec,
    BackendTool,
    BackendToolCodeRun,
    BackendToolCommandRun,
    Capabilities,
    CommandResult,
    IsolationLevel,
    ToolExecutionFailure,
    ToolResult,
    get,
    register,
)
from rath.backend.registry import unregister


class EchoSandbox(BackendSandbox):
    """A handle with an attribute of its own, as a backend may return it."""

    note = "mine"


class EchoBackend(Backend):
    """Written to the documented hooks of version 1.3; never calls `super().__init__()`."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.open_handles: set[str] = set()

    @classmethod
    def is_available(cls) -> bool:
        return True

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(
            isolation=IsolationLevel.VM,
            supports_command=True,
            supports_filesystem=False,
            supports_code_interpreter=False,
        )

    @classmethod
    def supported_calls(cls) -> frozenset[type[BackendTool]]:
        return frozenset({BackendToolCommandRun})

    def sandbox_count(self) -> int:
        return len(self.open_handles)

    async def _aopen(self, spec: BackendSandboxSpec | None = None) -> BackendSandbox:
        handle = f"echo-{uuid4().hex}"
        self.open_handles.add(handle)
        self.events.append("open")
        return EchoSandbox(backend=self, handle=handle, spec=spec)

    async def _aclose(self, sandbox: BackendSandbox) -> None:
        self.open_handles.discard(sandbox.handle)
        self.events.append("close")
        sandbox.closed = True

    async def _adispatch(self, sandbox: BackendSandbox, call: BackendTool) -> ToolResult | bool:
        assert isinstance(call, BackendToolCommandRun)
        assert isinstance(sandbox, EchoSandbox)
        self.events.append(sandbox.note)
        return CommandResult(0, str(call.cmd).encode(), b"", 0.0)


@pytest.fixture
def name() -> Iterator[str]:
    chosen = f"echo-{uuid4().hex}"
    register(chosen)(EchoBackend)
    yield chosen
    unregister(chosen)


@pytest.fixture
def backend(name: str) -> EchoBackend:
    instance = get(name)
    assert isinstance(instance, EchoBackend)
    return instance


def test_the_older_hooks_open_run_and_close(backend: EchoBackend) -> None:
    sandbox = backend.open(BackendSandboxSpec(image="x"))
    result = backend.dispatch(sandbox, BackendToolCommandRun("hello"))
    assert result == CommandResult(0, b"hello", b"", 0.0)
    backend.close(sandbox)
    backend.close(sandbox)
    assert backend.events == ["open", "mine", "close"]
    assert backend.sandbox_count() == 0


def test_the_operation_may_be_given_by_name(backend: EchoBackend) -> None:
    with backend.open(spec=None) as sandbox:
        call = BackendToolCommandRun("hello")
        assert sandbox.dispatch(call=call) == CommandResult(0, b"hello", b"", 0.0)
        assert backend.dispatch(sandbox=sandbox, call=call) == sandbox.dispatch(call)


def test_open_returns_the_handle_that_the_backend_made(backend: EchoBackend) -> None:
    sandbox = backend.open()
    assert isinstance(sandbox, EchoSandbox)
    assert (sandbox.refcount, sandbox.closed) == (0, False)
    backend.close(sandbox)
    assert sandbox.closed


def test_the_older_hooks_share_one_thread() -> None:
    class SqliteBackend(EchoBackend):
        async def _aopen(self, spec: BackendSandboxSpec | None = None) -> BackendSandbox:
            self.database = sqlite3.connect(":memory:")
            return await super()._aopen(spec)

        async def _adispatch(self, sandbox: BackendSandbox, call: BackendTool) -> ToolResult | bool:
            self.database.execute("SELECT 1")
            return await super()._adispatch(sandbox, call)

        async def _aclose(self, sandbox: BackendSandbox) -> None:
            self.database.close()
            await super()._aclose(sandbox)

    for backend in (SqliteBackend(), SqliteBackend()):
        sandbox = backend.open()
        assert isinstance(sandbox.dispatch(BackendToolCommandRun("x")), CommandResult)
        backend.close(sandbox)
        assert backend.events == ["open", "mine", "close"]


def test_the_last_holder_closes_through_the_older_hook(backend: EchoBackend) -> None:
    with backend.open() as sandbox, sandbox:
        sandbox.dispatch(BackendToolCommandRun("x"))
    with pytest.raises(BackendSandboxClosed):
        sandbox.dispatch(BackendToolCommandRun("x"))


def test_a_lazy_sandbox_goes_through_the_older_hooks(backend: EchoBackend) -> None:
    sandbox = backend.lazy()
    assert sandbox.dispatch(BackendToolCommandRun("x")) == CommandResult(0, b"x", b"", 0.0)
    assert sandbox.handle.startswith("echo-")
    inner = sandbox.native
    backend.close(sandbox)
    assert backend.events == ["open", "mine", "close"]
    assert inner.closed


def test_a_handle_that_the_backend_marks_closed_is_closed(backend: EchoBackend) -> None:
    sandbox = backend.open()
    sandbox.closed = True
    with pytest.raises(BackendSandboxClosed):
        sandbox.acquire()


def test_it_describes_itself_by_what_it_knows(name: str, backend: EchoBackend) -> None:
    sandbox = backend.open(BackendSandboxSpec(working_dir="/there"))
    place = sandbox.describe()
    assert (place.backend, place.isolation, place.root) == (name, "vm", "/there")
    assert place.sandbox_id == sandbox.handle
    backend.close(sandbox)


def test_an_operation_that_it_does_not_support_never_reaches_it(backend: EchoBackend) -> None:
    sandbox = backend.open()
    result = sandbox.dispatch(BackendToolCodeRun("1"))
    assert isinstance(result, ToolExecutionFailure)
    assert (result.kind, result.detail) == ("unsupported_tool", "BackendToolCodeRun")
    assert backend.events == ["open"]
    backend.close(sandbox)


def test_an_error_of_a_hook_reaches_the_caller(backend: EchoBackend) -> None:
    sandbox = BackendSandbox(backend, "not-an-echo-sandbox")
    with pytest.raises(AssertionError):
        sandbox.dispatch(BackendToolCommandRun("x"))


def without(*hooks: str) -> type[Backend]:
    members: dict[str, Any] = {
        name: member for name, member in vars(EchoBackend).items() if name not in hooks
    }
    members.pop("__dict__", None)
    members.pop("__weakref__", None)
    return type("Incomplete", (Backend,), members)


def construct(cls: type[Backend]) -> Backend:
    return cls()


@pytest.mark.parametrize(
    ("hook", "newer"), [("_aopen", "aopen"), ("_aclose", "aclose"), ("_adispatch", "adispatch")]
)
@pytest.mark.parametrize("use", [construct, register("incomplete")], ids=["new", "register"])
def test_a_backend_without_a_hook_is_refused_by_name(
    hook: str, newer: str, use: Callable[[type[Backend]], object]
) -> None:
    with pytest.raises(TypeError, match=f"neither {newer} nor {hook}"):
        use(without(hook))


def test_a_backend_without_capabilities_cannot_be_registered() -> None:
    with pytest.raises(TypeError, match="does not implement capabilities"):
        register("incomplete")(without("capabilities"))
