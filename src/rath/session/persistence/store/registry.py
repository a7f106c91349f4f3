"""The stores of sessions by the scheme of their URL; other packages add theirs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rath import config
from rath._core.registry import Registry
from rath.config.env import env_value
from rath.config.paths import config_layer_paths
from rath.errors import ConfigError, StoreNotFound
from rath.session.persistence.paths import SESSIONS_DIR_NAME
from rath.session.persistence.store.abc import SessionStore
from rath.session.persistence.store.files import FileStore

__all__ = ["StoreFactory", "default_store", "file_store", "open_store", "stores"]

StoreFactory = Callable[[str], SessionStore]
"""Makes the store of a URL; called once for each URL of a process, and connects to nothing yet."""

stores: Registry[StoreFactory] = Registry(
    "session store",
    group="rath.stores",
    builtins={
        "files": "rath.session.persistence.store.registry:file_store",
        "postgres": "rath.session.persistence.store.postgres:postgres_store",
        "postgresql": "rath.session.persistence.store.postgres:postgres_store",
    },
    not_found=StoreNotFound,
)
"""By scheme: what stands before `://` in a URL."""

_opened: dict[str, SessionStore] = {}
_lock = threading.Lock()


def open_store(url: str | None = None) -> SessionStore:
    """Return the store of a URL; the same one for each call of a process.

    Args:
        url: `SCHEME://...` of a registered store, or a directory; by default what `default_store`
            takes.

    Raises:
        StoreNotFound: No store has that scheme.
        MissingExtra: What it needs is not installed.
        ValueError: The rest of the URL is not what such a store takes.
    """
    if url is None:
        return default_store()
    scheme, separator, _ = url.partition("://")
    if not separator:
        return open_store(f"files{_path_of(Path(url).expanduser().absolute())}")
    with _lock:
        opened = _opened.get(url)
    if opened is None:
        # Outside the lock: what is imported may itself open stores. The first one that is there
        # is the one of the process.
        made = stores.get(scheme.lower())(url)
        with _lock:
            opened = _opened.setdefault(url, made)
    return opened


def default_store() -> SessionStore:
    """Return the store that `OPENRATH_STORE` names, else that of the config, else `sessions_dir()`.

    Raises:
        StoreNotFound: No store has that scheme.
        MissingExtra: What it needs is not installed.
        ConfigError: The config cannot be read, or holds a password.
        UntrustedConfig: A project's config names it, and the user has not trusted that.
    """
    named = env_value("OPENRATH_STORE")
    if named is not None:
        return open_store(named)
    # Asked for by each run that is recorded, so it does no more than it must.
    paths = config_layer_paths()
    configured = _configured() if any(path.exists() for path in paths) else None
    return open_store(configured or str(paths[0].parent / SESSIONS_DIR_NAME))


def file_store(url: str) -> FileStore:
    """Return the store of the directory that a URL names: `files:///var/lib/sessions`.

    Raises:
        ValueError: It names a host, or no directory.
    """
    parts = urlsplit(url)
    if parts.netloc or not parts.path:
        raise ValueError(
            f"{url!r} names no directory of this machine; write files:// and an absolute path, as "
            "in files:///var/lib/sessions"
        )
    path = unquote(parts.path)
    if sys.platform == "win32":  # There a drive stands behind the slash.
        path = path.lstrip("/")
    return FileStore(path)


def _path_of(directory: Path) -> str:
    """Return what a URL of a directory says after its scheme."""
    return directory.as_uri().removeprefix("file")


def _configured() -> str | None:
    """Return what the first config to name a store says, None where none does."""
    for layer in config.config_layers():
        url = layer.config.sessions.store
        if url:
            _check_configured(url, layer)
            config.check_trusted(layer, "sessions", "store")
            return url
    return None


def _check_configured(url: str, layer: config.ConfigStore) -> None:
    parts = urlsplit(url)
    if "://" in url and (parts.password is not None or "password" in parts.query):
        raise ConfigError(
            f"sessions.store in {layer.path} holds a password, which does not belong into a "
            "config; leave it out there, and give the whole URL in OPENRATH_STORE, or the password "
            "in the way of that store (PGPASSWORD or ~/.pgpass for Postgres)"
        )
