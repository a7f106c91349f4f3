"""The sandbox plane: what a backend implements, and the counted handle that it gives out."""

from __future__ import annotations

import os
import posixpath
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field, fields
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from rath._async.plane import Handle, Plane
from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_function, lazy_modules
from rath._core.references import Reduction, Referenced, not_portable
from rath.backend.capabilities import Capabilities
from rath.backend.changes import EffectPolicy
from rath.backend.effects import (
    UnobservedOps,
    happening_in,
    is_observed,
    note_unreported,
    paused_deadlines,
)
from rath.backend.results import ToolExecutionFailure, ToolResult
from rath.backend.start import WorkspaceStart
from rath.backend.tool_types import BackendTool, require_payload
from rath.backend.workspace import Use, WorkspaceRef, begin_use_of, new_ref
from rath.errors import BackendError, BackendSandboxClosed, UnsupportedBackendTool

if TYPE_CHECKING:
    import asyncio

    from rath.backend import fallbacks, stream
    from rath.backend.snapshots import FrozenWorkspace, Origin, Seed
    from rath.backend.stream import Stream
    from rath.config import redaction
else:
    asyncio, fallbacks, stream, redaction = lazy_modules(
        __name__,
        "asyncio",
        "rath.backend.fallbacks",
        "rath.backend.stream",
        "rath.config.redaction",
    )


HOOKS = {"aopen": "_aopen", "aclose": "_aclose", "adispatch": "_adispatch"}
"""The coroutines that a backend implements, each with the older name that does as well."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of all that runs in a sandbox together; None leaves one to the backend."""

    memory_bytes: int | None = None
    processes: int | None = None
    """Processes and threads at one time."""


@dataclass
class BackendSandboxSpec(Referenced):
    """Specification of a sandbox; a backend uses the fields that mean something to it."""

    image: str | None = None
    entrypoint: Sequence[str] | None = None
    env: Mapping[str, str] | None = field(default=None, repr=False)
    """Variables of everything that runs inside. Left out of `repr`: values may be secret."""

    timeout: timedelta | None = None
    """How long the sandbox may live, where it lives outside this process."""

    working_dir: str | None = None
    """Directory of the host that is the workspace; by default a new one that ends with it."""

    network: bool = False
    """Whether commands may use the network, where the backend can forbid it."""

    limits: SandboxLimits | None = None
    """Limits on all processes inside together, where the backend can set them."""

    effects: EffectPolicy | None = None
    """Policy for finding effects of commands and code; `EffectPolicy()` by default."""

    def _pickle_reference(self) -> Reduction:
        """Return the fields, and of the variables their names: values may be secret.

        Raises:
            TypeError: A variable has another value than in the environment of this process, or
                another field holds what must not travel.
        """
        for name, value in (self.env or {}).items():
            if os.environ.get(name) != value:
                raise not_portable(
                    f"BackendSandboxSpec(env={{{name!r}: ...}}) holds a literal value, which may "
                    "be secret and must not travel",
                    f"set {name} in the environment of each process, and give os.environ[{name!r}]",
                )
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        place = redaction.find_secret("spec", {**given, "env": None})
        if place is not None:
            raise not_portable(
                f"BackendSandboxSpec may hold a secret in {place}, which must not travel",
                "give it by a variable, env={NAME: os.environ[NAME]}",
            )
        names = None if self.env is None else tuple(self.env)
        return _spec_again, (type(self), {**given, "env": names})


@dataclass(frozen=True, slots=True)
class SandboxIdentity:
    """Identity of the sandbox in which something ran."""

    backend: str
    sandbox_id: str
    """Handle of the sandbox, "" while it is not open."""

    isolation: str
    root: str
    """Root of the workspace: a path of the host for `local`, else one inside the sandbox."""

    cwd: str
    """Default working directory of commands."""

    layer: str | None = None
    """Storage of the files of a workspace of its own: `frozen` as long as nothing was changed in
    it, then `overlay`, `reflink` or `copy`; `snapshot` for a copy on a server; None for a plain
    directory."""


def _spec_again(kind: type[BackendSandboxSpec], given: dict[str, Any]) -> BackendSandboxSpec:
    names: tuple[str, ...] | None = given.pop("env")
    missing = [name for name in names or () if name not in os.environ]
    if missing:
        raise BackendError(
            f"the spec of a sandbox names {', '.join(missing)}, which the environment of this "
            "process does not have; set it here too"
        )
    env = None if names is None else {name: os.environ[name] for name in names}
    return kind(**given, env=env)


_get_backend = lazy_function("rath.backend.registry", "get")
_get_backend_class = lazy_function("rath.backend.registry", "get_class")
_names = lazy_function("rath.backend.registry", "list_names")


