"""A server of our own on loopback, shared by all processes that open its directory.

<path>/                 what the server keeps
<path>/.rath/ov.conf    its config, which names keys: for this user only
<path>/.rath/server.json  its address and key, while it runs
<path>/.rath/server.log   its log
<path>/.rath/users.lock   held shared by each user, exclusive by the supervisor that ends it
<path>/.rath/start.lock   held by the process that starts it
<path>/.rath/keeper.lock  held by its supervisor
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import field
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath._core.files import FileLock, LockKind, atomic_write_json, make_private_directory
from rath.config.env import env_value
from rath.errors import MemoryBackendError
from rath.llm.credentials import OPENAI, OPENAI_FIXED_MODEL, find_account
from rath.llm.embedding.client import EmbeddingProvider
from rath.llm.provider import Provider
from rath.memory.abc import MemoryStoreSpec

__all__ = ["Options", "ServerShare", "join_server", "read_options"]

REQUEST_SECONDS = 60.0
"""How long an operation may take that waits for no processing."""

START_SECONDS = 180.0
"""How long a server may take to answer: 12 to 24 s were seen, and 94 s for the very first time,
when Python compiles its packages."""

END_SECONDS = 15.0
"""How long a server may take to end by itself; 5 s were seen."""

_VARIABLE = "OPENRATH_OPENVIKING_SERVER"
_ACCOUNT = "default"
_LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.05
_LOG_LINES = 12
_OPENAI_URL = "https://api.openai.com/v1"

_DIMENSIONS = {
    "text-embedding-3-small": 1536,
    "text-embedding-3-large": 3072,
    "text-embedding-ada-002": 1536,
}
"""Lengths of the vectors of models that people name without one (OpenAI's documentation)."""

# Keys of other services are none of the server's business: its own stand in its config.
_ENVIRONMENT = (
    "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SSL_CERT_DIR",
    "SSL_CERT_FILE", "TMPDIR", "TZ", "USER", "XDG_CACHE_HOME",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip


# ---------------------------------------------------------------- options


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a spec, checked."""

    url: str | None = None
    path: Path | None = None
    """Directory of a server of our own."""

    api_key: str = field(default="", repr=False)
    account_id: str = _ACCOUNT
    user_id: str | None = None
    agent_id: str | None = None
    timeout: float = REQUEST_SECONDS
    """Seconds for an operation that sets none itself."""

    server: tuple[str, ...] = ()
    """Command of a server of our own; looked for when it is empty."""

    config: Mapping[str, Any] | Path = field(default_factory=dict[str, Any], repr=False)
    """Additions to its `ov.conf`, or a file with them."""

    embedding_provider: str | None = None
    chat_provider: str | None = None
    embedding_dimensions: int | None = None


_NUMBERS = (int, float)
_TEXT = ((str,), 0, "must be a text, got {kind}")
_RULES: Mapping[str, tuple[tuple[type, ...], float, str]] = {
    "url": _TEXT,
    "api_key": _TEXT,
    "embedding_provider": _TEXT,
    "chat_provider": _TEXT,
    "path": ((str, Path), 0, "must name a directory, got {kind}"),
    "config": ((str, Path, Mapping), 0, "must be a mapping or the path of an ov.conf, got {kind}"),
    "timeout": (_NUMBERS, 5e-324, "must be a number of seconds above 0, got {value!r}"),
    "embedding_dimensions": ((int,), 1, "must be at least 1, got {value!r}"),
    "server": ((str, list, tuple), 1, "must be a command: a text, or a list of words"),
}
"""For each option its types, the least number or number of items, and its message.

A value that may be a secret is not repeated.
"""


def read_options(spec: MemoryStoreSpec) -> Options:
    """Return the options of a spec.

    Raises:
        MemoryBackendError: It names neither a server nor a directory, or something that cannot be.
    """
    if spec.namespace is not None:
        raise MemoryBackendError(
            f"a server of OpenViking has no namespaces, got {spec.namespace!r}; give an account_id "
            "or a user_id of its own to what shall be apart"
        )
    options: dict[str, Any] = {
        name: value for name, value in (spec.options or {}).items() if value is not None
    }
    for name, (kinds, least, message) in _RULES.items():
        value = options.get(name)
        is_valid = isinstance(value, kinds) and not isinstance(value, bool)
        if is_valid and least:
            is_valid = (value if isinstance(value, _NUMBERS) else len(cast("Any", value))) >= least
        if value is not None and not is_valid:
            raise MemoryBackendError(
                f"{name} {message.format(kind=type(value).__name__, value=value)}"
            )
    url, path = options.get("url", ""), options.get("path", "")
    if not url and not path:
        raise MemoryBackendError(
            "no OpenViking server is named; give options={'url': 'http://host:1933'} for a server "
            "that runs, or options={'path': 'directory'} to start one on this machine, or use the "
            "name of an entry of memory.providers in the config that has one of them"
        )
    if url:
        _check_url(url)
    given = {name: options[name] for name in _RULES.keys() & options.keys()}
    config, command = given.get("config", {}), given.get("server", ())
    try:
        words = shlex.split(command) if isinstance(command, str) else map(str, command)
    except ValueError as exc:
        raise MemoryBackendError(f"server must be a command: {exc}") from exc
    given |= {
        "url": url.rstrip("/") if url else None,
        "path": None if url else Path(path).expanduser(),
        "timeout": float(given.get("timeout", REQUEST_SECONDS)),
        "server": tuple(words),
        "config": config if isinstance(config, Mapping) else Path(config).expanduser(),
    }
    account_id = spec.account_id or _ACCOUNT
    return Options(account_id=account_id, user_id=spec.user_id, agent_id=spec.agent_id, **given)


def _check_url(url: str) -> None:
    if not url.startswith(("http://", "https://")):
        raise MemoryBackendError(f"url must begin with http:// or https://, got {url!r}")
    try:
        host = urlsplit(url).hostname
    except ValueError:
        host = None
    if not host:
        # The text does not repeat it: it may hold a password.
        raise MemoryBackendError("url must name a host, as in http://host:1933")


# ---------------------------------------------------------------- its config


def server_config(options: Options, *, workspace: Path, port: int, key: str) -> Mapping[str, Any]:
    """Return the content of `ov.conf`; blocks, since it reads configs.

    Args:
        options: Which models the server uses.
        workspace: Directory of its data.
        port: Its port, on this machine only.
        key: The key of all requests: other users of the machine must not read the notes.

    Raises:
        MemoryBackendError: It would have no embeddings, or a provider cannot be used.
    """
    models: dict[str, Any] = {}
    if options.embedding_provider is not None:
        models["embedding"] = {"dense": _model(options, "embedding_provider")}
    if options.chat_provider is not None:
        models["vlm"] = _model(options, "chat_provider")
    additions = _additions(options)
    for option, names in (
        ("embedding_provider", ("embedding", "dense")),
        ("chat_provider", ("vlm",)),
    ):
        own: Mapping[str, Any] = models
        foreign: Mapping[str, Any] = additions
        for name in names:
            own, foreign = own.get(name) or {}, foreign.get(name) or {}
        if own and "api_base" in foreign and "api_key" not in foreign:
            raise MemoryBackendError(
                f"config names another api_base than {option}, whose key is not sent there; give "
                "its api_key beside it, or leave one of the two out"
            )
    config = _merge(models, additions)
    if not config.get("embedding"):
        raise MemoryBackendError(
            "an OpenViking server of our own needs a model for embeddings; give "
            "options={'embedding_provider': NAME} with an entry of llm.providers, or "
            "options={'config': {'embedding': {'dense': {...}}}} as its documentation has it"
        )
    server = {"host": _LOOPBACK, "port": port, "auth_mode": "trusted", "root_api_key": key}
    return _merge(config, {"server": server, "storage": {"workspace": str(workspace)}})


def _additions(options: Options) -> Mapping[str, Any]:
    if not isinstance(options.config, Path):
        return options.config
    try:
        content: Any = json.loads(options.config.read_bytes())
    except (OSError, ValueError) as exc:
        raise MemoryBackendError(
            f"the file {str(options.config)!r} of the option config cannot be read: {exc}; "
            "expected a JSON object, as ov.conf has it"
        ) from exc
    if not isinstance(content, dict):
        raise MemoryBackendError(
            f"the file {str(options.config)!r} of the option config must hold a JSON object, as "
            f"ov.conf does, not {type(content).__name__}"
        )
    return cast("Mapping[str, Any]", content)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for name, value in above.items():
        old: Any = result.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = _merge(cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", value))
        result[name] = value
    return result


def _model(options: Options, option: str) -> Mapping[str, Any]:
    """Return what `ov.conf` says of the model of a provider; `option` names the provider."""
    name: str = getattr(options, option)
    is_embedding = option == "embedding_provider"
    try:
        provider = (EmbeddingProvider if is_embedding else Provider).from_config(name)
    except KeyError as exc:
        raise MemoryBackendError(f"{option}: {exc.args[0]}") from exc
    if provider.provider_kind not in {None, "openai"}:
        raise MemoryBackendError(
            f"{option} {name!r} is of the kind {provider.provider_kind!r}; the server is told of "
            "endpoints that speak OpenAI's protocol, others go into options={'config': ...}"
        )
    account = find_account(
        provider,
        kind="openai",
        variables=OPENAI_FIXED_MODEL if is_embedding else OPENAI,
        default_base_url=_OPENAI_URL,
        purpose="embedding" if is_embedding else "chat",
    )
    account.check_trusted()
    model = None if account.model is None else account.model.value
    if isinstance(provider, EmbeddingProvider):
        model = provider.model
    if model is None:
        raise MemoryBackendError(
            f"the provider {name!r} names no model; give it one in the config: "
            f"rath config set llm.providers.{name}.model MODEL"
        )
    section = {
        "provider": "openai",
        "model": model,
        # Its client of OpenAI refuses to start without any.
        "api_key": account.api_key.value or "unused",
        "api_base": account.base_url.value,
    }
    if not isinstance(provider, EmbeddingProvider):
        return section
    size = options.embedding_dimensions or provider.dimensions or _DIMENSIONS.get(model)
    if size is None:
        raise MemoryBackendError(
            f"the server must be told how long the vectors of {model!r} are; give "
            "options={'embedding_dimensions': N}"
        )
    return {**section, "dimension": size, "input": "text", "encoding_format": "float"}


# ---------------------------------------------------------------- start and end


@dataclass(frozen=True, slots=True)
class _ServerHome:
    """The directory of a server's files that are ours."""

    path: Path

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def is_supervised(self) -> bool:
        """Return whether a server runs, or its supervisor."""
        # Shared: two who look do not take each other for the supervisor.
        return not self._is_free("keeper.lock", "shared")

    def has_users(self) -> bool:
        """Return whether others hold a share; a supervisor that ends the server is none."""
        is_shared = self._is_free("users.lock", "shared") and not self._is_free(
            "users.lock", "exclusive"
        )
        # The supervisor may have come in between, and does not let go any more.
        return is_shared and self._is_free("users.lock", "shared")

    def _is_free(self, name: str, kind: LockKind) -> bool:
        lock = FileLock(self / name, kind=kind)
        try:
            is_free = lock.acquire()
        except FileNotFoundError:
            return True  # the directory itself was removed
        lock.release()
        return is_free

    def publish(self, port: int, key: str) -> tuple[str, str]:
        """Write the address of the server to its file, and return it with its key."""
        url = f"http://{_LOOPBACK}:{port}"
        if not (self / "server.json").exists():
            atomic_write_json(self / "server.json", {"url": url, "key": key}, mode=0o600)
        return url, key

    def start_failure(self, server: str) -> MemoryBackendError:
        """Return the error of a server that does not answer, with the end of its log."""
        log = self / "server.log"
        try:
            lines = log.read_text("utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        except OSError:
            lines = []
        text = "\n".join(lines) or "it said nothing"
        how = "does not answer" if self.is_supervised() else "ended before it answered"
        return MemoryBackendError(f"{server} {how}; the end of {str(log)!r}:\n{text}")


@dataclass(slots=True)
class ServerShare:
    """The share of this process in a running server."""

    url: str
    key: str = field(repr=False)
    _home: _ServerHome
    _users: FileLock

    async def aleave(self) -> None:
        """Give the share back; the last one ends the server, which is waited for."""
        await runtime().call_in_worker(self.leave)

    def leave(self) -> None:
        """Do the same, blocking."""
        if not self._users.held:
            return
        self._users.release()
        deadline = time.monotonic() + END_SECONDS
        while self._home.is_supervised() and time.monotonic() < deadline:
            if self._home.has_users():
                return
            time.sleep(_POLL_SECONDS)


async def join_server(options: Options) -> ServerShare:
    """Return a share in the server of a directory, which is started if it does not run.

    Raises:
        MemoryBackendError: It cannot be started.
    """
    stop = threading.Event()
    joining = runtime().start_in_worker(partial(_join, options, stop))
    try:
        return await asyncio.wrap_future(joining)
    except asyncio.CancelledError:
        stop.set()
        joining.add_done_callback(_leave_unused)
        raise


def _leave_unused(joining: Future[ServerShare]) -> None:
    # Called on the runtime thread where the start has just ended: leaving would block it.
    if not joining.cancelled() and joining.exception() is None:
        runtime().start_in_worker(joining.result().leave)


def _join(options: Options, stop: threading.Event) -> ServerShare:
    if sys.platform == "win32":
        raise MemoryBackendError(
            "an OpenViking server is not started by rath on Windows; start it yourself, and give "
            "options={'url': 'http://host:1933'}"
        )
    assert options.path is not None
    deadline = time.monotonic() + START_SECONDS
    path = options.path.absolute()
    home = _ServerHome(path / ".rath")
    try:
        path.mkdir(parents=True, exist_ok=True)
        make_private_directory(home.path)
        users = FileLock(home / "users.lock", kind="shared")
        starting = FileLock(home / "start.lock")
        # Who ends the last server has it until that has ended.
        if not users.acquire(timeout=2 * END_SECONDS):
            raise MemoryBackendError(
                f"the last OpenViking server in {str(path)!r} has not ended within "
                f"{2 * END_SECONDS:g} s; end its process, then try again"
            )
        try:
            if not starting.acquire(timeout=START_SECONDS):
                raise MemoryBackendError(
                    f"another process has been starting a server in {str(path)!r} for "
                    f"{START_SECONDS:g} s; end that process, or use another path"
                )
            try:
                url, key = _running(home, deadline, stop) or _start(home, options, deadline, stop)
            finally:
                starting.release()
        except BaseException:
            users.release()
            raise
    except OSError as exc:
        raise MemoryBackendError(
            f"no server can be started in {str(path)!r}: {exc}; give a path that is a directory "
            "of yours, or can be made one"
        ) from exc
    return ServerShare(url, key, home, users)


def _running(home: _ServerHome, deadline: float, stop: threading.Event) -> tuple[str, str] | None:
    """Return the address and key of the server of a directory, None where none runs.

    One that is not ready is waited for: who began to start it may have gone. So is the end of one
    that ends.
    """
    while home.is_supervised():
        with suppress(FileNotFoundError, ValueError, KeyError):
            server: Mapping[str, Any] = json.loads((home / "ov.conf").read_bytes())["server"]
            if _answers(server["port"]):
                return home.publish(server["port"], server["root_api_key"])
        if stop.is_set() or time.monotonic() > deadline:
            raise home.start_failure("the server that somebody started")
        time.sleep(_POLL_SECONDS)
    return None


def _start(
    home: _ServerHome, options: Options, deadline: float, stop: threading.Event
) -> tuple[str, str]:
    command = options.server or _find_program()
    with socket.create_server((_LOOPBACK, 0)) as free:
        port: int = free.getsockname()[1]
    key = secrets.token_hex(16)
    config = server_config(options, workspace=home.path.parent, port=port, key=key)
    (home / "server.json").unlink(missing_ok=True)
    (home / "server.log").unlink(missing_ok=True)
    atomic_write_json(home / "ov.conf", config, mode=0o600)
    supervisor = str(Path(__file__).with_name("supervisor.py"))
    line = [sys.executable, "-I", "-S", supervisor, str(home.path), *command]
    try:
        subprocess.run(
            [*line, "--config", str(home / "ov.conf")],
            cwd=home.path,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=True,
            timeout=START_SECONDS,
        )
    except subprocess.SubprocessError as exc:
        raise MemoryBackendError(f"the supervisor of the server did not start: {exc}") from exc
    while not _answers(port):
        if stop.is_set() or not home.is_supervised() or time.monotonic() > deadline:
            raise home.start_failure(f"the server {command[0]!r}")
        time.sleep(_POLL_SECONDS)
    return home.publish(port, key)


def _find_program() -> tuple[str, ...]:
    name, *arguments = shlex.split(env_value(_VARIABLE) or "") or ["openviking-server"]
    program = shutil.which(name)
    if program is None:
        raise MemoryBackendError(
            f"{name!r} was not found; install OpenViking (AGPL-3.0) into an environment of its "
            f"own, `pip install openviking`, and name its program in {_VARIABLE}, or put "
            "it on PATH"
        )
    return (program, *arguments)


def _answers(port: int) -> bool:
    connection = HTTPConnection(_LOOPBACK, port, timeout=1.0)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
