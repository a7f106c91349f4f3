"""Many at once, deep inside each other, and all of them come to an end."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from rath.session import Session
from rath.testing import tool_call
from tests.support.sessions import FunctionTool, run
from tests.support.waiting import PATIENCE


def test_200_parallel_built_in_calls_in_one_round(tmp_path: Path) -> None:
    user = Session.from_user_message("go").to("local", spec=str(tmp_path))
    calls = [
        tool_call("write_workspace_file", {"path": f"{index}.txt", "content": str(index)})
        for index in range(200)
    ]
    out = run([tool_call("run_shell_command", {"cmd": "true"}, *calls), "done"], user=user,
              system_tools=True)  # fmt: skip
    assert out.text() == "done"
    assert len(out.chunk_table) == 204
    assert len(list(tmp_path.iterdir())) == 200


def test_tools_that_wait_for_each_other_in_one_round() -> None:
    barrier = threading.Barrier(50)

    def meet(*_: object) -> int:
        return barrier.wait(PATIENCE)

    tools = [FunctionTool(f"meet{index}", meet, parallel_safe=True) for index in range(50)]
    calls = [tool_call(tool.name) for tool in tools]
    out = run([tool_call(tools[0].name, "", *calls[1:]), "done"], *tools)
    results = sorted(int(row.payload["content"]) for row in list(out.chunk_table)[2:52])
    assert results == list(range(50))


@pytest.mark.parametrize("depth", [1, 3, 8])
def test_agents_inside_tools_at_any_depth(depth: int) -> None:
    def level(left: int) -> Any:
        def call(session: Session, _: object) -> str | None:
            if left == 0:
                return "bottom"
            tool = FunctionTool("down", level(left - 1))
            return run([tool_call("down"), f"level {left}"], tool, user=session).text()

        return call

    out = run([tool_call("down"), "top"], FunctionTool("down", level(depth)))
    assert out.chunk_table[2].payload["content"] == f'"level {depth}"'
    assert out.text() == "top"


def test_200_pending_sessions_chained() -> None:
    session = Session.from_user_message("go")
    for index in range(200):
        session = run([str(index)], user=session)
    assert session.text() == "199"
    assert len(session.chunk_table) == 201


def test_200_pending_branches_merged() -> None:
    root = Session.from_user_message("go")
    branches = [run([str(index)], user=root.fork()) for index in range(200)]
    merged = branches[0]
    for branch in branches[1:]:
        merged = merged.merge(branch)
    assert len(merged.chunk_table) == 201
    texts = [row.payload["content"] for row in list(merged.chunk_table)[1:]]
    assert texts == [str(index) for index in range(200)]


def test_a_callback_that_reads_its_own_session_does_not_hang() -> None:
    seen: list[str] = []
    sessions: list[Session] = []
    ready = threading.Event()

    def on_event(_: object) -> None:
        ready.wait(PATIENCE)
        try:
            sessions[0].text()
        except RuntimeError as exc:
            seen.append(str(exc))

    sessions.append(run(["hello"], on_event=on_event))
    ready.set()
    assert sessions[0].text() == "hello"
    assert "partial_table" in seen[0]


def test_many_threads_may_read_one_session() -> None:
    out = run(["done"])
    texts: list[str | None] = []
    threads = [threading.Thread(target=lambda: texts.append(out.text())) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert texts == ["done"] * 30


def test_parallel_first_use_opens_one_sandbox() -> None:
    user = Session.from_user_message("go").to("local")
    outs = [
        run([tool_call("run_shell_command", {"cmd": "pwd"}), "x"], user=user, system_tools=True)
        for _ in range(20)
    ]
    places = {json.loads(out.chunk_table[2].payload["content"])["stdout"] for out in outs}
    assert len(places) == 1
