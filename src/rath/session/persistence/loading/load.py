"""A stored session as a session again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from rath._async.lazy import Deferred
from rath.errors import PersistenceError, SessionDamaged
from rath.session.graph.legacy import SessionLineage
from rath.session.log.files import read_whole
from rath.session.log.store import SessionStore
from rath.session.persistence.codec import LineReader
from rath.session.persistence.lines import SCHEMA_VERSION, HeaderLine, PlacementLine
from rath.session.persistence.loading.build import Built, build
from rath.session.persistence.loading.closure import closure
from rath.session.persistence.loading.content import Content
from rath.session.persistence.loading.sources import Source, missing, read_together
from rath.session.persistence.loading.unfinished import Unfinished
from rath.session.persistence.paths import PARTIAL_SUFFIX, checked_id
from rath.session.persistence.reattach import lazy_placement
from rath.session.persistence.records import provider_from_jsonable
from rath.session.saving import remember_loaded, settle
from rath.session.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A session that was read, and all that is needed to go on in its log."""

    session: Session
    header: HeaderLine
    place: HeaderLine | PlacementLine
    """Where the session works."""

    unfinished: Unfinished | None
    """What its run has left open; None once the run has ended."""

    is_finished: bool
    """Whether its writer has finished the log; one without may be at work."""

    where: str
    """Where the log stands, for messages."""

    size: int
    """Bytes of the log that count: `store.reopen(session.id, keep=size)` goes on after them."""

    n_torn: int
    """Bytes behind them that a writer has left which was cut off."""

    reader: LineReader
    """Where the log was read up to: `Encoder.after(session.id, reader)` goes on there."""

    problem: SessionDamaged | None = None
    """Why the session is only a beginning, where it was loaded with `recover`."""

    @property
    def sum(self) -> str:
        """The checksum of the last line that counts."""
        return self.reader.sum


def load(store: SessionStore, session: UUID | str, *, recover: bool = False) -> Loaded:
    """Read a session and all that it came from.

    Its rows and entries are those of its ancestors where it has them from there, so that what was
    made of one another shares its beginning as it did before. Contents that entries and images
    name are read when somebody wants them. A remote sandbox is attached to when it is used.

    Args:
        store: Where it is.
        session: Its id.
        recover: Where a log cannot be believed, take what stands before.

    Raises:
        ValueError: `session` is no UUID.
        PersistenceError: There is no such session, or it cannot be read.
        SessionDamaged: Its log or that of an ancestor is not what was written.
    """
    wanted = checked_id(session)
    settle(wanted)

    def read(source: Source) -> Loaded:
        log = source.read(wanted)
        if log is None:
            raise missing(wanted, store)
        content = source.content(log.data, log.where, is_finished=log.is_finished)
        content.require(wanted)
        return _loaded(content, source, is_finished=log.is_finished)

    return _remembered(read_together(store, read, recover=recover, is_sound=_is_sound), store)


def load_file(path: Path, store: SessionStore, *, recover: bool = False) -> Loaded:
    """Read a session from a file, and what it came from out of `store`; see `load`.

    Raises:
        PersistenceError: It cannot be read.
        SessionDamaged: It, or the log of an ancestor, is not what was written.
    """

    def read(source: Source) -> Loaded:
        is_finished = not path.name.endswith(PARTIAL_SUFFIX)
        content = source.content(read_file(path), str(path), is_finished=is_finished)
        return _loaded(content, source, is_finished=is_finished)

    return _remembered(read_together(store, read, recover=recover, is_sound=_is_sound), path)


def read_file(path: Path) -> bytes:
    """Return the log that a file holds.

    Raises:
        PersistenceError: It is not there or cannot be read.
    """
    try:
        return read_whole(path)
    except FileNotFoundError:
        raise PersistenceError(
            f"session file not found: {path}; list_persisted_sessions() tells what is there"
        ) from None
    except OSError as exc:
        raise PersistenceError(f"{path} cannot be read: {exc.strerror or exc}") from exc


def built_from(content: Content, source: Source) -> Built:
    """Return a session as its log and those of its ancestors tell it.

    Raises:
        SessionDamaged: One of them is not what was written.
    """
    contents = closure(content, source.find_ancestor)
    return build(contents, recover=source.recover)[content.header.session]


def _loaded(content: Content, source: Source, *, is_finished: bool) -> Loaded:
    built = built_from(content, source)
    header, reader = content.header, content.reader
    return Loaded(
        session=session_of(built),
        header=header,
        place=content.place,
        unfinished=content.unfinished,
        is_finished=is_finished,
        where=content.where,
        size=reader.n_good,
        n_torn=content.n_torn,
        reader=reader,
        problem=built.problem,
    )


def _is_sound(loaded: Loaded) -> bool:
    return loaded.problem is None


def _remembered(loaded: Loaded, where: SessionStore | Path) -> Loaded:
    """Have what comes to the session late added to its log, where that takes more lines."""
    if loaded.problem is None and loaded.reader.version == SCHEMA_VERSION:
        session = loaded.session
        remember_loaded(session.body, session.id, where, place=loaded.place)
    return loaded


def session_of(built: Built) -> Session:
    """Return a session over what was built, placed where it was; waits for nothing."""
    header = built.content.header
    return Session.from_body(
        Deferred.of(built.body),
        built.provenance,
        id=header.session,
        placement=lazy_placement(built.content.place),
        provider=None if header.provider is None else provider_from_jsonable(header.provider),
        lineage=None if header.lineage is None else SessionLineage(*header.lineage),
    )
