"""Runs that wait, decisions about them, and how they go on: each step in a process of its own.

`python -m tests.support.decisions_program STEP KIND STORE FOLDER`, which writes JSON to stdout.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rath
from rath.flow import Agent, Workflow
from rath.llm.chat_response import RathLLMAssistantMessage
from rath.session import Session, run_session_loop
from rath.session.persistence.store import default_store
from rath.testing import ScriptedClient, tool_call
from rath.testing.chat import Turn
from tests.support.waiting import PATIENCE

VERBS = ("approve", "deny", "edit", "answer", "decide")

_ids_are_written = threading.Event()
_ids_are_written.set()


def made_in(folder: Path) -> list[str]:
    """Return which calls were made, in order."""
    notes = folder / "notes"
    return notes.read_text().splitlines() if notes.exists() else []


def tools_of(folder: Path) -> list[Any]:
    """Return a tool for each verb; each notes the calls that are made."""

    def note(text: str) -> None:
        with (folder / "notes").open("a") as file:
            file.write(f"{text}\n")

    @rath.tool(approval="always")
    def guarded(text: str) -> str:
        """Note a text."""
        note(text)
        return text

    def ask(text: str) -> str:
        color = rath.ask("Which color?", {"enum": ["red", "blue"]})
        note(f"{text} {color}")
        return str(color)

    @rath.tool(effects="idempotent", parallel_safe=True)
    def asking(text: str) -> str:
        """Ask for a color."""
        return ask(text)

    @rath.tool(effects="idempotent", parallel_safe=True)
    def asking_too(text: str) -> str:
        """Ask for a color, beside the other tool."""
        return ask(text)

    @rath.tool()
    def fatal(text: str) -> str:
        """End the process, once whoever goes on knows the ids."""
        note(text)
        _ids_are_written.wait(PATIENCE)
        os._exit(0)

    return [guarded, asking, asking_too, fatal]


def turns_of(verb: str) -> list[Turn]:
    """Return the turn with which a run begins that waits for `verb`, and for more of its kind."""
    tools = {"answer": ("asking", "asking_too"), "decide": ("fatal",)}
    calls = [
        part
        for n, tool in enumerate(tools.get(verb, ("guarded", "guarded")), start=1)
        for part in tool_call(tool, {"text": f"{verb} {n}"}, id=f"c{n}").tool_calls or ()
    ]
    return [RathLLMAssistantMessage(tool_calls=tuple(calls))]


class AloneInAFile(Workflow):
    """A workflow whose run is written to a file of its own; what it begins with is stored."""

    def __init__(self, client: ScriptedClient, tools: list[Any], path: Path) -> None:
        super().__init__()
        self.client, self.tools, self.path = client, tools, path

    def forward(self, session: Session) -> Session:
        return run_session_loop(
            session,
            Session.from_agent_prompt("You work."),
            agent_provider=self.client.provider,
            tools=self.tools,
            system_tools=False,
            persist_path=self.path,
        )


class Team(Workflow):
    """A workflow of one agent."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent

    def forward(self, session: Session) -> Session:
        return self.agent(session)


def program_of(kind: str, store: str, folder: Path, verb: str, turns: list[Turn]) -> Workflow:
    """Return what runs: an agent, a workflow with one, or one that writes to a file."""
    client, tools = ScriptedClient(turns), tools_of(folder)
    if store == "path":
        return AloneInAFile(client, tools, folder / f"{verb}.jsonl")
    persist = store == "persist"
    agent = Agent("You work.", client.provider, tools, system_tools=False, persist=persist)
    return agent if kind == "agent" else Team(agent)


def begin(kind: str, store: str, folder: Path) -> None:
    """Begin a run for each verb; the last one ends the process."""
    ids: dict[str, str] = {}
    for verb in VERBS:
        root = Session.from_user_message(verb)
        if store == "path":
            root.save()
        _ids_are_written.clear()
        out = program_of(kind, store, folder, verb, turns_of(verb))(root)
        ids[verb] = str(out.id)
        (folder / "ids.json").write_text(json.dumps(ids))
        _ids_are_written.set()
        out.synchronize()
    raise AssertionError("the last run ends the process")


def resumed(kind: str, store: str, folder: Path, verb: str, turns: list[Turn]) -> Session:
    """Load a session, and have its program go on with it."""
    ids: dict[str, str] = json.loads((folder / "ids.json").read_text())
    alone = store == "path"
    # One whose writer was cut off has the suffix of such.
    (file,) = folder.glob(f"{verb}.jsonl*") if alone else (None,)
    loaded = Session.load(file or ids[verb])
    program = program_of(kind, store, folder, verb, turns)
    return program.resume(loaded, store=default_store() if alone else None).synchronize()


def say(session: Session, verb: str, call: str) -> None:
    """Say what is to become of a call, on the session itself."""
    say_it: dict[str, Callable[[], object]] = {
        "approve": lambda: session.approve(call),
        "deny": lambda: session.deny(call, "not now"),
        "edit": lambda: session.edit(call, {"text": f"other {call}"}),
        "answer": lambda: session.answer("red", call),
        "decide": lambda: session.decide(call, "done", result="it was done"),
    }
    say_it[verb]()


def decide(kind: str, store: str, folder: Path) -> None:
    """Decide about the first call of each run, on the session that `resume` returns."""
    left: dict[str, list[str]] = {}
    for verb in VERBS:
        session = resumed(kind, store, folder, verb, [])
        say(session, verb, "c1")
        left[verb] = [call.call.id for call in session.open_calls if call.waits]
    sys.stdout.write(json.dumps({"left": left, "made": made_in(folder)}))


def go_on(kind: str, store: str, folder: Path) -> None:
    """Tell what each run waits for now, decide about that too, and go on."""
    left: dict[str, list[str]] = {}
    reply: dict[str, str | None] = {}
    for verb in VERBS:
        session = resumed(kind, store, folder, verb, ["It is done."])
        left[verb] = [call.call.id for call in session.open_calls if call.waits]
        for call in left[verb]:
            say(session, verb, call)
        if verb != "decide":
            session = resumed(kind, store, folder, verb, ["It is done."])
        reply[verb] = session.text()
    sys.stdout.write(json.dumps({"left": left, "said": reply, "made": made_in(folder)}))


if __name__ == "__main__":
    step = {"begin": begin, "decide": decide, "go_on": go_on}[sys.argv[1]]
    step(sys.argv[2], sys.argv[3], Path(sys.argv[4]))
