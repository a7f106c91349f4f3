"""A run as JSON, its history, and what became slower."""

import json
from pathlib import Path

import pytest

from benchmarks.report import Document, append_history, document, read_history, regressions
from benchmarks.table import AtLeast, Line, Reference, Row, Target


def run(
    commit: str,
    ours: float,
    *,
    theirs: float | None = None,
    target: Target | None = None,
    others: float = 0.0,
    sizes: str = "full",
) -> Document:
    """A run of one row."""
    reference = None if theirs is None else Reference("by hand", theirs)
    row = Row("loop", Line("the row", ours, "s", reference, target), others)
    return document([row], sizes, []) | {"commit": commit}


def test_document_is_json_and_names_what_figures_depend_on() -> None:
    made = json.loads(json.dumps(run("new", 1.0, theirs=2.0)))
    assert {"commit", "machine", "sizes", "rows"} <= made.keys()
    [row] = made["rows"]
    assert (row["value"], row["unit"], row["ratio"]) == (1.0, "s", 0.5)
    assert row["reference"] == {"name": "by hand", "value": 2.0}


def test_history_gives_back_every_run_in_order(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "history.jsonl"
    assert read_history(path) == []
    runs = [run("old", 1.0), run("new", 2.0)]
    for each in runs:
        append_history(path, each)
    assert read_history(path) == runs


def test_line_that_was_cut_off_costs_no_other_run(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    append_history(path, run("old", 1.0))
    with path.open("a") as file:
        file.write('{"commit": "cut\n')
    append_history(path, run("new", 2.0))
    assert [each["commit"] for each in read_history(path)] == ["old", "new"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(run("old", 1.0), run("new", 1.2), id="value"),
        pytest.param(run("old", 1.0, theirs=1.0), run("new", 1.0, theirs=0.8), id="ratio"),
        pytest.param(
            run("old", 100.0, target=AtLeast(1)), run("new", 80.0, target=AtLeast(1)), id="rate"
        ),
    ],
)
def test_row_that_is_worse_by_more_than_a_tenth_is_named(old: Document, new: Document) -> None:
    [text] = regressions(new, [old])
    assert text.startswith("the row: ")
    assert "since old" in text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(run("old", 1.0), run("new", 1.05), id="by less than a tenth"),
        pytest.param(run("old", 1.0), run("new", 0.5), id="better"),
        pytest.param(
            run("old", 1.0, theirs=1.0), run("new", 2.0, theirs=2.0), id="the reference too"
        ),
        pytest.param(run("new", 1.0), run("new", 2.0), id="the same commit"),
        pytest.param(run("old", 1.0, sizes="small"), run("new", 2.0), id="other sizes"),
        pytest.param(run("old", 1.0, others=0.5), run("new", 2.0), id="busy then"),
        pytest.param(run("old", 1.0), run("new", 2.0, others=0.5), id="busy now"),
        pytest.param(
            {**run("old", 1.0), "machine": "another"}, run("new", 2.0), id="another machine"
        ),
    ],
)
def test_row_that_is_not_comparably_worse_is_not_named(old: Document, new: Document) -> None:
    assert regressions(new, [old]) == []


def test_row_is_compared_with_the_last_other_commit_that_measured_it() -> None:
    other = document([Row("rows", Line("another", 1.0, "s"))], "full", []) | {"commit": "last"}
    history = [run("first", 5.0), run("second", 1.0), other]
    [text] = regressions(run("new", 2.0), history)
    assert "since second" in text
