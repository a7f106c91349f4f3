"""Which test runs which lines of a package, and what it costs: measured once for each tree."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import pytest
from coverage import CoverageData

from benchmarks.mutants.mutations import Mutant
from benchmarks.mutants.processes import run_alone
from benchmarks.mutants.tree import environment

_RESULT = "RATH_MUTANTS_RESULT"
_COST = "cpu_seconds"
_LARGEST_COST = 10.0
"""CPU seconds; a test that takes more is left out."""
_PATIENCE = 60.0
"""Seconds; a test that asks for so much of its own speaks to a server, a model or a browser."""
_NEW_FILE = 0.1
"""CPU seconds: about what collecting one more file of tests costs."""
_CONFIG = """\
[run]
source = {package}
data_file = {data}
relative_files = true
parallel = true
core = ctrace
"""


class CoverageMap:
    """What a folder that `measure` wrote says."""

    def __init__(self, folder: Path, root: Path, package: Path) -> None:
        self._root = root
        self._package = package
        self._data = CoverageData(str(folder / "coverage.sqlite"))
        self._data.read()
        self._by_line: dict[str, dict[int, list[str]]] = {}
        stored = json.loads((folder / "tests.json").read_text(encoding="utf-8"))
        self.costs: dict[str, float] = stored["passed"]
        """CPU seconds of each test and its processes: unlike times they hold on a busy machine."""
        self.n_left_out = int(stored["left_out"])
        """Tests that failed, were skipped or took too long without any mutant."""

    def tests_for(self, mutant: Mutant, allowance: float) -> list[str]:
        """The tests that meet a change, the fastest first, up to `allowance` CPU seconds of them.

        Of the cases of one test the first go before the second ones of all, so that many tests
        have a turn before the allowance is used up.
        """
        tests = self._tests_of(mutant.path, mutant.lines)
        at_import = mutant.at_import or "" in self._contexts(mutant.path, mutant.lines)
        if not tests and at_import:
            tests = self._tests_of(mutant.path, None) or {
                test for path in self._importers[mutant.path] for test in self._tests_of(path, None)
            }
        ranks: Counter[str] = Counter()
        keys: dict[str, tuple[int, float, str]] = {}
        for test in sorted(tests, key=lambda test: (self.costs[test], test)):
            function = test.partition("[")[0]
            keys[test] = ranks[function], self.costs[test], test
            ranks[function] += 1
        chosen: list[str] = []
        files: set[str] = set()
        for test in sorted(keys, key=keys.__getitem__):
            file = test.partition("::")[0]
            allowance -= self.costs[test] + _NEW_FILE * (file not in files)
            if allowance < 0 and chosen:
                break
            chosen.append(test)
            files.add(file)
        return chosen

    def _tests_of(self, path: str, lines: Sequence[int] | None) -> set[str]:
        names = {context.rpartition("|")[0] for context in self._contexts(path, lines)}
        return names & self.costs.keys()

    def _contexts(self, path: str, lines: Sequence[int] | None) -> set[str]:
        if path not in self._by_line:
            self._by_line[path] = self._data.contexts_by_lineno(path)
        by_line = self._by_line[path]
        wanted = by_line if lines is None else lines
        return {test for line in wanted for test in by_line.get(line, ())}

    @cached_property
    def _importers(self) -> defaultdict[str, set[str]]:
        """The files of the package that import each of its files."""
        files = {module_name(self._root, file): file for file in self._package.rglob("*.py")}
        importers: defaultdict[str, set[str]] = defaultdict(set)
        for file in files.values():
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.ImportFrom) and node.module:
                    names = [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
                    for imported in (files[name] for name in names if name in files):
                        path = imported.relative_to(self._root).as_posix()
                        importers[path].add(file.relative_to(self._root).as_posix())
        return importers


def measure(copy: Path, package: str, tests: Sequence[str], folder: Path) -> None:
    """Run tests in a copy of the tree, and write to `folder` what they ran and what it took.

    Raises:
        RuntimeError: pytest did not come to its end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "coverage.ini"
    config.write_text(_CONFIG.format(package=package, data=folder / "coverage.sqlite"))
    arguments = [sys.executable, "-m", "pytest", *tests, "-q", "-n", "2", "--dist", "worksteal"]
    arguments += ["-p", "no:randomly", "-p", "no:cacheprovider", "-p", __name__]
    arguments += ["--cov", package, "--cov-context", "test", "--cov-report", ""]
    arguments += ["--cov-config", str(config)]
    part = folder / "tests.part"

    def run() -> int:
        with (folder / "output.txt").open("wb") as output:
            return subprocess.run(
                arguments,
                cwd=copy,
                env={**environment(copy), _RESULT: str(part)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode

    code = run_alone(run)
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(
            f"the tests without any mutant ended with {code}: read {folder}/output.txt"
        )
    part.rename(folder / "tests.json")


def module_name(root: Path, file: Path) -> str:
    """The name that a file is imported by."""
    top = file.parent
    while (top / "__init__.py").exists() and top != root:
        top = top.parent
    parts = file.relative_to(top).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# ---------------------------------------------------------------- as a plugin of pytest


class _Costs:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._costs: dict[str, float] = {}
        self._rejected: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cost = dict(report.user_properties).get(_COST)
        if isinstance(cost, float):
            self._costs[report.nodeid] = cost
        if report.outcome != "passed" or (isinstance(cost, float) and cost > _LARGEST_COST):
            self._rejected.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        passed = {test: self._costs[test] for test in self._costs.keys() - self._rejected}
        stored = {"passed": passed, "left_out": len(self._rejected)}
        self._file.write_text(json.dumps(stored), encoding="utf-8")


_start = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Begin to count."""
    item.stash[_start] = sum(os.times()[:4])
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Tell the cost to whoever gets the last report of the test."""
    yield
    item.user_properties.append((_COST, sum(os.times()[:4]) - item.stash[_start]))


def pytest_configure(config: pytest.Config) -> None:
    """Collect costs where the reports of all workers arrive."""
    if _RESULT in os.environ and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Costs(Path(os.environ[_RESULT])))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has patience of its own."""
    marks = {item: item.get_closest_marker("timeout") for item in items}
    patient = [item for item, mark in marks.items() if mark and mark.args[0] >= _PATIENCE]
    config.hook.pytest_deselected(items=patient)
    items[:] = [item for item in items if item not in set(patient)]
