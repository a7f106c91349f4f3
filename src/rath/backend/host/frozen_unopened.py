"""Freezing of sandboxes of this host, whether they are open or not."""

from __future__ import annotations

import threading
import weakref

from rath.backend.abc import BackendSandbox
from rath.backend.host.frozen import TREES, HostFrozen, freeze_tree
from rath.backend.host.frozen_seed import Beginning, SharedOrigin
from rath.backend.host.paths import real_root
from rath.backend.host.sandbox import HostSandbox


class Freezer:
    """Freezes sandboxes, and remembers what was frozen of them before they were opened."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._beginnings: weakref.WeakKeyDictionary[BackendSandbox, Beginning] = (
            weakref.WeakKeyDictionary()
        )

    def freeze(self, sandbox: BackendSandbox) -> HostFrozen:
        """Return the files of its workspace as they are now; O(1), on any thread.

        What is not open yet begins with a directory that is there, with the files that its origin
        gives, or with none.

        Raises:
            BackendSandboxClosed: It was closed.
            BackendError: Other file systems are mounted in its workspace.
        """
        native: HostSandbox | None = sandbox.native
        if native is not None:
            beginning = self._beginnings.get(sandbox)
            return native.guard.freeze(None if beginning is None else beginning.lineage)
        if sandbox.closed:
            raise sandbox.closed_error()
        given = sandbox.spec.working_dir if sandbox.spec is not None else None
        if sandbox.origin is None and given:
            root = real_root(given)
            return freeze_tree(TREES.at(root), root, None)
        return self._beginning(sandbox).freeze()

    def _beginning(self, sandbox: BackendSandbox) -> Beginning:
        with self._lock:
            beginning = self._beginnings.get(sandbox)
            if beginning is None:
                if sandbox.origin is not None:
                    sandbox.origin = SharedOrigin(sandbox.origin)
                beginning = self._beginnings[sandbox] = Beginning(sandbox.origin)
            return beginning
