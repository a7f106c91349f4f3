"""Where a stored session goes on: in the remote sandbox that its file names, where there is one."""

from __future__ import annotations

import contextlib
import logging
from uuid import UUID

from rath.backend import registry as backends
from rath.backend.abc import Backend
from rath.backend.persistence.registry import PersistentSandboxRegistry, Reattachable
from rath.errors import BackendNotFound, RathError
from rath.session.persistence.records import PersistedSessionHeader
from rath.session.placement import Placement

_logger = logging.getLogger(__name__)


def placement_of(header: PersistedSessionHeader) -> Placement:
    """Return the placement that a header tells, attached to its remote sandbox; may wait for that.

    Where the sandbox cannot be attached, the placement is closed: its first use is an error that
    says so. It never becomes another sandbox by itself.
    """
    known_as, backend = header.sandbox_handle_id, _backend(header)
    if not known_as or backend is None or not isinstance(backend, Reattachable):
        return Placement(header.sandbox_backend, header.sandbox_spec)
    try:
        return Placement(sandbox=PersistentSandboxRegistry().reattach_remote(_id(known_as)))
    except (RathError, KeyError, OSError) as exc:
        reason = exc.args[0] if isinstance(exc, KeyError) else exc
        _logger.warning(
            "session %s ran in the %s sandbox %s, which cannot be attached: %s; place the session "
            "again with .to(...) before it uses tools",
            header.id,
            header.sandbox_backend,
            known_as,
            reason,
        )
    lost = backend.lazy(header.sandbox_spec)
    placement = Placement(sandbox=lost)
    lost.closed = True
    return placement


def _id(known_as: str) -> UUID:
    """Return the id of the registry that a header names; 1.3 took any text.

    Raises:
        KeyError: It is none.
    """
    try:
        return UUID(known_as)
    except ValueError:
        raise KeyError(f"{known_as!r} is no id of the registry of sandboxes") from None


def _backend(header: PersistedSessionHeader) -> Backend | None:
    if header.sandbox_backend is None:
        return None
    with contextlib.suppress(BackendNotFound):
        return backends.get(header.sandbox_backend)
    return None
