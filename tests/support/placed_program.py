"""A program whose files matter, begun in one process and gone on with in another.

`python -m tests.support.placed_program HOW...`, which writes JSON to stdout. What the program is
and where it works is told by the variable PLACED: a list of `settings`, as JSON. For each of them
it does what every HOW says, and tells what came of it. `begin` runs until the model breaks off;
every other HOW is a way to go on.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from rath.errors import RebuildError, WorkspaceLost
from rath.flow import Agent, Workflow
from rath.session import Session, run_session_loop
from rath.session.persistence.store import default_store
from rath.testing import ScriptedClient, tool_call
from rath.testing.chat import Turn

BROKEN = RuntimeError("the endpoint is gone")
TEXT = "what was written before"


_all: list[dict[str, Any]] = json.loads(os.environ.get("PLACED", "[{}]"))
_number = 0


def settings() -> dict[str, Any]:
    """Return what the program is, where it works, and where its ids and its own file are kept."""
    default = {"shape": "agent", "backend": "local", "spec": None, "persist": True, "idle": False}
    return default | _all[_number]


def ids_file() -> Path:
    """Return the file with the ids of root and output."""
    return Path(settings()["folder"], "ids.json")


def own_file() -> Path:
    """Return the file that holds a run alone."""
    return Path(settings()["folder"], "run.jsonl")


def write() -> Turn:
    """Return a turn that writes the file."""
    return tool_call("write_workspace_file", {"path": "note.txt", "content": TEXT}, id="w")


def read() -> Turn:
    """Return a turn that reads it."""
    return tool_call("read_workspace_file", {"path": "note.txt"}, id="r")


class Program(Workflow):
    """Writes a file, and reads it again: in one run, or in one that is derived from it."""

    def __init__(self, turns: list[Turn], *, tools: bool = True) -> None:
        super().__init__()
        said = settings()
        self.shape, persist = said["shape"], said["persist"]
        self.client = ScriptedClient(turns)
        provider = self.client.provider
        self.first = Agent("Write.", provider, system_tools=tools, persist=persist)
        self.second = Agent("Read.", provider, system_tools=tools, persist=persist)

    def forward(self, session: Session) -> Session:
        if self.shape == "alone":
            return run_session_loop(
                session,
                Session.from_agent_prompt("Write."),
                agent_provider=self.client.provider,
                persist_path=own_file(),
            )
        done = self.first(session)
        match self.shape:
            case "workflow":
                return self.second(done)
            case "fork":
                return self.second(done.fork())
            case "merge":
                return self.second(done.merge(done.fork()))
            case "copy":
                return self.second(done.fork(workspace="copy"))
            case "merge of copies":
                copy = done.fork(workspace="copy")
                return self.second(done.merge(copy, files="three-way"))
            case "placed inside":
                said = settings()
                inner = done.fork().to(said["backend"], spec=said["spec"])
                return self.second(self.first(inner))
            case shape:
                raise ValueError(shape)


def made(turns: list[Turn], *, tools: bool = True) -> Workflow:
    """Return the program, or the one agent that it is."""
    program = Program(turns, tools=tools)
    return program.first if program.shape == "agent" else program


def resumable() -> Workflow:
    """Return the program as it goes on; `rath resume` takes it by this name."""
    return made([read(), "It is done."])


def begin() -> Session:
    """Run until the model breaks off, and tell the ids."""
    said = settings()
    root = Session.from_user_message("go")
    if said["backend"] is not None:
        root.to(said["backend"], spec=said["spec"])
    if said["shape"] == "alone":
        root.save()
    more: list[Turn] = ["It is written."] if said["shape"] not in ("agent", "alone") else []
    more += [write(), "It is written."] if said["shape"] == "placed inside" else []
    written: list[Turn] = [] if said["idle"] else [write(), *more]
    out = made([*written, BROKEN])(root)
    ids_file().write_text(json.dumps({"root": str(root.id), "out": str(out.id)}))
    return out


def go_on(how: str) -> Session:
    """Go on in the way that is asked for."""
    ids = json.loads(ids_file().read_text())
    if settings()["shape"] == "alone":
        (file,) = own_file().parent.glob(f"{own_file().name}*")
        return resumable().resume(Session.load(file), store=default_store())
    loaded = Session.load(ids["out"])
    match how:
        case "resume":
            return resumable().resume(loaded)
        case "call":
            return resumable()(loaded)
        case "require" | "rebuild" | "none" as mode:
            return resumable().resume(loaded, workspace=mode)
        case "without tools":
            return made(["It is done."], tools=False).resume(loaded)
        case "placed anew":
            return resumable().resume(loaded.to("local", spec="./restored"))
        case "fork":
            return resumable().resume(loaded).fork()
        case "root":
            # Another run on the session with which all began.
            return resumable()(Session.load(ids["root"]))
        case _:
            raise ValueError(how)


def told(how: str) -> dict[str, Any]:
    """Do one step, and return what came of it."""
    try:
        out = begin() if how == "begin" else go_on(how)
        text: str | None = out.text()
        error: list[Any] | None = None
        rows = [str(row.payload.get("content")) for row in out.chunk_table]
    except RebuildError as exc:
        text, rows, error = None, [], list(exc.missing.items())
    except WorkspaceLost as exc:
        text, rows, error = None, [], [exc.workspace, exc.expected, exc.found]
    except RuntimeError as exc:
        text, rows, error = None, [], [type(exc).__name__]
    return {"text": text, "has_read": any(TEXT in row for row in rows), "error": error}


def main(ways: list[str]) -> None:
    """Do what is asked for with each program."""
    global _number
    came: list[list[dict[str, Any]]] = []
    for _number in range(len(_all)):
        os.chdir(settings()["cwd"])
        came.append([told(how) for how in ways])
    sys.stdout.write(json.dumps(came))


if __name__ == "__main__":
    main(sys.argv[1:])
