"""Replay of a program from a stored recording."""

from __future__ import annotations

import functools
import inspect
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args
from uuid import UUID, uuid4

from rath._async.lazy import Deferred
from rath._core.text import short_id
from rath.config.env import env_value
from rath.errors import PersistenceError, ReplayDifference
from rath.llm.base import ChatClient
from rath.llm.clients import Unusable, make_client
from rath.llm.offline import offline
from rath.llm.provider import Provider
from rath.session.body import Body
from rath.session.calls.requests import Candidate
from rath.session.chunk import ChunkRow, RowId
from rath.session.content import rows_digest
from rath.session.loading import session_of
from rath.session.log.build import build
from rath.session.log.bundle import Bundle, BundleStore, pack, read_bundle, write_bundle
from rath.session.log.files import FileStore
from rath.session.log.parsed import LogSource, ParsedLog, closure
from rath.session.operation import Place
from rath.session.outcome import Outcome, Suspended
from rath.session.recall import HoldingRecall, Recall
from rath.session.record import Entry, Operation, Verdict
from rath.session.run.recorded import (
    History,
    RecordedNode,
    RecordedOperation,
    RecordedRun,
    history_of,
    name_of,
    named,
    rows_differ,
)
from rath.session.run.replay_models import ReplayedClient, ReplayModels
from rath.session.run.rounds import ToolRounds
from rath.session.saving import save
from rath.session.scope import DerivedKind, ServedKind, ServedRun, gathering, replaying_in
from rath.session.session import Session

_RUNS = ("loop", "compress", "select", "check")
_SILENT = {"loop": "run_session_loop", "compress": "run_session_compress"}


