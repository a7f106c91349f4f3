"""Evaluations: scores in the record, served again, scored anew, errors, datasets, and the gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid5

import pytest
from pydantic import BaseModel

import rath
from rath import eval as ev
from rath import flow
from rath.errors import JobError
from rath.eval.dataset import Example
from rath.llm.chat_request import RathLLMChatRequest
from rath.session import Session
from rath.testing import ScriptedClient

CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Kenya": "Nairobi"}
ROWS: list[dict[str, Any]] = [
    {"id": "fr", "input": "France", "expected": "Paris", "tags": ["europe"]},
    {"id": "jp", "input": "Japan", "expected": "Tokyo"},
    {"id": "ke", "input": "Kenya", "expected": "Mombasa"},
]


def answer(request: RathLLMChatRequest) -> str:
    return CAPITALS[str(request.messages[-1].content)]


class World:
    """A workflow, and the store in which it is evaluated."""

    def __init__(self, folder: Path, turn: Any = answer) -> None:
        self.model = ScriptedClient([turn] * 50)
        self.agent = flow.Agent("p", self.model.provider, system_tools=False)
        self.store = f"files://{folder}"

    def evaluate(self, scorers: Any, rows: Any = ROWS, **options: Any) -> ev.Evaluation:
        given: dict[str, Any] = {"job": "capitals", "progress": False, **options}
        return ev.evaluate(self.agent, rows, scorers, store=self.store, **given)


def means(evaluation: ev.Evaluation) -> dict[str, float | None]:
    return {each.scorer: each.mean for each in evaluation.report().scores}


def test_scores_stand_in_the_record_of_the_sessions(tmp_path: Path) -> None:
    done = World(tmp_path).evaluate([ev.Exact(), ev.Contains("o", name="has_o")])
    assert means(done) == {"exact": pytest.approx(2 / 3), "has_o": pytest.approx(2 / 3)}
    session = Session.load(done.items[0].session or "", store=done.store)
    found = {each.verdict.name: each for each in session.verdicts}
    assert found["exact"].verdict.passed
    assert not found["exact"].is_stale
    assert not found["has_o"].verdict.passed
    assert session.text() == "Paris"
    assert done.report().scores[0].by_tag == {"europe": 1.0}


def test_an_evaluation_that_is_called_again_asks_nobody(tmp_path: Path) -> None:
    calls: list[str] = []

    def counted(example: Example, session: Session) -> float:
        calls.append(example.key)
        return 0.5

    first = World(tmp_path).evaluate([counted])
    again = World(tmp_path)
    second = again.evaluate([counted])
    assert sorted(calls) == ["fr", "jp", "ke"]
    assert not again.model.requests
    assert second.items == first.items
    assert means(ev.load_evaluation("capitals", first.store)) == means(first)


def test_a_new_scorer_scores_what_is_stored(tmp_path: Path) -> None:
    World(tmp_path).evaluate(ev.Exact())
    again = World(tmp_path)
    done = again.evaluate([ev.Exact(), ev.Regex("^N", name="n")])
    assert not again.model.requests
    assert means(done)["n"] == pytest.approx(1 / 3)
    stored = ev.load_evaluation("capitals", done.store)
    assert means(stored) == means(done)


def test_another_expected_answer_is_scored_anew(tmp_path: Path) -> None:
    World(tmp_path).evaluate(ev.Exact())
    rows = [*ROWS[:2], {**ROWS[2], "expected": "Nairobi"}]
    assert means(World(tmp_path).evaluate(ev.Exact(), rows)) == {"exact": 1.0}


def test_an_error_of_a_scorer_is_told_and_tried_again(tmp_path: Path) -> None:
    broken = [True]

    def fragile(example: Example, session: Session) -> float:
        if broken[0] and example.key == "jp":
            raise ValueError("no luck")
        return 1.0

    report = World(tmp_path).evaluate(fragile).report()
    assert (report.scores[0].mean, report.scores[0].n_errors) == (1.0, 1)
    assert report.first_errors == ("scorer fragile, jp: ValueError: no luck",)
    assert "1 errors" in str(report)
    stored = ev.load_evaluation("capitals", World(tmp_path).store).report()
    assert (stored.scores[0].n_errors, stored.first_errors) == (1, report.first_errors)
    broken[0] = False
    assert World(tmp_path).evaluate(fragile).report().scores[0].n_errors == 0


def test_a_run_that_fails_has_no_score(tmp_path: Path) -> None:
    def fail(request: RathLLMChatRequest) -> str:
        if request.messages[-1].content == "Kenya":
            raise ValueError("no model")
        return answer(request)

    report = World(tmp_path, fail).evaluate(ev.Exact(), retries=0).report()
    assert (report.n_failed, report.scores[0].n_scores, report.scores[0].mean) == (1, 2, 1.0)
    assert "no model" in report.first_errors[0]


def test_epochs_give_pass_at_k(tmp_path: Path) -> None:
    turns = iter(["Paris", "Rome"] * 3)

    def next_turn(request: RathLLMChatRequest) -> str:
        return next(turns)

    world = World(tmp_path, next_turn)
    done = world.evaluate(ev.Exact(), ROWS[:1], epochs=2, concurrency=1)
    (summary,) = done.report().scores
    assert (summary.mean, summary.pass_at) == (0.5, {1: 0.5, 2: 1.0})


def test_scores_survive_export_and_verification(tmp_path: Path) -> None:
    done = World(tmp_path / "store").evaluate(ev.Exact())
    session = Session.load(done.items[0].session or "", store=done.store)
    path = session.save(path=tmp_path / "alone.jsonl")
    assert [each.verdict.name for each in Session.load(path).verdicts] == ["exact"]


def test_a_command_judges_in_the_sandbox(tmp_path: Path) -> None:
    class Writer(flow.Workflow):
        def __init__(self, agent: flow.Agent) -> None:
            self.agent = agent

        def forward(self, session: Session) -> Session:
            return self.agent(session.to("local"))

    world = World(tmp_path)
    done = ev.evaluate(
        Writer(world.agent),
        ROWS[:1],
        [ev.Command("true", name="yes"), ev.Command("echo why; false", name="no")],
        job="commands",
        store=world.store,
        progress=False,
    )
    assert [(each.scorer, each.value) for each in done.items] == [("yes", 1.0), ("no", 0.0)]
    assert done.items[1].reasons == "why\n"


class Question(BaseModel):
    question: str
    answer: str


class Case:
    """Has the members of a case of pydantic-evals."""

    def __init__(self, name: str, inputs: Any, expected_output: Any) -> None:
        self.name, self.inputs, self.expected_output = name, inputs, expected_output
        self.evaluators: list[Any] = []
        self.metadata = None


class Cases:
    """Has the members of a dataset of pydantic-evals."""

    class Equal:
        def evaluate(self, ctx: Any) -> bool:
            return bool(ctx.output == ctx.expected_output)

    def __init__(self) -> None:
        self.cases = [Case("fr", "France", "Paris")]
        self.evaluators: list[Any] = [self.Equal()]


def test_rows_of_many_kinds_are_examples(tmp_path: Path) -> None:
    lines = tmp_path / "rows.jsonl"
    lines.write_text("\n".join(map(json.dumps, ROWS)) + "\n")
    table = tmp_path / "rows.csv"
    table.write_text("id,input,expected\nfr,France,Paris\n")
    assert [each.key for each in ev.read_dataset(lines)] == ["fr", "jp", "ke"]
    assert ev.read_dataset(str(table))[0].expected == "Paris"
    (model,) = ev.read_dataset([Question(question="France", answer="Paris")])
    assert (model.key, model.input, model.expected) == ("0", "France", "Paris")
    (case,) = ev.read_dataset(Cases())
    assert (case.key, case.input, case.expected) == ("fr", "France", "Paris")
    assert ev.read_dataset(["a", "b"])[1].key == "1"
    assert ev.read_dataset([{"input": {"a": 1}}])[0].input == '{"a": 1}'


def test_a_dataset_brings_its_evaluators(tmp_path: Path) -> None:
    assert means(World(tmp_path).evaluate([], Cases())) == {"Equal": 1.0}


class Holds:
    """An evaluator with a setting, as those of pydantic-evals are."""

    def __init__(self, text: str, evaluation_name: str | None = None) -> None:
        self.text, self.evaluation_name = text, evaluation_name

    def evaluate(self, ctx: Any) -> bool:
        return self.text in ctx.output

    def __repr__(self) -> str:
        return f"Holds({self.text!r})"


def test_cases_bring_evaluators_of_their_own(tmp_path: Path) -> None:
    cases = Cases()
    cases.cases = [Case("fr", "France", "Paris"), Case("jp", "Japan", "Tokyo")]
    cases.cases[0].evaluators = [Holds("x"), Holds("P", "initial")]
    cases.cases[1].evaluators = [Holds("y"), Holds("T", "initial")]
    cases.evaluators = [Holds("o"), Holds("a")]
    done = World(tmp_path).evaluate([], cases)
    assert {(each.key, each.scorer, each.value) for each in done.items} == {
        ("fr", "Holds", 0.0),
        ("jp", "Holds", 1.0),
        ("fr", "Holds_2", 1.0),
        ("jp", "Holds_2", 0.0),
        ("fr", "Holds_3", 0.0),
        ("jp", "Holds_3", 1.0),
        ("fr", "initial", 1.0),
        ("jp", "initial", 1.0),
    }


class TookTime:
    """An evaluator that asks how long the run took, and gives several results."""

    def evaluate(self, ctx: Any) -> dict[str, object]:
        return {"took": ctx.duration > 0, "half": {"value": 0.5, "reason": "why"}, "kind": "short"}


def test_several_results_of_an_evaluator_are_their_mean(tmp_path: Path) -> None:
    (item,) = World(tmp_path).evaluate(TookTime(), ROWS[:1]).items
    assert (item.value, item.reasons) == (0.75, "took 1; half 0.5 why; kind: short")


@pytest.mark.parametrize(
    ("rows", "scorers", "problem"),
    [
        ([], ev.Exact(), "dataset is empty"),
        ([{"expected": "x"}], ev.Exact(), "row 0 has no input"),
        ([{"id": 1, "input": "a"}, {"id": 1, "input": "b"}], ev.Exact(), "have the key '1'"),
        (ROWS, [], "needs a scorer"),
        (ROWS, [ev.Exact(), ev.Exact()], "two scorers have the name 'exact'"),
        ("rows.txt", ev.Exact(), "ends in .jsonl or .csv"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    tmp_path: Path, rows: Any, scorers: Any, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        World(tmp_path).evaluate(scorers, rows)


def test_a_line_that_is_no_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for text, problem in (("{", "line 1: no JSON"), ("\n3", "line 2: expected an object")):
        path.write_text(text)
        with pytest.raises(ValueError, match=problem):
            ev.read_dataset(path)
    with pytest.raises(TypeError, match="sequence of rows"):
        ev.read_dataset(3)  # type: ignore[arg-type]  # the point of the test


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("a.csv", b'id,input\n1,"a\n2,b\n', "after line 1: no CSV: unexpected end of data"),
        ("b.csv", b"id,input\n1,a\n2,b,c\n", "line 3: more cells than the first line"),
        ("c.csv", b"id,input\n1,caf\xe9\n", "c.csv is no UTF-8"),
        ("d.jsonl", b"\xff", "d.jsonl is no UTF-8"),
        ("e.jsonl", b"[" * 100_000, "line 1: no JSON"),
    ],
)
def test_a_file_that_is_no_dataset_is_refused(
    tmp_path: Path, name: str, data: bytes, problem: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ValueError, match=problem):
        ev.read_dataset(path)


def test_a_file_of_a_spreadsheet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    text = '\ufeffid,input,expected\r\nfr,"He said ""hi"",\r\nand left",a\r\n'
    path.write_bytes(text.encode())
    (row,) = ev.read_dataset(path)
    assert (row.key, row.input, row.expected) == ("fr", 'He said "hi",\r\nand left', "a")
    lines = tmp_path / "rows.jsonl"
    lines.write_bytes('\ufeff{"input": "x"}\n'.encode())
    assert ev.read_dataset(lines)[0].input == "x"
    with pytest.raises(TypeError, match="tags of row 0 must be texts, not 5"):
        ev.read_dataset([{"input": "x", "tags": 5}])


def test_an_evaluation_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="no job 'nothing'"):
        ev.load_evaluation("nothing", f"files://{tmp_path}")


def test_rath_has_the_package() -> None:
    assert rath.eval.Exact is ev.Exact


def test_a_stored_evaluation_knows_tags_and_expected_answers(tmp_path: Path) -> None:
    store = str(tmp_path)
    rows = [{"input": "2+2?", "expected": 4, "tags": ["sum", "two\nlines"]}, {"input": "Rain?"}]
    agent = flow.Agent("p", ScriptedClient(["4", "wet"]).provider, system_tools=False)
    done = ev.evaluate(agent, rows, [ev.Contains("4")], job="known", store=store)
    again = ev.load_evaluation("known", store)
    assert {(each.tags, each.expected) for each in again.items} == {
        (("sum", "two\nlines"), "4"),
        ((), None),
    }
    assert again.report().scores == done.report().scores


def test_a_stored_evaluation_knows_the_tags_of_rows_that_are_sessions(tmp_path: Path) -> None:
    store = str(tmp_path)
    agent = flow.Agent("p", ScriptedClient(["4"] * 5).provider, system_tools=False)
    asked = Session.from_user_message("2+2?")
    rows = [{"input": asked, "expected": 4, "tags": ["sum"]}]
    done = ev.evaluate(agent, rows, [ev.Contains("4")], job="sessions", store=store)
    stored = Session.load(uuid5(done.runs[0].run, "input"), store=store)
    rows = [{"input": stored, "expected": 5}, {"id": "2", "input": asked, "tags": ["other"]}]
    ev.evaluate(agent, rows, [ev.Contains("4")], epochs=2, job="again", store=store)
    loaded = [ev.load_evaluation(job, store).items for job in ("sessions", "again")]
    assert [sorted((each.tags, str(each.expected)) for each in items) for items in loaded] == [
        [(("sum",), "4")],
        [((), "5"), ((), "5"), (("other",), "None"), (("other",), "None")],
    ]
    assert stored.chunk_table.rows == asked.chunk_table.rows
    assert asked.provenance.extras == ()


def test_a_printed_report_writes_control_characters_out(tmp_path: Path) -> None:
    def hostile(example: Example, session: Session) -> float:
        raise ValueError("\x1b[2Jgone\nerror: forged")

    rows = [{"input": "France", "expected": "Paris"}]
    text = str(World(tmp_path).evaluate(hostile, rows).report())
    assert text.endswith("error: scorer hostile, 0: ValueError: \\x1b[2Jgone\\nerror: forged")
