"""The command as a process: streams, status, and what it loads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import Process

CANARY = "canary-0123456789"


def test_version_is_fast_to_load(process: Process) -> None:
    result = process("--version")
    assert (result.returncode, result.stderr) == (0, "")
    code = (
        "import sys\nfrom rath.cli import main\nsys.argv = ['rath', '--version']\n"
        "try:\n    main()\nexcept SystemExit:\n    print(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"pydantic", "rath.llm", "rath.config.store", "openai", "anthropic", "httpx2"}
    assert heavy.isdisjoint(run.stdout.split())


def test_only_the_command_loads_its_libraries() -> None:
    code = "import sys, rath, rath.flow, rath.config\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"typer", "rich", "pydantic", "rath.cli"}.isdisjoint(run.stdout.split())


def test_a_misuse_ends_with_two_and_no_traceback(process: Process) -> None:
    result = process("config", "get")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: Missing argument 'KEY'.\nSee: rath config get --help\n"


def test_a_guided_setup_through_a_pipe(process: Process, home: Path) -> None:
    answers = ["user", "openai", "m", "http://127.0.0.1:9/v1", CANARY]
    result = process("config", "init", input="\n".join(answers) + "\n")
    assert result.returncode == 0
    assert CANARY not in result.stdout + result.stderr
    assert "\x1b[" not in result.stdout + result.stderr
    listed = process("config", "list", "--json", "--show-origin")
    beside = home / ".openrath" / "credentials.json"
    assert {"key": "llm.providers.main.api_key", "value": "***", "origin": f"config {beside}"} in (
        json.loads(listed.stdout)["settings"]
    )
