"""A sandbox of a server through the SDK, which only this module imports: load it in a worker.

Every error of the SDK becomes a `RemoteFault` here, with no key in its text.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import httpx
from code_interpreter import CodeInterpreter
from opensandbox import Sandbox, SandboxManager
from opensandbox.config import ConnectionConfig
from opensandbox.exceptions import (
    InvalidArgumentException,
    SandboxApiException,
    SandboxException,
    SandboxReadyTimeoutException,
)
from opensandbox.models.execd import Execution, ExecutionHandlers, ExecutionInit, RunCommandOpts
from opensandbox.models.filesystem import DirectoryListEntry, EntryInfo, WriteEntry
from opensandbox.models.sandboxes import SandboxFilter, SnapshotFilter, Volume
from opensandbox.transport import RetryPolicy
from opensandbox.transport.retry import JitterMode

from rath.backend.opensandbox.answers import Answer, Entry, Printed, answer_of
from rath.backend.opensandbox.connection import Connection
from rath.backend.opensandbox.defaults import (
    INTERPRETER_SECONDS,
    READY_SECONDS,
    REQUEST_SECONDS,
    RETRIES,
    RETRY_SECONDS,
)
from rath.backend.opensandbox.faults import (
    AnswerLost,
    Broken,
    NotReached,
    NotReady,
    Refused,
    RemoteFault,
)
from rath.config.redaction import guard_logs, redact

_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_LIBRARIES = ("opensandbox", "code_interpreter", "httpx", "httpcore")

# What the SDK logs it raises as well; without a handler of the program it would go to stderr.
for _name in ("opensandbox", "code_interpreter"):
    logging.getLogger(_name).addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a new sandbox shall be like."""

    image: str | None
    snapshot_id: str | None
    entrypoint: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    lifetime: timedelta
    metadata: Mapping[str, str]
    resources: Mapping[str, str] | None
    volumes: Sequence[Volume] | None


class _Settings(ConnectionConfig):
    """Settings of the SDK that take nothing from the environment."""

    def get_api_key(self) -> str:
        # The SDK would send the key of the environment to any server when none is given.
        return self.api_key or ""


def _settings(connection: Connection) -> ConnectionConfig:
    guard_logs(_LIBRARIES, connection.api_key)
    return _Settings(
        api_key=connection.api_key or None,
        domain=connection.domain,
        protocol=connection.protocol,
        use_server_proxy=connection.use_server_proxy,
        request_timeout=timedelta(seconds=REQUEST_SECONDS),
        # Only what did not reach the server, or changes nothing, is sent again: requests that
        # are idempotent, and others that could not connect. Streams never are.
        retry_policy=RetryPolicy(
            max_retries=RETRIES,
            initial_backoff=timedelta(seconds=RETRY_SECONDS),
            jitter=JitterMode.NONE,
        ),
        disable_metrics=True,
    )


