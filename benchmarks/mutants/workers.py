"""Runs tests on mutants: each in a fork of a process that has imported what does not change."""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import multiprocessing.pool
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from benchmarks.mutants.mutations import Mutant
from benchmarks.mutants.processes import exit_on_signal, run_alone
from benchmarks.mutants.tree import environment, temporary_copy

Outcome = Literal["killed", "timed out", "survived", "not covered"]

_PRELOAD = (
    "_pytest.assertion.rewrite",
    "_pytest.fixtures",
    "anthropic",
    "docstring_parser",
    "httpx",
    "hypothesis",
    "jsonschema",
    "mcp.types",
    "openai",
    "psycopg",
    "pydantic",
    "rich.console",
    "typer",
)
"""Slow to import, not ours, and without threads of their own; what is not installed is left out."""
_N_WORKERS = 2
_FIRST_BATCH = 1.5
"""Seconds of tests that run before the files of all others are collected."""
_LIMIT = 25.0
"""Seconds for starting, beside the tests: only what hangs is to be ended."""
_MEMORY = 6 * 2**30
_FILE_SIZE = 2**30


@dataclass(frozen=True, slots=True)
class Batch:
    """Tests that run in one process."""

    tests: tuple[str, ...]
    """Node ids, in the order in which they run."""
    limit: float
    """Seconds, on a machine that does nothing else."""


@dataclass(frozen=True, slots=True)
class Job:
    """Tests to run, with a mutant or, to see that they pass, without."""

    number: int
    mutant: Mutant | None
    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a job."""

    number: int
    outcome: Outcome
    failed: tuple[str, ...]
    """Node ids; empty when the modules could not even be imported."""
    output: str
    """The end of what pytest said, of a job that did not survive."""
    seconds: float


def job_of(
    number: int, mutant: Mutant | None, tests: Sequence[str], costs: dict[str, float]
) -> Job:
    """Cut tests into the ones that are tried first and the rest; without a mutant all must run."""
    spent, first = 0.0, len(tests) if mutant is None else 0
    while first < len(tests) and spent < _FIRST_BATCH:
        spent += costs[tests[first]]
        first += 1
    batches = tuple(
        Batch(tuple(part), _LIMIT + 4 * sum(costs[test] for test in part))
        for part in (tests[:first], tests[first:])
        if part
    )
    return Job(number, mutant, batches)


@contextmanager
def open_workers(root: Path) -> Generator[multiprocessing.pool.Pool]:
    """Fork workers, each with a copy of the tree of its own; `run` is what they do.

    Raises:
        RuntimeError: A library has started a thread.
    """
    for name in _PRELOAD:
        with suppress(ImportError):
            importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError(f"an import of {_PRELOAD} started a thread: a fork would lose it")
    gc.freeze()
    context = multiprocessing.get_context("fork")
    with ExitStack() as stack:
        copies = context.SimpleQueue()
        for _ in range(_N_WORKERS):
            copies.put(stack.enter_context(temporary_copy(root)))
        yield stack.enter_context(context.Pool(_N_WORKERS, _begin_worker, (copies,)))


# ---------------------------------------------------------------- in a worker

_copy: Path
"""The tree of this worker, in which it writes one mutant after another."""


def _begin_worker(copies: Any) -> None:
    global _copy  # set once, before the first job
    _copy = copies.get()
    # On the way out the tests that run are ended.
    signal.signal(signal.SIGTERM, exit_on_signal)


def run(job: Job) -> Result:
    """Run the batches of a job, until a test fails."""
    start = time.monotonic()
    outcome: Outcome = "survived" if job.batches else "not covered"
    failed: tuple[str, ...] = ()
    with _mutated_file(job.mutant):
        for batch in job.batches:
            outcome, failed = _run_batch(batch, stop=job.mutant is not None)
            if outcome != "survived":
                break
    output = _copy.parent / "output.txt"
    tail = output.read_text(errors="replace")[-2000:] if outcome in {"killed", "timed out"} else ""
    return Result(job.number, outcome, failed, tail, time.monotonic() - start)


@contextmanager
def _mutated_file(mutant: Mutant | None) -> Generator[None]:
    """Write a mutant into the copy of this worker, and take it back."""
    if mutant is None:
        yield
        return
    file = _copy / mutant.path
    source, times = file.read_bytes(), file.stat()
    file.write_bytes(mutant.apply(source))
    # Compiled modules are known by second and size: both could be those of the file before.
    later = int(times.st_mtime) + 1 + mutant.start
    os.utime(file, (later, later))
    try:
        yield
    finally:
        file.write_bytes(source)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def _run_batch(batch: Batch, *, stop: bool) -> tuple[Outcome, tuple[str, ...]]:
    report = _copy.parent / "failed.json"
    report.unlink(missing_ok=True)
    temporary = _copy.parent / "tmp"
    try:
        code = run_alone(partial(_run_tests, batch.tests, report, stop=stop), batch.limit * _busy())
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(exist_ok=True)
    if code is None:
        return "timed out", ()
    if code == pytest.ExitCode.OK:
        return "survived", ()
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:  # their ids come from what has changed
        return "not covered", ()
    failed = json.loads(report.read_text(encoding="utf-8")) if report.exists() else ()
    return "killed", tuple(failed)


def _busy() -> float:
    """How much longer than alone a process takes for its work."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


# ---------------------------------------------------------------- in a fork of a worker


def _run_tests(tests: Sequence[str], report: Path, *, stop: bool) -> int:
    output = os.open(report.with_name("output.txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_SIZE, _FILE_SIZE))
    os.chdir(_copy)
    os.environ.clear()
    os.environ.update(environment(_copy))
    sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
    tempfile.tempdir = None
    arguments = [*dict.fromkeys(test.partition("::")[0] for test in tests), "-q", "--tb=short"]
    arguments += ["-p", "no:randomly", "-p", "no:xdist", "-p", "no:cacheprovider"]
    # What is imported already was chosen so, and is no plugin whose assertions matter.
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    arguments += ["-o", "timeout=0", *(["-x"] if stop else [])]
    return pytest.main(arguments, plugins=[_Selection(tests, report)])


class _Selection:
    """A plugin of pytest: these tests alone, in this order; notes which fail."""

    def __init__(self, tests: Sequence[str], report: Path) -> None:
        self._order = {test: place for place, test in enumerate(tests)}
        self._report = report
        self._failed: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._order]
        items.sort(key=lambda item: self._order[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.append(report.nodeid)
            self._report.write_text(json.dumps(self._failed), encoding="utf-8")
