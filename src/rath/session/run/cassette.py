"""Models, operations and whole programs that are served from a record; cassettes of programs."""

from __future__ import annotations

import functools
import inspect
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args
from uuid import UUID

from rath._async.deferred import Deferred
from rath._core.dataclasses import dataclass
from rath._core.text import short_id
from rath.config.env import env_value
from rath.errors import PersistenceError, ReplayDifference
from rath.llm.base import ChatClient, ChatDraft
from rath.llm.chat_request import SAMPLING_FIELDS, RathLLMChatRequest, RathLLMMessage
from rath.llm.chat_response import RathLLMStreamDelta
from rath.llm.client import open_draft, output_mode
from rath.llm.custom_client import CustomDraft, RecordedClient, can_write_again
from rath.llm.evidence import CallEvidence, DraftFacts, Exchange, OnDelta
from rath.llm.offline import offline
from rath.llm.provider import OutputMode, Provider, ProviderOrigin
from rath.llm.registry import NoClient, make_client
from rath.llm.stream import split
from rath.session.calls.requests import ProviderCandidate
from rath.session.chunk import ChunkTable
from rath.session.content import rows_digest
from rath.session.loading import save, session_of
from rath.session.log.build import LogSource, ParsedLog, build, closure
from rath.session.log.bundle import BundleStore, pack, read_bundle, write_bundle
from rath.session.log.files import FileStore
from rath.session.operation import Place
from rath.session.outcome import Suspended
from rath.session.record import Entry, Verdict
from rath.session.run.recorded import (
    EmptyRun,
    History,
    RecordedOperation,
    RecordedRun,
    difference,
    error_of,
    history_of,
    kind_at,
    name_of,
    response_of,
    rows_differ,
)
from rath.session.scope import DerivedKind, RecordedServing, ServedKind, gathering, replaying_in
from rath.session.session import Session

_RUNS = ("loop", "compress", "select", "check")
_SILENT = {"loop": "run_session_loop", "compress": "run_session_compress"}
"""Operators of the nodes that a run makes also without an operation."""


def writing_client(provider: Provider) -> ChatClient:
    """Return the client of a provider, which writes requests here and sends none.

    Raises:
        ValueError: There is none, and not for want of a key.
    """
    client = make_client(provider)
    if isinstance(client, NoClient):
        # What it lacks is a key, on a machine that needs none for this.
        with_key = replace(provider, api_key=provider.api_key or "replay", fallbacks=())
        client = make_client(with_key)
    if isinstance(client, NoClient):
        raise ValueError(client.problem)  # noqa: TRY004  # as where the client is made to be used
    return client


@dataclass(eq=False)
class ReplayModels:
    """The models of one run that is replayed; they get their script when the run is known."""

    script: RecordedRun | None = None

    def next_call(self) -> CallEvidence | None:
        """Return the evidence of the recorded call that comes next, None where none is known."""
        call = None if self.script is None else self.script.next_call()
        return None if call is None else call.evidence


@dataclass(frozen=True, eq=False)
class ReplayedClient:
    """Stands for one model of a run."""

    provider: Provider
    """What the run was given for it."""

    models: ReplayModels
    writer: ChatClient | None = None
    """Writes the requests; by default each is written as the recorded call was."""

    @property
    def takes_loose_schema(self) -> bool:
        """Whether the client that writes the requests takes a schema that is not strict."""
        return bool(getattr(self.writer, "takes_loose_schema", False))

    def complete(self, req: RathLLMChatRequest) -> Any:
        """Refuse: a run goes through drafts, and the record knows no other calls."""
        raise RuntimeError("a replayed model answers only within a run")

    complete_stream = complete

    def output_mode(self, *, with_tools: bool) -> OutputMode:
        """Return how the client that writes the requests asks for a typed answer."""
        writer = self.writer
        if writer is None:
            return "tool"
        return output_mode(writer, writer.provider, with_tools=with_tools, strict=True)

    def open_draft(
        self, request: RathLLMChatRequest, *, streaming: bool, provider_origin: ProviderOrigin
    ) -> ReplayedDraft:
        """Return a draft that is written by the real client and answered by the script."""
        return ReplayedDraft(self, request, streaming, provider_origin)


def _rewriting_client(evidence: CallEvidence) -> ChatClient:
    if can_write_again(evidence.renderer):
        return RecordedClient(evidence)
    try:
        return writing_client(provider_of(evidence))
    except ValueError as exc:
        raise PersistenceError(
            f"requests that {evidence.adapter} wrote as {evidence.renderer!r} cannot be written "
            f"again: {exc}; import the module that registers the provider kind "
            f"{evidence.provider_kind!r}"
        ) from None


