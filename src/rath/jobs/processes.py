"""The engine of processes on this machine: each worker a Python process with many items at once.

    driver --socket--> worker   StartJob once, RunItem, CancelItem, LeaseAnswer; then its end
    driver <--socket-- worker   WorkerReady or StartFailure once, ItemEnd, LeaseQuestion

Messages are lines of JSON. A worker is spawned, never forked, in a process group of its own, so
that Ctrl-C in a terminal is the driver's alone. What a worker prints goes to the driver's stderr.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial
from multiprocessing import process as mp_process
from multiprocessing import reduction, spawn
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
from msgspec import Struct

from rath._async.runtime import at_exit, runtime
from rath.errors import EngineError
from rath.jobs.engine import (
    EventQueue,
    ItemEvent,
    JobSpec,
    WorkItem,
    decode_job,
    encode_job,
)
from rath.jobs.limits import Lease, LeaseRequest, SharedLimits
from rath.jobs.worker import ItemRunner, worker_name

MAX_START_DEATHS = 3
"""How often in a row a worker may die before it is ready until it is given up; a guess."""

EXIT_SECONDS = 5
"""How long a worker that was let go may take to end by itself; a guess."""

_LAST_WORDS_SECONDS = 1.0
"""How long what a worker wrote before its end is read, where a child of it holds the socket."""

_MAX_LINE = 16 << 20
_MAX_TRACEBACK_CHARS = 20_000

_COMMAND = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from rath.jobs.processes import main; main(int(sys.argv.pop()))"
)

_log = logging.getLogger("rath.jobs")


# ---------------------------------------------------------------- messages


class StartJob(Struct, tag=True):
    """What a worker gets once: the program of the driver, and the job."""

    program: bytes
    """What `multiprocessing` tells the processes that it spawns, pickled."""

    job: bytes


class RunItem(Struct, tag=True):
    """One delivery of an item."""

    delivery: int
    run: UUID
    attempt: int
    session: UUID


class CancelItem(Struct, tag=True):
    """End the attempts at an item."""

    run: UUID


class WorkerReady(Struct, tag=True):
    """The job is loaded."""

    name: str


class StartFailure(Struct, tag=True):
    """The job could not be loaded; the worker ends."""

    traceback: str


class ItemEnd(Struct, tag=True):
    """The event of a delivery."""

    delivery: int
    event: ItemEvent


class LeaseQuestion(Struct, tag=True):
    """What a worker asks the limits of the job, which the driver has."""

    number: int
    request: LeaseRequest


class LeaseAnswer(Struct, tag=True):
    """The lease of a question."""

    number: int
    lease: Lease


ToWorker: TypeAlias = StartJob | RunItem | CancelItem | LeaseAnswer
ToDriver: TypeAlias = WorkerReady | StartFailure | ItemEnd | LeaseQuestion

_to_worker: msgspec.json.Decoder[ToWorker] = msgspec.json.Decoder(ToWorker)
_to_driver: msgspec.json.Decoder[ToDriver] = msgspec.json.Decoder(ToDriver)
_encode_message = msgspec.json.Encoder().encode


def _line(message: Struct) -> bytes:
    return _encode_message(message) + b"\n"


def _start_line(spec: JobSpec) -> bytes:
    """Return what a worker is told first.

    Raises:
        EngineError: The store or the workflow cannot be found from another process.
    """
    # As multiprocessing pickles, so that what the program declares in __main__ travels, too.
    job = encode_job(spec, reduction.ForkingPickler.dumps)
    program = spawn.get_preparation_data("rath-worker")
    program.pop("authkey", None)
    return _line(StartJob(pickle.dumps(program), job))


# ---------------------------------------------------------------- driver


class _WorkerProcess:
    """One of the workers of an engine, which is started again when it dies."""

    def __init__(self, engine: ProcessesEngine) -> None:
        self._engine = engine
        self._writer: asyncio.StreamWriter | None = None
        self.name: str = ""
        self.is_ready: bool = False
        self.failure: str | None = None
        """Why it was given up."""

        self.in_flight: dict[int, WorkItem] = {}
        """By the number of the delivery."""

    @property
    def is_given_up(self) -> bool:
        """Whether it is not started any more."""
        return self.failure is not None

    async def keep_running(self, start: bytes) -> None:
        """Run the process until the engine is closed or the worker is given up."""
        n_deaths = 0
        while not self._engine.is_closing and not self.is_given_up:
            was_ready, status = await self._run_once(start)
            n_deaths = 0 if was_ready else n_deaths + 1
            if self.failure is None and n_deaths == MAX_START_DEATHS:
                self.failure = (
                    f"a worker died {n_deaths} times before it was ready, the last time "
                    f"{_end_of(status)}; what it wrote to stderr may say why"
                )
            self._engine.take_death(self, _end_of(status))

    def send(self, message: Struct) -> None:
        """Write a message; one to a process that has just died is lost with its items."""
        if self._writer is not None:
            self._writer.write(_line(message))

    def let_go(self) -> None:
        """Close the socket: the process ends by itself."""
        if self._writer is not None:
            self._writer.transport.abort()

    async def _run_once(self, start: bytes) -> tuple[bool, int]:
        """Start the process and serve it until it ends; return whether it was ready, and status."""
        ours, theirs = socket.socketpair()
        try:
            process = await runtime().call_in_worker(partial(_start_process, theirs.fileno()))
        except OSError as exc:
            ours.close()
            self.failure = f"no process can be started: {exc}"
            return False, 0
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours, limit=_MAX_LINE)
        waiting = asyncio.ensure_future(runtime().call_in_worker(process.wait))
        reading = asyncio.ensure_future(self._read(reader))
        self._writer = writer
        writer.write(start)
        if self._engine.is_closing:
            self.let_go()
        await asyncio.wait({waiting, reading}, return_when=asyncio.FIRST_COMPLETED)
        was_ready, self.is_ready = self.is_ready, False
        if not waiting.done():
            self.let_go()
            await asyncio.wait({waiting}, timeout=EXIT_SECONDS + 1)
        if not waiting.done():
            process.kill()
        status = await waiting
        # A worker that was never ready may have been so, and have died, within this loop's step.
        await asyncio.wait({reading}, timeout=_LAST_WORDS_SECONDS)
        was_ready, self.is_ready = was_ready or self.is_ready, False
        reading.cancel()
        self._writer = None
        writer.transport.abort()
        return was_ready, status

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                match _to_driver.decode(line):
                    case WorkerReady(name):
                        self.name, self.is_ready = name, True
                        self._engine.take_ready()
                    case StartFailure(text):
                        self.failure = f"a worker could not load the job:\n{text}"
                    case ItemEnd(delivery, event):
                        self._engine.take_end(self, delivery, event)
                    case LeaseQuestion(number, request):
                        self.send(LeaseAnswer(number, self._engine.lease(request)))
        except (ConnectionError, msgspec.MsgspecError):
            return  # it died in the middle of a line


def _start_process(file: int) -> subprocess.Popen[bytes]:
    """Spawn a worker that has a socket at this descriptor."""
    arguments = [json.dumps(v) if isinstance(v, list) else str(v) for v in (file, sys.path)]
    inner: Any = subprocess
    flags: list[str] = inner._args_from_interpreter_flags()  # noqa: SLF001  # as multiprocessing does
    return subprocess.Popen(
        [spawn.get_executable(), *flags, "-c", _COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=2,
        pass_fds=(file,),
        process_group=0,
    )


def _end_of(status: int) -> str:
    """Say how a process ended."""
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"


class ProcessesEngine:
    """Carries out items in processes of this machine; see `processes_engine`.

    Args:
        n_workers: Processes.
    """

    name = "procs"
    is_local = False

    def __init__(self, n_workers: int) -> None:
        self._workers = [_WorkerProcess(self) for _ in range(n_workers)]
        self._tasks: list[asyncio.Task[None]] = []
        self._events = EventQueue()
        self._pending: deque[WorkItem] = deque()
        self._news = asyncio.Event()
        self._n_deliveries = 0
        self._failure: EngineError | None = None
        self._concurrency = 1
        self.is_closing: bool = False

    async def open(self, spec: JobSpec) -> None:
        """Start the workers, and return when the first one is ready.

        Raises:
            EngineError: The job cannot be sent to them, or none of them could load it; then the
                text has the traceback of one.
        """
        self._concurrency = spec.concurrency
        self.limits: SharedLimits = SharedLimits.of(spec)
        start = await runtime().call_in_worker(partial(_start_line, spec))
        self._tasks = [
            asyncio.create_task(worker.keep_running(start), name="a worker process")
            for worker in self._workers
        ]
        try:
            await self._news.wait()
        finally:
            if not any(worker.is_ready for worker in self._workers):
                await self.close()
        if self._failure is not None:
            raise self._failure

    def submit(self, item: WorkItem) -> None:
        """Have an item carried out; returns at once."""
        self._pending.append(item)
        self._deliver()

    def cancel(self, run: UUID) -> None:
        """Have the attempts at an item ended; an event of each comes still."""
        for item in [each for each in self._pending if each.run == run]:
            self._pending.remove(item)
            self._events.put(ItemEvent(run=run, attempt=item.attempt, status="cancelled"))
        for worker in self._workers:
            if any(item.run == run for item in worker.in_flight.values()):
                worker.send(CancelItem(run))

    async def events(self) -> AsyncGenerator[ItemEvent]:
        """Yield events as they come, until `close`.

        Raises:
            EngineError: No worker is left, and none can be started.
        """
        async for event in self._events.read():
            yield event
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """End the workers; one that does not end by itself is killed."""
        self.is_closing = True
        for worker in self._workers:
            worker.let_go()
        await asyncio.gather(*self._tasks)
        self._events.close()

    # ------------------------------------------------------------ what workers tell

    def take_ready(self) -> None:
        """Give items to a worker that is there."""
        self._news.set()
        self._deliver()

    def lease(self, request: LeaseRequest) -> Lease:
        """Return what a worker may do by the limits of the job."""
        return self.limits.lease(request)

    def take_end(self, worker: _WorkerProcess, delivery: int, event: ItemEvent) -> None:
        """Pass on the event of a delivery."""
        del worker.in_flight[delivery]
        self._events.put(event)
        self._deliver()

    def take_death(self, worker: _WorkerProcess, end: str) -> None:
        """Tell that the items of a worker are lost, and whether any worker is left."""
        lost, worker.in_flight = worker.in_flight, {}
        if self.is_closing:
            return
        for item in lost.values():
            error = f"its worker, {worker.name}, ended {end}"
            self._events.put(
                ItemEvent(
                    run=item.run,
                    attempt=item.attempt,
                    status="lost",
                    error=error,
                    worker=worker.name,
                )
            )
        if not worker.is_given_up:
            _log.warning(
                "%s ended %s with %d items in flight, and is started again",
                worker.name or "a worker that was not ready",
                end,
                len(lost),
            )
            return
        if all(each.is_given_up for each in self._workers):
            self._failure = EngineError(f"engine 'procs' has no workers: {worker.failure}")
            self._events.close()
            self._news.set()
            return
        _log.error("the engine goes on without one of its workers: %s", worker.failure)
        self._deliver()

    def _deliver(self) -> None:
        """Give pending items to the ready workers with the fewest in flight."""
        usable = [worker for worker in self._workers if not worker.is_given_up]
        ready = [worker for worker in usable if worker.is_ready]
        most = math.ceil(self._concurrency / max(1, len(usable)))
        while self._pending and ready and not self.is_closing:
            worker = min(ready, key=lambda each: len(each.in_flight))
            if len(worker.in_flight) >= most:
                return
            item = self._pending.popleft()
            self._n_deliveries += 1
            worker.in_flight[self._n_deliveries] = item
            worker.send(RunItem(self._n_deliveries, item.run, item.attempt, item.session.id))


def processes_engine(rest: str) -> ProcessesEngine:
    """Return the engine of so many processes on this machine.

    Args:
        rest: How many, such as `4`; as many as there are processors where it is empty.

    Raises:
        EngineError: It is no number above 0.
    """
    n_workers = rest or str(os.cpu_count() or 1)
    if not (n_workers.isascii() and n_workers.isdigit() and int(n_workers)):
        raise EngineError(
            f"engine 'procs' takes a number of processes, as in 'procs:4', not {rest!r}"
        )
    return ProcessesEngine(int(n_workers))


# ---------------------------------------------------------------- worker


def main(file: int) -> None:
    """Be a worker: load the job, and carry out items until the driver closes the socket.

    Args:
        file: The descriptor of the socket.
    """
    os.set_inheritable(file, False)
    with socket.socket(fileno=file) as connection:
        lines = connection.makefile("rb")
        writer = _MessageWriter(connection)
        try:
            start = _to_worker.decode(lines.readline())
            assert isinstance(start, StartJob)
            carrier = _Carrier(_load_job(start), writer)
        except BaseException:  # noqa: BLE001  # the program's own code, which may also exit
            text = traceback.format_exc()[-_MAX_TRACEBACK_CHARS:]
            connection.sendall(_line(StartFailure(text)))
            raise SystemExit(1) from None
        writer.put(WorkerReady(worker_name()))
        try:
            for line in lines:
                carrier.take(_to_worker.decode(line))
        except ConnectionError:
            pass
        # What is in flight is given up. The kernel ends a process that is too busy to notice.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(EXIT_SECONDS)
        at_exit("cancel")
        runtime().run(carrier.cancel_all, label="the end of a worker")


def _load_job(start: StartJob) -> JobSpec:
    """Make the program of the driver this one's, as multiprocessing does, and load the job."""
    this: Any = mp_process.current_process()
    # A program that starts a job while it is imported is refused with what to do instead.
    this._inheriting = True  # noqa: SLF001  # as multiprocessing does
    try:
        spawn.prepare(pickle.loads(start.program))
        return decode_job(start.job)
    finally:
        del this._inheriting  # noqa: SLF001


