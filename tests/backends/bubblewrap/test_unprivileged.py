"""The sandbox of a user who is not root, tried by root; everybody else tries it all the time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src"
NOBODY = 65534

PROGRAM = """
import json, sys
from rath import backend
from rath.backend.bubblewrap import BubblewrapBackend
if BubblewrapBackend.unavailable_reason():
    print(json.dumps({"reason": BubblewrapBackend.unavailable_reason()}))
    sys.exit()
limits = backend.SandboxLimits(memory_bytes=200 << 20, processes=20)
spec = backend.BackendSandboxSpec(working_dir=sys.argv[1], limits=limits)
sandbox = backend.get("bubblewrap").open(spec)
said = {"limits": BubblewrapBackend.limits_by()}
for name, command in json.loads(sys.argv[2]).items():
    result = sandbox.dispatch(backend.BackendToolCommandRun(command, timeout=50.0))
    said[name] = [result.exit_code, result.stdout.decode()]
print(json.dumps(said))
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that belongs to nobody; those of pytest are closed to others."""
    path = Path(tempfile.mkdtemp())
    os.chown(path, NOBODY, NOBODY)
    yield path
    shutil.rmtree(path)


def ask(place: Path, **commands: str) -> dict[str, list[object]]:
    """Run commands in a sandbox of the user nobody."""
    variables = {"PATH": os.environ["PATH"], "HOME": str(place), "TMPDIR": str(place)}
    python = next(filter(runs_for_nobody, (sys.executable, "/usr/bin/python3")), None)
    if python is None:
        pytest.skip("needs a Python, and this project, where everybody can read them")
    ended = subprocess.run(
        [python, "-c", PROGRAM, str(place / "work"), json.dumps(commands)],
        env={**variables, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=place,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        check=True,
    )
    said: dict[str, list[object]] = json.loads(ended.stdout)
    if "reason" in said:
        pytest.skip(str(said["reason"]))
    return said


def runs_for_nobody(python: str) -> bool:
    arguments = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11)); import rath"]
    try:
        return not subprocess.run(
            arguments,
            cwd="/",
            env={"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"},
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            check=False,
            capture_output=True,
        ).returncode
    except OSError:
        return False


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


def test_a_command_runs_and_is_confined(home: Path) -> None:
    said = ask(
        home,
        writes="echo one > file && cat file",
        user="id -u; whoami; echo ~",
        outside="touch /usr/new /new",
        home=f"ls -A {home}",
        namespaces="unshare --user true",
        kernel="echo x > /proc/sys/kernel/core_pattern",
    )
    assert said["writes"] == [0, "one\n"]
    assert said["user"] == [0, "1000\nsandbox\n/home/sandbox\n"]
    assert said["home"] == [0, "work\n"]
    assert {said[name][0] for name in ("outside", "namespaces")} == {1}
    assert said["kernel"][0] != 0


def test_limits_hold(home: Path) -> None:
    said = ask(
        home,
        bomb="i=0; while [ $i -lt 100 ]; do sleep 30 & i=$((i+1)); echo $i; done 2>/dev/null",
        hog='python3 -c "x = bytearray(300 << 20)" 2>/dev/null',
        well="echo well",
    )
    assert said["bomb"][0] != 0
    assert said["hog"][0] != 0
    assert said["well"] == [0, "well\n"]