class ReplayedDraft:
    """A conversation that is written again; see `rath.llm.ChatDraft`."""

    def __init__(
        self,
        client: ReplayedClient,
        request: RathLLMChatRequest,
        streaming: bool,
        origin: ProviderOrigin,
    ) -> None:
        self._client = client
        self._request = request
        self._streaming = streaming
        self._origin: ProviderOrigin = origin
        self._messages: list[RathLLMMessage] = []
        self._n_written = 0
        """How many of these the draft below holds."""

        self._draft: ChatDraft | None = None
        self._style: tuple[object, str] | None = None
        """Parameters and renderer with which it writes."""

        self._last: CallEvidence | None = None
        evidence = client.models.next_call()
        facts = self._write_request(evidence).facts
        if evidence is not None and facts.requested_model == evidence.requested_model:
            # A scripted client, and one on another machine, has another name in the record: its
            # own answers are known by that one.
            facts = replace(
                facts,
                provider_kind=evidence.provider_kind,
                endpoint=evidence.endpoint,
                adapter=evidence.adapter,
            )
        self._facts = facts

    @property
    def facts(self) -> DraftFacts:
        return self._facts

    @property
    def digest(self) -> str:
        return self._write_request(self._client.models.next_call()).digest

    def append(self, messages: Sequence[RathLLMMessage]) -> None:
        self._messages += messages
        self._write_request(self._client.models.next_call())

    def body(self) -> bytes:
        return self._write_request(self._client.models.next_call()).body()

    def last_evidence(self) -> CallEvidence | None:
        return self._last

    async def asend(self, *, on_delta: OnDelta | None = None) -> Exchange:
        """Return the recorded answer, once the request is the recorded one.

        Raises:
            ReplayDifference: It is another one, or the record has no further call.
            ProviderError: The recorded call failed.
            CancelledError: It was cut off.
        """
        self._last = None
        script = self._client.models.script
        if script is None:
            raise ReplayDifference(
                "the run asks a model, and the recorded one was made without a question",
                where="the program",
            )
        call = script.take_call()
        evidence = call.evidence
        script.check_request(call, self._write_request(evidence), self._request)
        self._last = evidence
        row = script.run.row_of(call)
        if call.status == "cancelled" or (call.rows and row is None):
            raise script.end("the record has no row with the answer")
        if call.status == "failed":
            if evidence.partial_text:
                await _tell(RathLLMStreamDelta(evidence.partial_text), on_delta)
            raise error_of(evidence)
        response = response_of(call, row)
        for delta in split(response) if on_delta is not None and response.choices else ():
            await _tell(delta, on_delta)
        return Exchange(response, evidence)

    def _write_request(self, evidence: CallEvidence | None) -> ChatDraft:
        """Return the request as it is written for a call, with all messages in it."""
        style = None if evidence is None else (evidence.parameters, evidence.renderer)
        # A vendor's rules may change the parameters from call to call.
        is_other = self._client.writer is None and style not in (None, self._style)
        if self._draft is None or is_other:
            self._draft, self._n_written, self._style = self._open(evidence), 0, style
        self._draft.append(self._messages[self._n_written :])
        self._n_written = len(self._messages)
        return self._draft

    def _open(self, evidence: CallEvidence | None) -> ChatDraft:
        """Return a draft that writes requests as those of a recorded call were written.

        Raises:
            PersistenceError: The adapter that wrote them is not known here.
        """
        writer, streaming = self._client.writer, self._streaming
        if writer is None:
            if evidence is None:
                # The run will be told so when it asks.
                return CustomDraft(
                    self._client, self._request, streaming=streaming, provider_origin=self._origin
                )
            writer = _rewriting_client(evidence)
            streaming = evidence.parameters.get("stream") is True
        return open_draft(
            writer,
            self._request,
            streaming=streaming,
            provider_origin=self._origin,
            provider=self._client.provider,
        )


async def _tell(delta: RathLLMStreamDelta, on_delta: OnDelta | None) -> None:
    waiting = None if on_delta is None else on_delta(delta)
    if inspect.isawaitable(waiting):
        await waiting


_SCHEMAS = ("response_format", "output_config")
"""Parameters by which a typed answer is asked for by its schema."""


def provider_of(evidence: CallEvidence) -> Provider:
    """Return a provider with the kind, the model and the parameters of a recorded call.

    It has no endpoint: a record must not say where a key is sent.
    """
    parameters: Mapping[str, Any] = evidence.parameters
    names = set(SAMPLING_FIELDS) - {"model", "extra_create_args", "tool_choice", "response_format"}
    return Provider(
        model=evidence.requested_model,
        provider_kind=evidence.provider_kind,
        output_mode="schema" if any(name in parameters for name in _SCHEMAS) else "tool",
        **{name: parameters[name] for name in names if name in parameters},
    )


