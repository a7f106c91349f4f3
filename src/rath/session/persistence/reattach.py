"""Where a stored session goes on: in the remote sandbox that its file names, where there is one."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from rath._async.runtime import runtime
from rath.backend import registry as backends
from rath.backend.abc import Backend, BackendSandbox, BackendSandboxSpec
from rath.backend.persistence.registry import PersistentSandboxRegistry, Reattachable
from rath.backend.workspace import live_sandbox
from rath.errors import BackendNotFound, RathError, WorkspaceLost
from rath.session.persistence.lines import HeaderLine, PlacementLine
from rath.session.placement import Placement, StoredSandbox

_logger = logging.getLogger(__name__)


Place = HeaderLine | PlacementLine
"""Where a session was, as its log says."""


class AwaySandbox(BackendSandbox):
    """A remote sandbox that is attached to on first use, by its id in the registry.

    It is left alone at interpreter exit, like one that is attached to directly.
    """

    def __init__(self, backend: Backend, spec: BackendSandboxSpec | None, known_as: str) -> None:
        super().__init__(backend, "", spec)
        self._known_as = self.registry_id = known_as
        self._attached: BackendSandbox | None = None

    async def aopen_native(self) -> Any:
        """Attach to it and return the backend's own object for it.

        Raises:
            WorkspaceLost: It is not there any more, or cannot be reached.
        """
        try:
            attached = await runtime().call_in_worker(partial(_attach, self._known_as))
        except (RathError, KeyError, OSError) as exc:
            expected = f"the sandbox {self._known_as!r} of the registry"
            found = f"none that can be attached ({_reason(exc)})"
            raise WorkspaceLost(self._known_as, self.backend.name, expected, found) from exc
        self._attached = attached
        return attached.native

    async def aopened(self) -> Any:
        native = await super().aopened()
        runtime().forget(self)
        return native

    async def aclose(self) -> None:
        try:
            await super().aclose()
        finally:
            if self._attached is not None:
                self._attached.closed = True


def lazy_placement(place: Place) -> Placement:
    """Return the placement that a log tells; a sandbox is attached to, or opened, on first use.

    Where that fails, the use is an error that says so. It never becomes another sandbox by itself.
    """
    known_as, backend = place.sandbox_handle_id, _backend_of(place)
    if backend is None:
        return Placement(place.sandbox_backend, place.sandbox_spec)
    if known_as and _can_attach(backend):
        return Placement(sandbox=AwaySandbox(backend, place.sandbox_spec, known_as))
    return _placed_again(place, backend)


def placement_of(header: Place) -> Placement:
    """Return the placement that a log tells, attached to its remote sandbox; may wait for that.

    Where the sandbox cannot be attached, the placement is closed: its first use is an error that
    says so. It never becomes another sandbox by itself.
    """
    known_as, backend = header.sandbox_handle_id, _backend_of(header)
    if not known_as or backend is None or not _can_attach(backend):
        return lazy_placement(header)
    try:
        return Placement(sandbox=_attach(known_as))
    except (RathError, KeyError, OSError) as exc:
        _logger.warning(
            "a stored session ran in the %s sandbox %s, which cannot be attached: %s; place the "
            "session again with .to(...) before it uses tools",
            header.sandbox_backend,
            known_as,
            _reason(exc),
        )
    lost = backend.lazy(header.sandbox_spec)
    placement = Placement(sandbox=lost)
    lost.closed = True
    return placement


def _attach(known_as: str) -> BackendSandbox:
    """Attach to the sandbox that a header names; 1.3 took any text for that.

    Raises:
        KeyError: It is no id of the registry, or of no sandbox there.
    """
    try:
        sandbox_id = UUID(known_as)
    except ValueError:
        raise KeyError(f"{known_as!r} is no id of the registry of sandboxes") from None
    return PersistentSandboxRegistry().reattach_remote(sandbox_id)


def _reason(exc: Exception) -> object:
    return exc.args[0] if isinstance(exc, KeyError) else exc


def _backend_of(place: Place) -> Backend | None:
    """Return the backend of a place when it is here."""
    if place.sandbox_backend is None:
        return None
    with contextlib.suppress(BackendNotFound):
        return backends.get(place.sandbox_backend)
    return None


def _can_attach(backend: Backend) -> bool:
    return isinstance(backend, Reattachable)


def _placed_again(place: Place, backend: Backend) -> Placement:
    """Return a placement in the workspace that a log names: as it is open here, or as it was."""
    stored, spec = place.workspace, place.sandbox_spec
    if stored is None:
        return Placement(backend.name, spec)
    live = live_sandbox(stored.id) if stored.directory is None else None
    if live is not None:
        return Placement(sandbox=live)
    is_by_spec = stored.directory is None and spec is not None and spec.working_dir is not None
    if is_by_spec or not stored.has_files:
        # Nothing was there, or the backend of somebody else finds it by its spec.
        means = backend.workspace_directory(backend.lazy(spec))
        if stored.directory is not None and stored.directory != means:
            # It was named from another working directory.
            spec = replace(spec or BackendSandboxSpec(), working_dir=stored.directory)
        return Placement(backend.name, spec)
    return Placement(sandbox=StoredSandbox(backend, spec, stored))
