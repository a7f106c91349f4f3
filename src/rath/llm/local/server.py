"""Models inside the process: a server for each GGUF file and options, and the client of it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import importlib.metadata
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from copy import copy
from dataclasses import field, replace
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from rath._async.retry import Sleep
from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath.errors import MissingExtra, ProviderError
from rath.llm.chat_request import RathLLMChatRequest, RathLLMFunctionTool
from rath.llm.chat_response import RathLLMChatResponse
from rath.llm.client import VendorDraft
from rath.llm.credentials import RequestTarget, public_url
from rath.llm.local.bare_calls import BareCallDecoder, with_calls
from rath.llm.local.weights import BUNDLED_MODEL, join_weights
from rath.llm.openai.client import COMPLETIONS_PATH, MODELS, CompletionsClient
from rath.llm.provider import OutputMode, Provider, ProviderOrigin
from rath.llm.stream import ChunkDecoder, ServedInfo
from rath.llm.transport import ApiEndpoint, Transport, open_transport

__all__ = [
    "LocalEndpoint",
    "LocalOptions",
    "RathLocalChatClient",
    "ensure_server",
    "shutdown_servers",
]

_GGUF_MAGIC = b"GGUF"
_START_SECONDS = 1.0
"""How long a close waits for a start that is under way. Loading the file stops every thread, so
only its short rest can be met."""

_FD_DIRECTORY = Path("/dev/fd")
_POLL_SECONDS = 0.01
_SEVER_SECONDS = 1.5
"""How long requests may take to notice that they were cut off: xllamacpp looks once a second."""


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """Options of a served model; None leaves one to the model."""

    n_ctx: int = 8192
    """Tokens that one request and its answer may have together."""

    n_parallel: int = 2
    """Requests that are answered at a time; further ones wait."""

    n_threads: int = 1
    """Threads that compute; on small virtual machines two of them wait for each other."""

    n_batch: int = 64
    """Prompt tokens read in one step. A step cannot be interrupted, also not at exit."""

    seed: int = 0
    """Seed of the sampler, where a request brings none."""

    temperature: float | None = None
    """Temperature where a request brings none: 0 for the bundled model."""

    max_tokens: int | None = None
    """Tokens of an answer where a request sets no limit: 1024 for the bundled model."""

    chat_template: str | None = None
    """Jinja text that turns messages into a prompt; ours for the bundled model, and for a file
    the one that it holds."""


@dataclass(frozen=True, slots=True)
class LocalEndpoint:
    """Endpoint of a model of this process, by OpenAI's protocol."""

    base_url: str
    """Loopback address with its path, `http://127.0.0.1:PORT/v1`."""

    api_key: str = field(repr=False)
    """Drawn at random for this server, so that no other user of the machine can ask it."""

    model: str
    """Name under which the model is served."""

    model_path: Path
    runtime_version: str
    """Version of xllamacpp."""


class _Vendor(Protocol):
    """Used methods of an `xllamacpp.Server`."""

    @property
    def listening_address(self) -> str: ...

    def handle_completions(self, request: dict[str, object]) -> object: ...


@dataclass(frozen=True, slots=True)
class _RunningServer:
    """A server that runs, alone in holding its vendor object."""

    vendor: list[_Vendor]
    endpoint: LocalEndpoint
    port: int


_Key = tuple[Path, LocalOptions]

_servers: dict[_Key, Future[_RunningServer]] = {}
_lock = threading.Lock()