class Playback:
    """Serves the operations of a history to a program, each once; used by any thread.

    What begins an operation looks for the first one of its kind that was not served yet, was made
    at the same place of the program, and of the same sessions or rows.
    """

    def __init__(self, history: History) -> None:
        self._runs = [run for run in history.runs if run.operation.kind in _RUNS]
        self._derived = [run for run in history.runs if run.operation.kind not in _RUNS]
        self._silent = [node for node in history.nodes if _is_silent(node, history)]
        self._calls = _calls(history)
        self._recorded = {node.id: node for node in history.nodes}
        self._same: dict[UUID, UUID] = {}
        """Sessions of the program that have another id in the record, by their own."""

        self._lock = threading.Lock()
        self._scripts: list[tuple[RecordedRun, Session | None]] = []
        self.first: ReplayDifference | None = None
        """The first difference of all."""

        self.made: list[Session] = []
        """The sessions that were made, for those who wait for them."""

    # What the operations ask.

    def client(self, provider: Provider) -> ChatClient:
        """Return the client of a provider, which writes requests here and sends none."""
        return writing_client(provider)

    def candidates(self, given: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """Return models that write their requests as ever, and are answered by the record."""
        cast = ReplayModels()
        return tuple(
            replace(each, client=ReplayedClient(each.provider, cast, partial(_given, each.client)))
            for each in given
        )

    def begin(
        self,
        kind: ServedKind,
        place: Place,
        sessions: tuple[Session, Session],
        candidates: Sequence[Candidate],
    ) -> ServedRun:
        """Return the recorded run that begins now; see `Stage`.

        Raises:
            ReplayDifference: There is none that fits.
        """
        with self._lock:
            silent = self._take_silent(kind, place, sessions[0])
            if silent is not None:
                return silent
            run = self._match(kind, place, *sessions)
            self._runs.remove(run)
            for mine, theirs in zip(sessions, run.parents, strict=False):
                self._same[mine.id] = theirs
        client = candidates[0].client
        assert isinstance(client, ReplayedClient)
        script = client.cast.script = RecordedRun(run, found=self.differs)
        self._scripts.append((script, sessions[0]))
        return script

    def call(self, segment: str, session: Session) -> UUID | None:
        """Return the recorded workflow call that is made now, so that its sessions bear its ids."""
        with self._lock:
            for call, (name, root) in self._calls.items():
                if name == segment and root is not None and self._is_same(session, root):
                    del self._calls[call]
                    self._same[session.id] = root
                    return call
        return None

    def derive(self, kind: DerivedKind, place: Place, parents: Sequence[Session]) -> Place:
        """Return the place of a derivation, with the recorded id where there is one."""
        with self._lock:
            for run in self._derived:
                operation = run.operation
                if operation.kind == kind and _is_at(operation, place):
                    above = run.parents or tuple(parent.id for parent in parents)
                    if all(map(self._is_same, parents, above)):
                        self._derived.remove(run)
                        return replace(operation.place, made=operation.session)
        return place

    def check(self, session: Session, name: str, judge: str) -> tuple[Entry, ...]:
        """Return the entries of the recorded check of a session.

        Raises:
            ReplayDifference: There is none of that name and command.
        """
        with self._lock:
            for run in self._runs:
                verdict = next((each for each in run.own if isinstance(each, Verdict)), None)
                if verdict is None or not self._is_same(session, run.operation.session):
                    continue
                if (verdict.name, verdict.judge) == (name, judge):
                    self._runs.remove(run)
                    return tuple(run.own)
        raise self.differs(
            ReplayDifference(
                f"the record has no check {name!r} by {judge!r:.200}",
                where=f"session {short_id(session.id)}",
                found=f"check {name!r}",
                expected=self._expected("check"),
            )
        )

    def remember(self, what: str) -> None:
        """Refuse an operation on a memory: what it would give is in no record.

        Raises:
            ReplayDifference: Always.
        """
        raise self.differs(
            ReplayDifference(
                f"{what} asks a memory, and a record holds no such calls; only what agents recall "
                "before a run is served, and commits are left out. Make the call outside",
                where="the program",
            )
        )

    # What the block asks.

    def differs(self, difference: ReplayDifference) -> ReplayDifference:
        """Note the first difference, to be told at the end too, and return the one given."""
        self.first = self.first or difference
        return difference

    def at_the_end(self) -> ReplayDifference | None:
        """Return the first difference of all, or what was not asked for; waits for the runs."""
        for session in self.made:
            _wait(session)
        if self.first is not None:
            return self.first
        for script, _ in self._scripts:
            left = script.left()
            if left is not None:
                return left
        if not self._runs:
            return None
        names = ", ".join(name_of(run.operation) for run in self._runs[:5])
        more = f" and {len(self._runs) - 5} more" if len(self._runs) > 5 else ""
        return ReplayDifference(
            "the program did not ask for all that the record has",
            where="the end of the replay",
            expected=f"{names}{more}",
            found="the end of the program",
        )

    # Finding what was recorded.

    def _match(
        self, kind: ServedKind, place: Place, user: Session, agent: Session
    ) -> RecordedOperation:
        alike = [run for run in self._runs if run.operation.kind == kind]
        here = [run for run in alike if _is_at(run.operation, place)]
        for run in here:
            if self._fits(run, user) and _fits_head(run, agent):
                return run
        raise self.differs(self._explained(kind, place, here or alike, user, agent))

    def _take_silent(self, kind: str, place: Place, user: Session) -> EmptyRun | None:
        """Return the node that a run on a suspended session made without an operation."""
        suspended = _known_outcome(user)
        for node in self._silent:
            above = node.provenance.parent_ids
            is_one = node.provenance.operator == _SILENT.get(kind) and bool(above)
            if is_one and self._is_same(user, above[0]):
                self._silent.remove(node)
                return EmptyRun(replace(place, made=node.id), node.body.outcome)
        return EmptyRun(place, suspended) if isinstance(suspended, Suspended) else None

    def _fits(self, run: RecordedOperation, user: Session) -> bool:
        """Tell whether a session may be the one that a recorded run began with."""
        if run.parents and self._same.get(user.id, user.id) == run.parents[0]:
            return True
        if user.id in self._recorded:
            return not run.parents
        if user.is_pending:
            return True  # the requests will tell
        return rows_digest(user.partial_table) == run.operation.input_digest

    def _is_same(self, session: Session, recorded: UUID) -> bool:
        if self._same.get(session.id, session.id) == recorded:
            return True
        node = self._recorded.get(recorded)
        if session.id in self._recorded or node is None or session.is_pending:
            return False
        return session.partial_table == node.body.table

    def _explained(
        self,
        kind: ServedKind,
        place: Place,
        nearest: Sequence[RecordedOperation],
        user: Session,
        agent: Session,
    ) -> ReplayDifference:
        """Say what of the operation is another than what the record has next."""
        asked = named(kind, place.path, place.ordinal)
        if not nearest:
            return ReplayDifference(
                f"{asked} is not in the record, which has no further one of its kind",
                where=asked,
                expected=self._expected(None),
                found=asked,
            )
        run = nearest[0]
        where = f"{asked}, in the record {name_of(run.operation)}"
        if not _is_at(run.operation, place):
            return ReplayDifference(
                "it is made at another place of the program",
                where=where,
                expected=name_of(run.operation),
                found=asked,
            )
        if not _fits_head(run, agent):
            rows = agent.partial_table.rows
            difference = rows_differ(run.operation.head, rows, where=where, what="the agent")
            if difference is not None:
                return difference
        rows = () if user.is_pending else user.partial_table.rows
        difference = rows_differ(_input_of(run), rows, where=where, what="the input")
        return difference or ReplayDifference(
            "it is made of another session",
            where=where,
            expected=f"session {short_id(run.parents[0])}" if run.parents else "another one",
            found=f"session {short_id(user.id)}",
        )

    def _expected(self, kind: str | None) -> str:
        left = [run for run in self._runs if kind in (None, run.operation.kind)]
        return name_of(left[0].operation) if left else "no further operation"


class EmptyRun:
    """A run that is made without a question: its input was cut off, waits, or had no budget."""

    def __init__(self, place: Place, outcome: Outcome | None) -> None:
        self.place = place
        self.run_id = uuid4()
        self._outcome = outcome
        self.rounds: Callable[..., ToolRounds] = ToolRounds

    def recall(self, given: Recall | None) -> Recall | None:
        """Recall nothing."""
        waiting: object = given
        if isinstance(waiting, HoldingRecall):
            waiting.close()
        return None

    def changes_of(self, row: RowId) -> Sequence[Entry]:
        """Return nothing: it answered nothing."""
        return ()

    def cut_off(self, latest: Body, session: UUID) -> Body:
        """Return the content as it was, with the recorded outcome."""
        if self._outcome is None:
            return latest.cancelled(session)
        return replace(latest, outcome=self._outcome)


def _calls(history: History) -> dict[UUID, tuple[str, UUID | None]]:
    """Return the workflow calls of a history: the name of the workflow, and what it began with."""
    calls: dict[UUID, tuple[str, UUID | None]] = {}
    for run in history.runs:
        place = run.operation.place
        if place.run is not None:
            calls.setdefault(place.run, (place.path.partition(".")[0], place.root))
    return calls


def _is_silent(node: RecordedNode, history: History) -> bool:
    if node.provenance.operator not in _SILENT.values() or node.provenance.is_copy:
        return False
    return all(run.operation.session != node.id for run in history.runs)


def _known_outcome(session: Session) -> Outcome | None:
    if session.is_pending:
        return None
    latest = session.body.latest
    return None if latest is None else latest.outcome


def _is_at(operation: Operation, place: Place) -> bool:
    return (operation.place.path, operation.place.ordinal) == (place.path, place.ordinal)


def _fits_head(run: RecordedOperation, agent: Session) -> bool:
    return agent.is_pending or tuple(agent.partial_table) == run.operation.head


def _input_of(run: RecordedOperation) -> Sequence[ChunkRow]:
    """Return the rows that a recorded run began with, as far as they are known."""
    rows = run.node.body.table.rows
    if run.operation.kind != "loop" or not run.is_found:
        return rows
    return [row for row in rows if row.id is None or row.id.session != run.operation.session]


def _given(client: ChatClient, _: object) -> ChatClient:
    return client


def writing_client(provider: Provider) -> ChatClient:
    """Return the client of a provider, which writes requests here and sends none.

    Raises:
        ValueError: There is none, and not for want of a key.
    """
    client = make_client(provider)
    if not isinstance(client, Unusable):
        return client
    # What it lacks is a key, on a machine that needs none for this.
    second = make_client(replace(provider, api_key=provider.api_key or "replay", fallbacks=()))
    if isinstance(second, Unusable):
        raise ValueError(client.problem)  # noqa: TRY004  # as where the client is made to be used
    return second


def _wait(session: Session) -> None:
    with suppress(Exception):  # its readers get its error
        session.synchronize()


@contextmanager
def replay(*sessions: Session) -> Generator[None]:
    """Serve what the code inside does from the record of sessions; no model and no tool is called.

    Each agent call, workflow, compression, selection, merge, fork and check finds what it came to
    in the record of a session, or of one that it came from: by its kind, its place in the program
    and its input, in the order of the record. Requests are written as ever and must be those that
    were sent. Agents recall what they recalled; nothing is written to a memory. The sessions that
    are made have the recorded ids. Meanwhile this process is offline, as by `rath.offline`.

    Args:
        sessions: Hold what is replayed: the last one of a program, and others that it does not
            come from. Waits for their runs.

    Raises:
        ReplayDifference: At the call, or where its session is read: the record has no such
            operation, or it differs; the text says what. At the end of the block: a difference
            that nobody has read, or what the record has and the code did not ask for.

    Example::

        with rath.replay(Session.load(id)):
            assert agent(Session.from_user_message("hello")).text() == "Hello!"
    """
    playback = Playback(history_of(*sessions))
    try:
        with offline(), replaying_in(playback), gathering(playback.made.append):
            yield
    except Exception as exc:
        if playback.first is not None and playback.first is not exc:
            exc.add_note(f"the replay had differed before: {playback.first}")
        raise
    difference = playback.at_the_end()
    if difference is not None:
        raise difference


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
    source = LogSource(BundleStore(bundle, where))
    read: dict[UUID, ParsedLog | None] = {}
    contents: dict[UUID, ParsedLog] = {}

    def find(session: UUID) -> ParsedLog | None:
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
