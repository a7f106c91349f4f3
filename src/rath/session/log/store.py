"""Stores of sessions: an append-only log of bytes for each, content by digest, and the registry.

    store.create, reopen, restart -> Log -- append ... -- finish     complete
                                         `- append ... -- abandon    unfinished, to be reopened

`LogStore` and `Log` keep the promises of a store over two small interfaces: a store that lists,
reads and locks, and a `LogDriver`, which changes the one log that it has locked. Files and
PostgreSQL implement these.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_modules
from rath._core.references import Reduction, Referenced, not_portable
from rath._core.registry import Registry
from rath.errors import (
    ConfigError,
    PersistenceError,
    RathError,
    SessionBusy,
    SessionChanged,
    StoreNotFound,
)
from rath.session.log.paths import SESSIONS_DIR_NAME, os_errors

if TYPE_CHECKING:
    from rath import config
    from rath.config import env, paths, redaction
else:
    config, env, paths, redaction = lazy_modules(
        __name__, "rath.config", "rath.config.env", "rath.config.paths", "rath.config.redaction"
    )


@dataclass(frozen=True, slots=True)
class StoredLog:
    """The log of one session as it was when it was read."""

    session: UUID
    data: bytes
    """All that was appended; the end of a line may be missing where a writer was cut off."""

    is_finished: bool
    """Whether its writer has finished it, and it has its final name."""

    where: str
    """Location for messages: a path, or an address without secrets."""


class CompleteLog(NamedTuple):
    """All lines of a log, to be stored at once."""

    session: UUID
    data: bytes
    blobs: Collection[Blob] = ()
    """Content that the lines name."""


class SessionLog(ABC):
    """A log that one writer appends to, as long as it is open; all methods block.

    Used from one thread at a time, but for `abandon`, which may come from any.
    """

    session: UUID
    where: str

    @abstractmethod
    def append(self, data: bytes, *, blobs: Collection[Blob] = (), durable: bool = False) -> None:
        """Add whole lines, and before them the bytes of the blobs that they name.

        Args:
            data: Lines, each with its line feed.
            blobs: Content to keep; what has no bytes is left out.
            durable: Return only when it would survive a loss of power.

        Raises:
            PersistenceError: It cannot be written; the log can then only be abandoned.
            RuntimeError: The log was finished or abandoned.
        """

    @abstractmethod
    def finish(self) -> None:
        """Let go of the log as one that is complete; durable. Nothing happens when it is closed.

        One to which nothing was appended leaves nothing behind.

        Raises:
            PersistenceError: A write failed, now or before; the log stays unfinished.
        """

    @abstractmethod
    def abandon(self) -> None:
        """Let go of the log as it is; it stays unfinished."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether nothing can be written any more."""


