"""`rath profile`: a stored session or job, as a table, JSON, a trace and a page."""

from __future__ import annotations

import json
from pathlib import Path

from rath import flow
from rath.testing import ScriptedClient, tool_call
from tests.cli.conftest import Rath
from tests.support.sessions import FunctionTool, run


def test_a_session_is_profiled_by_module_path(rath: Rath) -> None:
    tool = FunctionTool("look", lambda *_: "x")
    out = run([tool_call("look", {}), "done"], tool, persist=True).synchronize()
    rath("profile", str(out.id)[:8], ends=0, out=("module", "loop", "first token", "all"))
    told = json.loads(rath("profile", str(out.id), "--json", ends=0).stdout)
    assert [(row["key"], row["model_calls"], row["tool_calls"]) for row in told["path"]] == [
        ("loop", 2, 1)
    ]
    assert [row["key"] for row in told["tool"]] == ["look"]


def test_a_trace_and_a_page_are_written(rath: Rath, project: Path) -> None:
    out = run(["done"], persist=True).synchronize()
    rath("profile", str(out.id), "--trace", "t.json", "--html", "p.html", ends=0, err="t.json")
    assert json.loads((project / "t.json").read_text())["traceEvents"]
    assert "Profile of session" in (project / "p.html").read_text()
    rath("profile", str(out.id), "--trace", "no/t.json", ends=1, err="cannot be written")


def test_a_job_is_the_sum_of_its_items(rath: Rath) -> None:
    agent = flow.Agent("Go.", ScriptedClient(["a", "b", "c"]).provider, system_tools=False)
    flow.map(agent, "xyz", job="nightly", concurrency=1).synchronize()
    (row,) = json.loads(rath("profile nightly --json", ends=0).stdout)["path"]
    assert (row["key"], row["calls"], row["model_calls"]) == ("Agent", 3, 3)


def test_wrong_names_are_named(rath: Rath) -> None:
    rath("profile 0000aaaa", ends=1, err="no session")
    out = run(["done"], persist=True).synchronize()
    rath("profile", str(out.id), "--sort", "cpu", ends=2, err="sort_by must be one of wall")
