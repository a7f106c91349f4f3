"""Where a session's tools run: a backend's name and spec, and one lease on a shared sandbox."""

from __future__ import annotations

import threading
from dataclasses import replace

from rath._async.plane import Lease
from rath.backend import registry
from rath.backend.abc import BackendSandbox, BackendSandboxSpec
from rath.backend.frozen import Origin

_lock = threading.RLock()
"""Guards the few instructions in which leases are made, shared and dropped."""


class Placement:
    """The sandbox of one session: chosen at once, opened on first use, shared by derivations.

    One that begins with the files of another does so again when it was closed and is opened anew.
    """

    __slots__ = ("_lease", "_sandbox", "backend", "origin", "spec")

    def __init__(
        self,
        backend: str | None = None,
        spec: BackendSandboxSpec | None = None,
        *,
        sandbox: BackendSandbox | None = None,
    ) -> None:
        self.backend = backend if sandbox is None else sandbox.backend.name
        self.spec = spec if sandbox is None else sandbox.spec
        self.origin: Origin | None = None if sandbox is None else sandbox.origin
        self._lease: Lease | None = None
        self._sandbox: BackendSandbox | None = None
        if sandbox is not None:
            self._hold(sandbox)

    @property
    def sandbox(self) -> BackendSandbox | None:
        """The sandbox once it was opened, else None; stays visible after it was closed."""
        sandbox = self._sandbox
        return sandbox if sandbox is not None and sandbox.handle else None

    @property
    def here(self) -> str | None:
        """Handle of the sandbox; before it is open its directory or ""; None when none is held."""
        sandbox = self._sandbox
        if sandbox is None or sandbox.handle:
            return None if sandbox is None else sandbox.handle
        spec = sandbox.spec if sandbox.origin is None else None
        return (None if spec is None else spec.working_dir) or ""

    @property
    def is_chosen(self) -> bool:
        """Whether the session has a place at all."""
        return self.backend is not None

    @property
    def is_open(self) -> bool:
        """Whether the sandbox is open now."""
        return self._sandbox is not None and self._sandbox.is_open

    def share(self) -> Placement:
        """Return the placement of a derived session: the same sandbox, one more holder.

        Both share it even if neither has used it yet. One that somebody else closed is closed for
        the derived session too: nothing moves to another place by itself.
        """
        if self.backend is None:
            return Placement()
        with _lock:
            sandbox = self._sandbox
            if sandbox is not None and sandbox.closed:
                shared = Placement(self.backend, self.spec)
                shared._sandbox = sandbox  # a constructor of the same class
                shared.origin = self.origin
                return shared
            return Placement(sandbox=self.held())

    def beginning_with(self, origin: Origin) -> Placement:
        """Return a place of the same kind that begins with files that `origin` finds."""
        sandbox = self.held()
        spec = None if sandbox.spec is None else replace(sandbox.spec, working_dir=None)
        return Placement(sandbox=sandbox.backend.lazy(spec, origin=origin))

    def held(self) -> BackendSandbox:
        """Return the sandbox, opened or not yet; takes the lease on first use.

        Raises:
            RuntimeError: The session has no place, or its sandbox was closed.
        """
        with _lock:
            if self._sandbox is None:
                if self.backend is None:
                    raise RuntimeError(
                        "the session has no sandbox; place it first, for example "
                        'session.to("local")'
                    )
                backend = registry.get(self.backend)
                # A backend of others may have a `lazy` of its own that knows no origin.
                if self.origin is None:
                    self._hold(backend.lazy(self.spec))
                else:
                    self._hold(backend.lazy(self.spec, origin=self.origin))
            assert self._sandbox is not None
            if self._sandbox.closed:
                raise RuntimeError(
                    "session sandbox is closed; place the session again, for example "
                    f"session.to({self.backend!r})"
                )
            return self._sandbox

    def drop(self) -> None:
        """Give the lease back; backend and spec stay, so the next use opens a new sandbox."""
        with _lock:
            if self._lease is not None:
                self._lease.drop()
            self._lease = self._sandbox = None

    def drop_if_closed(self) -> None:
        """Forget a sandbox that somebody else closed."""
        if self._sandbox is not None and self._sandbox.closed:
            self.drop()

    def _hold(self, sandbox: BackendSandbox) -> None:
        self._lease = Lease(sandbox)
        self._sandbox = sandbox
