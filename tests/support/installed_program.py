"""A program for an environment that holds the built wheel alone: `.ci/run wheel` starts it there.

It uses public names, needs no clone, and prints the Python and the version it ran on.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import rath
from rath import flow
from rath.session import Session
from rath.testing import ScriptedClient, tool_call


@rath.tool
def double(n: int) -> int:
    """Double a whole number."""
    return 2 * n


def command(*arguments: str) -> str:
    """Run the `rath` of this environment and return what it printed."""
    rath_command = Path(sys.executable).with_name("rath")
    done = subprocess.run(
        [rath_command, *arguments], capture_output=True, text=True, encoding="utf-8", check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"rath {' '.join(arguments)}: {done.stdout}\n{done.stderr}")
    return done.stdout


def expect(text: str, *parts: str) -> None:
    """End the program unless each of `parts` stands in `text`."""
    for part in parts:
        if part not in text:
            raise SystemExit(f"{part!r} is not in {text!r}")


def main(wheel: str) -> None:
    """Check that the wheel was installed, run and record an agent with a tool, and explain it."""
    place = Path(rath.__file__).resolve()
    expect(str(place), str(Path(sys.prefix).resolve()), "site-packages")
    expect(Path(wheel).name, f"-{rath.__version__}-")
    expect(command("--version"), rath.__version__)
    expect(command("doctor"), "no problems")

    rath.autosave()
    model = ScriptedClient([tool_call("double", {"n": 21}), "It is 42."])
    agent = flow.Agent("Use the tool.", model.provider, [double], system_tools=False)
    out = agent(Session.from_user_message("What is twice 21?"))
    expect(str(out.text()), "42")
    session_id = str(out.id)
    expect(command("ls", "--json"), session_id)
    expect(command("show", session_id), "double", "42")
    expect(command("explain", session_id), session_id[:8], "1 tool run")
    command("verify", session_id)
    where = f"Python {platform.python_version()} on {platform.system()}"
    sys.stdout.write(f"rath {rath.__version__}, {where}: ok\n")


if __name__ == "__main__":
    main(sys.argv[1])
