"""Freezing of sandboxes of a server, whether they are open or not."""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace

from rath.backend.abc import BackendSandbox, BackendSandboxSpec
from rath.backend.opensandbox.frozen import (
    TREES,
    NewFrozen,
    Opener,
    OpenFrozen,
    RemoteFrozen,
    SeedFrozen,
)
from rath.backend.opensandbox.remote import RemoteSandbox
from rath.backend.snapshots import Origin, SharedOrigin, SnapshotLineage
from rath.errors import BackendError


class Freezer:
    """Freezes sandboxes, and remembers what was frozen of them before they were opened.

    Args:
        opener: Opens sandboxes in which frozen files are read.
    """

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._lock = threading.Lock()
        self._beginnings: weakref.WeakKeyDictionary[BackendSandbox, _Beginning] = (
            weakref.WeakKeyDictionary()
        )

    def freeze(self, sandbox: BackendSandbox) -> RemoteFrozen:
        """Return the files of its workspace as they are now; O(1), on any thread.

        Raises:
            BackendSandboxClosed: It was closed.
            BackendError: Its workspace is a directory of a host.
        """
        native: RemoteSandbox | None = sandbox.native
        if sandbox.closed:
            raise sandbox.closed_error()
        spec = sandbox.spec or BackendSandboxSpec()
        if spec.working_dir and sandbox.origin is None:
            raise BackendError(
                f"the workspace of this sandbox is the directory {spec.working_dir!r}, which is "
                "mounted and belongs to no snapshot, so it cannot be copied; use a sandbox "
                "without working_dir, or share the workspace"
            )
        if native is None:
            return self._beginning(sandbox, replace(spec, working_dir=None)).freeze()
        beginning = self._beginnings.get(sandbox)
        lineage = SnapshotLineage[RemoteFrozen]() if beginning is None else beginning.lineage
        lineage.born = lineage.born or native.begin
        return TREES.freeze(
            native.tree, lineage, lambda kept: OpenFrozen(kept, native, self._opener)
        )

    def _beginning(self, sandbox: BackendSandbox, spec: BackendSandboxSpec) -> _Beginning:
        with self._lock:
            beginning = self._beginnings.get(sandbox)
            if beginning is None:
                if sandbox.origin is not None:
                    sandbox.origin = SharedOrigin(sandbox.origin)
                beginning = _Beginning(sandbox.origin, spec, self._opener)
                self._beginnings[sandbox] = beginning
            return beginning


class _Beginning:
    """What is frozen of a workspace before it is opened."""

    def __init__(self, origin: Origin | None, spec: BackendSandboxSpec, opener: Opener) -> None:
        self.lineage: SnapshotLineage[RemoteFrozen] = SnapshotLineage()
        """Its history, which goes on when it is opened."""

        self._origin = origin
        self._spec = spec
        self._opener = opener
        self._lock = threading.Lock()
        self._frozen: weakref.ref[RemoteFrozen] | None = None

    def freeze(self) -> RemoteFrozen:
        """Return the files with which it begins; O(1), on any thread."""
        with self._lock:
            frozen = None if self._frozen is None else self._frozen()
            if frozen is None:
                frozen = self._made()
                self._frozen = weakref.ref(frozen)
            return frozen

    def _made(self) -> RemoteFrozen:
        if self._origin is None:
            return NewFrozen(self.lineage, self._spec, self._opener)
        return SeedFrozen(self.lineage, self._origin)
