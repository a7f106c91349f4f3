"""Logs that Inspect itself reads, and scorers and evaluators that are the real ones."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
VERSION = "0.3.285"
NEEDED = (f"inspect-ai=={VERSION}", "pydantic-evals")

PROGRAM = """
import json, sys
from inspect_ai.dataset import Sample
from inspect_ai.log import read_eval_log, read_eval_log_sample, read_eval_log_sample_summaries
from inspect_ai.scorer import includes, match
from pydantic_evals import Case, Dataset as Cases
from pydantic_evals.evaluators import EqualsExpected

from rath import flow
from rath.eval import evaluate, export_inspect
from rath.testing import ScriptedClient

store, target = sys.argv[1:]

def agent(*script):
    return flow.Agent("You answer.", ScriptedClient(script).provider, system_tools=False)

samples = [Sample(id="a", input="2+2?", target="4"), Sample(id=7, input="x", target="y")]
done = evaluate(agent("it is 4", "z", "4", "y"), samples, [match(), includes()], epochs=2,
                store=store, job="inspect", concurrency=1)
path = export_inspect(done, target)
log = read_eval_log(str(path))
one = read_eval_log_sample(str(path), id="a", epoch=1)
summaries = read_eval_log_sample_summaries(str(path))

cases = Cases(name="cases", cases=[
    Case(name="x", inputs="2+2?", expected_output="4"),
    Case(name="y", inputs="3+3?", expected_output="6"),
], evaluators=[EqualsExpected()])
of_cases = evaluate(agent("4", "seven"), cases, store=store, job="cases", concurrency=1)

json.dump({
    "status": log.status,
    "samples": [(s.id, s.epoch, {n: v.value for n, v in s.scores.items()}) for s in log.samples],
    "metrics": {s.name: s.metrics["mean"].value for s in log.results.scores},
    "messages": [type(m).__name__ for m in one.messages],
    "completion": one.output.completion,
    "summaries": len(summaries),
    "cases": {item.key: {item.scorer: item.value} for item in of_cases.items},
}, sys.stdout)
"""


def environment() -> Path:
    """The Python of an environment with Inspect, outside of the clone; made where CI may."""
    named = os.environ.get("RATH_INSPECT_ENV")
    cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    folder = Path(named or Path(cache) / "rath-tests" / f"inspect-{VERSION}")
    python, is_complete = folder / "bin" / "python", folder / "complete"
    if named is not None or is_complete.exists():
        return python
    if os.environ.get("CI") != "true":
        pytest.skip("Inspect is installed where CI=true; or name an environment: RATH_INSPECT_ENV")
    venv.create(folder, with_pip=True, clear=True)
    install = [str(python), "-m", "pip", "install", "--quiet", *NEEDED, str(ROOT)]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"Inspect cannot be installed: {done.stderr[-300:]}")
    is_complete.touch()
    return python


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What Inspect reads in a log, and what its scorers and those of pydantic-evals gave."""
    folder = tmp_path_factory.mktemp("inspect")
    program = folder / "program.py"
    program.write_text(PROGRAM, "utf-8")
    command = [str(environment()), str(program), str(folder / "store"), str(folder / "run.eval")]
    # The tree of today, and not the one that was installed.
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "INSPECT_LOG_DIR": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_inspect_reads_the_log(told: Any) -> None:
    assert told["status"] == "success"
    samples: list[list[Any]] = told["samples"]
    assert sorted(samples, key=lambda each: (each[1], each[0])) == [
        ["7", 1, {"match": 0, "includes": 0}],
        ["a", 1, {"match": 1, "includes": 1}],
        ["7", 2, {"match": 1, "includes": 1}],
        ["a", 2, {"match": 1, "includes": 1}],
    ]
    assert told["metrics"] == {"match": 0.75, "includes": 0.75}
    assert told["messages"] == ["ChatMessageUser", "ChatMessageAssistant"]
    assert (told["completion"], told["summaries"]) == ("it is 4", 4)


def test_cases_and_evaluators_of_pydantic_evals_are_taken(told: Any) -> None:
    assert told["cases"] == {
        "x": {"EqualsExpected": 1},
        "y": {"EqualsExpected": 0},
    }