def ensure_server(model: str | None, *, options: LocalOptions | None = None) -> LocalEndpoint:
    """Return the endpoint of a model, starting its server if none runs yet.

    Blocks for seconds when it starts one; callers that come meanwhile share that start. While
    the file is loaded, the vendor's library stops every thread of the interpreter.

    Args:
        model: Path of a GGUF file, or None for the model of the extra `local-weights`.
        options: How to serve it; other options make another server.

    Raises:
        MissingExtra: The runtime, or the weights of the bundled model, are not installed.
        ProviderError: There is no such file, it is not a model, or it cannot be served.
    """
    _vendor_module()
    bundled = model is None or model == BUNDLED_MODEL
    path = join_weights() if model is None or bundled else _model_file(model)
    chosen = _with_defaults(options or LocalOptions()) if bundled else options or LocalOptions()
    key = (path, chosen)
    with _lock:
        found = _servers.get(key)
        starting: Future[_RunningServer] = found or Future()
        if found is None:
            _servers[key] = starting
    if found is None:
        try:
            starting.set_result(_start(path, BUNDLED_MODEL if bundled else path.stem, chosen))
        except BaseException as exc:
            with _lock:
                _servers.pop(key, None)
            starting.set_exception(exc)
            raise
    return starting.result().endpoint


def shutdown_servers() -> None:
    """Close every server, which takes about a second where requests in flight are cut off.

    At exit it happens by itself, after the runtime has ended the runs.
    """
    with _lock:
        leaving = list(_servers.values())
        _servers.clear()
    started, _ = wait(leaving, timeout=_START_SECONDS)
    for served in started:
        if served.exception() is None:
            _close(served.result())


class RathLocalChatClient(CompletionsClient):
    """Asks a model of this process, whose server starts with the first call.

    Args:
        provider: `model` is the path of a GGUF file, or None for the model of the extra
            `local-weights`.
        sleep: Waits between tries; for tests.
        serve: Starts the server of a model and blocks until it answers; for tests.

    Raises:
        MissingExtra: The runtime is not installed.
        ValueError: The provider names an endpoint.
    """

    kind: ClassVar[str] = "local"
    sdk: str | None = "xllamacpp"

    def __init__(
        self,
        provider: Provider,
        *,
        sleep: Sleep = asyncio.sleep,
        serve: Callable[[str], LocalEndpoint] = ensure_server,
    ) -> None:
        super().__init__(provider, sleep=sleep)
        if provider.base_url:
            raise ValueError(
                'a local model has no base_url; use provider_kind="openai" for a server of your own'
            )
        if serve is ensure_server and find_spec("xllamacpp") is None:
            raise MissingExtra("local", 'Provider(provider_kind="local")', packages=["xllamacpp"])
        self._serve = serve
        self._endpoints: dict[str, LocalEndpoint] = {}
        self._tools: frozenset[str] = frozenset()

    def open_draft(
        self, request: RathLLMChatRequest, *, streaming: bool, provider_origin: ProviderOrigin
    ) -> VendorDraft:
        # Only who knows the offered tools can tell a call from a text that looks like one.
        asking = self if not request.tools else self._offering(request.tools)
        return super(RathLocalChatClient, asking).open_draft(
            request, streaming=streaming, provider_origin=provider_origin
        )

    def _offering(self, tools: Iterable[RathLLMFunctionTool]) -> Self:
        """Return a client that is this one but for the tools that its answers may call."""
        client = copy(self)
        client._tools = frozenset(tool.name for tool in tools)  # noqa: SLF001  # one of our own kind
        return client

    def decode(
        self, reply: Mapping[str, Any], target: RequestTarget
    ) -> tuple[RathLLMChatResponse, ServedInfo]:
        response, served = super().decode(reply, target)
        return with_calls(response, self._tools), served

    def chunk_decoder(self, target: RequestTarget) -> ChunkDecoder:
        return (
            BareCallDecoder(target, self._tools) if self._tools else super().chunk_decoder(target)
        )

    def output_mode(self, *, with_tools: bool) -> OutputMode:
        # The server holds every answer to a schema, so that no tool is ever called beside one.
        return "tool" if with_tools else "schema"

    def target(self, model: str | None) -> RequestTarget:
        chosen = model or self.provider.model
        return RequestTarget(
            kind=self.kind,
            endpoint=None,
            model=chosen or BUNDLED_MODEL,
            path=COMPLETIONS_PATH,
            origins=(("model", "call" if chosen else "default"), ("base_url", "default")),
            timeout=self.timeout,
        )

    async def connect(self, target: RequestTarget) -> Transport:
        server = self._endpoints.get(target.model)
        if server is None:
            server = await runtime().call_in_worker(partial(self._serve, target.model))
            self._endpoints[target.model] = server
        endpoint = ApiEndpoint(
            base_url=server.base_url,
            key_origin=None,
            from_project=False,
            headers_variable=None,
            api_key=server.api_key,
            listing=MODELS,
        )
        known = replace(
            target,
            endpoint=public_url(server.base_url + COMPLETIONS_PATH) or server.base_url,
            secret=server.api_key,
        )
        transport = await open_transport(endpoint, known)
        return _LocalTransport(transport, target.model, runtime_version=server.runtime_version)