class SessionStore(Referenced, ABC):
    """Logs by session, and content by digest; all methods block and may be called by any thread.

    A log has one writer at a time, in all processes. What is deleted can be brought back until the
    trash is emptied.
    """

    name: str
    """As it is registered, such as "files"."""

    where: str
    """Location for messages and for the name of its index; holds no secret."""

    writes_many: bool = False
    """Whether `create_many` takes fewer round trips than one log after the other."""

    def _pickle_reference(self) -> Reduction:
        """Return its URL without secrets: user and password are those of who unpickles it.

        Raises:
            TypeError: No URL leads to it.
        """
        url = portable_url(self)
        if url is None:
            raise not_portable(
                f"the {self.name} store in {self.where} has no URL by which another process opens "
                "it",
                "open it with rath.session.persistence.store.open_store(URL)",
            )
        return find_store, (url,)

    @abstractmethod
    def create(self, session: UUID) -> SessionLog:
        """Begin the log of a session; it is there for readers from its first append on.

        Raises:
            PersistenceError: There is a log already, or it is being written, or it cannot be.
        """

    @abstractmethod
    def reopen(self, session: UUID, keep: int, *, size: int | None = None) -> SessionLog:
        """Go on with a log, finished or not; it is unfinished then.

        Args:
            session: Whose log.
            keep: How many bytes at its beginning stay; what follows is kept aside and cut off.
            size: How many bytes it had when it was read, so that nothing is cut off that somebody
                has added since; None where that is not asked.

        Raises:
            PersistenceError: There is none, or somebody writes it, or it has less than `keep`
                bytes, or not `size`.
        """

    def create_many(self, logs: Sequence[CompleteLog]) -> set[UUID]:
        """Store complete logs, durably, and return whose were stored: not those that were there.

        A log that was there, or that somebody writes, stays as it is.

        Raises:
            PersistenceError: One cannot be written; others may be stored.
        """
        stored: set[UUID] = set()
        for each in logs:
            if self.holds(each.session) or self.is_being_written(each.session):
                continue
            log = self.create(each.session)
            try:
                log.append(each.data, blobs=each.blobs)
                log.finish()
            finally:
                log.abandon()
            stored.add(each.session)
        return stored

    @abstractmethod
    def append_to_finished(
        self, session: UUID, size: int, data: bytes, *, blobs: Collection[Blob] = ()
    ) -> bool:
        """Add lines to a finished log of `size` bytes, durably; False when its size is another.

        Args:
            session: Whose log.
            size: How many bytes it had when it was read.
            data: Lines, each with its line feed.
            blobs: Content that they name.

        Raises:
            PersistenceError: There is none that is finished, or it cannot be written.
        """

    def rewrite(self, session: UUID, data: bytes, *, size: int) -> None:
        """Put other lines in the place of a log of `size` bytes, which stays finished or not.

        Durable, and at once where the store can do that; elsewhere a crash leaves what was there
        aside, as `reopen` does.

        Raises:
            PersistenceError: There is none, or somebody writes it, or its size is another, or it
                cannot be written.
        """
        before = self.read(session)
        log = self.reopen(session, 0, size=size)
        try:
            log.append(data, durable=True)
            if before is not None and before.is_finished:
                log.finish()
        finally:
            log.abandon()

    def restart(
        self, session: UUID, data: bytes, *, size: int, blobs: Collection[Blob] = ()
    ) -> SessionLog:
        """Put the first lines of another log in the place of a finished one, and return it open.

        It is unfinished then. Durable, and at once where the store can do that: whoever reads finds
        the old lines or the new ones. What stood there is kept aside, or in the trash.

        Args:
            session: Whose log.
            data: Lines, each with its line feed.
            size: How many bytes the finished log had when it was read.
            blobs: Content that the lines name.

        Raises:
            PersistenceError: There is none, or somebody writes it, or its size is another, or it
                cannot be written.
        """
        log = self.reopen(session, 0, size=size)
        try:
            log.append(data, blobs=blobs, durable=True)
        except BaseException:
            log.abandon()
            raise
        return log

    @abstractmethod
    def read(self, session: UUID) -> StoredLog | None:
        """Return the log of a session, None where there is none.

        Raises:
            PersistenceError: It cannot be read.
        """

    def holds(self, session: UUID) -> bool:
        """Tell whether there is a log of a session; a store that can does not read it for that.

        Raises:
            PersistenceError: It cannot be read.
        """
        return self.read(session) is not None

    @abstractmethod
    def stamps(self) -> Mapping[UUID, str]:
        """Return for each log a text that changes when the log does; cheap, reads no log."""

    shares_facts: bool = False
    """Whether what one process has read from logs is there for others."""

    def shared_facts(self, kind: str, stamps: Mapping[UUID, str]) -> Mapping[UUID, bytes]:
        """Return the facts that some process has read from logs in these very states.

        Derived: whoever finds none reads the log.

        Args:
            kind: Which facts, and in what form.
            stamps: The logs, each with its stamp.

        Raises:
            PersistenceError: They cannot be read.
        """
        del kind, stamps
        return {}

    def share_facts(self, kind: str, facts: Mapping[UUID, tuple[str, bytes]]) -> None:
        """Keep facts for others, as long as their logs are there.

        Args:
            kind: Which facts, and in what form.
            facts: The stamp of each log when it was read, and what was found.

        Raises:
            PersistenceError: They cannot be written.
        """
        del kind, facts

    @abstractmethod
    def is_being_written(self, session: UUID) -> bool:
        """Tell whether a writer has the log open, in any process."""

    def writer_of(self, session: UUID) -> str | None:
        """Return who has the log open, for messages; "" if that is unknown, None if nobody has."""
        return "" if self.is_being_written(session) else None

    def require_free(self, session: UUID, *, advice: str = "wait for its run to end") -> None:
        """Check that nobody has the log open.

        Args:
            session: Whose log.
            advice: What the error says about what to do.

        Raises:
            SessionBusy: Somebody has.
        """
        holder = self.writer_of(session)
        if holder is not None:
            raise SessionBusy(session, where=self.where, holder=holder, advice=advice)

    @abstractmethod
    def delete(self, session: UUID) -> bool:
        """Move a log to the trash; False where there is none.

        Raises:
            PersistenceError: Somebody writes it, or it cannot be moved.
        """

    @abstractmethod
    def restore(self, session: UUID) -> bool:
        """Bring back what was deleted last of a session; False where that is not there.

        Raises:
            PersistenceError: There is a log of it again, or it cannot be brought back.
        """

    @abstractmethod
    def empty_trash(self) -> int:
        """Remove for good what was deleted, and blobs that no log names; return how many logs."""

    @abstractmethod
    def blob(self, digest: str) -> bytes | None:
        """Return content by its sha256, None where it is not there or damaged."""

    @abstractmethod
    def follow(self, session: UUID, start: int) -> Iterator[bytes]:
        """Yield the whole lines that are appended to a log from byte `start` on.

        Waits between, on the thread of its caller. Ends when nobody writes the log and all of it
        was yielded: at once where that is so from the beginning.

        Raises:
            PersistenceError: It cannot be read, or what was yielded was cut off meanwhile.
        """

    def close(self) -> None:
        """Give back what the store holds, such as connections; it can be used again."""
        return


