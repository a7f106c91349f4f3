"""One command in a sandbox: wall time beside the same program started without one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from benchmarks.endpoint import Endpoint
from benchmarks.measure import Sample, interleave, measure
from benchmarks.sizes import Sizes
from benchmarks.table import AtMostTimes, Line, Reference
from rath import backend
from rath.backend import Backend, BackendSandbox, BackendToolCommandRun, CommandResult
from rath.backend.bubblewrap.backend import find_bwrap
from rath.backend.bubblewrap.command import SystemFiles, confinement, workspace_arguments

Run = Callable[[], object]

_ARGV = ["true"]
_BACKENDS = {"local": "subprocess.run", "bubblewrap": "bwrap by hand"}
"""Each backend with the program by hand that does the same."""


@dataclass(frozen=True, slots=True)
class _Places:
    """Where commands run: one place is enough for one at a time."""

    ours: list[Run]
    others: Mapping[str, Run]


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """What a command costs, one at a time and many at once, for each backend that works here."""
    del endpoint
    found: list[Line] = []
    for name, by_hand in _BACKENDS.items():
        reason = backend.get_class(name).unavailable_reason()
        if reason is not None:
            print(f"left out {name}: {reason}", file=sys.stderr)
            continue
        with _places(backend.get(name), sizes.commands_at_once) as places:
            found += _lines(name, by_hand, places, sizes)
    return found


def _lines(name: str, by_hand: str, places: _Places, sizes: Sizes) -> list[Line]:
    n_single, n_many = sizes.commands, len(places.ours)
    contenders = {"ours": [places.ours[0]], **{key: [run] for key, run in places.others.items()}}
    single = {key: partial(_in_turn, runs * n_single) for key, runs in contenders.items()}
    with ThreadPoolExecutor(n_many) as pool:
        contenders["ours"] = places.ours
        many = {
            key: partial(_at_once, pool, (runs * n_many)[:n_many])
            for key, runs in contenders.items()
        }
        alone = interleave(single, repeats=sizes.repeats)
        together = interleave(many, repeats=sizes.repeats)
    found: list[Line] = []
    for key in dict.fromkeys([by_hand, *places.others]):
        for row, cost, n, limit in (
            ("a command", alone, n_single, 1.3),
            (f"{n_many} commands at once", together, 1, 1.5),
        ):
            reference = Reference(key, cost[key].wall / n)
            target = AtMostTimes(limit) if key == "subprocess.run" and name == "local" else None
            found.append(Line(f"{row}, {name}", cost["ours"].wall / n, "ms", reference, target))
    return found


@contextmanager
def _places(subject: Backend, n_places: int) -> Generator[_Places]:
    """Open as many sandboxes as commands run at once, and prepare each."""
    with ExitStack() as open_ones:
        sandboxes = [open_ones.enter_context(subject.open()) for _ in range(n_places)]
        root = open_ones.enter_context(tempfile.TemporaryDirectory(prefix="rath-commands-"))
        others: dict[str, Run] = {"subprocess.run": _run_plain}
        if subject.name == "bubblewrap":
            provided = SystemFiles()
            open_ones.callback(provided.remove)
            others["bwrap by hand"] = partial(_run_bwrap, _bwrap(provided, root), provided.filter)
        yield _Places([partial(_run_in, sandbox) for sandbox in sandboxes], others)


def _in_turn(runs: list[Run]) -> Sample:
    return measure(lambda: [run() for run in runs])


def _at_once(pool: ThreadPoolExecutor, runs: list[Run]) -> Sample:
    return measure(lambda: [each.result() for each in [pool.submit(run) for run in runs]])


def _run_in(sandbox: BackendSandbox) -> None:
    result = sandbox.dispatch(BackendToolCommandRun(_ARGV))
    if not isinstance(result, CommandResult) or result.exit_code != 0:
        raise AssertionError(f"expected exit code 0, got {result!r}")


def _run_plain() -> None:
    subprocess.run(_ARGV, capture_output=True, check=True)


def _run_bwrap(argv: list[str], filter_path: str | None) -> None:
    """Run the program in the same namespaces, with the same view and filter of system calls."""
    if filter_path is None:
        subprocess.run([*argv, *_ARGV], capture_output=True, check=True)
        return
    with open(filter_path, "rb") as rules:
        passing = ["--seccomp", str(rules.fileno()), "--"]
        subprocess.run(
            [*argv, *passing, *_ARGV], capture_output=True, check=True, pass_fds=[rules.fileno()]
        )


def _bwrap(provided: SystemFiles, root: str) -> list[str]:
    """Return the command line of `bwrap`, without the filter and what it runs."""
    program = find_bwrap()
    assert program is not None, "a backend that is available has found it"
    return [
        program,
        *confinement(provided.etc, network=False),
        *workspace_arguments([root], ()),
        *("--chdir", root),
    ]
