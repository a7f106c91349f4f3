"""A program that does a little of everything; it takes the URL of a server, and a workspace.

It asks the models of a test server, works in a local sandbox, and writes the id of its last session
to stdout. The environment names the store of its sessions, and the key.
"""

from __future__ import annotations

import sys

from rath import flow
from rath.llm import Provider
from rath.session import Session, select_session
from rath.testing import FakeMemory
from tests.support.chat_replies import Reply, completion, status_error, tool_call, usage

NOTE = "memory://user/memories/style"
MENU = ("write more", "stop here")


def replies() -> list[Reply]:
    """Return what the server answers, in order."""
    return [
        status_error(500, "the first model is down"),
        _writes("plan.txt", "step one\nstep two\n"),
        completion("The plan is written.", usage=usage(40, 5)),
        _writes("left.txt", "from the left\n"),
        completion("Left is done."),
        _writes("right.txt", "from the right\n"),
        completion("Right is done."),
        completion("A plan and two sides were written."),
        completion("All is there.", usage=usage(60, 4)),
        completion("1"),
    ]


def _writes(path: str, content: str) -> Reply:
    call = tool_call("write_workspace_file", {"path": path, "content": content}, id=path)
    return completion(tool_calls=(call,), usage=usage(30, 10))


def main(url: str, workspace: str) -> None:
    """Run, and write the id of the last session to stdout."""
    second = Provider(base_url=url, model="second")
    first = Provider(base_url=url, model="first", retry_max_attempts=1, fallbacks=[second])
    user = Session.from_user_message("write a plan").to("local", spec=workspace)
    memory = FakeMemory({NOTE: "a plan has short names"})
    planned = flow.Agent("You plan.", first, memory=memory.open())(user).synchronize()
    planned.check("there is a plan", "test -f plan.txt")
    writer = flow.Agent("You write.", second)
    left = writer(planned.fork(workspace="copy")).synchronize()
    right = writer(planned.fork(workspace="copy")).synchronize()
    merged = left.merge(right, files="three-way")
    short = flow.Compressor("You are brief.", second)(merged).synchronize()
    done = writer(short).synchronize()
    select_session(done, Session.from_agent_prompt("Choose."), *MENU, agent_provider=second)
    sys.stdout.write(f"{done.id}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