class LogDriver(ABC):
    """Exclusive access to the log of one session, in all processes; all methods block.

    What raises an OSError or PersistenceError leaves every byte that was there, in the log or
    aside; only `append` may have added a part.
    """

    session: UUID

    where: str
    """Location for messages."""

    size: int
    """How many bytes it had when it was locked."""

    is_finished: bool
    """Whether it was complete when it was locked."""

    is_released: bool = False
    """Whether others may have it."""

    @property
    def exists(self) -> bool:
        """Whether there was a log when it was locked; an empty one counts when it is finished."""
        return self.is_finished or self.size > 0

    @abstractmethod
    def append(self, data: bytes, blobs: Collection[Blob], *, durable: bool) -> None:
        """Write blobs, then lines."""

    @abstractmethod
    def truncate(self, keep: int) -> None:
        """Make it unfinished, and cut off what follows `keep` bytes, which is kept aside."""

    @abstractmethod
    def rewrite(self, data: bytes) -> None:
        """Put other lines in its place at once, durably; it stays finished or not."""

    @abstractmethod
    def restart(self, data: bytes, blobs: Collection[Blob]) -> None:
        """Move it to the trash, and at once begin another one with these lines, durably."""

    @abstractmethod
    def publish(self) -> None:
        """Make it complete, durably; nothing happens where nothing was appended."""

    @abstractmethod
    def remove(self) -> None:
        """Move it to the trash."""

    @abstractmethod
    def has_removed(self) -> bool:
        """Tell whether a log of the session is in the trash."""

    @abstractmethod
    def recover(self) -> None:
        """Take back from the trash what was removed last."""

    @abstractmethod
    def release(self) -> None:
        """Let others have it; nothing happens when it was released."""

    def is_lost(self) -> bool:
        """Tell whether somebody without the lock has moved or removed it."""
        return False


class Log(SessionLog):
    """A log that is open for writing over a driver; after a write that failed it takes no more."""

    def __init__(self, driver: LogDriver) -> None:
        self.session: UUID = driver.session
        self.where: str = driver.where
        self._driver = driver
        self._is_broken = False
        # A run that is cancelled abandons its log while another thread may be writing a line.
        self._busy = threading.RLock()

    @property
    def closed(self) -> bool:
        return self._driver.is_released

    @property
    def is_lost(self) -> bool:
        """Whether what is open was renamed or removed by somebody else."""
        with self._busy:
            return not self.closed and self._driver.is_lost()

    def append(self, data: bytes, *, blobs: Collection[Blob] = (), durable: bool = False) -> None:
        with self._busy:
            if self.closed:
                raise RuntimeError(f"the log {self.where} is closed; reopen it to write more")
            try:
                with self._writing():
                    self._driver.append(data, blobs, durable=durable)
            except BaseException:
                # An interrupt, too, may have cut a line in two.
                self._is_broken = True
                raise

    def finish(self) -> None:
        with self._busy:
            if self.closed:
                return
            try:
                with self._writing():
                    self._driver.publish()
            finally:
                self._driver.release()

    def abandon(self) -> None:
        with self._busy:
            self._driver.release()

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        """Refuse to write after a failure, and say what cannot be written."""
        if self._is_broken:
            raise PersistenceError(
                f"{self.where} stays unfinished: an earlier write to it failed; what was written "
                "before that can still be read"
            )
        before = "; what was written before can still be read"
        return os_errors(self.where, "cannot be written", before)