class Playback:
    """Serves the operations of a history to a program, each once; used by any thread.

    What begins an operation looks for the first one of its kind that was not served yet, was made
    at the same place of the program, and of the same sessions or rows.
    """

    def __init__(self, history: History) -> None:
        self._runs = list(history.runs)
        recorded_sessions = {run.operation.session for run in history.runs}
        self._silent = [
            node
            for node in history.nodes
            if node.provenance.operator in _SILENT.values()
            and not node.provenance.is_copy
            and node.id not in recorded_sessions
        ]
        self._calls = _calls(history)
        self._recorded = {node.id: node for node in history.nodes}
        self._same: dict[UUID, UUID] = {}
        """Sessions of the program that have another id in the record, by their own."""

        self._lock = threading.Lock()
        self._scripts: list[RecordedRun] = []
        self.first: ReplayDifference | None = None
        """The first difference of all."""

        self.new_sessions: list[Session] = []
        """The sessions that were made, for those who wait for them."""

    # What the operations ask.

    def client(self, provider: Provider) -> ChatClient:
        """Return the client of a provider, which writes requests here and sends none."""
        return writing_client(provider)

    def candidates(self, given: tuple[ProviderCandidate, ...]) -> tuple[ProviderCandidate, ...]:
        """Return models that write their requests as ever, and are answered by the record."""
        models = ReplayModels()
        return tuple(
            replace(each, client=ReplayedClient(each.provider, models, each.client))
            for each in given
        )

    def begin(
        self,
        kind: ServedKind,
        place: Place,
        sessions: tuple[Session, Session],
        candidates: Sequence[ProviderCandidate],
    ) -> RecordedServing:
        """Return the recorded run that begins now; see `ReplayContext`.

        Raises:
            ReplayDifference: There is none that fits.
        """
        user, agent = sessions
        with self._lock:
            silent = self._take_empty(kind, place, user)
            if silent is not None:
                return silent
            run = self._take(kind, lambda run: _is_at(run, place, agent) and self._fits(run, user))
            if run is None:
                raise self.differs(self._explained(kind, place, user, agent))
            for mine, theirs in zip(sessions, run.parents, strict=False):
                self._same[mine.id] = theirs
        client = candidates[0].client
        assert isinstance(client, ReplayedClient)
        script = client.models.script = RecordedRun(run, self.differs)
        self._scripts.append(script)
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

        def fits(run: RecordedOperation) -> bool:
            above = run.parents or tuple(parent.id for parent in parents)
            return run.operation.place == place and all(map(self._is_same, parents, above))

        with self._lock:
            run = self._take(kind, fits)
        return place if run is None else replace(run.operation.place, made=run.operation.session)

    def check(self, session: Session, name: str, judge: str) -> tuple[Entry, ...]:
        """Return the entries of the recorded check of a session.

        Raises:
            ReplayDifference: There is none of that name and command.
        """

        def fits(run: RecordedOperation) -> bool:
            judged = ((each.name, each.judge) for each in run.own if isinstance(each, Verdict))
            return (name, judge) in judged and self._is_same(session, run.operation.session)

        with self._lock:
            run = self._take("check", fits)
        if run is not None:
            return tuple(run.own)
        problem = f"the record has no check {name!r} by {judge!r:.200}"
        where, name_of_check = f"session {short_id(session.id)}", f"check {name!r}"
        raise self.differs(difference(problem, where, self._expected("check"), name_of_check))

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
        for session in self.new_sessions:
            with suppress(Exception):  # its readers get its error
                session.synchronize()
        first = self.first or next(filter(None, (each.left() for each in self._scripts)), None)
        unused = [run for run in self._runs if run.operation.kind in _RUNS]
        if first is not None or not unused:
            return first
        names = ", ".join(name_of(run.operation) for run in unused[:5])
        more = f" and {len(unused) - 5} more" if len(unused) > 5 else ""
        problem = "the program did not ask for all that the record has"
        actual = "the end of the program"
        return difference(problem, "the end of the replay", f"{names}{more}", actual)

    # Finding what was recorded.

    def _take(
        self, kind: str, fits: Callable[[RecordedOperation], bool]
    ) -> RecordedOperation | None:
        """Return the first operation of a kind that fits, which is served by that."""
        for at, run in enumerate(self._runs):
            if run.operation.kind == kind and fits(run):
                return self._runs.pop(at)
        return None

    def _take_empty(self, kind: str, place: Place, user: Session) -> EmptyRun | None:
        """Return the node that a run on a suspended session made without an operation."""
        latest = None if user.is_pending else user.core.body.latest
        for node in self._silent:
            above = node.provenance.parent_ids
            is_one = node.provenance.operator == _SILENT.get(kind) and bool(above)
            if is_one and self._is_same(user, above[0]):
                self._silent.remove(node)
                return EmptyRun(replace(place, made=node.id), node.body.outcome)
        if latest is not None and isinstance(latest.outcome, Suspended):
            return EmptyRun(place, latest.outcome)
        return None

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
        self, kind: ServedKind, place: Place, user: Session, agent: Session
    ) -> ReplayDifference:
        """Say what of an operation is another than what the record has next."""
        name = kind_at(kind, place)
        alike = [run for run in self._runs if run.operation.kind == kind]
        if not alike:
            problem = f"{name} is not in the record, which has no further one of its kind"
            return difference(problem, name, self._expected(*_RUNS), name)
        here = [run for run in alike if run.operation.place == place]
        nearest = (here or alike)[0]
        operation = nearest.operation
        where = f"{name}, in the record {name_of(operation)}"
        if not here:
            problem = "it is made at another place of the program"
            return difference(problem, where, name_of(operation), name)
        head = ChunkTable(operation.head)
        for what, recorded, session in (("agent", head, agent), ("input", nearest.input, user)):
            rows = recorded if session.is_pending else session.partial_table
            differs = rows_differ(recorded, rows, where=where, what=f"the {what}")
            if differs is not None:
                return differs
        parent = f"session {short_id(nearest.parents[0])}" if nearest.parents else "another one"
        problem = "it is made of another session"
        return difference(problem, where, parent, f"session {short_id(user.id)}")

    def _expected(self, *kinds: str) -> str:
        unused = (run for run in self._runs if run.operation.kind in kinds)
        return next((name_of(run.operation) for run in unused), "no further operation")


