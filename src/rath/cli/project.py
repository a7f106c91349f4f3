"""`rath init`: a small project with a workflow, a test that replays it, and a config."""

from __future__ import annotations

import shlex
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from rath._installation import install_advice
from rath.cli.config_init import DEFAULT_NAME, InitOptions, entry_of_environment, missing_packages
from rath.cli.render import line, say_lines
from rath.cli.settings import read_settings
from rath.cli.terminal import CommandError, Misuse, note, say, warn
from rath.config.paths import CONFIG_FILENAME, PROJECT_MARKER_DIR
from rath.config.store import ConfigStore
from rath.errors import RathError

_TEAM = '''\
"""A workflow: one agent with one tool."""

import rath


@rath.tool(effects="read_only")
def word_count(text: str) -> int:
    """Count the words of a text.

    Args:
        text: The text to count.
    """
    return len(text.split())


class Team(rath.Workflow):
    """Answers with the tool where it helps."""

    def __init__(self) -> None:
        self.agent = rath.Agent(
            "Use the `word_count` tool, then answer briefly.",
            rath.Provider.from_config(),
            tools=[word_count],
        )

    def forward(self, session: rath.Session) -> rath.Session:
        return self.agent(session)


team = Team()
'''

_TEST = '''\
"""A test of the workflow.

Its first run asks the model and writes a cassette; from then on it needs no model, no key and no
network. Delete the cassette to record it anew.
"""

from pathlib import Path

import rath
from team import team

CASSETTE = Path(__file__).with_name("cassettes") / "counts_words.zip"


@rath.cassette(CASSETTE)
def test_the_team_counts_words() -> None:
    out = team(rath.Session.from_user_message("Count the words in: to be or not to be"))
    assert "word_count" in [row.payload.get("name") for row in out.rows]
    assert out.text()
'''

_PYTEST = """\
# A file of its own, so that no configuration of a folder above counts here.
[pytest]
pythonpath = .
"""

QUESTION = "Count the words in: to be or not to be"
"""What a newcomer asks first."""

FILES = {"team.py": _TEAM, "test_team.py": _TEST, "pytest.ini": _PYTEST}
"""The files of a project, by name."""


def init(
    directory: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="The project; it may be there already.")
    ] = Path(),
) -> None:
    """Make a small project: a workflow, a test with a cassette, and a config.

    Files that are there are never replaced. The model is the one that your config or environment
    names, else the embedded one.
    """
    there = [name for name in FILES if (directory / name).exists()]
    if there:
        listed = ", ".join(there)
        raise Misuse(f"{str(directory)!r} has {listed} already; name another DIR: rath init DIR")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in FILES.items():
            (directory / name).write_text(text, encoding="utf-8")
        model = _write_config(directory)
    except (OSError, RathError) as exc:
        # A file that is there would be in the way of the next attempt.
        for name in FILES:
            with suppress(OSError):
                (directory / name).unlink(missing_ok=True)
        if isinstance(exc, RathError):
            raise  # it names the config and what to do
        raise CommandError(
            f"{directory} cannot be written: {exc.strerror or exc}; no file of the project is "
            "left there. Mend that, or name another DIR, and do it again"
        ) from exc
    say_lines(line(str(directory / name)) for name in (*FILES, f".openrath/{CONFIG_FILENAME}"))
    note(f"the model: {model}; another one: rath config init --project")
    say("Next:")
    steps = [f"cd {shlex.quote(str(directory))}"] if directory != Path() else []
    steps += [f'rath run team:team "{QUESTION}"', "rath chat team:team", "python -m pytest"]
    say_lines(line(f"  {step}", is_whole=True) for step in steps)
    if find_spec("pytest") is None:
        note("the last one needs pytest: uv pip install pytest")


def _write_config(directory: Path) -> str:
    """Have runs of the project recorded in it, and name a model where none is; return which."""
    store = ConfigStore(directory.resolve() / PROJECT_MARKER_DIR / CONFIG_FILENAME)
    if store.config.sessions.persist is None:
        store.config.sessions.persist = True
    llm, default = store.config.llm, read_settings().at("llm.default_provider")
    model = f"{default.value}, by {default.origin}" if default is not None else ""
    if default is None and llm.default_provider is None:
        entry = entry_of_environment(InitOptions())
        llm.providers.setdefault(DEFAULT_NAME, entry)
        llm.default_provider = DEFAULT_NAME
        is_local = entry.provider_kind == "local"
        model = "the embedded one, on this machine" if is_local else entry.provider_kind
        missing = missing_packages(entry)
        if missing is not None:
            warn(f"it needs {install_advice(*missing)}")
    store.save()
    return model or f"{llm.default_provider}, by {store.path}"
