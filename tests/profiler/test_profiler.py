"""A profile says where time, tokens and money went, live and from the store alike."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from rath import profiler
from rath.flow import Agent, Workflow
from rath.session import Session
from rath.session.record import Decision, Interrupt
from rath.testing import ScriptedClient, tool_call
from tests.support.approvals import Noting, calls_of
from tests.support.sessions import FunctionTool, entries_of, run
from tests.support.waiting import PATIENCE


def agent(*script: Any, tools: tuple[FunctionTool, ...] = ()) -> Agent:
    return Agent("be good", ScriptedClient(script).provider, list(tools), system_tools=False)


class Team(Workflow):
    """A helper with a tool that asks an agent, and a writer after it."""

    def __init__(self) -> None:
        sub = agent("inner")

        def answer(session: Session, _: object) -> str | None:
            return sub(session).text()

        ask = FunctionTool("ask", answer)
        self.helper = agent(tool_call("ask", {}), "helped", tools=(ask,))
        self.writer = agent("written")

    def forward(self, session: Session) -> Session:
        return self.writer(self.helper(session))


def by_key(made: profiler.Profile) -> dict[str, profiler.KeyAverage]:
    return {row.key: row for row in made.key_averages()}


def test_time_is_told_by_module_path() -> None:
    with profiler.profile() as made:
        Team()(Session.from_user_message("go")).synchronize()
    rows = by_key(made)
    assert {key: (row.calls, row.model_calls, row.tool_calls) for key, row in rows.items()} == {
        "Team": (1, 0, 0),
        "Team.helper": (1, 2, 1),
        "Team.helper.ask().Agent": (1, 1, 0),
        "Team.writer": (1, 1, 0),
    }
    assert all(row.tokens > 0 for row in rows.values() if row.model_calls)


def test_one_session_is_no_list_of_sessions() -> None:
    with pytest.raises(TypeError, match=r"write \[session\]"):
        profiler.profile_sessions(Session.create("empty"))  # type: ignore[arg-type]  # the point


def test_own_time_is_what_no_part_took() -> None:
    """All own times, models, tools and queues together are the time of the whole."""
    out = Team()(Session.from_user_message("go")).synchronize()
    made = profiler.profile_sessions([out])
    (root,) = [event for event in made.events() if event.kind == "workflow"]
    rows = made.key_averages()
    parts = sum(row.own_ms + row.model_ms + row.tool_ms + row.queue_ms for row in rows)
    assert parts == pytest.approx(root.wall_ms, abs=1.0)


def test_what_ran_at_the_same_time_is_not_taken_from_the_own_time_twice() -> None:
    out = two_at_once()
    events = profiler.profile_sessions([out]).events()
    (whole,) = [event for event in events if event.kind == "run"]
    inner = [event for event in events if event.parent == whole.id]
    left, right = [event for event in inner if event.kind == "tool"]
    assert left.start < right.end
    assert right.start < left.end
    assert whole.own_ms >= whole.wall_ms - sum(event.wall_ms for event in inner) - 0.1
    assert 0 <= whole.own_ms <= whole.wall_ms


def test_a_stored_session_has_the_profile_of_its_run() -> None:
    with profiler.profile() as made:
        out = Team()(Session.from_user_message("go")).synchronize()
    out.save()
    loaded = profiler.profile_sessions([Session.load(out.id)])
    assert loaded.to_json() == made.to_json()


def test_runs_outside_of_the_block_are_not_in_it() -> None:
    before = run(["0"]).synchronize()
    with profiler.profile() as made:
        run(["1"], user=before).synchronize()
    run(["2"]).synchronize()
    assert [event.kind for event in made.events()] == ["run", "model"]


def test_the_table_is_sorted_cut_and_summed() -> None:
    out = Team()(Session.from_user_message("go")).synchronize()
    made = profiler.profile_sessions([out])
    lines = made.table(sort_by="key", row_limit=2).splitlines()
    assert [line.split()[0] for line in lines if not line.startswith("-")] == [
        "module", "Team", "Team.helper", "(2", "all",
    ]  # fmt: skip
    assert str(made) == made.table()
    assert {row.key for row in made.key_averages("tool")} == {"ask"}
    assert sum(row.calls for row in made.key_averages("model")) == 4


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"sort_by": "cpu"}, "sort_by must be one of wall, own"),
        ({"group_by": "shape"}, "group_by must be one of path, model, tool"),
        ({"row_limit": 0}, "row_limit must be at least 1"),
    ],
)
def test_a_wrong_argument_is_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        profiler.Profile().table(**wrong)


def test_an_empty_profile_has_a_table_and_a_trace(tmp_path: Path) -> None:
    made = profiler.Profile()
    assert "all" in made.table()
    made.export_chrome_trace(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"] == []
    made.export_html(tmp_path / "page.html")
    assert "<title>Profile</title>" in (tmp_path / "page.html").read_text()


def test_the_chrome_trace_has_what_perfetto_needs(tmp_path: Path) -> None:
    with profiler.profile() as made:
        Team()(Session.from_user_message("go")).synchronize()
        two_at_once()
    made.export_chrome_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    named = {
        (event["name"], event["pid"], event["tid"])
        for event in trace["traceEvents"]
        if event["ph"] == "M"
    }
    assert len(complete) == len(made.events())
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in complete:
        assert isinstance(event["ts"], int)
        assert event["ts"] >= 0 <= event["dur"]
        assert ("process_name", event["pid"], 0) in named
        assert ("thread_name", event["pid"], event["tid"]) in named
        tracks.setdefault((event["pid"], event["tid"]), []).append(
            (event["ts"], event["ts"] + event["dur"])
        )
    # On one track events nest or follow each other; they never overlap in part.
    for spans in tracks.values():
        for at, (start, end) in enumerate(spans):
            for began, ended in spans[at + 1 :]:
                assert ended <= start or began >= end or start <= began <= ended <= end


def two_at_once() -> Session:
    """A run whose two tool calls wait for each other."""
    both = threading.Barrier(2)
    tool = Noting(work=lambda _: both.wait(PATIENCE), approval="never")
    return run([calls_of(1, 2), "done"], tool).synchronize()


def test_time_spent_waiting_for_somebody_is_not_own_time() -> None:
    waiting = run([calls_of(1), "done"], Noting()).synchronize()
    waiting.approve("c1")
    out = run(["done"], Noting(), user=waiting).synchronize()
    (whole,) = [event for event in profiler.profile_sessions([out]).events() if event.kind == "run"]
    (asked,) = entries_of(out, Interrupt)
    (answered,) = entries_of(out, Decision)
    waited = (answered.at - asked.at).total_seconds() * 1000
    assert whole.own_ms <= whole.wall_ms - waited
