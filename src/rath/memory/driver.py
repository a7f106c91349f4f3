"""For drivers: failures that are raised, and the checks that all of them make alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.request import url2pathname

from rath.memory.op_types import MemoryOpRead
from rath.memory.results import FailureKind, MemoryExecutionFailure, MemoryReadResult
from rath.memory.uri import MEMORY_SCOPES, MEMORY_URI_PREFIX, memory_uri_prefix

__all__ = ["InvalidUri", "OperationFailed", "decoded", "file_of", "place_of"]


class OperationFailed(Exception):
    """An operation fails; `failure` is its result."""

    def __init__(self, kind: FailureKind, message: str, detail: str | None = None) -> None:
        super().__init__(message)
        self.failure: MemoryExecutionFailure = MemoryExecutionFailure(kind, message, detail)


class InvalidUri(OperationFailed):
    """A URI does not name a place in a store."""

    def __init__(self, message: str) -> None:
        super().__init__("invalid_uri", message)


def place_of(uri: str) -> str:
    """Return a URI without its scheme, as in "user/memories/x"; segments are not looked at.

    Raises:
        InvalidUri: It has no memory scheme or no known scope.
    """
    prefix = memory_uri_prefix(uri)
    place = "" if prefix is None else uri.removeprefix(prefix)
    if prefix is None or place.partition("/")[0] not in MEMORY_SCOPES:
        raise InvalidUri(
            f"{uri!r} is no place in a memory store; expected {MEMORY_URI_PREFIX}<scope>/... with "
            f"a scope of {', '.join(MEMORY_SCOPES)}"
        )
    return place


def decoded(op: MemoryOpRead, found: MemoryReadResult) -> MemoryReadResult:
    """Return the result of a read with its bytes in the encoding that is wanted.

    Raises:
        OperationFailed: They are not in that encoding, or there is none of that name.
    """
    if op.encoding is None or isinstance(found.data, str):
        return found
    try:
        return replace(found, data=found.data.decode(op.encoding))
    except UnicodeDecodeError as exc:
        raise OperationFailed(
            "internal", f"{op.uri!r} is not {op.encoding}: {exc}; encoding=None gives its bytes"
        ) from exc
    except LookupError as exc:
        message = f"there is no encoding {op.encoding!r}; give one of Python's, or None for bytes"
        raise OperationFailed("unsupported", message) from exc


def file_of(source: str) -> Path | None:
    """Return the regular file that a resource is taken from; None for an http(s) address.

    Raises:
        OperationFailed: There is no such file, it is another kind of file, or another scheme.
    """
    scheme, separator, rest = source.partition("://")
    match scheme.lower() if separator else "":
        case "http" | "https":
            return None
        case "":
            path = Path(source).expanduser()
        case "file":
            # Before the path stands the host, which is this one.
            path = Path(url2pathname("/" + rest.partition("/")[2]))
        case _:
            message = f"the scheme of {source!r} is not known; use a path, file or http"
            raise OperationFailed("transport", message)
    if "\0" in source or not path.exists():
        raise OperationFailed("not_found", f"there is no file {source!r}")
    if not path.is_file():
        message = f"{source!r} is no regular file; give one file at a time"
        raise OperationFailed("unsupported", message)
    return path
