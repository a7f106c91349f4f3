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
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from uuid import UUID

from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_modules
from rath._core.persistent_dirs import PersistentKind
from rath._core.registry import Registry
from rath.errors import ConfigError, PersistenceError, SessionBusy, StoreNotFound

if TYPE_CHECKING:
    from rath import config
    from rath.config import env, paths
else:
    config, env, paths = lazy_modules(
        __name__, "rath.config", "rath.config.env", "rath.config.paths"
    )


__all__ = [
    "SESSIONS_DIR_NAME",
    "SESSION_FILE_SUFFIX",
    "SESSION_PARTIAL_SUFFIX",
    "ensure_sessions_dir",
    "session_file",
    "session_partial_file",
    "sessions_dir",
]


@dataclass(frozen=True, slots=True)
class StoredLog:
    """The log of one session as it was when it was read."""

    session: UUID
    data: bytes
    """All that was appended; the end of a line may be missing where a writer was cut off."""

    is_finished: bool
    """Whether its writer has finished it, and it has its final name."""

    where: str
    """Where it stands, for messages: a path, or an address without secrets."""


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


class SessionStore(ABC):
    """Logs by session, and content by digest; all methods block and may be called by any thread.

    A log has one writer at a time, in all processes. What is deleted can be brought back until the
    trash is emptied.
    """

    name: str
    """As it is registered, such as "files"."""

    where: str
    """Where it is, for messages and for the name of its index; holds no secret."""

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
    """Where it is written, for messages."""

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
        self.session = driver.session
        self.where = driver.where
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
                raise PersistenceError(
                    f"{self._place(session)} is there already; go on with it, delete it first, or "
                    "take another id or path"
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
            raise PersistenceError(
                f"{self._place(driver.session)} has {driver.size} bytes, not the "
                f"{keep if size is None else size} that it had when it was read; somebody has "
                "changed it meanwhile: load it again"
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


SESSIONS_DIR_NAME = "sessions"
SESSION_FILE_SUFFIX = ".jsonl"
PARTIAL_SUFFIX = ".__partial__"
SESSION_PARTIAL_SUFFIX = SESSION_FILE_SUFFIX + PARTIAL_SUFFIX

INDEX_FILE_NAME = "index.sqlite3"
"""The index of the logs beside it; SQLite and its lock put more files with that beginning there."""

_SESSION = PersistentKind("session", PersistenceError, "close its writer")


def sessions_dir() -> Path:
    """Return the directory of session files; creates nothing."""
    return paths.resolve_config_dir() / SESSIONS_DIR_NAME


def ensure_sessions_dir() -> Path:
    """Create the directory of session files where it is missing, and return it.

    Raises:
        PersistenceError: It cannot be created.
    """
    return ensure_private(sessions_dir())


def ensure_private(directory: Path) -> Path:
    """Create a directory that only its owner can read, where it is missing, and return it.

    Raises:
        PersistenceError: It cannot be created.
    """
    with os_errors(directory, "cannot be created"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def session_file(session_id: UUID | str) -> Path:
    """Return the file of a session that was closed.

    Raises:
        ValueError: `session_id` is not a UUID.
    """
    return sessions_dir() / f"{checked_id(session_id)}{SESSION_FILE_SUFFIX}"


def session_partial_file(session_id: UUID | str) -> Path:
    """Return the file of a session that is being written, or whose writer was cut off.

    Raises:
        ValueError: `session_id` is not a UUID.
    """
    return partial_path_of(session_file(session_id))


def partial_path_of(path: Path) -> Path:
    """Return the file under which `path` is written until it is complete."""
    return path.with_name(path.name + PARTIAL_SUFFIX)


def checked_id(session_id: UUID | str) -> UUID:
    """Return a session id as a UUID: nothing else ever becomes part of a path.

    Raises:
        ValueError: It is not one.
    """
    return _SESSION.checked_id(session_id)


@contextlib.contextmanager
def os_errors(place: object, problem: str, advice: str = "") -> Generator[None]:
    """Turn an OSError of a block into a PersistenceError: `<place> <problem>: <why><advice>`."""
    try:
        yield
    except OSError as exc:
        reason = exc.strerror or exc
        raise PersistenceError(f"{place} {problem}: {reason}{advice}") from exc
