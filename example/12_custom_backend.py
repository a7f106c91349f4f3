"""12: a sandbox backend of your own, held to the contract that every backend keeps."""

from __future__ import annotations

import posixpath

import rath
from rath import backend
from rath.backend import BackendToolFilesRead, BackendToolFilesWrite, FileContent
from rath.conformance import check_backend

Files = dict[str, bytes]


@backend.register("notebook")
class NotebookBackend(backend.Backend):
    """Keeps files in a dict; `Files` is its own object for an open sandbox."""

    def __init__(self) -> None:
        self.opened: list[Files] = []

    @classmethod
    def capabilities(cls) -> backend.Capabilities:
        return backend.Capabilities(backend.IsolationLevel.PROCESS, False, True, False)

    @classmethod
    def supported_calls(cls) -> frozenset[type[backend.BackendTool]]:
        return frozenset({BackendToolFilesRead, BackendToolFilesWrite})

    def sandbox_count(self) -> int:
        return len(self.opened)

    async def aopen(self, spec: backend.BackendSandboxSpec | None) -> Files:
        self.opened.append({})
        return self.opened[-1]

    async def aclose(self, native: Files) -> None:
        self.opened = [files for files in self.opened if files is not native]

    async def adispatch(self, native: Files, op: backend.BackendTool) -> backend.ToolResult:
        assert isinstance(op, BackendToolFilesRead | BackendToolFilesWrite)
        if (path := posixpath.normpath(op.path)).startswith(("/", "../")):
            return backend.ToolExecutionFailure("path_outside_workspace", f"{path!r} leads out")
        if isinstance(op, BackendToolFilesWrite):
            native[path] = op.data.encode() if isinstance(op.data, str) else op.data
            return backend.FileWriteResult(len(native[path]))
        if path not in native:
            return backend.ToolExecutionFailure("file_not_found", f"no file at {path!r}")
        try:
            return FileContent(native[path].decode(op.encoding) if op.encoding else native[path])
        except UnicodeDecodeError as exc:
            return backend.ToolExecutionFailure("decode_error", str(exc))


print("checks of the contract that failed:", check_backend("notebook").failed or "none")
session = rath.Session.from_user_message("Keep a note.").to("notebook")
session.require_sandbox().dispatch(BackendToolFilesWrite("note.txt", "A fork has it, too."))
found = session.fork().require_sandbox().dispatch(BackendToolFilesRead("note.txt"))
print("in the fork:", found.data if isinstance(found, FileContent) else found)