def _calls(history: History) -> dict[UUID, tuple[str, UUID | None]]:
    """Return the workflow calls of a history: the name of the workflow, and what it began with."""
    calls: dict[UUID, tuple[str, UUID | None]] = {}
    for run in history.runs:
        place = run.operation.place
        if place.run is not None:
            calls.setdefault(place.run, (place.path.partition(".")[0], place.root))
    return calls


def _is_at(run: RecordedOperation, place: Place, agent: Session) -> bool:
    operation = run.operation
    is_its = agent.is_pending or tuple(agent.partial_table) == operation.head
    return is_its and operation.place == place


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
        with offline(), replaying_in(playback), gathering(playback.new_sessions.append):
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
        with replay(*_sessions_on(self.path)):
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
    return Cassette(Path(path), _check_mode(mode, "mode"))


@contextmanager
def _recording(path: Path) -> Generator[None]:
    sessions: dict[UUID, Session] = {}

    def take(session: Session) -> None:
        sessions[session.id] = session

    path = path.absolute()
    with gathering(take):
        yield
    with tempfile.TemporaryDirectory(prefix="rath-cassette-") as directory:
        store = FileStore(directory)
        for session in sessions.values():
            save(_await_end(session), store=store)
        write_bundle(pack(store, list(sessions), note=_NOTE), path)


def _sessions_on(path: Path) -> list[Session]:
    """Return the sessions that a bundle names, with what they came from; each log is read once.

    Raises:
        PersistenceError: It cannot be read.
        SessionDamaged: It is not what was written.
    """
    bundle = read_bundle(path)
    find = functools.cache(LogSource(BundleStore(bundle, str(path))).find)
    contents: dict[UUID, ParsedLog] = {}
    for session in bundle.sessions:
        content = find(session)
        for each in () if content is None else closure(content, find):
            contents.setdefault(each.header.session, each)
    built = build(contents.values())
    return [session_of(built[session]) for session in bundle.sessions]


def _await_end(session: Session) -> Session:
    """Wait for a run and return its session; one that failed as far as it came."""
    with suppress(Exception):  # the code under test has seen its error, or did not want to
        return session.synchronize()
    if session.core.body.latest is None:
        return Session(session.partial_table, id=session.id)
    return Session.from_body(
        Deferred.of(session.core.body.latest.cancelled(session.id)),
        session.provenance,
        id=session.id,
        provider=session.provider,
        lineage=session.lineage,
    )


def _mode(mode: Mode) -> Mode:
    from_env = env_value(_VARIABLE)
    return mode if mode != "auto" or not from_env else _check_mode(from_env, _VARIABLE)


def _check_mode(mode: str, name: str) -> Mode:
    if mode not in get_args(Mode):
        raise ValueError(f"{name} is {mode!r}; expected 'auto', 'record' or 'replay'")
    return cast("Mode", mode)  # just checked
