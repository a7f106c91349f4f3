"""Which note of ours is which file of the server.

    memory://user/<...>       viking://user/<user>/<...>
    memory://session/<...>    viking://user/<user>/sessions/<...>
    memory://agent/<...>      viking://agent/<...>
    memory://resources/<...>  viking://resources/<...>

A note is a file with the suffix `.md`, which its URI leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass

from rath._core.text import valid_unicode
from rath.memory.adapters.openviking.names import from_wire_name, to_wire_name
from rath.memory.uri import (
    MEMORY_SCOPES,
    MEMORY_URI_PREFIX,
    MEMORY_URI_ROOT,
    memory_uri_prefix,
    to_public_uri,
)

__all__ = ["NOTE_SUFFIX", "Addresses", "BadUri", "is_of_memories"]

NOTE_SUFFIX = ".md"
_WIRE = "viking://"
_SESSIONS = "sessions"


class BadUri(ValueError):
    """A URI does not name a place in a store."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Translates the addresses of one user of a server."""

    user_id: str

    def is_root(self, uri: str) -> bool:
        """Tell whether a URI stands for the whole store."""
        return to_public_uri(uri) == MEMORY_URI_ROOT

    def is_scope(self, uri: str) -> bool:
        """Tell whether a URI names a scope and nothing below it."""
        return "/" not in uri.removeprefix(memory_uri_prefix(uri) or "")

    def place(self, uri: str) -> str:
        """Return the address of a directory, or of a file whose whole name is given.

        Raises:
            BadUri: It has no memory scheme, no known scope, or a segment that is empty, `.`, `..`.
        """
        prefix = memory_uri_prefix(uri)
        tail = "" if prefix is None else valid_unicode(uri).removeprefix(prefix)
        scope, *names = tail.split("/")
        if prefix is None or scope not in MEMORY_SCOPES:
            raise BadUri(
                f"{uri!r} is no place in a memory store; expected {MEMORY_URI_PREFIX}<scope>/... "
                f"with a scope of {', '.join(MEMORY_SCOPES)}"
            )
        if any(name in {"", ".", ".."} for name in names):
            raise BadUri(
                f"{uri!r} has a segment that names nothing; leave out empty ones, . and .., and a "
                "slash at the end"
            )
        if scope == "user" and names[:1] == [self.user_id]:
            del names[0]  # as addresses of the server have it
        kept = [to_wire_name(name) for name in names]
        match scope:
            case "user":
                return self._join("user", self.user_id, *kept)
            case "session":
                return self._join("user", self.user_id, _SESSIONS, *kept)
            case _:
                return self._join(scope, *kept)

    def note(self, uri: str) -> str:
        """Return the address of the file that holds a note.

        Raises:
            BadUri: As for `place`; or it names a scope and no note.
        """
        place = self.place(uri)
        if self.is_scope(uri):
            raise BadUri(f"{uri!r} is a scope; give the note a name below it")
        return place + NOTE_SUFFIX

    def public(self, address: str, *, is_dir: bool = False) -> str | None:
        """Return the URI of a file or directory; None where no URI of ours can name it."""
        scope, *names = address.removeprefix(_WIRE).rstrip("/").split("/")
        if scope == "user":
            if names[:1] != [self.user_id]:
                return None
            del names[0]
            if names[:1] == [_SESSIONS]:
                scope = "session"
                del names[0]
        if scope not in MEMORY_SCOPES:
            return None
        named = [from_wire_name(name) for name in names]
        if named and not is_dir:
            named[-1] = from_wire_name(names[-1].removesuffix(NOTE_SUFFIX)) or names[-1]
        return MEMORY_URI_PREFIX + "/".join((scope, *named))

    def _join(self, *names: str) -> str:
        return _WIRE + "/".join(names)


def is_of_memories(address: str) -> bool:
    """Tell whether the server keeps fields of its own at the end of a file."""
    return "memories" in address.removeprefix(_WIRE).split("/")[:-1]
