"""A fork with a workspace of its own: freezing, and the first write of either side."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.endpoint import Endpoint
from benchmarks.measure import Sample, interleave, measure
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, AtMostTimes, Line, Reference
from rath.backend import BackendSandbox, BackendSandboxSpec, BackendToolFilesWrite
from rath.backend.local import LocalBackend
from rath.backend.snapshots import FrozenWorkspace, Seed

_PER_DIRECTORY = 50
_FILE_BYTES = 4096


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """What a fork with a copy costs, beside copies of the same tree by other means."""
    del endpoint
    n_files = sizes.workspace_files[0]
    with tempfile.TemporaryDirectory(prefix="rath-workspace-") as above:
        root = Path(above, "workspace")
        _make_files(root, n_files)
        with LocalBackend().open(BackendSandboxSpec(working_dir=str(root))) as parent:
            cost = interleave(
                {
                    "freeze": lambda: _freeze(parent),
                    "parent": lambda: _first_write(parent),
                    "fork": lambda: _first_write_of_fork(parent),
                    "copytree": lambda: _copy(root, _copy_tree),
                    "cp -a": lambda: _copy(root, _copy_by_command),
                },
                repeats=sizes.repeats,
            )
    row = f"fork with copy, {n_files} files"
    copytree = Reference("copytree", cost["copytree"].wall)
    command = Reference("cp -a", cost["cp -a"].wall)
    return [
        Line(f"{row}: freeze", cost["freeze"].wall, "us", None, AtMost(1000)),
        Line(f"{row}: freeze, first write", cost["parent"].wall, "ms", copytree, AtMostTimes(1)),
        Line(f"{row}: freeze, first write", cost["parent"].wall, "ms", command),
        Line(f"{row}: first write of the fork", cost["fork"].wall, "ms", command),
    ]


def _make_files(root: Path, n_files: int) -> None:
    for number in range(n_files):
        directory = root / f"d{number // _PER_DIRECTORY}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"f{number}").write_bytes(os.urandom(_FILE_BYTES))


def _freeze(parent: BackendSandbox) -> Sample:
    started = time.perf_counter()
    frozen = parent.freeze()
    wall = time.perf_counter() - started
    del frozen
    return Sample(cpu=wall, wall=wall)


def _first_write(parent: BackendSandbox) -> Sample:
    """Freeze and write to the parent, which copies its files for whoever holds them."""
    held: list[FrozenWorkspace] = []

    def work() -> None:
        held.append(parent.freeze())
        _write(parent)

    return measure(work)


def _first_write_of_fork(parent: BackendSandbox) -> Sample:
    """Write to a fork whose files are copied already: only its layer is made."""
    frozen = parent.freeze()
    _write(parent)

    async def origin() -> Seed:
        return Seed(frozen)

    with parent.backend.lazy(origin=origin) as fork:
        fork.ensure_open()
        return measure(lambda: _write(fork))


def _write(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(BackendToolFilesWrite("d0/f0", str(time.perf_counter())))


def _copy(root: Path, copy: Callable[[Path, Path], object]) -> Sample:
    with tempfile.TemporaryDirectory(prefix="rath-workspace-", dir=root.parent) as above:
        return measure(lambda: copy(root, Path(above, "copy")))


def _copy_tree(root: Path, target: Path) -> None:
    shutil.copytree(root, target, symlinks=True)


def _copy_by_command(root: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", str(root), str(target)], check=True)
