"""Logs of Inspect: what a reader of them finds in the file."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

import rath
from rath import eval as ev
from rath import flow
from rath.eval.dataset import Example
from rath.session import Session
from rath.testing import ScriptedClient, Turn, tool_call


@rath.tool
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} is a word"


def fragile(example: Example, session: Session) -> float:
    if example.key == "a/b":
        raise ValueError("no luck")
    return 0.5


@pytest.fixture
def done(tmp_path: Path) -> ev.Evaluation:
    turns: list[Turn] = [tool_call("look_up", {"word": "x"}, id="c1"), "Paris", "Tokyo"]
    agent = flow.Agent("p", ScriptedClient(turns).provider, tools=[look_up], system_tools=False)
    rows = [
        {"id": "fr", "input": "France", "expected": "Paris"},
        {"id": "a/b", "input": "Japan", "expected": "Kyoto"},
    ]
    return ev.evaluate(
        agent,
        rows,
        [ev.Exact(), fragile],
        job="capitals",
        store=f"files://{tmp_path / 'store'}",
        concurrency=1,
        progress=False,
    )


def read(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        return {name: json.loads(archive.read(name)) for name in archive.namelist()}


def test_a_log_holds_messages_scores_and_errors(done: ev.Evaluation, tmp_path: Path) -> None:
    files = read(ev.export_inspect(done, tmp_path / "log.eval"))
    header = files["header.json"]
    assert (header["version"], header["status"], header["eval"]["task"]) == (
        2,
        "success",
        "capitals",
    )
    assert header["eval"]["dataset"]["sample_ids"] == ["fr", "a/b"]
    exact, other = header["results"]["scores"]
    assert exact["metrics"]["mean"]["value"] == 0.5
    assert (other["scored_samples"], other["unscored_samples"]) == (1, 1)
    first, second = files["samples/fr_epoch_1.json"], files["samples/a%2Fb_epoch_1.json"]
    assert [each["role"] for each in first["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert first["messages"][1]["tool_calls"][0]["arguments"] == {"word": "x"}
    assert first["messages"][2]["tool_call_id"] == "c1"
    assert (first["input"], first["target"]) == ("France", "Paris")
    assert first["scores"]["exact"]["value"] == 1.0
    assert second["error"]["message"] == "ValueError: no luck"
    assert list(second["scores"]) == ["exact"]
    usage = header["stats"]["model_usage"]["scripted"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0
    assert [each["id"] for each in files["summaries.json"]] == ["fr", "a/b"]


def test_a_stored_evaluation_is_exported_with_what_was_expected(
    done: ev.Evaluation, tmp_path: Path
) -> None:
    loaded = ev.load_evaluation("capitals", done.store)
    sample = read(ev.export_inspect(loaded, tmp_path / "log.eval"))["samples/fr_epoch_1.json"]
    assert (sample["target"], sample["output"]["completion"]) == ("Paris", "Paris")


def test_a_wrong_name_is_refused(done: ev.Evaluation, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ends in \.eval"):
        ev.export_inspect(done, tmp_path / "log.json")
