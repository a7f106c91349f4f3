"""Errors that people meet, each of them raised for real, and the page that lists them.

`python -m tests.support.error_cases` writes the page anew; a test compares it with what is raised.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Self
from unittest import mock

from typer.testing import CliRunner

import rath
from rath import flow
from rath.cli.app import app
from rath.config.env import all_env_specs
from rath.session import Session
from rath.testing import ScriptedClient
from tests.support.chat_replies import Reply
from tests.support.chat_server import ChatServer

PAGE = Path(__file__).parents[3] / "docs" / "source" / "reference" / "error_messages.md"
INTRODUCTION = """\
# Error messages

```python
from rath.session import Session

try:
    Session.from_user_message("Hello.").to("lokal")
except LookupError as exc:
    print(exc)
```

What `rath` says when something goes wrong, why, and what to do about it.
Look for a part of the message: names, numbers and paths in it are others on your machine.
`/srv/project` stands for the project, and `~` for your home.
The page is made by a program that meets each of these errors.
[Errors: who failed](../tutorial/errors.md) tells which are raised, and which the model reads.
"""
_GROUPS = {
    "models": "Models and keys",
    "agents": "Agents, tools and workflows",
    "sandboxes": "Sandboxes",
    "sessions": "Sessions and stores",
    "settings": "Configuration, memory and MCP",
    "jobs": "Jobs, evaluations and servers",
    "commands": "The `rath` command",
}
_CREDENTIALS = ("ANTHROPIC_", "AZURE_", "LITELLM_", "OPENAI_", "OPENRATH_", "OPEN_SANDBOX_")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NUMBERS = itertools.count(1)
_OF_TESTS = re.compile(r", (sqlite|blocking-shelf|shelf|scripted-\d+)\b")


@dataclass(frozen=True, kw_only=True)
class ErrorCase:
    """One error: why it comes, what to do, and a program that meets it."""

    cause: str
    cure: str
    meet: Callable[[Machine], object]
    """Raises it, or returns its text where it is a value that a model reads."""


@dataclass(frozen=True, slots=True)
class ErrorText:
    """What somebody reads: the class of the error, or where else it stands, and its message."""

    kind: str
    message: str


class Machine:
    """A home and a project of its own for one error, in an empty folder."""

    def __init__(self, folder: Path, things: ExitStack) -> None:
        self.home = folder / "home"
        self.project = folder / "project"
        self._things = things
        for directory in (self.home, self.project):
            directory.mkdir(parents=True)
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(_CREDENTIALS)
        }
        for spec in all_env_specs():
            kept.pop(spec.name, None)
        own = {"HOME": str(self.home), "USERPROFILE": str(self.home), "NO_COLOR": "1"}
        things.enter_context(mock.patch.dict(os.environ, {**kept, **own}, clear=True))
        things.enter_context(mock.patch.object(sys, "path", list(sys.path)))
        here = Path.cwd()
        things.callback(os.chdir, here)
        os.chdir(self.project)

    def variables(self, **variables: str) -> Self:
        """Set environment variables."""
        os.environ.update(variables)
        return self

    def file(self, name: str, content: str | bytes = "") -> Path:
        """Write a file of the project."""
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def config(self, config: Mapping[str, Any] | str, *, of: str = "home") -> Path:
        """Write the config of the user, or of the project."""
        path = (self.home if of == "home" else self.project) / ".openrath" / "config.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        path.chmod(0o600)
        return path

    def serve(self, *replies: Reply) -> str:
        """Start a server that answers with these replies, and return its base_url."""
        server = self._things.enter_context(ChatServer())
        server.queue(*replies)
        return server.base_url

    def agent(self, *replies: Reply, **options: Any) -> flow.Agent:
        """Return an agent whose model is a server that answers so, without another try."""
        url = self.serve(*replies)
        options = {"retry_max_attempts": 1, "model": "gpt-5.5", "api_key": "sk-wrong", **options}
        return flow.Agent("Answer.", flow.Provider(base_url=url, **options))

    def scripted(self, *answers: Any, **options: Any) -> flow.Agent:
        """Return an agent whose model gives these answers."""
        return flow.Agent("Answer.", ScriptedClient([*answers]).provider, **options)

    def stored(self, *answers: Any) -> Session:
        """Return a session that a run has left in the store of the user."""
        agent = self.scripted(*(answers or ("Done.",)), system_tools=False, persist=True)
        return agent(user()).synchronize()

    def log_of(self, session: Session) -> Path:
        """Return the file of a stored session."""
        return next((self.home / ".openrath" / "sessions").rglob(f"*{session.id}*"))

    def team(self) -> str:
        """Write a module with a workflow, and return its name for the command."""
        lines = (
            "from rath import flow",
            "from rath.testing import ScriptedClient",
            "team = flow.Agent('Hello.', ScriptedClient([]).provider)",
        )
        # Modules of several machines are imported in one process.
        module = f"team_{next(_NUMBERS)}"
        self.file(f"{module}.py", "\n".join(lines))
        return f"{module}:team"

    def taken_port(self) -> int:
        """Return a port on which somebody listens."""
        listener = self._things.enter_context(socket.create_server(("127.0.0.1", 0)))
        return int(listener.getsockname()[1])

    def rath(self, words: str, *more: str, input: str | None = None) -> str:
        """Run the `rath` command, and return what it says when it ends with an error."""
        done = CliRunner().invoke(app, [*words.split(), *more], input=input)
        assert done.exit_code != 0, f"rath {words} ended well: {done.output}"
        said = [line for line in done.stderr.splitlines() if not line.startswith("See: ")]
        at = next(i for i, line in enumerate(said) if line.startswith(("error: ", "Error")))
        return "\n".join(said[at:]).removeprefix("error: ")

    def plain(self, text: str) -> str:
        """Replace in a text what differs from machine to machine."""
        for folder, name in ((self.project, "/srv/project"), (self.home, "~")):
            for form in {str(folder), str(folder.resolve())}:
                text = text.replace(form, name)
        text = re.sub(r"\S*/error_cases/(\w+\.py):\d+", r"\1:12", text)
        text = re.sub(r"\[Errno \d+\] ", "", text)
        text = re.sub(r" at 0x[0-9a-f]+>", ">", text)
        text = re.sub(r"\bsession [0-9a-f]{8}\b", "session 0f8fad5b", text)
        text = _ID.sub("0f8fad5b-d9cb-469f-a165-70867728950e", text)
        text = re.sub(r"\b127\.0\.0\.1:\d{4,5}\b", "127.0.0.1:8000", text)
        text = re.sub(r"'127\.0\.0\.1', \d{4,5}", "'127.0.0.1', 8000", text)
        text = re.sub(r"\bteam_\d+\b", "team", text)
        text = re.sub(r"\bport \d{4,5}\b", "port 8000", text)
        text = text.replace(rath.__version__, "1.3.0").replace("tests.support.error_cases.", "")
        return _OF_TESTS.sub("", text)


def user() -> Session:
    """Return a session with one row."""
    return Session.from_user_message("Hello.")


def odd(value: object) -> Any:
    """Return a value that a type checker would refuse here."""
    return value


def text_of(case: ErrorCase, folder: Path) -> ErrorText:
    """Meet an error in an empty folder, and return what it says."""
    with ExitStack() as things:
        machine = Machine(folder, things)
        try:
            given = case.meet(machine)
        except Exception as exc:  # noqa: BLE001  # any of them is the subject
            message = exc.args[0] if isinstance(exc, KeyError) and exc.args else exc
            names = (kind.__name__ for kind in type(exc).__mro__)
            public = next(name for name in names if not name.startswith("_"))
            return ErrorText(public, machine.plain(str(message)))
        assert isinstance(given, str), f"nothing was raised: {case.cause}"
        return ErrorText("", machine.plain(given))


def groups() -> dict[str, list[ErrorCase]]:
    """Return the cases by the title of their part of the page."""
    return {title: import_module(f"{__name__}.{name}").CASES for name, title in _GROUPS.items()}


def part_of_page(title: str, folder: Path) -> str:
    """Meet all errors of a part, and return it as Markdown."""
    rows = ["| It says | Why | What to do |", "| --- | --- | --- |"]
    for number, case in enumerate(groups()[title]):
        met = text_of(case, folder / str(number))
        said = f"{met.kind}: {met.message}" if met.kind else met.message
        cells = (_code(said), case.cause, case.cure)
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join([f"## {title}", "", *rows, ""])


def _code(text: str) -> str:
    one_line = " ".join(text.split())
    ticks = "``" if "`" in one_line else "`"
    space = " " if ticks == "``" else ""
    return f"{ticks}{space}{one_line}{space}{ticks}"


def page(folder: Path) -> str:
    """Return the whole page."""
    parts = (part_of_page(title, folder / str(at)) for at, title in enumerate(groups()))
    return "\n".join([INTRODUCTION, *parts])
