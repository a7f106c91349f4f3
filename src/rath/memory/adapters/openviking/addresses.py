"""Translation of memory URIs to the addresses of a server of OpenViking, and back.

    memory://user/<...>       viking://user/<user>/<...>
    memory://session/<...>    viking://user/<user>/sessions/<...>
    memory://agent/<...>      viking://agent/<...>
    memory://resources/<...>  viking://resources/<...>

A note is a file with the suffix `.md`, which its URI leaves out. Names that the server would
change or refuse are escaped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rath._core.text import valid_unicode
from rath.memory.driver import InvalidUri, place_of
from rath.memory.uri import MEMORY_SCOPES, MEMORY_URI_PREFIX, memory_uri_prefix

__all__ = ["Addresses", "escape_name", "has_server_fields", "unescape_name"]

_SUFFIX = ".md"
_SCHEME = "viking://"
_SESSIONS = "sessions"

# The server turns white space into "_", cuts at "?", refuses ":", "\\" and some percent signs, and
# takes a name of dots for one without an extension: different notes would become one, or none.
# Names that begin with a dot it does not list; two of them are its own texts on a directory.
_UNSAFE = re.compile(
    r"[\x00-\x1f\x7f:?\\]|\s|%(?=2[EeFf]|5[Cc]|00)|=(?=[0-9A-F]{2})|^\.(?!(?:abstract|overview)(?:\.md)?$)"
)
_ESCAPES = re.compile("(?:=[0-9A-F]{2})+")


@dataclass(frozen=True, slots=True)
class Addresses:
    """Translates the addresses of one user of a server."""

    user_id: str

    def place(self, uri: str) -> str:
        """Return the address of a directory, or of a file by its full name.

        Raises:
            InvalidUri: It has no memory scheme or known scope, or a segment is empty, `.` or `..`.
        """
        scope, *names = valid_unicode(place_of(uri)).split("/")
        if any(name in {"", ".", ".."} for name in names):
            raise InvalidUri(
                f"{uri!r} has a segment that names nothing; leave out empty ones, . and .., and a "
                "slash at the end"
            )
        if scope == "user" and names[:1] == [self.user_id]:
            del names[0]  # as addresses of the server have it
        root = {"user": ("user", self.user_id), "session": ("user", self.user_id, _SESSIONS)}
        return _SCHEME + "/".join((*root.get(scope, (scope,)), *map(escape_name, names)))

    def note(self, uri: str) -> str:
        """Return the address of the file that holds a note.

        Raises:
            InvalidUri: As for `place`; or it names a scope and no note.
        """
        place = self.place(uri)
        if is_scope(uri):
            raise InvalidUri(f"{uri!r} is a scope; give the note a name below it")
        return place + _SUFFIX

    def public(self, address: str, *, is_dir: bool = False) -> str | None:
        """Return the URI of a file or directory; None where no URI of ours can name it."""
        scope, *names = address.removeprefix(_SCHEME).rstrip("/").split("/")
        if scope == "user":
            if names[:1] != [self.user_id]:
                return None
            del names[0]
            if names[:1] == [_SESSIONS]:
                scope = "session"
                del names[0]
        if scope not in MEMORY_SCOPES:
            return None
        segments = [unescape_name(name) for name in names]
        if segments and not is_dir:
            segments[-1] = unescape_name(names[-1].removesuffix(_SUFFIX)) or names[-1]
        return MEMORY_URI_PREFIX + "/".join((scope, *segments))


def is_scope(uri: str) -> bool:
    """Return whether a URI names a scope and nothing below it."""
    return "/" not in uri.removeprefix(memory_uri_prefix(uri) or "")


def has_server_fields(address: str) -> bool:
    """Return whether the server appends fields of its own to a file: it lies in `memories`."""
    return "memories" in address.removeprefix(_SCHEME).split("/")[:-1]


def escape_name(name: str) -> str:
    """Return a segment of a URI as the server stores it; letters and digits stay."""
    return _UNSAFE.sub(lambda match: "".join(f"={byte:02X}" for byte in match[0].encode()), name)


def unescape_name(name: str) -> str:
    """Return the segment that `escape_name` turned into `name`."""

    def text(match: re.Match[str]) -> str:
        try:
            return bytes.fromhex(match[0].replace("=", "")).decode()
        except UnicodeDecodeError:
            return match[0]  # somebody else's name

    return _ESCAPES.sub(text, name)
