"""Requests to a server of OpenViking through its SDK: identity, errors, repeats, and addresses.

Only this module imports the SDK, and only in `load_sdk`: it takes long, so call that in a worker.
Addresses are those of memory URIs:

    memory://user/<...>       viking://user/<user>/<...>
    memory://session/<...>    viking://user/<user>/sessions/<...>
    memory://agent/<...>      viking://agent/<...>
    memory://resources/<...>  viking://resources/<...>

A note is a file with the suffix `.md`, which its URI leaves out. Names that the server would
change or refuse are escaped.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, cast

from rath._async.lanes import gather
from rath._core.dataclasses import dataclass
from rath._core.text import valid_unicode
from rath._installation import install_advice
from rath.config.redaction import guard_logs, redact
from rath.errors import MemoryBackendError
from rath.memory.adapters.openviking.server import Options
from rath.memory.driver import InvalidUri, OperationFailed, place_of
from rath.memory.results import FailureKind
from rath.memory.uri import MEMORY_SCOPES, MEMORY_URI_PREFIX, memory_uri_prefix

__all__ = [
    "Addresses",
    "VikingClient",
    "VikingError",
    "connect",
    "escape_name",
    "has_server_fields",
    "load_sdk",
    "translate_error",
    "unescape_name",
]


DEFAULT_USER = "default"

BUSY_WAITS = (0.05, 0.1, 0.2, 0.5)
"""Waits before a call is repeated that the server refused because of other work on the same place,
in seconds; the last one repeats until the deadline. A guess: waited writes take half a second."""

_ERRORS: Mapping[FailureKind, tuple[str, tuple[str, ...]]] = {
    "not_found": ("the memory server has no such thing", ("NotFoundError",)),
    "invalid_uri": (
        "the memory server refused it",
        (
            "FailedPreconditionError",
            "InvalidArgumentError",
            "InvalidURIError",
            "UnsupportedDirectoryFilesError",
        ),
    ),
    "unauthorized": (
        "the memory server refused it",
        ("PermissionDeniedError", "UnauthenticatedError"),
    ),
    "unsupported": ("the memory server refused it", ("NotInitializedError", "UnimplementedError")),
    "timeout": (
        "the memory server did not answer in time",
        ("DeadlineExceededError", "TimeoutError", "TimeoutException"),
    ),
    "transport": (
        "the memory server cannot be reached, or did not finish its answer",
        (
            "AbortedError",
            "ConnectionError",
            "ResourceExhaustedError",
            "TransportError",
            "UnavailableError",
        ),
    ),
    "extraction_failed": ("the memory server could not process it", ("ProcessingError",)),
    "store_closed": ("the memory server refused it", ("SessionExpiredError",)),
    "internal": ("the memory server failed", ("Exception",)),
}
"""For each kind of failure the head of its message, and the classes of the SDK, of httpx and of
Python that stand for it; of an error's classes the most derived one counts."""

_KINDS: Mapping[str, FailureKind] = {
    name: kind for kind, (_, names) in _ERRORS.items() for name in names
}