class _MessageWriter:
    """Writes messages on a thread of its own: a driver that stands still stops no run."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._messages: queue.SimpleQueue[Struct] = queue.SimpleQueue()
        threading.Thread(target=self._write, name="rath-messages", daemon=True).start()

    def put(self, message: Struct) -> None:
        """Write a message soon."""
        self._messages.put(message)

    def _write(self) -> None:
        while True:
            try:
                self._connection.sendall(_line(self._messages.get()))
            except OSError:
                return  # the driver is gone, which its reader sees


class _DriverLimits:
    """The limits of the job, which the driver has; used on the runtime loop."""

    def __init__(self, writer: _MessageWriter) -> None:
        self._writer = writer
        self._questions: dict[int, asyncio.Future[Lease]] = {}
        self._n_questions = 0

    async def exchange(self, request: LeaseRequest) -> Lease:
        """Ask the driver; see `LimitSource`."""
        self._n_questions += 1
        number = self._n_questions
        answer: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        self._writer.put(LeaseQuestion(number, request))
        try:
            return await answer
        finally:
            del self._questions[number]

    async def take(self, answer: LeaseAnswer) -> None:
        """Give an answer to who waits for it."""
        waiting = self._questions.get(answer.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer.lease)


class _Carrier:
    """Carries out the items that come to a worker."""

    def __init__(self, spec: JobSpec, writer: _MessageWriter) -> None:
        self._writer = writer
        self._limits = _DriverLimits(writer)
        self._runner = ItemRunner(spec, self._limits)

    def take(self, message: ToWorker) -> None:
        """Begin what a message asks for; called on the main thread."""
        make: Callable[[], Coroutine[Any, Any, None]]
        match message:
            case RunItem():
                make = partial(self._run, message)
            case CancelItem(run):
                make = partial(self._cancel, run)
            case LeaseAnswer():
                make = partial(self._limits.take, message)
            case StartJob():
                return
        runtime().submit(make, label=type(message).__name__, at_exit="leave")

    async def cancel_all(self) -> None:
        """End all attempts; returns at once."""
        self._runner.cancel_all()

    async def _run(self, message: RunItem) -> None:
        event = await self._runner.run_stored(message.run, message.attempt, message.session)
        self._writer.put(ItemEnd(message.delivery, event))

    async def _cancel(self, run: UUID) -> None:
        self._runner.cancel(run)
