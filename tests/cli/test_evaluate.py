"""`rath eval`: a suite of a file, the stored evaluation, and gates against an earlier one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rath.cli.app import app

SUITE = """
from rath import flow
from rath.eval import Exact, Suite
from rath.testing import ScriptedClient

ANSWERS = dict(zip(["France", "Japan"], {answers!r}))


def answer(request):
    return ANSWERS[request.messages[-1].content]


agent = flow.Agent("p", ScriptedClient([answer] * 4).provider, system_tools=False)
rows = [{{"id": "fr", "input": "France", "expected": "Paris"}},
        {{"id": "jp", "input": "Japan", "expected": "Tokyo"}}]
suite = Suite(agent, rows[:{n_rows}], Exact())
"""


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["eval", *args])


def write_suite(folder: Path, name: str, *answers: str, n_rows: int = 2) -> str:
    path = folder / f"{name}.py"
    path.write_text(SUITE.format(answers=list(answers), n_rows=n_rows))
    return str(path)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"files://{tmp_path / 'store'}"


def test_a_suite_is_evaluated_and_shown_again(tmp_path: Path, store: str) -> None:
    file = write_suite(tmp_path, "suite_shown", "Paris", "Paris")
    done = run(file, "--job", "one", "--store", store)
    assert done.exit_code == 0, done.output
    assert "0.500" in done.output
    again = json.loads(run("--job", "one", "--store", store, "--json").output)
    assert again["scores"][0]["mean"] == 0.5
    assert run("--job", "none", "--store", store).exit_code == 1


def test_a_regression_ends_with_1(tmp_path: Path, store: str) -> None:
    run(write_suite(tmp_path, "suite_good", "Paris", "Tokyo"), "--job", "good", "--store", store)
    worse = write_suite(tmp_path, "suite_worse", "Paris", "Rome")
    options = ("--baseline", "good", "--store", store)
    done = run(worse, "--job", "worse", *options, "--gate", "max_regression=0.02")
    assert done.exit_code == 1
    assert "exact fell from 1.000 to 0.500" in done.stderr
    assert run("--job", "worse", *options, "--gate", "max_regression=0.6").exit_code == 0
    assert run("--job", "worse", *options).exit_code == 0, "without a gate it is only shown"
    low = run("--job", "worse", "--store", store, "--gate", "min_score=0.8")
    assert low.exit_code == 1
    assert "exact is 0.500, below 0.8" in low.stderr


def test_a_baseline_of_other_examples_is_no_pass(tmp_path: Path, store: str) -> None:
    run(write_suite(tmp_path, "suite_a", "Paris", n_rows=1), "--job", "a", "--store", store)
    file = tmp_path / "suite_b.py"
    file.write_text(
        Path(write_suite(tmp_path, "suite_b", "", "Tokyo")).read_text() + "\n"
        "suite = Suite(agent, rows[1:], Exact())\n"
    )
    done = run(
        str(file), "--job", "b", "--baseline", "a", "--store", store, "--gate", "max_regression=0"
    )
    assert done.exit_code == 1
    assert "cannot be compared" in done.stderr


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ((), "name a FILE"),
        (("nothing.py",), "no file"),
        (("--job", "x", "--gate", "min_score=high"), "expected max_regression=NUMBER"),
        (("--job", "x", "--gate", "max_regression=0.1"), "needs --baseline"),
    ],
)
def test_a_wrong_call_is_told(args: tuple[str, ...], problem: str) -> None:
    done = run(*args)
    assert done.exit_code == 2
    assert problem in done.stderr


@pytest.mark.parametrize(
    ("made", "kind"), [("3", "int"), ("rath.Agent('You answer.', rath.Provider())", "Agent")]
)
def test_an_object_that_is_no_suite_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str, kind: str
) -> None:
    file = tmp_path / "suite_none.py"
    file.write_text(f"import rath\nsuite = {made}\n")
    monkeypatch.delitem(sys.modules, "suite_none", raising=False)
    done = run(str(file))
    assert done.exit_code == 2
    assert f"is of type {kind}; expected a rath.eval.Suite" in done.stderr


def test_a_page_shows_an_evaluation_beside_another(tmp_path: Path, store: str) -> None:
    first = write_suite(tmp_path, "suite_before", "Paris", "Paris")
    assert run(first, "--job", "before", "--store", store).exit_code == 0
    second = write_suite(tmp_path, "suite_after", "Paris", "Tokyo")
    assert run(second, "--job", "after", "--store", store).exit_code == 0
    page = tmp_path / "page.html"
    options = ("--job", "after", "--store", store, "--beside", "before")
    assert run(*options, "--html", str(page)).exit_code == 0
    text = page.read_text("utf-8")
    assert "Evaluation after" in text
    assert '"name": "before"' in text
    assert '"target": "Tokyo"' in text
    unwritable = run(*options, "--html", str(tmp_path / "no" / "page.html"))
    assert (unwritable.exit_code, "cannot be written" in unwritable.output) == (1, True)
    assert run(*options).exit_code == 2


@pytest.mark.parametrize(
    ("last_line", "problem"),
    [
        ("agent = flow.Agent('p', ScriptedClient([]).provider, system_tools=False)", "2 runs have"),
        ("scorers = [Exact(), lambda row, session: 1 / (row.key == 'fr')]", "raised 1 time"),
    ],
    ids=["runs", "scorers"],
)
@pytest.mark.parametrize("gate", ["min_score=0", "max_regression=1"])
def test_no_gate_holds_where_scores_are_missing(
    tmp_path: Path, store: str, last_line: str, problem: str, gate: str
) -> None:
    whole = write_suite(tmp_path, f"a_{tmp_path.name}", "Paris", "Tokyo")
    run(whole, "--job", "a", "--store", store)
    file = Path(write_suite(tmp_path, f"b_{tmp_path.name}", "Paris", "Tokyo"))
    lines = f"scorers = Exact()\n{last_line}\nsuite = Suite(agent, rows, scorers)\n"
    file.write_text(file.read_text() + lines)
    options = ("--job", "b", "--baseline", "a", "--store", store)
    done = run(str(file), *options, "--gate", gate)
    assert done.exit_code == 1
    assert problem in done.stderr
    assert run("--job", "b", *options[2:]).exit_code == 0, "without a gate it is only shown"


def test_a_log_that_cannot_be_written_is_told(tmp_path: Path, store: str) -> None:
    file = write_suite(tmp_path, "suite_log", "Paris", "Tokyo")
    done = run(file, "--job", "a", "--store", store, "--inspect", str(tmp_path / "no" / "a.eval"))
    assert done.exit_code == 1
    assert "a.eval' cannot be written: No such file" in done.stderr