class _LocalTransport:
    """The way to the server in this process; what counts there is the runtime, not the SDK."""

    def __init__(self, inner: Transport, model: str, *, runtime_version: str) -> None:
        self.post = inner.post
        self.stream = inner.stream
        self._listed = inner.models
        self._model = model
        self.endpoint = inner.endpoint
        self.credential = inner.credential
        self.sdk_version: str | None = runtime_version

    async def models(self) -> tuple[str, ...]:
        # The server lists its one model by the name of the file, whatever path it was asked by.
        return tuple(sorted({*await self._listed(), self._model}))


def _vendor_module() -> Any:
    try:
        import xllamacpp  # pyright: ignore[reportMissingTypeStubs]  # it ships none
    except ImportError as exc:
        needer = "a model served inside the process"
        raise MissingExtra("local", needer, packages=["xllamacpp"]) from exc
    return xllamacpp


def _model_file(model: str) -> Path:
    path = Path(model).expanduser().resolve()
    try:
        with path.open("rb") as handle:
            magic = handle.read(len(_GGUF_MAGIC))
    except OSError as exc:
        raise ProviderError(
            f"no model file {str(path)!r} can be read: {exc.strerror or exc}. Give the path of a "
            f"GGUF file, or no model for {BUNDLED_MODEL!r} of the extra 'local-weights'"
        ) from exc
    if magic != _GGUF_MAGIC:
        raise ProviderError(
            f"{str(path)!r} is not a GGUF model: it begins with {magic!r}, expected "
            f"{_GGUF_MAGIC!r}. Convert the model to GGUF, or name another file"
        )
    return path


def _with_defaults(options: LocalOptions) -> LocalOptions:
    """Fill in what the bundled model needs to be of use: it is small and easily led astray."""
    template = options.chat_template
    return replace(
        options,
        temperature=0.0 if options.temperature is None else options.temperature,
        max_tokens=1024 if options.max_tokens is None else options.max_tokens,
        chat_template=_own_template() if template is None else template,
    )


def _own_template() -> str:
    return files("rath.llm.local").joinpath("chat_template.jinja").read_text(encoding="utf-8")


def _start(path: Path, alias: str, options: LocalOptions) -> _RunningServer:
    # The runtime must be there at exit, to end its runs before the servers close.
    if runtime().is_closing:
        raise ProviderError(f"the model {alias!r} cannot be started: the interpreter is exiting")
    api_key = secrets.token_urlsafe(32)
    vendor = _make_vendor_server(path, alias, options, api_key=api_key)
    address = vendor.listening_address
    endpoint = LocalEndpoint(
        base_url=f"{address}/v1",
        api_key=api_key,
        model=alias,
        model_path=path,
        runtime_version=importlib.metadata.version("xllamacpp"),
    )
    return _RunningServer(vendor=[vendor], endpoint=endpoint, port=int(address.rpartition(":")[2]))


