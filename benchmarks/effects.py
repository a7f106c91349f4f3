"""Looking for the effects of one command: wall time beside a plain stat of every file, and git."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.endpoint import Endpoint
from benchmarks.measure import interleave, measure
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, AtMostTimes, Line, Reference
from rath.backend import (
    BackendSandbox,
    BackendSandboxSpec,
    BackendToolCommandRun,
    observe_effects,
)
from rath.backend.local import LocalBackend

_PER_DIRECTORY = 50
_LINES = 30
_COMMAND = "echo x >> changed"


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """What a command costs more when its effects are looked for, per size of the workspace."""
    del endpoint
    return [line for n_files in sizes.workspace_files for line in _lines(n_files, sizes.repeats)]


def _lines(n_files: int, repeats: int) -> list[Line]:
    with tempfile.TemporaryDirectory(prefix="rath-effects-") as root:
        _make_files(Path(root), n_files)
        spec = BackendSandboxSpec(working_dir=root)
        with LocalBackend().open(spec) as sandbox:
            first = _seconds(lambda: _run_observed(sandbox)) - _seconds(lambda: _run(sandbox))
            contenders = {
                "observed": lambda: measure(lambda: _run_observed(sandbox)),
                "plain": lambda: measure(lambda: _run(sandbox)),
                "stat": lambda: measure(lambda: _stat_all(root)),
            }
            if shutil.which("git"):
                _start_git(root)
                contenders["git status"] = lambda: measure(lambda: _git(root, "status", "-s"))
                contenders["git snapshot"] = lambda: measure(lambda: _snapshot(root))
            cost = interleave(contenders, repeats=repeats)
    wall = cost["observed"].wall - cost["plain"].wall
    stat = Reference("stat of each", cost["stat"].wall)
    row = f"effects of a command, {n_files} files"
    found = [
        Line(f"{row}, first look", first, "ms", stat, AtMost(1000) if n_files <= 5000 else None),
        Line(row, wall, "ms", stat, AtMostTimes(3)),
    ]
    for name in ("git status", "git snapshot"):
        if name in cost:
            # Before and after, as we look.
            found.append(Line(row, wall, "ms", Reference(f"2x {name}", cost[name].wall * 2)))
    return found


def _make_files(root: Path, n_files: int) -> None:
    for n in range(n_files):
        directory = root / f"d{n // (20 * _PER_DIRECTORY)}" / f"e{n // _PER_DIRECTORY}"
        if n % _PER_DIRECTORY == 0:
            directory.mkdir(parents=True)
        (directory / f"f{n}.txt").write_text(f"a line of file {n}\n" * _LINES)
    (root / "changed").write_text("")


def _run(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(BackendToolCommandRun(_COMMAND))


def _run_observed(sandbox: BackendSandbox) -> None:
    with observe_effects() as effects:
        _run(sandbox)
    if [effect.path for effect in effects] != ["changed"]:
        raise AssertionError(f"one file was changed, got {effects} {effects.gaps}")


def _stat_all(root: str) -> None:
    for directory, _, names in os.walk(root):
        for name in names:
            os.lstat(os.path.join(directory, name))


def _start_git(root: str) -> None:
    _git(root, "init", "-q")
    _git(root, "add", "-A")


def _snapshot(root: str) -> None:
    _git(root, "add", "-A")
    _git(root, "write-tree")


def _git(root: str, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
