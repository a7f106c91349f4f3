"""The sandbox plane: what a backend implements, and the counted handle that it gives out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

from rath._async.plane import Handle, Plane
from rath._async.runtime import runtime
from rath.backend.capabilities import Capabilities
from rath.backend.results import ToolExecutionFailure, ToolResult
from rath.backend.stream import Stream
from rath.backend.tool_types import BackendTool, require_payload
from rath.errors import BackendSandboxClosed, UnsupportedBackendTool

HOOKS = {"aopen": "_aopen", "aclose": "_aclose", "adispatch": "_adispatch"}
"""The coroutines that a backend implements, each with the older name that does as well."""


@dataclass
class BackendSandboxSpec:
    """What to open; a backend uses the fields that mean something to it."""

    image: str | None = None
    entrypoint: Sequence[str] | None = None
    env: Mapping[str, str] | None = field(default=None, repr=False)
    """Variables of everything that runs inside. Left out of `repr`: values may be secret."""

    timeout: timedelta | None = None
    """How long the sandbox may live, where it lives outside this process."""

    working_dir: str | None = None
    """Directory of the host that is the workspace; by default a new one that ends with it."""


@dataclass(frozen=True, slots=True)
class SandboxIdentity:
    """Where something ran."""

    backend: str
    sandbox_id: str
    """Handle of the sandbox, "" while it is not open."""

    isolation: str
    root: str
    """Root of the workspace: a path of the host for `local`, else one inside the sandbox."""

    cwd: str
    """Where commands start unless they say otherwise."""


class BackendSandbox(Handle[BackendSandboxSpec, Any, BackendTool, ToolResult | bool]):
    """A counted handle on a sandbox.

    `backend.open(...)` gives an open one, `backend.lazy(...)` one that opens on first use.
    Constructed directly, it stands for a sandbox that is there already, as the `_aopen` of a
    backend of your own returns it; such a one is left alone at interpreter exit.

    Args:
        backend: The backend that runs its operations.
        handle: Name of the open sandbox.
        spec: What it was opened with.
        closed: Whether it has been closed.
    """

    def __init__(
        self,
        backend: Backend,
        handle: str,
        spec: BackendSandboxSpec | None = None,
        closed: bool = False,
    ) -> None:
        super().__init__(backend, spec)
        self.backend = backend
        self._name = handle
        self._closed = closed
        if handle and not closed:
            self._native = backend.adopt(self)

    @property
    def closed(self) -> bool:
        """Whether it was closed; set it when you find that the sandbox is gone."""
        return self._closed

    @closed.setter
    def closed(self, closed: bool) -> None:
        self._closed = closed

    @property
    def native(self) -> Any:
        """The backend's own object for the open sandbox, None before the first use."""
        return self._native

    def dispatch(self, op: BackendTool) -> ToolResult | bool:
        """Run one operation and wait for its result.

        Raises:
            BackendSandboxClosed: The sandbox was closed.
            TypeError: `op` is not a payload.
        """
        require_payload(op)
        return super().dispatch(op)

    async def adispatch(self, op: BackendTool) -> ToolResult | bool:
        if not isinstance(op, tuple(self.backend.supported_calls())):
            unsupported = UnsupportedBackendTool(type(op), self.backend.name)
            return ToolExecutionFailure("unsupported_tool", str(unsupported), type(op).__name__)
        return await super().adispatch(op)

    def stream(self, *, buffer: int = 0) -> Stream:
        """Return a queue of operations on this sandbox that run one after another.

        Args:
            buffer: How many may wait before `submit` blocks; 0 means no limit.
        """
        return Stream(self, buffer=buffer)

    def describe(self) -> SandboxIdentity:
        """Return where its operations run, as the record keeps it; never waits."""
        return self.backend.identity(self)

    def closed_error(self) -> Exception:
        return BackendSandboxClosed(self.handle)

    def __repr__(self) -> str:
        return (
            f"BackendSandbox(backend={self.backend!r}, handle={self.handle!r}, "
            f"spec={self.spec!r}, closed={self.closed!r})"
        )


