"""What a spec says about a server: the address of one, or the directory of one of our own."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from rath.errors import MemoryBackendError
from rath.memory.abc import MemoryStoreSpec
from rath.memory.adapters.openviking.defaults import ACCOUNT, REQUEST_SECONDS

__all__ = ["Options", "read_options"]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a spec, checked."""

    url: str | None = None
    path: Path | None = None
    """Directory of a server of our own."""

    api_key: str = field(default="", repr=False)
    account_id: str = ACCOUNT
    user_id: str | None = None
    agent_id: str | None = None
    timeout: float = REQUEST_SECONDS
    """Seconds for an operation that sets none itself."""

    server: tuple[str, ...] = ()
    """Command of a server of our own; looked for when it is empty."""

    config: Mapping[str, Any] | Path = field(default_factory=dict[str, Any], repr=False)
    """What goes into its `ov.conf`, or a file that has it."""

    embedding_provider: str | None = None
    chat_provider: str | None = None
    embedding_dimensions: int | None = None


def read_options(spec: MemoryStoreSpec) -> Options:
    """Return what a spec says.

    Raises:
        MemoryBackendError: It names neither a server nor a directory, or something that cannot be.
    """
    if spec.namespace is not None:
        raise MemoryBackendError(
            f"a server of OpenViking has no namespaces, got {spec.namespace!r}; give an account_id "
            "or a user_id of its own to what shall be apart"
        )
    given = dict(spec.options or {})
    url, path = _text(given, "url"), _place(given.get("path"))
    if not url and path is None:
        raise MemoryBackendError(
            "no OpenViking server is named; give options={'url': 'http://host:1933'} for a server "
            "that runs, or options={'path': 'directory'} to start one on this machine, or use the "
            "name of an entry of memory.providers in the config that has one of them"
        )
    if url and not url.startswith(("http://", "https://")):
        raise MemoryBackendError(f"url must begin with http:// or https://, got {url!r}")
    if url:
        _check_host(url)
    return Options(
        url=url.rstrip("/") if url else None,
        path=None if url or path is None else path.expanduser(),
        api_key=_text(given, "api_key") or "",
        account_id=spec.account_id or ACCOUNT,
        user_id=spec.user_id,
        agent_id=spec.agent_id,
        timeout=_seconds(given.get("timeout")),
        server=_command(given.get("server")),
        config=_config(given.get("config")),
        embedding_provider=_text(given, "embedding_provider"),
        chat_provider=_text(given, "chat_provider"),
        embedding_dimensions=_dimensions(given.get("embedding_dimensions")),
    )


def _text(given: Mapping[str, Any], name: str) -> str | None:
    value: object = given.get(name)
    if value is not None and not isinstance(value, str):
        # The value itself may be a secret.
        raise MemoryBackendError(f"{name} must be a text, got {type(value).__name__}")
    return value


def _place(value: object) -> Path | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str | Path):
        raise MemoryBackendError(f"path must name a directory, got {type(value).__name__}")
    return Path(value)


def _check_host(url: str) -> None:
    try:
        host = urlsplit(url).hostname
    except ValueError:
        host = None
    if not host:
        # The text does not repeat it: it may hold a password.
        raise MemoryBackendError("url must name a host, as in http://host:1933")


def _seconds(value: object) -> float:
    if value is None:
        return REQUEST_SECONDS
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise MemoryBackendError(f"timeout must be a number of seconds above 0, got {value!r}")
    return float(value)


def _dimensions(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise MemoryBackendError(f"embedding_dimensions must be at least 1, got {value!r}")
    return value


def _config(value: object) -> Mapping[str, Any] | Path:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    if isinstance(value, str | Path):
        return Path(value).expanduser()
    raise MemoryBackendError(
        f"config must be a mapping or the path of an ov.conf, got {type(value).__name__}"
    )


def _command(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    words: tuple[str, ...] = ()
    if isinstance(value, str):
        try:
            words = tuple(shlex.split(value))
        except ValueError as exc:
            raise MemoryBackendError(f"server must be a command: {exc}") from exc
    elif isinstance(value, list | tuple):
        words = tuple(str(word) for word in cast("Sequence[object]", value))
    if not words:
        raise MemoryBackendError("server must be a command: a text, or a list of words")
    return words
