"""Where a stored session goes on: in the remote sandbox that its file names, where there is one."""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from typing import Any, Protocol
from uuid import UUID

from rath._async.runtime import runtime
from rath.backend import registry as backends
from rath.backend.abc import Backend, BackendSandbox, BackendSandboxSpec
from rath.backend.persistence.registry import PersistentSandboxRegistry, Reattachable
from rath.errors import BackendError, BackendNotFound, RathError
from rath.session.placement import Placement

_logger = logging.getLogger(__name__)


class Place(Protocol):
    """Where a session was, as the header of its file says."""

    @property
    def sandbox_backend(self) -> str | None: ...
    @property
    def sandbox_spec(self) -> BackendSandboxSpec | None: ...
    @property
    def sandbox_handle_id(self) -> str | None: ...


class AwaySandbox(BackendSandbox):
    """A remote sandbox that is attached to on first use, by its id in the registry.

    It is left alone at interpreter exit, like one that is attached to directly.
    """

    def __init__(self, backend: Backend, spec: BackendSandboxSpec | None, known_as: str) -> None:
        super().__init__(backend, "", spec)
        self._known_as = known_as
        self._attached: BackendSandbox | None = None

    async def aopen_native(self) -> Any:
        """Attach to it and return the backend's own object for it.

        Raises:
            BackendError: It is not there any more, or cannot be reached.
        """
        try:
            attached = await runtime().call_in_worker(partial(_attach, self._known_as))
        except (RathError, KeyError, OSError) as exc:
            raise BackendError(
                f"the {self.backend.name} sandbox {self._known_as} of the stored session cannot "
                f"be attached: {_reason(exc)}; place the session again with .to(...)"
            ) from exc
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


def lazy_placement(header: Place) -> Placement:
    """Return the placement that a header tells; a remote sandbox is attached to on first use.

    Where that fails, the use is an error that says so. It never becomes another sandbox by itself.
    """
    known_as, backend = header.sandbox_handle_id, _attaching_backend(header)
    if not known_as or backend is None:
        return Placement(header.sandbox_backend, header.sandbox_spec)
    return Placement(sandbox=AwaySandbox(backend, header.sandbox_spec, known_as))


def placement_of(header: Place) -> Placement:
    """Return the placement that a header tells, attached to its remote sandbox; may wait for that.

    Where the sandbox cannot be attached, the placement is closed: its first use is an error that
    says so. It never becomes another sandbox by itself.
    """
    known_as, backend = header.sandbox_handle_id, _attaching_backend(header)
    if not known_as or backend is None:
        return Placement(header.sandbox_backend, header.sandbox_spec)
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


def _attaching_backend(header: Place) -> Backend | None:
    """Return the backend of a header when it is here and can attach to a sandbox by its id."""
    if header.sandbox_backend is None:
        return None
    with contextlib.suppress(BackendNotFound):
        backend = backends.get(header.sandbox_backend)
        return backend if isinstance(backend, Reattachable) else None
    return None
