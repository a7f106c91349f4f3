"""A sandbox of a server through the SDK, which only this module imports: load it in a worker.

Every error of the SDK becomes a `RemoteError` here, with no key in its text.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import httpx
from code_interpreter import CodeInterpreter
from opensandbox import Sandbox, SandboxManager, exceptions
from opensandbox.config import ConnectionConfig
from opensandbox.models.execd import Execution, ExecutionHandlers, RunCommandOpts
from opensandbox.models.filesystem import DirectoryListEntry, EntryInfo, WriteEntry
from opensandbox.models.sandboxes import SandboxFilter, SnapshotFilter
from opensandbox.transport import RetryPolicy
from opensandbox.transport.retry import JitterMode

from rath._core.dataclasses import dataclass
from rath.backend.opensandbox import connection
from rath.backend.opensandbox.connection import RemoteError, RequestRefused, ServerAccess
from rath.backend.opensandbox.processes import OutputBuffer, RunEnd, RunError
from rath.config.redaction import guard_logs, redact

REQUEST_SECONDS = 120.0
"""How long one request may take; the first one for an image may have to fetch it."""

READY_SECONDS = 120.0
"""How long a new sandbox may take until it answers."""

INTERPRETER_SECONDS = 30.0
"""How long the interpreters of a sandbox may take until they listen, before the first code."""

RETRIES = 2
"""How often a request is sent again that did not reach the server, or that changes nothing."""

RETRY_SECONDS = 1.0
"""Wait before the first retry; it doubles."""

_ERRORS: Mapping[type[BaseException], type[RemoteError]] = {
    exceptions.SandboxReadyTimeoutException: connection.NotReady,
    exceptions.InvalidArgumentException: connection.Broken,
    httpx.ConnectError: connection.NotReached,
    httpx.ConnectTimeout: connection.NotReached,
    httpx.PoolTimeout: connection.NotReached,
    httpx.HTTPError: connection.AnswerLost,
    OSError: connection.AnswerLost,
}
"""Errors of the SDK, else of their causes; the most derived class counts, `Broken` without one."""

T = TypeVar("T")

# What the SDK logs it raises as well; without a handler of the program it would go to stderr.
for _name in ("opensandbox", "code_interpreter"):
    logging.getLogger(_name).addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class RemoteEntry:
    """The entry at a path of a sandbox."""

    path: str
    kind: str
    """ "file", "directory", "symlink" or another word of the server."""

    size: int
    mode: int
    """Permission bits."""


class _Settings(ConnectionConfig):
    """Settings of the SDK that take nothing from the environment."""

    def get_api_key(self) -> str:
        # The SDK would send the key of the environment to any server when none is given.
        return self.api_key or ""


def _settings(access: ServerAccess) -> ConnectionConfig:
    guard_logs(("opensandbox", "code_interpreter", "httpx", "httpcore"), access.api_key)
    return _Settings(
        api_key=access.api_key or None,
        domain=access.domain,
        protocol=access.protocol,
        use_server_proxy=access.use_server_proxy,
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

    def __init__(self, sandbox: Sandbox, access: ServerAccess) -> None:
        self.id: str = sandbox.id
        self._sandbox = sandbox
        self._access = access
        self._interpreter: CodeInterpreter | None = None

    @classmethod
    async def create(cls, access: ServerAccess, image: str | None, **options: Any) -> Client:
        """Create a sandbox and wait until it answers; the options are those of the SDK."""
        ready = timedelta(seconds=READY_SECONDS)
        async with _translated_errors(access.api_key):
            sandbox = await Sandbox.create(
                image, ready_timeout=ready, connection_config=_settings(access), **options
            )
        return cls(sandbox, access)

    @classmethod
    async def connect(cls, access: ServerAccess, sandbox_id: str) -> Client:
        """Return the client of a sandbox that is there, once it answers."""
        ready = timedelta(seconds=READY_SECONDS)
        async with _translated_errors(access.api_key):
            sandbox = await Sandbox.connect(
                sandbox_id, connection_config=_settings(access), connect_timeout=ready
            )
        return cls(sandbox, access)

    async def is_there(self) -> bool:
        """Ask the server whether the sandbox still exists."""
        try:
            await self._call(self._sandbox.get_info())
        except RequestRefused as exc:
            if exc.is_missing_sandbox:
                return False
            raise
        return True

    async def end(self) -> None:
        """End the sandbox, which may be gone already, on the server and close the connections."""
        try:
            await self._call(self._sandbox.kill())
        except RequestRefused as exc:
            if not exc.is_missing_sandbox:
                raise
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; the sandbox goes on."""
        async with _translated_errors(self._access.api_key):
            try:
                if self._interpreter is not None:
                    await self._interpreter.aclose()
            finally:
                await self._sandbox.close()

    async def renew(self, lifetime: timedelta) -> datetime:
        """Let the sandbox live so long from now on, and return until when."""
        return (await self._call(self._sandbox.renew(lifetime))).expires_at

    async def snapshot(self, name: str | None) -> str:
        """Ask for a snapshot and return its id."""
        return (await self._call(self._sandbox.create_snapshot(name))).id

    async def snapshot_state(self, snapshot_id: str) -> tuple[str, str]:
        """Return the state of a snapshot, and the reason that the server gives for it."""
        async with _managing(self._access) as manager:
            status = (await manager.get_snapshot(snapshot_id)).status
        return status.state, status.message or status.reason or "no reason was given"

    async def snapshots_named(self, name: str) -> Sequence[str]:
        """Return the ids of the snapshots of this sandbox that have a name."""
        async with _managing(self._access) as manager:
            page = await manager.list_snapshots(SnapshotFilter(sandbox_id=self.id, name=name))
            return [each.id for each in page.snapshot_infos]

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Delete a snapshot, also after this was closed; one that is gone already is no error."""
        try:
            async with _managing(self._access) as manager:
                await manager.delete_snapshot(snapshot_id)
        except RequestRefused as exc:
            if exc.status != 404:
                raise

    async def run(
        self,
        command: str,
        output: OutputBuffer,
        *,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        timeout: float,
    ) -> RunEnd:
        """Run a command line to its end; `output` has its id and text while it runs.

        Args:
            command: For the shell.
            output: Receives what the sandbox sends.
            cwd: Directory to start in.
            env: Variables to add.
            timeout: Seconds after which the sandbox ends it.
        """
        options = RunCommandOpts(
            working_directory=cwd, timeout=timedelta(seconds=timeout), envs=dict(env or {})
        )
        commands = self._sandbox.commands
        return run_end(
            await self._call(commands.run(command, opts=options, handlers=_handlers(output)))
        )

    async def interrupt_command(self, command_id: str) -> None:
        """End a running command."""
        await self._call(self._sandbox.commands.interrupt(command_id))

    async def start_interpreters(self) -> CodeInterpreter:
        """Wait until the sandbox can run code; again it does nothing."""
        if self._interpreter is None:
            ready = timedelta(seconds=INTERPRETER_SECONDS)
            creating = CodeInterpreter.create(self._sandbox, ready_timeout=ready)
            self._interpreter = await self._call(creating)
        return self._interpreter

    async def run_code(self, code: str, language: str, output: OutputBuffer) -> RunEnd:
        """Run code in the interpreter of its language, which keeps its state."""
        codes = (await self.start_interpreters()).codes
        return run_end(
            await self._call(codes.run(code, language=language, handlers=_handlers(output)))
        )

    async def contexts(self, language: str) -> Sequence[str]:
        """Return the ids of the interpreters of a language that are there."""
        codes = (await self.start_interpreters()).codes
        contexts = await self._call(codes.list_contexts(language))
        return sorted({each.id for each in contexts if each.id is not None})

    async def interrupt_code(self, run_id: str) -> None:
        """End a running piece of code; the interpreter stays."""
        await self._call((await self.start_interpreters()).codes.interrupt(run_id))

    async def read(self, path: str, first: int | None = None, last: int | None = None) -> bytes:
        """Return the content of a file, or the bytes from `first` to `last`, both included."""
        span = None if first is None else f"bytes={first}-{'' if last is None else last}"
        return await self._call(self._sandbox.files.read_bytes(path, range_header=span))

    async def write(self, path: str, data: bytes, mode: int) -> None:
        """Write a file and the directories above it."""
        await self._call(self._sandbox.files.write_file(path, data, mode=decimal_mode(mode)))

    async def make_directory(self, path: str) -> None:
        """Make a directory and those above it, if they are missing."""
        entry = WriteEntry(path=path, mode=decimal_mode(0o755))
        await self._call(self._sandbox.files.create_directories([entry]))

    async def remove(self, paths: Sequence[str]) -> None:
        """Remove files; those that are missing are no error."""
        await self._call(self._sandbox.files.delete_files(list(paths)))

    async def info(self, paths: Sequence[str]) -> Sequence[RemoteEntry]:
        """Return the entry at each path; a link is not followed, and all must be there."""
        entries = await self._call(self._sandbox.files.get_file_info(list(paths)))
        try:
            return [_entry(entries[path]) for path in paths]
        except KeyError as exc:
            raise connection.Broken(f"the server tells nothing of {exc}") from exc

    async def entries(self, path: str) -> Sequence[RemoteEntry]:
        """Return the entries of a directory, without those below."""
        directory = DirectoryListEntry(path=path, depth=1)
        return [_entry(each) for each in
                await self._call(self._sandbox.files.list_directory(directory))]  # fmt: skip

    async def _call(self, call: Awaitable[T]) -> T:
        async with _translated_errors(self._access.api_key):
            return await call


async def ids_marked(access: ServerAccess, key: str, value: str) -> list[str]:
    """Return the ids of the sandboxes that carry that metadata."""
    async with _managing(access) as manager:
        page = await manager.list_sandbox_infos(SandboxFilter(metadata={key: value}))
        return [each.id for each in page.sandbox_infos]


def decimal_mode(mode: int) -> int:
    """Return permission bits as the API writes them: the octal digits, read as a decimal."""
    return int(f"{mode & 0o7777:o}")


def run_end(execution: Execution) -> RunEnd:
    """Return the end of a run that the SDK has collected."""
    cause, error = execution.error, None
    if cause is not None:
        error = RunError(cause.name, cause.value, tuple(cause.traceback))
    texts = tuple(each.text for each in execution.result if each.text)
    return RunEnd(execution.complete is not None, error, texts)


def _entry(info: EntryInfo) -> RemoteEntry:
    return RemoteEntry(info.path, info.entry_type or "", info.size, int(str(info.mode), 8))


def _handlers(output: OutputBuffer) -> ExecutionHandlers:
    async def on_init(event: Any) -> None:
        output.run_id = event.id

    async def on_stdout(message: Any) -> None:
        output.stdout.add(str(getattr(message, "text", "")))

    async def on_stderr(message: Any) -> None:
        output.stderr.add(str(getattr(message, "text", "")))

    # Nothing is accumulated by the SDK: what is kept has a bound.
    return ExecutionHandlers(
        on_init=on_init, on_stdout=on_stdout, on_stderr=on_stderr, skip_accumulation=True
    )


@asynccontextmanager
async def _managing(access: ServerAccess) -> AsyncGenerator[SandboxManager]:
    async with (
        _translated_errors(access.api_key),
        await SandboxManager.create(_settings(access)) as manager,
    ):
        yield manager


@asynccontextmanager
async def _translated_errors(key: str) -> AsyncGenerator[None]:
    try:
        yield
    except exceptions.SandboxException as exc:
        chain: list[BaseException] = [exc]
        while chain[-1].__cause__ is not None and len(chain) < 8:
            chain.append(chain[-1].__cause__)
        # Not chained where its text, or that of a cause, repeats the key.
        is_clean = all(redact(str(each), key) == str(each) for each in chain)
        raise _translate(exc, key) from (exc if is_clean else None)


def _translate(exc: exceptions.SandboxException, key: str) -> RemoteError:
    text = redact(str(exc.args[0] if exc.args and exc.args[0] else exc), key)
    if isinstance(exc, exceptions.SandboxApiException):
        # Only a structured error is the API's word; its message stands without our prefix.
        message = redact(exc.error.message or "", key)
        return RequestRefused(message or text, status=exc.status_code or 0, code=exc.error.code)
    for error in (exc, exc.__cause__):
        for kind in type(error).__mro__:
            if kind in _ERRORS:
                return _ERRORS[kind](text)
    return connection.Broken(text)
