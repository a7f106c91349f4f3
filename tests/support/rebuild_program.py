"""A program whose files matter, run by key: `python -m tests.support.rebuild_program SHAPE MODE`.

The mode `begin` runs it until its last model breaks off, `write` rebuilds and lets that change
files before it breaks off; every other one is that of `run`. It writes JSON to stdout: the text,
the last result that the model read, and what could not be rebuilt.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from rath.backend import BackendSandboxSpec, EffectPolicy
from rath.errors import RebuildError, WorkspaceLost
from rath.flow import Agent, Workflow
from rath.session import Session
from rath.testing import ScriptedClient, tool_call
from rath.testing.chat import Turn

BROKEN = RuntimeError("the endpoint is gone")
TREE = (
    "find . -type f -not -path './.git/*' | sort | while read -r f; "
    'do echo "$f: $(tr "\\n" "," < "$f")"; done'
)


def sh(cmd: str, call: str) -> Turn:
    """Return a turn that runs a command."""
    return tool_call("run_shell_command", {"cmd": cmd}, id=call)


class Team(Workflow):
    """Agents that change files in the way of a shape, and one that reads them all."""

    def __init__(self, shape: str, last: list[Turn]) -> None:
        super().__init__()
        self.shape = shape
        self.reader = Agent("Read.", ScriptedClient(last).provider)

    def work(self, session: Session, name: str, *cmds: str) -> Session:
        """Have an agent run commands."""
        turns = [sh(cmd, f"{name}{at}") for at, cmd in enumerate(cmds)]
        agent = Agent(name, ScriptedClient([*turns, f"{name} is done"]).provider)
        setattr(self, name, agent)
        return agent(session)

    def forward(self, session: Session) -> Session:
        return self.reader(getattr(self, self.shape)(session))

    def edit(self, session: Session) -> Session:
        return self.work(session, "a", "echo two >> one.txt", "mv old.txt new.txt; rm -f gone.txt")

    def siblings(self, session: Session) -> Session:
        first = self.work(session.fork(), "a", "echo a > a.txt; echo 1 > both.txt").synchronize()
        second = self.work(session.fork(), "b", "echo b > b.txt; echo 2 >> both.txt")
        return second.synchronize() if first.text() else first

    def three_way(self, session: Session) -> Session:
        base = self.work(session, "base", "seq 9 > lines.txt; echo x > gone.txt")
        ours = self.work(base.fork(workspace="copy"), "ours", "sed -i s/2/two/ lines.txt")
        theirs = self.work(
            base.fork(workspace="copy"), "theirs", "sed -i s/8/eight/ lines.txt; rm gone.txt"
        )
        merge = ours.merge(theirs, files="three-way")
        return self.work(merge, "after", "echo after >> lines.txt")

    def undo(self, session: Session) -> Session:
        out = self.work(session, "a", "echo 1 > f.txt", "echo 2 > f.txt; echo 2 > g.txt")
        return self.work(out.undo("a1"), "after", "echo 3 > h.txt")

    def copies(self, session: Session) -> Session:
        base = self.work(session, "base", "echo base > f.txt")
        copy = base.fork(workspace="copy")
        self.work(base, "other", "echo other > f.txt").synchronize()
        inner = self.work(copy, "copy", "echo copy >> f.txt").fork(workspace="copy")
        return self.work(inner, "inner", "echo inner >> f.txt")

    def large(self, session: Session) -> Session:
        return self.work(session, "a", "head -c 2000000 /dev/zero > large; echo 1 > small")


def run(shape: str, mode: str) -> dict[str, Any]:
    """Run it, and return what came of it."""
    scripts: dict[str, list[Turn]] = {
        "begin": [BROKEN],
        "write": [sh("echo more > more.txt", "more"), BROKEN],
    }
    last = scripts.get(mode, [sh(TREE, "tree"), "read"])
    root = Session.from_user_message("go")
    policy = EffectPolicy(keep_contents="PLAIN" not in os.environ)
    root.to(
        os.environ.get("PLACE", "local"),
        spec=BackendSandboxSpec(working_dir=os.environ.get("WORK"), effects=policy),
    )
    modes = {"begin": "require", "write": "rebuild"}
    workspace: Any = modes.get(mode, mode)
    try:
        out = Team(shape, last).run(root, run="k", workspace=workspace)
        text = out.text()
    except RebuildError as exc:
        return {"missing": dict(exc.missing)}
    except WorkspaceLost as exc:
        return {"lost": exc.found}
    except RuntimeError:
        return {"broken": True}
    rows = [row.payload for row in out.chunk_table]
    return {"text": text, "read": str(rows[-2]["content"])}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(*sys.argv[1:])))
