"""A real OpenViking server for tests, from an environment of its own, shared by a whole run."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from rath._async.runtime import runtime
from rath._core.files import FileLock
from rath.memory import MemoryStore, MemoryStoreSpec, get
from rath.memory.adapters.openviking.backend import OpenVikingStore
from tests.support.openviking_models import DIMENSIONS, Models, embedded_model

VERSION = "0.5.2"
ENVIRONMENT = "RATH_OPENVIKING_ENV"

_PREFIX = "rath-openviking-"
_OLD_SECONDS = 600.0

END_SECONDS = 300.0
"""How long the tests of other processes may go on that use the server."""


@dataclass(frozen=True, slots=True)
class Service:
    """A server that runs."""

    url: str
    key: str
    path: Path

    def spec(self, **options: Any) -> MemoryStoreSpec:
        """A store of a user whom nobody else is."""
        given = {"url": self.url, "api_key": self.key, **options}
        return MemoryStoreSpec(user_id=f"u{uuid4().hex[:12]}", options=given)


def program() -> Path | None:
    """The server's program, where an environment for it was made."""
    named = os.environ.get(ENVIRONMENT)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = Path(named) if named else caches / "openrath" / f"openviking-{VERSION}"
    found = home / "bin" / "openviking-server"
    # While it is being made there is no such file.
    is_whole = named is not None or (home / "complete").is_file()
    return found if is_whole and found.is_file() else None


def model_config(base_url: str) -> Mapping[str, Any]:
    """What `ov.conf` says of the models at an address."""
    model = {"provider": "openai", "api_key": "none-is-needed", "api_base": base_url}
    vectors = {"model": "vectors", "dimension": DIMENSIONS, "input": "text"}
    dense = {**model, **vectors, "encoding_format": "float"}
    return {"embedding": {"dense": dense}, "vlm": {**model, "model": "words"}}


class _Shared:
    """The one server of this process, and how many ask for it."""

    def __init__(self) -> None:
        self.n_users = 0
        self.service: Service | None = None
        self._stack: list[Any] = []

    def start(self, found: Path) -> Service:
        models = Models(embedded_model())
        path = _directory() / "store"
        config = model_config(models.base_url)
        options = {"path": str(path), "server": [str(found)], "config": config}
        store = get("openviking").open(MemoryStoreSpec(options=options))
        self._stack = [models, path, store]
        share = native_of(store).share
        assert share is not None
        self.service = Service(share.url, share.key, path)
        return self.service

    def stop(self) -> None:
        models, path, store = self._stack
        store.backend.close(store)
        # Another process of this run may use the server, which may ask the models of this one. How
        # long its tests take is no time of the test that was the last one here.
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        ended = FileLock(path / ".rath" / "keeper.lock", kind="shared")
        with suppress(FileNotFoundError):  # the other one was faster
            ended.acquire(timeout=END_SECONDS)
            ended.release()
        models.close()
        shutil.rmtree(path.parent, ignore_errors=True)
        self.service = None


def _directory() -> Path:
    """A directory of this run: all its processes share one server."""
    _sweep()
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return Path(tempfile.mkdtemp(prefix=_PREFIX))
    return Path(tempfile.gettempdir()) / f"{_PREFIX}{run}"


def _sweep() -> None:
    """Remove what runs left behind that were killed; their servers have ended by themselves."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            ended = FileLock(left / "store" / ".rath" / "keeper.lock")
            if time.time() - left.stat().st_mtime > _OLD_SECONDS and ended.acquire():
                shutil.rmtree(left, ignore_errors=True)
                ended.release()


_shared = _Shared()


def native_of(store: MemoryStore) -> OpenVikingStore:
    """What the backend opened for a store."""
    native = runtime().run(store.aopened, label="a test")
    assert isinstance(native, OpenVikingStore)
    return native


@contextmanager
def shared_service() -> Generator[Service]:
    """The server of this process, started for the first who asks and ended with the last."""
    found = program()
    if found is None:
        pytest.skip(
            f"no OpenViking {VERSION}: bash .ci/run makes its environment, or {ENVIRONMENT} names "
            "the directory of one"
        )
    _shared.n_users += 1
    try:
        yield _shared.service or _shared.start(found)
    finally:
        _shared.n_users -= 1
        if _shared.n_users == 0 and _shared.service is not None:
            _shared.stop()


@pytest.fixture(scope="session")
def openviking() -> Iterator[Service]:
    """A real server; to be imported by a `conftest.py`."""
    with shared_service() as service:
        yield service
