"""Sessions with files in memory, file effects without a sandbox, and strategies for both."""

from __future__ import annotations

import shlex
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from hypothesis import strategies as st

from rath._async.deferred import Deferred
from rath._core.blobs import Blob
from rath._core.vector import Vector
from rath.backend import BackendToolCommandRun, BackendToolFilesRead, BackendToolFilesWrite
from rath.backend.effects import FileEffect, note_effect
from rath.backend.results import CommandResult, FileContent, ToolResult
from rath.backend.tool_types import BackendTool
from rath.session import ChunkTable, Session
from rath.session.graph.recording import Provenance
from rath.session.operation import Place
from rath.session.record import Operation, ToolRun
from rath.testing import FakeBackend, FakeSandbox, tool_call
from tests.support.api import Body, Entry, OperationKind
from tests.support.sessions import run

FILE = stat.S_IFREG | 0o644
BUILT_IN = ["read_workspace_file", "run_shell_command", "write_workspace_file"]


class FilesBackend(FakeBackend):
    """Files in memory, with two commands that change some: `rm PATH` and `mv PATH PATH`."""

    name = "files"

    async def adispatch(self, native: FakeSandbox, op: BackendTool) -> ToolResult | bool:
        line = op.cmd if isinstance(op, BackendToolCommandRun) else ""
        match shlex.split(line) if isinstance(line, str) else []:
            case ["rm", path]:
                effect = removed(native.files, path)
                native.remove(path)
            case ["mv", path, to]:
                effect = moved(native.files, path, to)
                native.put(to, native.files[path])
                native.remove(path)
            case _:
                return await super().adispatch(native, op)
        note_effect(effect)
        return CommandResult(0, b"", b"", 0.0)


def placed(files: Mapping[str, bytes | str] | None = None, *, text: str = "go") -> Session:
    """Return a session with `files` in a workspace in memory."""
    session = Session.from_user_message(text).bind_sandbox(FilesBackend().lazy())
    write(session, files or {})
    return session


def write(session: Session, files: Mapping[str, bytes | str]) -> None:
    """Write files into the sandbox of a session, as somebody who is no tool of it."""
    for path, data in files.items():
        session.require_sandbox().dispatch(BackendToolFilesWrite(path, data))


def files_of(session: Session) -> dict[str, bytes]:
    """Return all that stands in the sandbox of a session when its run has ended."""
    return dict(session.synchronize().require_sandbox().native.files)


def read(session: Session, path: str) -> str | bytes:
    """Return one file of a session when its run has ended."""
    result = session.synchronize().require_sandbox().dispatch(BackendToolFilesRead(path))
    assert isinstance(result, FileContent)
    return result.data


def writing(path: str, content: str, *more: Any, id: str | None = None) -> Any:
    """Return a turn that writes a file."""
    arguments = {"path": path, "content": content}
    return tool_call("write_workspace_file", arguments, *more, id=id)


def running(line: str, *more: Any, id: str | None = None) -> Any:
    """Return a turn that runs a command."""
    return tool_call("run_shell_command", {"cmd": line}, *more, id=id)


def worked(session: Session, *turns: Any, **options: Any) -> Session:
    """Submit a run on `session` that does what `turns` say, and then says "done"."""
    tools = options.pop("tools", ())
    return run([*turns, "done"], *tools, user=session, system_tools=BUILT_IN, **options)


def created(path: str, data: bytes, **more: Any) -> FileEffect:
    return FileEffect(path, "created", None, Blob.from_bytes(data), after_mode=FILE, **more)


def changed(path: str, before: bytes, after: bytes, **more: Any) -> FileEffect:
    blobs = Blob.from_bytes(before), Blob.from_bytes(after)
    return FileEffect(path, "changed", *blobs, before_mode=FILE, after_mode=FILE, **more)


def removed(files: Mapping[str, bytes], path: str) -> FileEffect:
    return FileEffect(path, "deleted", Blob.from_bytes(files[path]), None, before_mode=FILE)


def moved(files: Mapping[str, bytes], path: str, to: str) -> FileEffect:
    blob = Blob.from_bytes(files[path])
    return FileEffect(
        to, "renamed", blob, blob, renamed_from=path, before_mode=FILE, after_mode=FILE
    )


def tool_run(
    *effects: FileEffect, operation: UUID | None = None, call_id: str = "a", **more: Any
) -> ToolRun:
    """Return the entry of a call that made `effects`."""
    fields: dict[str, Any] = {
        "operation": operation or uuid4(),
        "call_id": call_id,
        "tool": "edit",
        "origin": "built-in",
        "schema_digest": None,
        "effects_declared": "non_idempotent",
        "arguments": {},
        "sandbox": None,
        "status": "done",
        "error_kind": None,
        "exit_code": None,
        "signal": None,
        "duration_ms": 0.0,
        "shown": Blob.from_bytes(b""),
        "full": None,
        "file_effects": effects,
    }
    return ToolRun(**(fields | more))


def operation(
    session: UUID | None = None, *, kind: OperationKind = "loop", **more: Any
) -> Operation:
    """Return the entry of an operation."""
    made = session or uuid4()
    return Operation(operation=made, kind=kind, place=Place("", 0), session=made, **more)


def with_record(*entries: Entry, id: UUID | None = None) -> Session:
    """Return a session with a record and nothing else."""
    body = Body(ChunkTable(), Vector(entries))
    return Session.from_body(Deferred.of(body), Provenance(), id=id)


paths = st.sampled_from(["a", "b", "dir/c", "with space", "dir/ü"])
texts = st.text(st.sampled_from("xy \r\n"), max_size=12)
contents = texts.map(str.encode)
trees = st.dictionaries(paths, contents, max_size=5)
Change = tuple[str, str, Any]
changes = st.one_of(
    st.tuples(st.just("write"), paths, contents),
    st.tuples(st.just("remove"), paths, st.none()),
    st.tuples(st.just("move"), paths, paths),
)
change_lists = st.lists(changes, max_size=8)


def follow(files: dict[str, bytes], todo: Iterable[Change]) -> list[FileEffect]:
    """Change `files` as far as that is possible and return the effects."""
    effects: list[FileEffect] = []
    for kind, path, what in todo:
        if kind == "write" and files.get(path) != what:
            effects.append(
                changed(path, files[path], what) if path in files else created(path, what)
            )
            files[path] = what
        elif kind == "remove" and path in files:
            effects.append(removed(files, path))
            del files[path]
        elif kind == "move" and path in files and what not in files:
            effects.append(moved(files, path, what))
            files[what] = files.pop(path)
    return effects


def applied(files: Mapping[str, bytes], effects: Sequence[FileEffect]) -> dict[str, bytes]:
    """Return what net changes make of `files`; each has to find what it says was there."""
    made = dict(files)
    for effect in effects:
        source = effect.renamed_from or effect.path
        if effect.before is not None:
            assert made.pop(source) == effect.before.data
    for effect in effects:
        assert effect.path not in made
        if effect.after is not None and effect.after.data is not None:
            made[effect.path] = effect.after.data
    return made
