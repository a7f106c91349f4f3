"""The transport of our own HTTP client: heads of requests, time limits, errors, lists of models."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from base64 import b64encode
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from traceback import clear_frames
from types import TracebackType
from typing import TypeVar, cast
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit

from rath import __version__
from rath._core.options import Sourced
from rath._core.text import one_line_preview
from rath.config.env import env_value
from rath.errors import ProviderError, ProviderProtocolError, ProviderTimeout
from rath.llm import errors
from rath.llm.chat_response import fields_of
from rath.llm.credentials import RequestTarget, credential_digest, public_url
from rath.llm.http import (
    IDLE_SECONDS,
    ConnectTimeout,
    HttpAnswer,
    HttpError,
    HttpPool,
    Origin,
    Proxy,
)
from rath.llm.transport import ApiEndpoint, ModelListing, WireReply

_CONNECT_SECONDS = 10.0
"""How long a connection may take to open; a guess, twice what the SDKs of vendors give."""

_DRAIN_SECONDS = 0.1
"""How long to wait for what follows the end marker; as in the SDKs of vendors."""

_LISTING_SECONDS = 10.0
"""How long a list of models may take; a guess, since somebody waits for an error meanwhile."""

_MAX_PAGES = 20
"""A vendor has a page or two; who has more pages than this is not listed whole."""

_PORTS = {"http": 80, "https": 443}
_SAFE_IN_PATHS = "/%:@!$&'()*+,;=~-._"

E = TypeVar("E", bound=BaseException)


class HttpConnection:
    """The pool of an endpoint, and the head of its requests.

    Blocks: it may read certificates and create the salt of the home directory.

    Args:
        endpoint: Where requests go.
        idle_seconds: How long connections stay open with nothing to do.

    Raises:
        ValueError: The environment would add headers to calls of a project's own endpoint, a
            header cannot be sent, or the proxy of the environment is of another kind.
    """

    def __init__(self, endpoint: ApiEndpoint, *, idle_seconds: float = IDLE_SECONDS) -> None:
        endpoint.refuse_added_headers()  # the environment may have changed since it was made
        self.endpoint = endpoint
        parts = urlsplit(endpoint.base_url)
        origin = _origin_of(parts)
        proxy = proxy_for(origin)
        needs_tls = "https" in (origin.scheme, proxy and proxy.origin.scheme)
        self.pool: HttpPool = HttpPool(
            origin,
            tls=_tls(_certificates()) if needs_tls else None,
            proxy=proxy,
            idle_seconds=idle_seconds,
        )
        self._prefix = quote(parts.path, safe=_SAFE_IN_PATHS)
        if proxy is not None and origin.scheme == "http":
            # Such a proxy is told the whole address, and reads the head.
            self._prefix = f"http://{_address_of(origin, parts.port)}{self._prefix}"
        self._headers, refused = _encoded(self._named_headers(parts, origin, proxy))
        if refused is not None:
            raise ValueError(
                f"the header {refused!r} cannot be sent: it holds a character that no header may "
                "hold; look for line ends and quotation marks in the key or in the variable"
            )
        self._heads: dict[tuple[str, str], bytes] = {}
        self.credential: str | None = None
        if endpoint.key_origin is not None:
            self.credential = credential_digest(Sourced(endpoint.api_key, endpoint.key_origin))

    def _named_headers(
        self, parts: SplitResult, origin: Origin, proxy: Proxy | None
    ) -> dict[str, str]:
        endpoint = self.endpoint
        prefix = "Bearer " if endpoint.key_header == "Authorization" else ""
        headers = {
            "Host": _address_of(origin, parts.port),
            "User-Agent": f"openrath/{__version__}",
            "Accept": "application/json",
            "Accept-Encoding": "gzip",
            "Content-Type": "application/json",
            endpoint.key_header: f"{prefix}{endpoint.api_key}",
            **dict(endpoint.headers),
            **_added_headers(endpoint.headers_variable),
        }
        if parts.username is not None:
            headers["Authorization"] = _basic(parts)
        if proxy is not None and origin.scheme == "http" and proxy.authorization is not None:
            headers["Proxy-Authorization"] = proxy.authorization
        return headers

    def transport(self, target: RequestTarget) -> HttpTransport:
        """Return the way to the path of `target`."""
        return HttpTransport(self, target)

    async def send(
        self, method: str, path: str, target: RequestTarget, body: bytes | None = None
    ) -> HttpAnswer:
        """Send a request and return its answer, without an error status, as it comes.

        Raises:
            ProviderError: No answer, or one with another status.
        """
        with ErrorMapping(target):
            answer = await self.pool.send(
                self._request(method, path, body),
                connect_seconds=min(target.timeout, _CONNECT_SECONDS),
            )
            if 200 <= answer.status < 300:
                return answer
            content = b""
            try:
                with suppress(HttpError):  # the status says enough
                    content = await answer.read()
            finally:
                await answer.aclose()
        if answer.status < 400:
            raise errors.redirect_error(target, answer.status, answer.headers.get("location"))
        raise errors.response_error(
            target, answer.status, content, reason=answer.reason, headers=answer.headers
        )

    def _request(self, method: str, path: str, body: bytes | None) -> bytes:
        # Apart from `send`, whose variables stand in the traceback of an error: no key is there.
        head = self._heads.get((method, path))
        if head is None:
            head = f"{method} {self._prefix}{path} HTTP/1.1\r\n".encode("ascii") + self._headers
            self._heads[method, path] = head
        if body is None:
            return head + b"\r\n"
        return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)

    @property
    def is_warm(self) -> bool:
        """Whether a connection is open, or about to be."""
        return self.pool.is_warm

    async def warm_up(self) -> None:
        """Have a connection open for the next request.

        Raises:
            HttpError: None could be opened.
        """
        await self.pool.warm_up(connect_seconds=_CONNECT_SECONDS)

    async def aclose(self) -> None:
        """Close every connection."""
        await self.pool.aclose()


class HttpTransport:
    """A connection with the path, the timeout and the words of one draft; see `Transport`."""

    sdk_version: str | None = None

    def __init__(self, connection: HttpConnection, target: RequestTarget) -> None:
        self._connection = connection
        self._target = target
        query = urlencode(connection.endpoint.query)
        self._path = f"{target.path}?{query}" if query else target.path
        self.endpoint: str | None = target.endpoint
        self.credential: str | None = connection.credential

    async def post(self, body: bytes) -> WireReply:
        target = self._target
        async with TimeLimit(target):
            answer = await self._connection.send("POST", self._path, target, body)
            content = await _content_of(answer, target)
        return WireReply.redacted(answer.status, content, target)

    @asynccontextmanager
    async def stream(self, body: bytes) -> AsyncGenerator[HttpStream, None]:
        target = self._target
        async with TimeLimit(target):
            answer = await self._connection.send("POST", self._path, target, body)
        try:
            yield HttpStream(answer, target)
        finally:
            await answer.aclose()

    async def models(self) -> tuple[str, ...]:
        endpoint = self._connection.endpoint
        if endpoint.listing is None:
            raise ProviderProtocolError(
                f"{self._target.name} cannot list the names that a call may use there",
                endpoint=self._target.name,
            )
        url = endpoint.base_url + endpoint.listing.path
        target = replace(
            self._target,
            endpoint=public_url(url) or url,
            model="",
            timeout=min(self._target.timeout, _LISTING_SECONDS),
        )
        async with TimeLimit(target):
            return tuple(sorted(await self._list_models(endpoint.listing, target)))

    async def _list_models(self, listing: ModelListing, target: RequestTarget) -> set[str]:
        found = set[str]()
        query = {**dict(self._connection.endpoint.query), **dict(listing.query)}
        for _ in range(_MAX_PAGES):
            path = f"{listing.path}?{urlencode(query)}" if query else listing.path
            answer = await self._connection.send("GET", path, target)
            content = target.redactor.json_bytes(await _content_of(answer, target))
            try:
                names, last = decode_models(content)
            except (ValueError, RecursionError) as exc:
                problem = "not with a list of models"
                raise errors.protocol_error(target, problem, content, status=answer.status) from exc
            found.update(names)
            if listing.cursor is None or last is None:
                break
            query[listing.cursor] = last
        return found


async def _content_of(answer: HttpAnswer, target: RequestTarget) -> bytes:
    """Read an answer to its end, and close it."""
    try:
        with ErrorMapping(target):
            return await answer.read()
    finally:
        await answer.aclose()


class HttpStream:
    """The body of a streamed answer; see `ReplyStream`."""

    def __init__(self, answer: HttpAnswer, target: RequestTarget) -> None:
        self._answer = answer
        self._target = target
        self.status: int = answer.status
        self.content_type: str = (
            answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        )

    async def next_chunk(self) -> bytes:
        async with TimeLimit(self._target):
            with ErrorMapping(self._target):
                return await self._answer.next_chunk()

    async def drain(self) -> None:
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while await self.next_chunk():
                    pass
        except (TimeoutError, ProviderError):
            pass  # the answer is complete; a connection is all that may be lost


class TimeLimit:
    """Limits a block to the timeout of a target.

    A class and no generator, like the next one: every call in flight is in both.
    """

    __slots__ = ("_deadline", "_target")

    def __init__(self, target: RequestTarget) -> None:
        self._target = target
        self._deadline = asyncio.timeout(target.timeout)

    async def __aenter__(self) -> None:
        await self._deadline.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._deadline.__aexit__(kind, error, trace)
        except TimeoutError as exc:
            raise errors.timeout_error(self._target) from without_locals(exc)
        if isinstance(error, TimeoutError) and not isinstance(error, ProviderTimeout):
            raise errors.timeout_error(self._target) from without_locals(error)


class ErrorMapping:
    """Turns errors of the HTTP client in a block into errors of rath, which hold no key."""

    __slots__ = ("_target",)

    def __init__(self, target: RequestTarget) -> None:
        self._target = target

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, HttpError):
            return
        target, problem = self._target, "it did not open in time"
        if not isinstance(error, ConnectTimeout):
            problem = one_line_preview(target.redactor.text(str(error)), errors.MAX_MESSAGE)
        # What caused it is in its text: a chain of tracebacks would hide the last line.
        raise errors.connection_error(target, problem) from None


# ---------------------------------------------------------------- heads


def _origin_of(parts: SplitResult) -> Origin:
    host = parts.hostname or ""
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError as exc:
            raise ValueError(f"the host {host!r} of base_url cannot be looked up: {exc}") from exc
    return Origin(parts.scheme, host, parts.port or _PORTS[parts.scheme])


def _address_of(origin: Origin, port: int | None) -> str:
    """Return host and port as the user has given them."""
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    return host if port is None else f"{host}:{port}"


def _basic(parts: SplitResult) -> str:
    login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return f"Basic {b64encode(login.encode()).decode()}"


def _added_headers(variable: str | None) -> dict[str, str]:
    """Return the headers that the environment adds: a line each, as `Name: value`."""
    lines = ((variable and env_value(variable)) or "").split("\n")
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _encoded(headers: Mapping[str, str]) -> tuple[bytes, str | None]:
    """Return the lines of a head, and the name of a header that cannot be sent.

    Of two names that differ in case, the last one counts. Nothing is raised here, where a key would
    stand in the variables of the traceback.
    """
    named = {name.lower(): (name, value) for name, value in headers.items()}
    lines: list[bytes] = []
    for name, value in named.values():
        line = f"{name}: {value}"
        try:
            encoded = line.encode("ascii" if name == "Authorization" else "latin-1")
        except UnicodeEncodeError:
            encoded = b"\n"
        if not name or not name.isascii() or any(byte < 32 or byte == 127 for byte in encoded):
            return b"", name
        lines.append(encoded + b"\r\n")
    return b"".join(lines), None


# ---------------------------------------------------------------- what the environment says


def proxy_for(origin: Origin) -> Proxy | None:
    """Return the proxy that the environment, or the system, names for an origin.

    Raises:
        ValueError: It is no HTTP proxy.
    """
    if os.name == "posix" and not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415  # takes 20 ms

    proxies = getproxies()
    url = proxies.get(origin.scheme) or proxies.get("all")
    if not url or proxy_bypass(f"{origin.host}:{origin.port}"):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(
            f"the proxy {public_url(url) or parts.scheme!r} of the environment cannot be used: "
            "expected http:// or https:// with a host; name another one, or leave the endpoint "
            f"out with NO_PROXY={origin.host}"
        )
    return Proxy(_origin_of(parts), None if parts.username is None else _basic(parts))


def _certificates() -> tuple[str | None, str | None]:
    return env_value("SSL_CERT_FILE"), env_value("SSL_CERT_DIR")


@lru_cache(maxsize=4)
def _tls(certificates: tuple[str | None, str | None]) -> ssl.SSLContext:
    """Return the context of all endpoints: the system's certificates, or those that are named."""
    file, directory = certificates
    if file or directory:
        try:
            context = ssl.create_default_context(cafile=file or None, capath=directory or None)
        except OSError as exc:
            raise ValueError(
                f"the certificates that SSL_CERT_FILE={file!r} or SSL_CERT_DIR={directory!r} names "
                f"cannot be read: {exc}; unset it to trust what this system trusts"
            ) from exc
    else:
        context = _system_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _system_context() -> ssl.SSLContext:
    # What the system trusts stands in a store of its own on macOS and Windows.
    import truststore  # noqa: PLC0415  # only where there is TLS

    return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def decode_models(content: bytes) -> tuple[tuple[str, ...], str | None]:
    """Return the names of a page of models, and where the next page begins, if there is one.

    The list stands under `data` or `models`, or alone; an entry has an `id` or a `name`, or is one.

    Raises:
        ValueError: The content holds no list of models.
    """
    payload: object = json.loads(content)
    fields = fields_of(payload)
    entries = fields.get("data", fields.get("models")) if fields else payload
    if not isinstance(entries, list):
        raise ValueError("no list of models")  # noqa: TRY004  # the content is wrong, not its type
    names: list[str] = []
    for entry in cast("list[object]", entries):
        known = fields_of(entry)
        name = (known.get("id") or known.get("name")) if known else entry
        if isinstance(name, str) and name:
            names.append(name)
    last = fields.get("last_id") if fields.get("has_more") is True else None
    return tuple(names), last if isinstance(last, str) else None


def without_locals(exc: E) -> E:
    """Return `exc` with no variables in the frames that it and what it came from have left.

    Those of the HTTP client hold the headers of a request that ended while it was sent, and so the
    key, which tools that report errors with local variables would show.
    """
    pending, seen = list[BaseException | None]([exc]), set[int]()
    while pending:
        each = pending.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            clear_frames(each.__traceback__)
            pending += (each.__cause__, each.__context__)
            if isinstance(each, BaseExceptionGroup):
                # `isinstance` does not tell of what it is a group.
                pending += cast("BaseExceptionGroup[BaseException]", each).exceptions
    return exc