def _sandbox_again(backend: str, spec: BackendSandboxSpec | None) -> BackendSandbox:
    opened: BackendSandbox = _get_backend(backend).lazy(spec)
    return opened


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
        origin: Finds the files with which its workspace begins; by default the backend decides.
    """

    def __init__(
        self,
        backend: Backend,
        handle: str,
        spec: BackendSandboxSpec | None = None,
        closed: bool = False,
        *,
        origin: Origin | None = None,
    ) -> None:
        super().__init__(backend, spec)
        self.backend = backend
        self.origin = origin
        self.unobserved: UnobservedOps = UnobservedOps()
        """Counts what ran in it and was observed by nobody."""
        self.start: WorkspaceStart | None = None
        """The files before the first operation that somebody observed, once there was one."""
        self._starting: asyncio.Lock | None = None
        self._uses: list[Use] = []
        self._workspace_ref: WorkspaceRef | None = None
        self.registry_id: str | None = None
        """Its id in `PersistentSandboxRegistry`, None for one that is in none."""
        self._name = handle
        self._closed = closed
        self._fallbacks = fallbacks.ToolFallbacks(
            backend.supported_calls(), reads_parts=backend.reads_parts
        )
        if handle and not closed:
            self._native = backend.adopt(self)

    def _pickle_reference(self) -> Reduction:
        """Return backend and spec, of which another one is opened at its first use.

        Raises:
            TypeError: Its files are not where the spec says, so another one would not have them;
                or no backend of that name is registered.
        """
        if self.closed:
            raise not_portable(f"the sandbox {self.handle!r} is closed", "place the session again")
        has_place = self.spec is not None and self.spec.working_dir is not None
        if self.origin is not None or (self.is_open and not has_place):
            raise not_portable(
                f"the sandbox {self.handle!r} is open, and its files are in no working_dir of its "
                "spec, so that nobody else would find them",
                "open it with BackendSandboxSpec(working_dir=...), or pickle it before its first "
                "use",
            )
        name = self.backend.name
        if name not in _names() or _get_backend_class(name) is not type(self.backend):
            raise not_portable(
                f"{type(self.backend).__name__} is not the backend that is registered as {name!r}",
                "register it in a module that the other process imports",
            )
        return _sandbox_again, (name, self.spec)

    @property
    def closed(self) -> bool:
        """Whether it was closed; set it when you find that the sandbox is gone."""
        return self._closed

    @closed.setter
    def closed(self, closed: bool) -> None:
        self._closed = closed
        for use in self._uses if closed else ():
            use.end()

    @property
    def native(self) -> Any:
        """The backend's own object for the open sandbox, None before the first use."""
        return self._native

    @property
    def workspace_ref(self) -> WorkspaceRef:
        """Reference to its workspace, as session logs have it; keeps no sandbox open."""
        with self._count_lock:
            if self._workspace_ref is None:
                self._workspace_ref = new_ref(self, self.backend.workspace_directory(self))
            return self._workspace_ref

    async def arequire(self) -> None:
        """Refuse to go on where files are expected that are not there; opens nothing.

        Raises:
            WorkspaceLost: The workspace of a stored session is not there.
        """

    async def aopened(self) -> Any:
        is_new = self._native is None
        native = await super().aopened()
        if is_new:
            with self._count_lock:
                workspace = self._workspace_ref
            if workspace is not None:
                workspace.opened(self.handle, self.backend.workspace_directory(self))
        return native

    def dispatch(self, call: BackendTool) -> ToolResult | bool:
        """Run one operation and wait for its result.

        Raises:
            BackendSandboxClosed: The sandbox was closed.
            TypeError: `call` is not a payload.
        """
        require_payload(call)
        return super().dispatch(call)

    async def adispatch(self, op: BackendTool) -> ToolResult | bool:
        if not self._fallbacks.supports(op):
            unsupported = UnsupportedBackendTool(type(op), self.backend.name)
            return ToolExecutionFailure("unsupported_tool", str(unsupported), type(op).__name__)
        for use in self._uses:
            use.touch()
        if self.start is None and is_observed():
            await self._anote_start()
        with happening_in(self), self._bookkeeping(op):
            return await self._fallbacks.adispatch(op, super().adispatch)

    async def _anote_start(self) -> None:
        """Look at the files before the first operation, which waits for that."""
        native = await self.aopened()
        self._starting = self._starting or asyncio.Lock()
        async with self._starting:
            if self.start is None:
                with paused_deadlines():
                    self.start = await self.backend.astart(native)

    def _bookkeeping(self, op: BackendTool) -> AbstractContextManager[None]:
        """Surround an operation that may write and that nobody observes, or its backend cannot."""
        if op.read_only:
            return nullcontext()
        if not is_observed():
            return self.unobserved.counting()
        if self.backend.capabilities().observes_effects:
            return nullcontext()
        return note_unreported(self.backend.name)

    async def aopen_native(self) -> Any:
        directory = self.spec.working_dir if self.spec is not None else None
        if directory is not None:
            use = await runtime().call_in_worker(partial(begin_use_of, directory))
            if use is not None:
                self.hold(use)
        try:
            if self.origin is None:
                return await super().aopen_native()
            return await self.backend.aopen_copy(await self.origin(), self.spec)
        except BaseException:
            await self._end_uses()
            raise

    async def aclose(self) -> None:
        try:
            await super().aclose()
            await self._fallbacks.aclose()
        finally:
            await self._end_uses()

    def hold(self, use: Use) -> None:
        """Let `use` end when this sandbox is closed: until then nobody removes what it is of."""
        self._uses.append(use)

    def freeze(self) -> FrozenWorkspace:
        """Return the files of the workspace as they are now; O(1), never waits.

        Raises:
            BackendError: The backend cannot do that.
        """
        return self.backend.freeze(self)

    def workspace_digest(self) -> str | None:
        """Return one digest over all files of the workspace, None where the backend has none.

        Equal files, modes and links give equal digests. Waits; reads what has changed.
        """
        return runtime().run(self.aworkspace_digest, label="digest of the workspace")

    async def aworkspace_digest(self) -> str | None:
        """Return one digest over all files of the workspace, None where the backend has none."""
        return await self.backend.aworkspace_digest(await self.aopened())

    def stream(self, *, buffer: int = 0) -> Stream:
        """Return a queue of operations on this sandbox that run one after another.

        Args:
            buffer: How many may wait before `submit` blocks; 0 means no limit.
        """
        return stream.Stream(self, buffer=buffer)

    def describe(self) -> SandboxIdentity:
        """Return where its operations run, as the record keeps it; never waits."""
        return self.backend.identity(self)

    def closed_error(self) -> Exception:
        return BackendSandboxClosed(self.handle)

    async def _end_uses(self) -> None:
        uses, self._uses = self._uses, []
        for use in uses:
            await runtime().call_in_worker(use.end)

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

    reads_parts: ClassVar[bool] = False
    """Whether it obeys `offset` and `limit` of reads itself; if not, its handles cut the part out
    of the whole file."""

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

    def lazy(
        self, spec: BackendSandboxSpec | None = None, *, origin: Origin | None = None
    ) -> BackendSandbox:
        """Return a sandbox that opens on first use; its `handle` is "" until then."""
        return BackendSandbox(self, "", spec, origin=origin)

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

    def canonical_path(self, sandbox: BackendSandbox, path: str) -> str:
        """Return the one name that a file has, however it is called: tool calls wait by it.

        Called on a worker thread. By default paths are compared by their names alone, below the
        root of the sandbox, since its links cannot be seen from here; a backend that can look at
        its files resolves them. Must not raise.
        """
        return posixpath.normpath(posixpath.join(self.identity(sandbox).root, path))

    def workspace_directory(self, sandbox: BackendSandbox) -> str | None:
        """Return the directory of this host that is the workspace, as an absolute path.

        None where there is none, or where it ends with the sandbox; must not block. What works in
        such a directory goes on there from its log, and only there.
        """
        return None

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """Return why it cannot work here and what to do about it; None where it can."""
        return None if cls.is_available() else f"{cls.__name__} is not available here"

    async def astart(self, native: Any) -> WorkspaceStart:
        """Return the files of a sandbox before its first operation, as the record tells them."""
        return WorkspaceStart(reason=f"the {self.name} backend does not tell")

    def freeze(self, sandbox: BackendSandbox) -> FrozenWorkspace:
        """Return the files of a sandbox as they are now; must not block."""
        raise BackendError(
            f"the {self.name} backend cannot copy a workspace; share it, or use a backend whose "
            "capabilities say supports_workspace_copy"
        )

    async def aopen_copy(self, seed: Seed, spec: BackendSandboxSpec | None) -> Any:
        """Open a sandbox with a workspace of its own that begins with the files of `seed`."""
        raise BackendError(
            f"the {self.name} backend cannot begin with the files of another workspace; share "
            "it, or use a backend whose capabilities say supports_workspace_copy"
        )

    async def aworkspace_digest(self, native: Any) -> str | None:
        """Return one digest over all files of the workspace of `native`, None for unknown."""
        return None

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