class Backend(Plane[BackendSandboxSpec, Any, BackendTool, ToolResult | bool]):
    """A place where tools run.

    A backend implements three coroutines on objects of its own: `aopen(spec)`, `aclose(native)`
    and `adispatch(native, op)`. The older names `_aopen(spec)`, which returns a `BackendSandbox`,
    `_aclose(sandbox)` and `_adispatch(sandbox, call)` do as well. All run on the runtime's own
    event loop and must not block it.

    A payload that `supported_calls` does not name never reaches the backend: its result is a
    `ToolExecutionFailure` of kind `unsupported_tool`. Whatever else fails inside an operation is a
    `ToolExecutionFailure` too, so that a model can read it.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        require_hooks(cls)
        return super().__new__(cls)

    @classmethod
    def is_available(cls) -> bool:
        """Tell whether it can work here: installed, configured, on a system that it knows."""
        return True

    @classmethod
    @abstractmethod
    def capabilities(cls) -> Capabilities:
        """Return what it offers."""

    @classmethod
    @abstractmethod
    def supported_calls(cls) -> frozenset[type[BackendTool]]:
        """Return the payloads that it can run."""

    @abstractmethod
    def sandbox_count(self) -> int:
        """Return how many sandboxes are open."""

    def open(self, spec: BackendSandboxSpec | None = None) -> BackendSandbox:
        """Open a sandbox and wait for it; nobody holds it yet, so its count is 0."""
        return runtime().run(lambda: self._open_now(spec), label=f"opening {self.name}")

    def lazy(self, spec: BackendSandboxSpec | None = None) -> BackendSandbox:
        """Return a sandbox that opens on first use; its `handle` is "" until then."""
        return BackendSandbox(self, "", spec)

    def close(self, sandbox: BackendSandbox) -> None:
        """Close `sandbox` once what runs in it has ended, and wait; again it does nothing."""
        if not sandbox.closed:
            runtime().run(sandbox.aclose, label=f"closing {sandbox.handle}")

    def dispatch(self, sandbox: BackendSandbox, call: BackendTool) -> ToolResult | bool:
        """Run one operation and wait; on a closed sandbox the result is a failure that says so."""
        require_payload(call)
        try:
            return sandbox.dispatch(call)
        except BackendSandboxClosed as exc:
            return ToolExecutionFailure("sandbox_closed", str(exc), sandbox.handle)

    def adopt(self, sandbox: BackendSandbox) -> Any:
        """Return the native of a sandbox that was constructed by its name; must not block."""
        return sandbox

    def identity(self, sandbox: BackendSandbox) -> SandboxIdentity:
        """Return where the operations of `sandbox` run; must not block."""
        spec = sandbox.spec
        root = (spec.working_dir if spec is not None else None) or ""
        isolation = self.capabilities().isolation.value
        return SandboxIdentity(self.name, sandbox.handle, isolation, root, root)

    async def aopen(self, spec: BackendSandboxSpec | None) -> Any:
        return await self._aopen(spec)

    async def aclose(self, native: Any) -> None:
        await self._aclose(native)
        if isinstance(native, BackendSandbox):
            native.closed = True

    async def adispatch(self, native: Any, op: BackendTool) -> ToolResult | bool:
        return await self._adispatch(native, op)

    async def _aopen(self, spec: BackendSandboxSpec | None = None) -> BackendSandbox:
        raise NotImplementedError

    async def _aclose(self, sandbox: BackendSandbox) -> None:
        raise NotImplementedError

    async def _adispatch(self, sandbox: BackendSandbox, call: BackendTool) -> ToolResult | bool:
        raise NotImplementedError

    async def _open_now(self, spec: BackendSandboxSpec | None) -> BackendSandbox:
        sandbox = self.lazy(spec)
        if type(self).aopen is not Backend.aopen:
            await sandbox.aopened()
            return sandbox
        # What `_aopen` returns is the handle itself: its class and attributes are the backend's.
        sandbox = await self._aopen(spec)
        runtime().keep_open(sandbox)
        return sandbox

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


def require_hooks(cls: type[Backend]) -> None:
    """Refuse a backend class that cannot open, close or dispatch.

    Raises:
        TypeError: A hook is missing under both of its names.
    """
    for name, older in HOOKS.items():
        if all(getattr(cls, each) is getattr(Backend, each) for each in (name, older)):
            raise TypeError(
                f"{cls.__name__} cannot be used as a sandbox backend: it implements neither "
                f"{name} nor {older}; add `async def {name}(self, ...)`"
            )
