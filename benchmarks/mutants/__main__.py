"""Change a package at seeded places and tell which changes its tests find."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import get_args

from benchmarks.mutants.coverage_map import CoverageMap, measure
from benchmarks.mutants.mutations import Mutant, choose
from benchmarks.mutants.tree import digest, project_root, temporary_copy
from benchmarks.mutants.workers import (
    Job,
    Outcome,
    Result,
    job_of,
    open_workers,
    run,
)
from benchmarks.table import align

_TESTS = ("tests/session", "tests/integration", "tests/flow", "tests/cli", "tests/golden")
_OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A mutant and what became of it."""

    mutant: Mutant
    result: Result
    n_tests: int
    """Tests that were to run, had all of them passed."""


def main() -> None:
    """Print the table and the survivors, and write all verdicts to a file."""
    options = _parse_options()
    root = project_root()
    package = (root / options.package).resolve()
    files = [(root / options.only).resolve()] if options.only else list(package.rglob("*.py"))
    mutants = choose(root, files, seed=options.seed, count=options.count)
    tests = [path for path in options.tests or _TESTS if (root / path).exists()]
    coverage = _load_or_measure(root, package, tests)
    print(f"{len(coverage.costs)} tests; {coverage.n_left_out} failed, were skipped or are slow")
    start = time.monotonic()
    verdicts = _run_all(root, mutants, coverage, options.allowance)
    seconds = time.monotonic() - start
    print(render(verdicts, package.relative_to(root).as_posix()))
    print(f"\n{len(verdicts)} mutants, seed {options.seed}, in {seconds / 60:.1f} minutes")
    report = options.json or root / f"build/mutants/seed-{options.seed}.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(_to_json(verdicts, options, tests, seconds), encoding="utf-8")
    print(f"all verdicts: {report}")


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__)
    parser.add_argument("--package", default="src/rath/session", help="path of the package")
    parser.add_argument("--only", metavar="FILE", help="a file of the package; the rest stays")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--tests", metavar="PATH", action="append", help="can be repeated")
    parser.add_argument(
        "--allowance",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="of tests that a mutant must survive, as measured without it (default: %(default)s)",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="where all verdicts go")
    return parser.parse_args()


def _load_or_measure(root: Path, package: Path, tests: Sequence[str]) -> CoverageMap:
    path = package.relative_to(root).as_posix()
    folder = root / "build/mutants" / digest(root, path, tests)
    if not (folder / "tests.json").exists():
        print(f"running {', '.join(tests)} once, with coverage ...", file=sys.stderr, flush=True)
        with temporary_copy(root) as copy:
            measure(copy, path, tests, folder)
    return CoverageMap(folder, root, package)


def _run_all(
    root: Path, mutants: Sequence[Mutant], coverage: CoverageMap, allowance: float
) -> list[Verdict]:
    """Run every mutant; one that an unsteady test has killed is run again without that test."""
    selections: list[list[str]] = [coverage.tests_for(mutant, allowance) for mutant in mutants]
    results: dict[int, Result] = {}
    unsteady: set[str] = set()
    killers = {tests[0] for tests in selections if tests}  # those that pass will judge
    left = list(range(len(mutants)))
    with open_workers(root) as pool:
        while left:
            unsteady |= _failing(pool.imap_unordered(run, _controls(sorted(killers), coverage)))
            left = [at for at in left if at not in results or unsteady & set(results[at].failed)]
            selections = [[test for test in tests if test not in unsteady] for tests in selections]
            jobs = [job_of(at, mutants[at], selections[at], coverage.costs) for at in left]
            for n_done, result in enumerate(pool.imap_unordered(run, jobs), 1):
                results[result.number] = result
                if n_done % 20 == 0:
                    print(f"{n_done} of {len(jobs)} mutants", file=sys.stderr, flush=True)
            killers = {test for at in left for test in results[at].failed}
    return [Verdict(mutant, results[at], len(selections[at])) for at, mutant in enumerate(mutants)]


def _controls(tests: Sequence[str], coverage: CoverageMap) -> list[Job]:
    """Jobs without a mutant, in which all tests should pass."""
    parts = [part for part in (tests[::2], tests[1::2]) if part]
    return [job_of(at, None, part, coverage.costs) for at, part in enumerate(parts)]


def _failing(controls: Iterable[Result]) -> set[str]:
    failing: set[str] = set()
    for result in controls:
        if result.outcome != "survived" and not result.failed:
            raise RuntimeError(
                f"tests were {result.outcome} without any mutant, so no verdict would mean "
                f"anything: mend what pytest says, and start again\n{result.output}"
            )
        failing.update(result.failed)
    return failing


def render(verdicts: Sequence[Verdict], package: str) -> str:
    """The tables by kind and by part of the package, and the survivors."""

    def part(verdict: Verdict) -> str:
        return PurePosixPath(verdict.mutant.path).relative_to(package).parts[0]

    tables = [
        _table("kind", verdicts, lambda verdict: verdict.mutant.kind),
        _table("module", verdicts, part),
    ]
    for outcome in ("survived", "not covered"):
        lines = sorted(str(v.mutant) for v in verdicts if v.result.outcome == outcome)
        tables.append("\n".join([f"{outcome}:", *(f"  {line}" for line in lines)]))
    return "\n\n".join(tables)


def _table(title: str, verdicts: Sequence[Verdict], key: Callable[[Verdict], str]) -> str:
    groups = sorted({key(verdict) for verdict in verdicts})
    rows: list[tuple[str, ...]] = [(title, "mutants", *_OUTCOMES, "killed of covered")]
    for group in (*groups, None):
        counts = Counter(
            verdict.result.outcome for verdict in verdicts if group in (None, key(verdict))
        )
        n_killed = counts["killed"] + counts["timed out"]
        n_covered = n_killed + counts["survived"]
        share = f"{n_killed / n_covered:.0%}" if n_covered else ""
        numbers = [str(counts[outcome] or "") for outcome in _OUTCOMES]
        rows.append((group or "all", str(counts.total()), *numbers, share))
    return align(rows)


def _to_json(
    verdicts: Sequence[Verdict], options: argparse.Namespace, tests: Sequence[str], seconds: float
) -> str:
    rows = [
        {
            "path": verdict.mutant.path,
            "line": verdict.mutant.line,
            "kind": verdict.mutant.kind,
            "before": verdict.mutant.before,
            "after": verdict.mutant.after,
            "outcome": verdict.result.outcome,
            "failed": verdict.result.failed,
            "tests": verdict.n_tests,
            "seconds": round(verdict.result.seconds, 2),
        }
        for verdict in verdicts
    ]
    head = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "package": options.package,
        "seed": options.seed,
        "allowance": options.allowance,
        "tests": tests,
        "seconds": round(seconds, 1),
    }
    return json.dumps({**head, "mutants": rows}, indent=1) + "\n"


if __name__ == "__main__":
    main()
