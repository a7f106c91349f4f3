"""Addresses of notes: `memory://<scope>/<segment>/<segment>...`."""

from __future__ import annotations

from hashlib import sha256

from rath._core.text import valid_unicode

__all__ = [
    "LEGACY_MEMORY_URI_PREFIX",
    "LEGACY_MEMORY_URI_ROOT",
    "MEMORY_SCOPES",
    "MEMORY_URI_PREFIX",
    "MEMORY_URI_ROOT",
    "content_digest",
    "is_memory_root",
    "is_memory_uri",
    "memory_uri_prefix",
    "names_place",
    "note_uri",
    "to_public_uri",
    "to_wire_uri",
    "valid_memory_uri",
]

MEMORY_URI_PREFIX = "memory://"
LEGACY_MEMORY_URI_PREFIX = "viking://"
MEMORY_URI_ROOT = "memory:/"
LEGACY_MEMORY_URI_ROOT = "viking:/"

MEMORY_SCOPES = ("user", "agent", "session", "resources")
"""Scopes with which a URI may begin."""

_PREFIXES = (MEMORY_URI_PREFIX, LEGACY_MEMORY_URI_PREFIX)
_ROOTS = (MEMORY_URI_ROOT, LEGACY_MEMORY_URI_ROOT)
_NAME_DIGITS = 8


def memory_uri_prefix(uri: str) -> str | None:
    """Return the scheme with its slashes, the root that `uri` is, or None for anything else."""
    return next(
        (prefix for prefix in _PREFIXES if uri.startswith(prefix)), uri if uri in _ROOTS else None
    )


def is_memory_uri(uri: str) -> bool:
    """Return whether `uri` has a memory scheme, `memory` or `viking`."""
    return memory_uri_prefix(uri) is not None


def is_memory_root(uri: str) -> bool:
    """Return whether `uri` is a root, above all scopes."""
    return uri in _ROOTS


def valid_memory_uri(uri: str) -> bool:
    """Return whether `uri` is a root or begins with a known scope; segments are not looked at."""
    prefix = memory_uri_prefix(uri)
    if prefix is None:
        return False
    return prefix in _ROOTS or uri.removeprefix(prefix).partition("/")[0] in MEMORY_SCOPES


def names_place(uri: str) -> bool:
    """Return whether `uri` is a place below a scope: no segment is empty, `.` or `..`."""
    prefix = memory_uri_prefix(uri)
    if prefix is None or not valid_memory_uri(uri) or prefix == uri:
        return False
    return {"", ".", ".."}.isdisjoint(uri.removeprefix(prefix).split("/"))


def to_public_uri(uri: str) -> str:
    """Return `uri` with the scheme `memory`; what is no memory URI comes back as it is."""
    return _with_scheme(uri, "viking:/", "memory:/")


def to_wire_uri(uri: str) -> str:
    """Return `uri` with the scheme `viking`; what is no memory URI comes back as it is."""
    return _with_scheme(uri, "memory:/", "viking:/")


def note_uri(scope: str, category: str, content: str, *, digits: int = _NAME_DIGITS) -> str:
    """Return the URI of a note that is named by its content, so that the same note has one place.

    Args:
        scope: One of `MEMORY_SCOPES`.
        category: Directory below `memories`, as in "preferences".
        content: The whole note.
        digits: How many hexadecimal digits of the sha256 make the name, at most 64. Eight leave
            an even chance that two of 77,000 different notes meet (birthday bound, 2^32 names).
    """
    return f"{MEMORY_URI_PREFIX}{scope}/memories/{category}/{content_digest(content)[:digits]}"


def content_digest(content: str) -> str:
    """Return the sha256 of a note as 64 hexadecimal digits."""
    return sha256(valid_unicode(content).encode()).hexdigest()


def _with_scheme(uri: str, old: str, new: str) -> str:
    return new + uri.removeprefix(old) if is_memory_uri(uri) and uri.startswith(old) else uri