class Client:
    """One sandbox of a server."""

    def __init__(self, sandbox: Sandbox, connection: Connection) -> None:
        self.id = sandbox.id
        self._sandbox = sandbox
        self._connection = connection
        self._interpreter: CodeInterpreter | None = None

    @classmethod
    async def create(cls, connection: Connection, wanted: Wanted) -> Client:
        """Create a sandbox and wait until it answers."""
        async with _faults(connection):
            sandbox = await Sandbox.create(
                wanted.image,
                snapshot_id=wanted.snapshot_id,
                timeout=wanted.lifetime,
                ready_timeout=timedelta(seconds=READY_SECONDS),
                env=dict(wanted.env),
                metadata=dict(wanted.metadata),
                resource=dict(wanted.resources) if wanted.resources is not None else None,
                entrypoint=list(wanted.entrypoint),
                volumes=list(wanted.volumes) if wanted.volumes is not None else None,
                connection_config=_settings(connection),
            )
        return cls(sandbox, connection)

    @classmethod
    async def connect(cls, connection: Connection, sandbox_id: str) -> Client:
        """Return the client of a sandbox that is there, once it answers."""
        async with _faults(connection):
            sandbox = await Sandbox.connect(
                sandbox_id,
                connection_config=_settings(connection),
                connect_timeout=timedelta(seconds=READY_SECONDS),
            )
        return cls(sandbox, connection)

    async def is_there(self) -> bool:
        """Ask the server whether the sandbox still exists."""
        try:
            async with _faults(self._connection):
                await self._sandbox.get_info()
        except Refused as exc:
            if exc.is_missing_sandbox:
                return False
            raise
        return True

    async def kill(self) -> None:
        """End the sandbox on the server; one that is gone already is no error."""
        try:
            async with _faults(self._connection):
                await self._sandbox.kill()
        except Refused as exc:
            if not exc.is_missing_sandbox:
                raise

    async def aclose(self) -> None:
        """Close the connections; the sandbox goes on."""
        async with _faults(self._connection):
            try:
                if self._interpreter is not None:
                    await self._interpreter.aclose()
            finally:
                await self._sandbox.close()

    async def renew(self, lifetime: timedelta) -> datetime:
        """Let the sandbox live so long from now on, and return until when."""
        async with _faults(self._connection):
            return (await self._sandbox.renew(lifetime)).expires_at

    async def snapshot(self, name: str | None) -> str:
        """Ask for a snapshot and return its id."""
        async with _faults(self._connection):
            return (await self._sandbox.create_snapshot(name)).id

    async def snapshot_state(self, snapshot_id: str) -> tuple[str, str]:
        """Return the state of a snapshot, and what the server says about it."""
        async with _managing(self._connection) as manager:
            status = (await manager.get_snapshot(snapshot_id)).status
        return status.state, status.message or status.reason or "no reason was given"

    async def snapshots_named(self, name: str) -> Sequence[str]:
        """Return the ids of the snapshots of this sandbox that have a name."""
        asked = SnapshotFilter(sandbox_id=self.id, name=name)
        async with _managing(self._connection) as manager:
            return [each.id for each in (await manager.list_snapshots(asked)).snapshot_infos]

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Delete a snapshot, also after this was closed; one that is gone already is no error."""
        try:
            async with _managing(self._connection) as manager:
                await manager.delete_snapshot(snapshot_id)
        except Refused as exc:
            if exc.status != 404:
                raise

    async def run(
        self,
        command: str,
        printed: Printed,
        *,
        cwd: str,
        env: Mapping[str, str],
        timeout: float,
    ) -> Answer:
        """Run a command line to its end; `printed` has its id and output while it runs.

        Args:
            command: For the shell.
            printed: Told what the sandbox sends.
            cwd: Directory to start in.
            env: Variables to add.
            timeout: Seconds after which the sandbox ends it.
        """
        options = RunCommandOpts(
            working_directory=cwd, timeout=timedelta(seconds=timeout), envs=dict(env)
        )
        async with _faults(self._connection):
            execution = await self._sandbox.commands.run(
                command, opts=options, handlers=_handlers(printed)
            )
        return answer_of(execution)

    async def interrupt_command(self, command_id: str) -> None:
        """End a running command."""
        async with _faults(self._connection):
            await self._sandbox.commands.interrupt(command_id)

    async def start_interpreters(self) -> None:
        """Wait until the sandbox can run code; again it does nothing."""
        await self._started()

    async def _started(self) -> CodeInterpreter:
        async with _faults(self._connection):
            if self._interpreter is None:
                self._interpreter = await CodeInterpreter.create(
                    self._sandbox, ready_timeout=timedelta(seconds=INTERPRETER_SECONDS)
                )
        return self._interpreter

    async def run_code(self, code: str, language: str, printed: Printed) -> Answer:
        """Run code in the interpreter of its language, which keeps its state."""
        interpreter = await self._started()
        async with _faults(self._connection):
            execution: Execution = await interpreter.codes.run(
                code, language=language, handlers=_handlers(printed)
            )
        return answer_of(execution)

    async def contexts(self, language: str) -> Sequence[str]:
        """Return the ids of the interpreters of a language that are there."""
        interpreter = await self._started()
        async with _faults(self._connection):
            found = await interpreter.codes.list_contexts(language)
        return sorted({each.id for each in found if each.id is not None})

    async def interrupt_code(self, run_id: str) -> None:
        """End a running piece of code; the interpreter stays."""
        interpreter = await self._started()
        async with _faults(self._connection):
            await interpreter.codes.interrupt(run_id)

    async def read(self, path: str, first: int | None = None, last: int | None = None) -> bytes:
        """Return the content of a file, or the bytes from `first` to `last`, both included."""
        asked = None if first is None else f"bytes={first}-{'' if last is None else last}"
        async with _faults(self._connection):
            return await self._sandbox.files.read_bytes(path, range_header=asked)

    async def write(self, path: str, data: bytes, mode: int) -> None:
        """Write a whole file and the directories above it."""
        async with _faults(self._connection):
            await self._sandbox.files.write_file(path, data, mode=decimal_mode(mode))

    async def make_directory(self, path: str) -> None:
        """Make a directory and those above it, if they are missing."""
        async with _faults(self._connection):
            entry = WriteEntry(path=path, mode=decimal_mode(0o755))
            await self._sandbox.files.create_directories([entry])

    async def remove(self, paths: Sequence[str]) -> None:
        """Remove files; those that are missing are no error."""
        async with _faults(self._connection):
            await self._sandbox.files.delete_files(list(paths))

    async def info(self, paths: Sequence[str]) -> Sequence[Entry]:
        """Return what is at each path; a link is not followed, and all must be there."""
        async with _faults(self._connection):
            found = await self._sandbox.files.get_file_info(list(paths))
        try:
            return [_entry(found[path]) for path in paths]
        except KeyError as exc:
            raise Broken(f"the server tells nothing of {exc}") from exc

    async def entries(self, path: str) -> Sequence[Entry]:
        """Return what a directory holds, without what is below."""
        async with _faults(self._connection):
            asked = DirectoryListEntry(path=path, depth=1)
            return [_entry(each) for each in await self._sandbox.files.list_directory(asked)]


async def ids_marked(connection: Connection, key: str, value: str) -> list[str]:
    """Return the ids of the sandboxes that carry that metadata."""
    async with _managing(connection) as manager:
        found = await manager.list_sandbox_infos(SandboxFilter(metadata={key: value}))
        return [each.id for each in found.sandbox_infos]


def decimal_mode(mode: int) -> int:
    """Return permission bits as the API writes them: the octal digits, read as a decimal."""
    return int(f"{mode & 0o7777:o}")


def _entry(info: EntryInfo) -> Entry:
    return Entry(info.path, info.entry_type or "", info.size, int(str(info.mode), 8))


def _handlers(printed: Printed) -> ExecutionHandlers:
    async def on_init(event: ExecutionInit) -> None:
        printed.run_id = event.id

    async def on_stdout(message: object) -> None:
        printed.add_stdout(str(getattr(message, "text", "")))

    async def on_stderr(message: object) -> None:
        printed.add_stderr(str(getattr(message, "text", "")))

    # Nothing is accumulated by the SDK: what is kept has a bound.
    return ExecutionHandlers(
        on_init=on_init, on_stdout=on_stdout, on_stderr=on_stderr, skip_accumulation=True
    )


@asynccontextmanager
async def _managing(connection: Connection) -> AsyncGenerator[SandboxManager]:
    async with _faults(connection), await SandboxManager.create(_settings(connection)) as manager:
        yield manager


@asynccontextmanager
async def _faults(connection: Connection) -> AsyncGenerator[None]:
    try:
        yield
    except SandboxException as exc:
        raise _fault(exc, connection.api_key) from _cause(exc, connection.api_key)


def _cause(exc: SandboxException, key: str) -> SandboxException | None:
    """Return the error to chain, None where it repeats the key."""
    chain: list[BaseException] = [exc]
    while chain[-1].__cause__ is not None and len(chain) < 8:
        chain.append(chain[-1].__cause__)
    return exc if all(redact(str(each), key) == str(each) for each in chain) else None


def _fault(exc: SandboxException, key: str) -> RemoteFault:
    text = redact(str(exc.args[0] if exc.args and exc.args[0] else exc), key)
    match exc:
        case SandboxApiException():
            # Only a structured error is the API's word; its message stands without our prefix.
            said = redact(exc.error.message or "", key)
            return Refused(said or text, status=exc.status_code or 0, code=exc.error.code)
        case SandboxReadyTimeoutException():
            return NotReady(text)
        case InvalidArgumentException():
            return Broken(text)
        case _:
            cause = exc.__cause__
            if isinstance(cause, _UNSENT):
                return NotReached(text)
            return (
                AnswerLost(text) if isinstance(cause, (httpx.HTTPError, OSError)) else Broken(text)
            )
