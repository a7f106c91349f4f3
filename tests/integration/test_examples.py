"""Every example runs offline, is short, and leaves the choice of the model to its reader."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.openviking_service import Service, openviking
from tests.support.served_model import provider_variables, serve_model

__all__ = ["openviking"]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "example"
LADDER = sorted(EXAMPLES.glob("[0-9]*.py"))
PROGRAMS = [*LADDER, EXAMPLES / "readme.py"]
MAX_LINES = 60
WHO_ANSWERS = {"provider_from_env", "providers_of_two_vendors", "memory_server_from_env"}
"""They choose the model, or the server of a memory."""

MODELLESS = {"02_session_lineage", "09_memory", "12_custom_backend", "13_openviking_memory"}
"""They ask no model."""

LONG = {("20_many_machines", "anthropic")}
"""Those of which one protocol is enough outside the long campaigns: they start many processes."""


def names(paths: list[Path]) -> list[str]:
    """What a parametrised test is called."""
    return [path.stem for path in paths]


def run(program: Path, where: Path, **variables: str) -> str:
    """Run an example and return what it printed; on its scripted model unless told otherwise."""
    # A path that is short enough for the sockets of Ray.
    with TemporaryDirectory(prefix="rath-ray-", ignore_cleanup_errors=True) as ray_home:
        done = subprocess.run(
            [sys.executable, "-W", "error", str(program)],
            cwd=where,
            env={
                **os.environ,
                "OPENRATH_HOME": str(where / "home"),
                "PYTHONPATH": str(ROOT / "src"),
                "RATH_EXAMPLE_PROVIDER": "scripted",
                "RAY_TMPDIR": ray_home,
                **variables,
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_ladder_is_the_documented_one() -> None:
    assert names(LADDER) == [
        "01_hello_agent",
        "02_session_lineage",
        "03_sandbox_backend",
        "04_tools_builtin",
        "05_custom_tool",
        "06_mcp_tool",
        "07_streaming",
        "08_compress",
        "09_memory",
        "10_provider_variation",
        "11_dynamic_selector",
        "12_custom_backend",
        "13_openviking_memory",
        "14_crash_and_resume",
        "15_replay_in_tests",
        "16_explorer",
        "17_approvals",
        "18_guards",
        "19_map_a_dataset",
        "20_many_machines",
        "21_evaluate",
        "22_optimise_prompts",
        "23_serve_openai",
    ]


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("01_hello_agent", "welcome to your first session."),
        ("02_session_lineage", "joined comes from: branch, other, question"),
        ("03_sandbox_backend", "it created hello.txt"),
        ("04_tools_builtin", 'read_workspace_file is done: {"data": "sessions fork"}'),
        ("05_custom_tool", "half gave 42.0"),
        ("06_mcp_tool", "last_frost was called with {'city': 'Berlin'}"),
        ("07_streaming", "[letters gave 7 in "),
        ("08_compress", "8 rows became 1"),
        ("09_memory", "notes erased with the session they came from: 1"),
        ("10_provider_variation", "the fallback:   The second one answered."),
        ("11_dynamic_selector", "tech: Switch the printer off"),
        (
            "12_custom_backend",
            "checks of the contract that failed: none\nin the fork: A fork has it, too.",
        ),
        ("13_openviking_memory", "skipped: no OpenViking server is named."),
        (
            "14_crash_and_resume",
            "the process ended with -9\n"
            'nobody knows whether print_letter {"to": "Ann"} took effect\n',
        ),
        ("15_replay_in_tests", "another question: row 0 of the input is not the recorded one"),
        ("16_explorer", "the same from the record: rath view "),
        ("17_approvals", "The tea is on its way"),
        ("18_guards", "hide_answer changed the answer"),
        ("19_map_a_dataset", "sea is done: Salt stays in it."),
        ("20_many_machines", "snow is done: A draft of process "),
        ("21_evaluate", "worst: jp by exact, 0.0: expected 'Tokyo', got 'It is Tokyo.'"),
        ("22_optimise_prompts", "score 1.00: Name the capital in one word."),
        ("23_serve_openai", "the conversation is a session of 4 rows: rath show "),
    ],
)
def test_an_example_runs(name: str, reply: str, tmp_path: Path) -> None:
    assert reply in run(EXAMPLES / f"{name}.py", tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(
    ("program", "wire"),
    [
        pytest.param(
            program,
            wire,
            id=f"{program.stem}-{wire}",
            marks=[pytest.mark.slow] if (program.stem, wire) in LONG else [],
        )
        for program in PROGRAMS
        for wire in ("openai", "anthropic")
        if wire == "openai" or program.stem not in MODELLESS
    ],
)
def test_an_example_runs_in_the_protocol_of_a_vendor(
    program: Path, wire: str, tmp_path: Path
) -> None:
    with serve_model() as server:
        environment = {**provider_variables(server.base_url), "RATH_EXAMPLE_PROVIDER": wire}
        run(program, tmp_path, **environment)
        paths = {request.path for request in server.calls}
    if program.stem in MODELLESS:
        assert paths == set()
    elif program.stem == "10_provider_variation":
        assert paths == {"/v1/chat/completions", "/v1/messages"}
    else:
        assert paths == {"/v1/chat/completions" if wire == "openai" else "/v1/messages"}


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_example_of_openviking_runs_on_a_real_server(
    tmp_path: Path, openviking: Service
) -> None:
    variables = {
        "OPENVIKING_URL": openviking.url,
        "OPENVIKING_API_KEY": openviking.key,
        "OPENVIKING_USER": "reader",
    }
    reply = run(EXAMPLES / "13_openviking_memory.py", tmp_path, **variables)
    assert "read there: Swallows nest in the quarry." in reply
    assert "The heron waits at the pond. (detail, memory://user/memories/places/09c94546)" in reply


def test_the_readme_program_remembers_what_its_first_run_learned(tmp_path: Path) -> None:
    first = run(EXAMPLES / "readme.py", tmp_path)
    assert "recalled from earlier runs: nothing yet" in first
    assert "word_count gives 5" in first
    assert "tokens: " in first
    recalled, _, _ = run(EXAMPLES / "readme.py", tmp_path).partition("user:")
    assert "nothing yet" not in recalled
    assert recalled.count("The user likes compact technical summaries.") == 1
    assert "OpenRath makes agent clusters traceable" in recalled


def test_what_the_readme_program_names_next_finds_its_session(tmp_path: Path) -> None:
    *_, explain, view, chat = run(EXAMPLES / "readme.py", tmp_path).splitlines()
    assert chat.split()[1:] == ["chat"]
    assert view.split()[1:] == ["view", explain.split()[-1], "--open"]
    done = subprocess.run(
        [Path(sys.executable).with_name("rath"), *explain.split()[1:]],
        cwd=tmp_path,
        env={**os.environ, "OPENRATH_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "seen: 3 model calls" in done.stdout


@pytest.mark.parametrize("program", PROGRAMS, ids=names(PROGRAMS))
def test_an_example_imports_no_helper_but_who_answers(program: Path) -> None:
    helpers = {
        alias.name
        for node in ast.walk(ast.parse(program.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "_shared"
        for alias in node.names
    }
    own_files = {"own_home", "say_next"} if program.stem == "readme" else set[str]()
    assert helpers <= WHO_ANSWERS | own_files


@pytest.mark.parametrize("program", LADDER, ids=names(LADDER))
def test_an_example_is_short(program: Path) -> None:
    assert program.read_text("utf-8").count("\n") < MAX_LINES


@pytest.mark.parametrize("program", PROGRAMS, ids=names(PROGRAMS))
def test_an_example_pins_no_model(program: Path) -> None:
    tree = ast.parse(program.read_text("utf-8"))
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    keywords = {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names_server = "openai" in named  # a client of a served workflow names that
    if program.stem == "10_provider_variation":
        names_server = True  # one that nobody serves, for its fallback
        attributes -= {"Provider"}
    assert not named & {"Provider", "replace", "resolve_provider_arg"}
    assert not attributes & {"Provider", "replace", "to_provider"}
    if not names_server:
        assert not keywords & {"model", "base_url", "api_key", "provider_kind"}