class LogStore(SessionStore):
    """The store over drivers: it checks what is asked, and hands out logs."""

    _noun = "session"
    """What an error calls a log that is not there."""

    _follow_seconds: float
    """How often a log that is followed is looked at."""

    @abstractmethod
    def _lock(self, session: UUID, *, make: bool = False) -> LogDriver | None:
        """Lock the log of a session for writing.

        Args:
            session: Whose log.
            make: Make the place of a new one; otherwise None is returned where there is neither a
                log nor one in the trash, and nothing is made.

        Raises:
            PersistenceError: Somebody else has it, or it cannot be locked.
        """

    @abstractmethod
    def _place(self, session: UUID) -> str:
        """Return where the log of a session stands when it is complete, for messages."""

    def create(self, session: UUID) -> Log:
        with self._changing(self._lock(session, make=True), session) as driver:
            if driver.exists:
                raise SessionChanged(
                    session,
                    f"{self._place(session)} is there already; go on with it, delete it first, or "
                    "take another id or path",
                )
            return Log(driver)

    def reopen(self, session: UUID, keep: int, *, size: int | None = None) -> Log:
        problem, advice = "cannot be gone on with", "; it can still be read"
        with self._changing(self._lock(session), session, problem, advice) as driver:
            self._check(driver, keep, size)
            driver.truncate(keep)
            return Log(driver)

    def rewrite(self, session: UUID, data: bytes, *, size: int) -> None:
        with self._changing(self._lock(session), session) as driver:
            self._check(driver, size, size)
            driver.rewrite(data)
            driver.release()

    def restart(
        self, session: UUID, data: bytes, *, size: int, blobs: Collection[Blob] = ()
    ) -> Log:
        with self._changing(self._lock(session), session) as driver:
            self._check(driver, size, size)
            if not driver.is_finished:
                raise self._unfinished(session)
            driver.restart(data, blobs)
            return Log(driver)

    def delete(self, session: UUID) -> bool:
        driver = self._lock(session)
        if driver is None:
            return False
        with self._changing(driver, session, "cannot be moved to the trash", ""):
            if driver.exists:
                driver.remove()
            driver.release()
        return driver.exists

    def restore(self, session: UUID) -> bool:
        driver = self._lock(session)
        if driver is None:
            return False
        with self._changing(driver, session, "cannot be moved out of the trash", ""):
            was_there = driver.has_removed()
            if was_there and driver.exists:
                raise PersistenceError(
                    f"the session {session} was written anew in {self.where} since it was deleted; "
                    "delete that one first to bring back the other"
                )
            if was_there:
                driver.recover()
            driver.release()
        return was_there

    def follow(self, session: UUID, start: int) -> Iterator[bytes]:
        """Yield the whole lines that are appended from byte `start` on, until it is closed.

        Sleeps on the thread of the caller between two looks. Ends at once where nobody writes the
        log.

        Raises:
            PersistenceError: It cannot be read, or bytes that were yielded were cut off.
        """
        while True:
            # In this order, so that what is written before it is closed is not missed.
            is_open = self.is_being_written(session)
            size, data = self._read_from(session, start)
            if size < start:
                raise PersistenceError(
                    f"{self._place(session)} became shorter than the {start} bytes that were read; "
                    "read it again from its beginning"
                )
            data = data[: data.rfind(b"\n") + 1]
            if data:
                yield data
                start += len(data)
            elif not is_open:
                return
            else:
                time.sleep(self._follow_seconds)

    def _read_from(self, session: UUID, start: int) -> tuple[int, bytes]:
        """Return how many bytes a log has, and those from `start` on.

        Raises:
            PersistenceError: It cannot be read.
        """
        log = self.read(session)
        return (0, b"") if log is None else (len(log.data), log.data[start:])

    @contextlib.contextmanager
    def _changing(
        self,
        driver: LogDriver | None,
        session: UUID,
        problem: str = "cannot be written",
        advice: str = "; it is as it was",
    ) -> Generator[LogDriver]:
        """Change a log that was locked, and release it where that fails.

        Raises:
            PersistenceError: There is no log, or an OSError says why the block failed.
        """
        if driver is None:
            raise self._missing(session)
        try:
            with os_errors(self._place(session), problem, advice):
                yield driver
        except BaseException:
            driver.release()
            raise

    def _missing(self, session: UUID) -> PersistenceError:
        """Return the error that there is no log of a session to go on with."""
        return PersistenceError(
            f"{self._noun} not found: {self._place(session)}; there is no log to go on with"
        )

    def _unfinished(self, session: UUID) -> PersistenceError:
        """Return the error that a log is not complete yet."""
        place = self._place(session)
        return PersistenceError(f"{place} is not finished; wait for its writer, or reopen it")

    def _check(self, driver: LogDriver, keep: int, size: int | None) -> None:
        if not driver.exists:
            raise self._missing(driver.session)
        if driver.size < keep or size not in {None, driver.size}:
            raise SessionChanged(
                driver.session,
                f"{self._place(driver.session)} has {driver.size} bytes, not the "
                f"{keep if size is None else size} that it had when it was read; somebody has "
                "changed it meanwhile: load it again",
            )