SDK_BUGS = (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
"""Errors that the SDK lets out where an answer is odd, besides those of its own and of httpx."""

_LIBRARIES = ("openviking_sdk", "httpx", "httpcore")
_HOME = "viking://~"
_NO_LIMIT = 86400.0
"""Seconds: each operation has a deadline of its own, and some are longer than others."""


class VikingError(OperationFailed):
    """A request to the server fails."""

    def __init__(
        self, kind: FailureKind, message: str, detail: str | None = None, *, is_busy: bool = False
    ) -> None:
        super().__init__(kind, message, detail)
        self.is_busy = is_busy
        """Whether the server did nothing because of other work that will end."""


def translate_error(error: Exception, secret: str = "") -> VikingError:
    """Return the failure of an error of the SDK or of its connection, chained to it.

    Args:
        error: What was raised.
        secret: The key, which the text must not repeat.
    """
    names = [each.__name__ for each in type(error).__mro__]
    kinds: list[FailureKind] = [_KINDS[name] for name in names if name in _KINDS]
    kind = kinds[0]
    text = redact(str(error), secret) or "no reason was given"
    details = cast("Mapping[str, object] | None", getattr(error, "details", None))
    is_lasting = isinstance(details, Mapping) and details.get("retryable") is False
    is_busy = names[0] == "ConflictError" and not is_lasting
    failure = VikingError(kind, f"{_ERRORS[kind][0]}: {text}", names[0], is_busy=is_busy)
    # A chained error would show the key where its text repeats it.
    failure.__cause__ = None if secret and secret in str(error) else error
    return failure


@dataclass(slots=True)
class VikingClient:
    """One operation on a server: calls of its SDK until a deadline."""

    sdk: Any
    addresses: Addresses
    errors: tuple[type[Exception], ...] = SDK_BUGS
    """Errors of the SDK and of its connection."""

    secret: str = field(default="", repr=False)
    deadline: float = float("inf")
    """On the clock of the event loop."""

    progress: str = ""
    """Message of a timeout, where the operation has got that far."""

    @property
    def remaining_seconds(self) -> float:
        """Time until the deadline."""
        return self.deadline - asyncio.get_running_loop().time()

    async def ask(self, method: str, *args: object, **options: object) -> Any:
        """Return the answer to a call of the SDK.

        A call that the server refused as in conflict did nothing: it is repeated until the
        deadline. Nothing else is sent twice.

        Raises:
            VikingError: It failed.
        """
        n_tries = 0
        while True:
            try:
                return await self._answer(method, args, options)
            except VikingError as exc:
                wait = BUSY_WAITS[min(n_tries, len(BUSY_WAITS) - 1)]
                if not exc.is_busy:
                    raise
                if wait >= self.remaining_seconds:
                    message = f"other work on the same place went on until the deadline: {exc}"
                    raise VikingError("timeout", message, exc.failure.detail) from exc
                n_tries += 1
                await asyncio.sleep(wait)

    async def ask_optional(self, method: str, *args: object, **options: object) -> Any:
        """Return the answer to a call, None where the server has no such thing."""
        try:
            return await self.ask(method, *args, **options)
        except VikingError as exc:
            if exc.failure.kind == "not_found":
                return None
            raise

    async def _answer(self, method: str, args: Any, options: Any) -> Any:
        async def call() -> Any:
            try:
                return await getattr(self.sdk, method)(*args, **options)
            except self.errors as exc:
                return translate_error(exc, self.secret)

        # In a task of its own: a call was seen to end in a cancellation that nobody asked for (out
        # of connect_tcp of anyio 4.16, measuring coverage on Python 3.11; not reproduced since, in
        # 12,000 connections). In our task it could not be told from one that somebody did.
        try:
            [answer] = await gather([call])
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            message = "the connection was given up before the memory server had answered"
            raise VikingError("transport", message, "CancelledError") from None
        if isinstance(answer, VikingError):
            raise answer
        return answer


def load_sdk() -> tuple[Any, tuple[type[Exception], ...]]:
    """Import the SDK; return the class of its client, and the errors that it and httpx raise.

    Raises:
        MemoryBackendError: It is not installed.
    """
    try:
        import httpx
        import openviking_sdk
    except ImportError as exc:
        raise MemoryBackendError(
            f"the OpenViking memory needs {install_advice('openviking')}"
        ) from exc
    errors = (openviking_sdk.OpenVikingError, httpx.HTTPError, httpx.InvalidURL, httpx.StreamError)
    return openviking_sdk.AsyncHTTPClient, (*errors, *SDK_BUGS)


async def connect(sdk: tuple[Any, tuple[type[Exception], ...]], options: Options) -> VikingClient:
    """Return a client of a server that answers.

    Args:
        sdk: What `load_sdk` returned.
        options: The `url` of the server, and the identity with which it is asked.

    Raises:
        VikingError: It does not answer, or refuses the key.
    """
    make, errors = sdk
    identity = {
        "X-API-Key": options.api_key,
        "X-OpenViking-Account": options.account_id,
        "X-OpenViking-User": options.user_id or "",
        "X-OpenViking-Actor-Peer": options.agent_id or "",
        "X-Gateway-Token": "",
        "Authorization": "",
    }

    async def identify(request: Any) -> None:
        # What is not given here the SDK takes from the environment and from a file in the home:
        # a key for one server would go to any other.
        for name, value in identity.items():
            request.headers.pop(name, None)
            if value:
                request.headers[name] = value

    guard_logs(_LIBRARIES, options.api_key)
    try:
        session = make(
            url=options.url,
            api_key=options.api_key or None,
            timeout=_NO_LIMIT,
            extra_headers={},
            profile_enabled=False,
            event_hooks={"request": [identify]},
        )
    except errors as exc:
        raise translate_error(exc, options.api_key)  # noqa: B904  # which chains it
    user_id = options.user_id or DEFAULT_USER
    client = VikingClient(session, Addresses(user_id), errors, options.api_key)
    await client.ask("initialize")
    try:
        owner = await _home_owner(client)
    except BaseException:
        await session.close()
        raise
    return VikingClient(session, Addresses(owner or user_id), errors, options.api_key)


async def _home_owner(client: VikingClient) -> str | None:
    """Return the user that the server knows: a key may belong to another one than was named."""
    try:
        try:
            home = await client.ask("stat", _HOME)
        except VikingError as exc:
            if exc.failure.detail != "CancelledError":
                raise
            # Once more: the first connection of a busy program is the one that is given up.
            home = await client.ask("stat", _HOME)
    except VikingError as exc:
        if exc.failure.kind != "not_found":
            raise
        return None  # a user without any file
    uri = cast("Mapping[str, object]", home).get("uri") if isinstance(home, Mapping) else None
    if not isinstance(uri, str) or not uri.startswith("viking://"):
        raise VikingError(
            "internal",
            "what answers there is no server of OpenViking; check host and port of the url",
        )
    return uri.rstrip("/").rpartition("/")[2] or None


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
