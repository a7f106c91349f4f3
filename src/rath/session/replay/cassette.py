"""`rath.cassette`: code whose live calls are recorded once and replayed ever after."""

from __future__ import annotations

import functools
import inspect
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args
from uuid import UUID

from rath._async.lazy import Deferred
from rath.config.env import env_value
from rath.errors import PersistenceError
from rath.session.log.bundle import (
    Bundle,
    BundleStore,
    pack,
    read_bundle,
    write_bundle,
)
from rath.session.log.files import FileStore
from rath.session.persistence.loading.build import build
from rath.session.persistence.loading.closure import closure
from rath.session.persistence.loading.content import Content
from rath.session.persistence.loading.load import session_of
from rath.session.persistence.loading.sources import Source
from rath.session.replay.block import replay
from rath.session.replay.stage import gathering
from rath.session.saving import save
from rath.session.session import Session

__all__ = ["Cassette", "Mode", "cassette"]

Mode = Literal["auto", "record", "replay"]
F = TypeVar("F", bound=Callable[..., Any])

_NOTE = "cassette"
_VARIABLE = "OPENRATH_CASSETTE"


class Cassette:
    """Records the code that it decorates or that runs in its block, or replays it; see `cassette`.

    Args:
        path: The file.
        mode: What to do.
    """

    def __init__(self, path: Path, mode: Mode) -> None:
        self.path = path
        self.mode: Mode = mode
        self._entered: list[Any] = []

    def __call__(self, function: F) -> F:
        """Return a function that runs on this cassette; may be `def` or `async def`."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"a cassette decorates functions, and {function.__name__} is a generator; use "
                "`with rath.cassette(path):` in it"
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                with self._running():
                    return await function(*args, **kwargs)

            return cast("F", run_async)  # the same signature, as `wraps` says

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self._running():
                return function(*args, **kwargs)

        return cast("F", run)  # the same signature, as `wraps` says

    def __enter__(self) -> None:
        context = self._running()
        context.__enter__()
        self._entered.append(context)

    def __exit__(self, *raised: Any) -> bool | None:
        suppresses: bool | None = self._entered.pop().__exit__(*raised)
        return suppresses

    @contextmanager
    def _running(self) -> Generator[None]:
        mode = _mode(self.mode)
        if mode == "replay" and not self.path.exists():
            raise PersistenceError(
                f"there is no cassette {self.path}, and mode 'replay' records none; run once with "
                f"mode 'auto', or with {_VARIABLE}=record"
            )
        if mode == "record" or not self.path.exists():
            with _recording(self.path):
                yield
            return
        with replay(*sessions_on(self.path)):
            yield


def cassette(path: str | Path, *, mode: Mode = "auto") -> Cassette:
    """Record what code does on its first run, and replay it from then on, strictly offline.

    A decorator for functions, `def` or `async def`, and a context manager. The first run makes
    live calls; when it ends without an exception, all sessions that it made go into one file. Later
    runs are served from that file as by `rath.replay`: no network, no key, no tool is run, and
    ReplayDifference where the code asks for something else. Delete the file to record anew. It
    holds what was said and done, but no key.

    Args:
        path: The file; a relative one stands below the working directory.
        mode: `auto`: replay if the file is there, else record. `record`: record in any case.
            `replay`: never record. The variable `OPENRATH_CASSETTE` says it for all cassettes
            whose mode is `auto`.

    Raises:
        ValueError: There is no such mode.

    Example::

        @rath.cassette("tests/cassettes/greeting.zip")
        def test_greeting() -> None:
            assert agent(Session.from_user_message("hello")).text() == "Hello!"
    """
    return Cassette(Path(path), _checked(mode, "mode"))


@contextmanager
def _recording(path: Path) -> Generator[None]:
    made: dict[UUID, Session] = {}

    def take(session: Session) -> None:
        made[session.id] = session

    path = path.absolute()
    with gathering(take):
        yield
    with tempfile.TemporaryDirectory(prefix="rath-cassette-") as directory:
        store = FileStore(directory)
        for session in made.values():
            save(_ended(session), store=store)
        write_bundle(pack(store, list(made), note=_NOTE), path)


def sessions_on(path: Path) -> list[Session]:
    """Return the sessions that a bundle names, with what they came from.

    Raises:
        PersistenceError: It cannot be read.
        SessionDamaged: It is not what was written.
    """
    return sessions_of(read_bundle(path), str(path))


def sessions_of(bundle: Bundle, where: str) -> list[Session]:
    """Return the sessions that a bundle names; each log is read once."""
    source = Source(BundleStore(bundle, where))
    read: dict[UUID, Content | None] = {}
    contents: dict[UUID, Content] = {}

    def find(session: UUID) -> Content | None:
        if session not in read:
            read[session] = source.find(session)
        return read[session]

    for session in bundle.sessions:
        content = find(session)
        if content is not None and session not in contents:
            for each in closure(content, find):
                contents.setdefault(each.header.session, each)
    built = build(contents.values())
    return [session_of(built[session]) for session in bundle.sessions]


def _ended(session: Session) -> Session:
    """Wait for a run and return its session; one that failed as far as it came."""
    with suppress(Exception):  # the code under test has seen its error, or did not want to
        return session.synchronize()
    latest = session.body.latest
    if latest is None:
        return Session(session.partial_table, id=session.id)
    content = latest.cancelled(session.id)
    return Session.from_body(
        Deferred.of(content),
        session.provenance,
        id=session.id,
        provider=session.provider,
        lineage=session.lineage,
    )


def _mode(asked: Mode) -> Mode:
    said = env_value(_VARIABLE)
    return asked if asked != "auto" or not said else _checked(said, _VARIABLE)


def _checked(mode: str, name: str) -> Mode:
    if mode not in get_args(Mode):
        raise ValueError(f"{name} is {mode!r}; expected 'auto', 'record' or 'replay'")
    return cast("Mode", mode)  # just checked
