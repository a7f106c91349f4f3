"""`rath eval`: a workflow on a dataset, its scores, and a gate against an earlier evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rath.cli.render import money, one_line, say_table
from rath.cli.runs import load_object, program_errors
from rath.cli.stores import StoreUrl, use_store
from rath.cli.terminal import AsJson, CommandError, Misuse, misuse_on, note, say, say_json
from rath.eval.evaluation import Evaluation, Suite, load_evaluation
from rath.eval.inspect_log import export_inspect
from rath.eval.page import write_page
from rath.eval.report import Comparison, Report, ScoreSummary
from rath.flow import Workflow

_MAX_WORSE = 5


def run_evaluation(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE:SUITE]",
            help="A rath.eval.Suite: `checks.py` for its `suite`, or `checks:suite`. Without it "
            "the stored evaluation of --job is shown.",
        ),
    ] = None,
    job: Annotated[
        str | None, typer.Option("--job", metavar="JOB", help="Name of the evaluation.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", metavar="JOB", help="Compare with this evaluation."),
    ] = None,
    gate: Annotated[
        list[str] | None,
        typer.Option(
            "--gate",
            metavar="NAME=NUMBER",
            help="Exit 1 unless it holds: max_regression=0.02 of each mean, or min_score=0.8.",
        ),
    ] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="URL", help="Where the runs are carried out.")
    ] = None,
    inspect: Annotated[
        Path | None,
        typer.Option("--inspect", metavar="FILE.eval", help="Write a log for Inspect as well."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page of it as well.")
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            "--beside", metavar="JOB", help="Show this evaluation on the page, too. Repeatable."
        ),
    ] = None,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a workflow on a dataset, and compare with an earlier result.

    The exit status is 1 where a gate does not hold.
    """
    gates = dict(_gate(each) for each in gate or ())
    if beside and html is None:
        raise Misuse("--beside JOB needs --html FILE, the page on which it is shown")
    if "max_regression" in gates and baseline is None:
        raise Misuse("--gate max_regression needs --baseline JOB, with which it is compared")
    with use_store(store_url) as store:
        if file is None:
            if job is None:
                raise Misuse("name a FILE to evaluate, or a stored evaluation with --job")
            done = load_evaluation(job, store)
        else:
            suite = _suite(file)
            with program_errors(file):
                done = suite.run(job=job, store=store, engine=engine)
        if inspect is not None:
            try:
                with misuse_on(ValueError):
                    export_inspect(done, inspect)
            except OSError as exc:
                raise CommandError(f"{str(inspect)!r} cannot be written: {exc.strerror}") from exc
        before = None if baseline is None else load_evaluation(baseline, store)
        if html is not None:
            others = [load_evaluation(each, store) for each in beside or ()]
            try:
                write_page(done, html, [*others, *([] if before is None else [before])])
            except OSError as exc:
                raise CommandError(
                    f"the page {str(html)!r} cannot be written: {exc.strerror}"
                ) from exc
    changes = () if before is None else done.compare(before)
    report = done.report()
    problems = _problems(report, changes, gates)
    if as_json:
        say_json(_in_json(report, changes, problems))
    else:
        _show(done, report, changes)
    if problems:
        raise CommandError("; ".join(problems))


def _gate(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        if name in ("max_regression", "min_score") and 0 <= float(number) <= 1:
            return name, float(number)
    except ValueError:
        pass
    raise Misuse(
        f"--gate {text!r}: expected max_regression=NUMBER or min_score=NUMBER, from 0 to 1"
    )


def _suite(file: str) -> Suite:
    """Return the suite that a file or a module has.

    Raises:
        Misuse: There is none.
    """
    name = file if ":" in Path(file).name else f"{file}:suite"
    found = load_object(name, "suite; expected FILE or MODULE:ATTRIBUTE, such as checks.py")
    if callable(found) and not isinstance(found, Suite | Workflow):
        with program_errors(name):
            found = found()
    if not isinstance(found, Suite):
        raise Misuse(
            f"{name!r} is of type {type(found).__name__}; expected a rath.eval.Suite "
            "of a workflow, a dataset and scorers"
        )
    return found


def _problems(
    report: Report, changes: tuple[Comparison, ...], gates: dict[str, float]
) -> list[str]:
    """Return which gates do not hold, in words; none holds where scores are missing."""
    problems: list[str] = []
    if gates and report.n_failed:
        problems.append(f"{report.n_failed} of {report.n_runs} runs have failed")
    if gates:
        problems += [
            f"{each.scorer} raised {each.n_errors} times instead of giving a score"
            for each in report.scores
            if each.n_errors
        ]
    most = gates.get("max_regression")
    if most is not None:
        compared = {each.scorer for each in changes}
        problems += [
            f"{each.scorer} fell from {each.before:.3f} to {each.after:.3f}, by more than {most:g}"
            for each in changes
            if each.is_regression(most)
        ]
        problems += [
            f"{each.scorer} cannot be compared: the baseline has no score of the same examples"
            for each in report.scores
            if each.scorer not in compared
        ]
    least = gates.get("min_score")
    if least is not None:
        problems += [
            f"{each.scorer} is {_number(each.mean)}, below {least:g}"
            for each in report.scores
            if each.mean is None or each.mean < least
        ]
    return problems


def _number(value: float | None) -> str:
    return "not known" if value is None else f"{value:.3f}"


def _in_json(
    report: Report, changes: tuple[Comparison, ...], problems: list[str]
) -> dict[str, Any]:
    compared = [
        {
            "scorer": each.scorer,
            "before": each.before,
            "after": each.after,
            "change": each.change,
            "n_examples": each.n_examples,
            "worse": list(each.worse),
        }
        for each in changes
    ]
    return {**report.to_json(), "compared": compared, "gates_failed": problems}


def _show(done: Evaluation, report: Report, changes: tuple[Comparison, ...]) -> None:
    say(
        f"{report.job}: {report.n_examples} examples, {report.n_runs} runs, "
        f"{report.n_failed} failed"
    )
    say(f"{report.tokens:,} tokens, {money(report.usd)}, {report.seconds:.1f} s of runs")
    say_table(
        [[each.scorer, *_cells(each)] for each in report.scores],
        ["bold", "right", "dim", "", "right"],
    )
    for each in changes:
        say(
            f"{each.scorer}: {each.before:.3f} before, {each.after:.3f} now "
            f"({each.change:+.3f}, {each.n_examples} examples)"
        )
        if each.worse:
            say(f"  worse: {', '.join(each.worse[:_MAX_WORSE])}")
    for item in done.worst(_MAX_WORSE):
        if item.value is not None and item.value < 1:
            say(f"{item.scorer} {item.value:.2f}  {item.key}  {item.session}")
            say(f"  {one_line(item.reasons)}")
    for error in report.first_errors:
        note(one_line(error))


def _cells(each: ScoreSummary) -> list[str]:
    interval = "" if each.low is None else f"{each.low:.3f} to {each.high:.3f}"
    passes = ", ".join(f"pass@{k} {value:.3f}" for k, value in each.pass_at.items())
    errors = f", {each.n_errors} errors" if each.n_errors else ""
    return [_number(each.mean), interval, passes, f"{each.n_scores} scores{errors}"]