def _make_vendor_server(path: Path, alias: str, options: LocalOptions, *, api_key: str) -> _Vendor:
    sdk = _vendor_module()
    params = sdk.CommonParams()
    params.model.path = str(path)
    params.model_alias = {alias}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [api_key]
    params.ui = False
    params.verbosity = -1
    params.n_parallel = options.n_parallel
    # The vendor divides the context among the requests that it answers at a time.
    params.n_ctx = options.n_ctx * options.n_parallel
    params.n_batch = params.n_ubatch = options.n_batch
    params.cache_ram_mib = 256
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.n_threads
    params.sampling.seed = options.seed
    params.use_jinja = True
    # It would run while no other thread can; the request below warms up as well.
    params.warmup = False
    if options.chat_template is not None:
        params.chat_template = options.chat_template
    if options.temperature is not None:
        params.sampling.temp = options.temperature
    if options.max_tokens is not None:
        params.n_predict = options.max_tokens
    try:
        vendor: _Vendor = sdk.Server(params)
    except RuntimeError as exc:
        raise ProviderError(
            f"the model {str(path)!r} cannot be served: {exc} Expected a whole GGUF file of a "
            f"language model, and memory for it with a context of {options.n_ctx} tokens"
        ) from exc
    # Until its loop has taken a request, a server that is closed would wait for itself for ever.
    vendor.handle_completions({"prompt": "a", "max_tokens": 1})
    return vendor


def _close(served: _RunningServer) -> None:
    """Free a server; its destructor waits for all requests while it holds the interpreter lock."""
    if sever_connections(served.port, timeout=_SEVER_SECONDS):
        served.vendor.clear()
    else:
        _keep_for_ever(served)


def _keep_for_ever(served: _RunningServer) -> None:
    """Leave a server to the end of the process: its destructor would wait, perhaps for ever."""
    for vendor in served.vendor:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(vendor))


def sever_connections(port: int, *, timeout: float) -> bool:
    """Cut off everyone who is connected to a port that this process serves.

    Args:
        port: An IPv4 port of this process.
        timeout: Seconds that the server may take to let go of what was cut off.

    Returns:
        Whether no connection is left; False also where the platform cannot tell.
    """
    if not _FD_DIRECTORY.is_dir():
        return False
    # The listener goes first, so that nobody comes after. It is no longer known as one then.
    listeners = set[int]()
    for fd, found in _bound_sockets(port):
        if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            listeners.add(fd)
            _shut_down(found)
    for fd, found in _bound_sockets(port):
        if fd not in listeners:
            _shut_down(found)
    deadline = time.monotonic() + timeout
    while any(fd not in listeners for fd, _ in _bound_sockets(port)):
        if time.monotonic() >= deadline:
            return False
        # The server's threads close the sockets, and tell nobody.
        time.sleep(_POLL_SECONDS)
    return True


def _bound_sockets(port: int) -> Iterator[tuple[int, socket.socket]]:
    """Yield the descriptor and a duplicate of each socket of this process on its own `port`."""
    for fd in map(int, os.listdir(_FD_DIRECTORY)):
        with contextlib.suppress(OSError), _duplicate(fd) as found:
            if found.family == socket.AF_INET and found.getsockname()[1] == port:
                yield fd, found


def _duplicate(fd: int) -> socket.socket:
    copy = os.dup(fd)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


def _shut_down(found: socket.socket) -> None:
    # The peer may have gone already, and some platforms keep their listeners open.
    with contextlib.suppress(OSError):
        found.shutdown(socket.SHUT_RDWR)


def _close_at_exit() -> None:
    if _servers:
        runtime().shutdown()
        shutdown_servers()


def _forget_after_fork() -> None:
    """Start afresh in a forked child: the threads of its parent's servers do not exist there."""
    global _lock
    _lock = threading.Lock()
    for served in _servers.values():
        if served.done() and served.exception() is None:
            _keep_for_ever(served.result())
    _servers.clear()


# Exit handlers run last in, first out: this one comes before that of the runtime, and ends its
# runs itself, so that they are named as cut off rather than fail on a closed connection.
atexit.register(_close_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
