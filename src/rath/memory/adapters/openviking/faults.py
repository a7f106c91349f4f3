"""What can go wrong between this process and a server, in the words of this plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import cast

from rath.config.redaction import redact
from rath.memory.results import FailureKind, MemoryExecutionFailure

__all__ = ["Fault", "fault_of"]

_KINDS: Mapping[str, FailureKind] = MappingProxyType(
    {
        "NotFoundError": "not_found",
        "InvalidURIError": "invalid_uri",
        "InvalidArgumentError": "invalid_uri",
        "FailedPreconditionError": "invalid_uri",
        "UnsupportedDirectoryFilesError": "invalid_uri",
        "PermissionDeniedError": "unauthorized",
        "UnauthenticatedError": "unauthorized",
        "UnimplementedError": "unsupported",
        "NotInitializedError": "unsupported",
        "DeadlineExceededError": "timeout",
        "TimeoutError": "timeout",
        "TimeoutException": "timeout",
        "UnavailableError": "transport",
        "AbortedError": "transport",
        "ResourceExhaustedError": "transport",
        "ConnectionError": "transport",
        "TransportError": "transport",
        "ProcessingError": "extraction_failed",
        "SessionExpiredError": "store_closed",
    }
)
"""By the class of an error, of the SDK, of httpx or of Python; the most derived one counts."""


class Fault(Exception):
    """An operation failed; `failure` is what is said of it."""

    def __init__(self, kind: FailureKind, message: str, detail: str | None = None) -> None:
        super().__init__(message)
        self.failure = MemoryExecutionFailure(kind, message, detail)
        self.is_busy = False
        """Whether the server did nothing because of other work that will end."""


def fault_of(error: Exception, secret: str = "") -> Fault:
    """Return the fault that an error of the SDK or of its connection stands for.

    Args:
        error: What was raised.
        secret: The key, which the text must not repeat.
    """
    names = [each.__name__ for each in type(error).__mro__]
    kind = _kind_of(names)
    text = redact(str(error), secret) or "no reason was given"
    head = _HEADS.get(kind, "the memory server refused it")
    fault = Fault(kind, f"{head}: {text}", names[0])
    details = getattr(error, "details", None)
    told = cast("Mapping[str, object]", details) if isinstance(details, Mapping) else None
    may_wait = told is None or told.get("retryable") is not False
    fault.is_busy = names[0] == "ConflictError" and may_wait
    return fault


def _kind_of(names: Sequence[str]) -> FailureKind:
    for name in names:
        if name in _KINDS:
            return _KINDS[name]
    return "internal"


_HEADS: Mapping[FailureKind, str] = MappingProxyType(
    {
        "transport": "the memory server cannot be reached, or did not finish its answer",
        "timeout": "the memory server did not answer in time",
        "extraction_failed": "the memory server could not process it",
        "internal": "the memory server failed",
        "not_found": "the memory server has no such thing",
    }
)