StoreFactory = Callable[[str], SessionStore]
"""Makes the store of a URL; called once for each URL of a process, and connects to nothing yet."""

stores: Registry[StoreFactory] = Registry(
    "session store",
    group="rath.stores",
    builtins={
        "files": "rath.session.log.files:file_store",
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
        path = Path(url).expanduser().absolute().as_uri().removeprefix("file")
        return open_store(f"files{path}")
    with _lock:
        opened = _opened.get(url)
    if opened is None:
        # Outside the lock: what is imported may itself open stores. The first one that is there
        # is the one of the process.
        store = stores.get(scheme.lower())(url)
        with _lock:
            opened = _opened.setdefault(url, store)
    return opened


def portable_url(store: SessionStore) -> str | None:
    """Return a URL without secrets by which `find_store` opens the same store in another process.

    None where there is none: of a store in memory, or one that was opened without a URL.
    """
    with _lock:
        urls = [url for url, opened in _opened.items() if opened is store]
    url = next(iter(urls), store.where)
    scheme, separator, _ = url.partition("://")
    if not separator:
        # A directory, where the store keeps its files there.
        return url if store.name == "files" and Path(url).is_absolute() else None
    if scheme.lower() not in stores.names():
        return None
    parts = urlsplit(url)
    options = [
        each
        for each in parts.query.split("&")
        if not redaction.looks_secret(each.partition("=")[0])
    ]
    # No user either: whoever mistypes a URL may have a secret in that place.
    host = parts.netloc.rpartition("@")[2]
    query = "?" if options else ""
    return f"{scheme}://{host}{parts.path}{query}{'&'.join(options)}"


def find_store(url: str) -> SessionStore:
    """Return the store of a URL of `portable_url`.

    User and password are those of this process: of the store that is open or the default here,
    where that is the same place, else what such a store finds by itself (`PGUSER`, `PGPASSWORD`,
    `~/.pgpass`).

    Raises:
        StoreNotFound: No store has that scheme.
        MissingExtra: What it needs is not installed.
    """
    with _lock:
        candidates = list(_opened.values())
    with contextlib.suppress(RathError):
        candidates.append(default_store())
    wanted = open_store(url)
    same = (each for each in candidates if (each.name, each.where) == (wanted.name, wanted.where))
    return next(same, wanted)


def default_store() -> SessionStore:
    """Return the store that `OPENRATH_STORE` names, else that of the config, else `sessions_dir()`.

    Raises:
        StoreNotFound: No store has that scheme.
        MissingExtra: What it needs is not installed.
        ConfigError: The config cannot be read, or holds a password.
        UntrustedConfig: A project's config names it, and the user has not trusted that.
    """
    named = env.env_value("OPENRATH_STORE")
    if named is not None:
        return open_store(named)
    # Asked for by each run that is recorded, so it does no more than it must.
    layers = paths.config_layer_paths()
    configured = _configured() if any(path.exists() for path in layers) else None
    return open_store(configured or str(layers[0].parent / SESSIONS_DIR_NAME))


def _configured() -> str | None:
    """Return the store URL of the first config to name one, None where none does."""
    for layer in config.config_layers():
        url = layer.config.sessions.store
        if url:
            parts = urlsplit(url)
            if "://" in url and (parts.password is not None or "password" in parts.query):
                raise ConfigError(
                    f"sessions.store in {layer.path} holds a password, which does not belong into "
                    "a config; leave it out there, and give the whole URL in OPENRATH_STORE, or "
                    "the password in the way of that store (PGPASSWORD or ~/.pgpass for Postgres)"
                )
            config.check_trusted(layer, "sessions", "store")
            return url
    return None
