"""Commands run for real, and their streams have the shape and the quirks of the real daemon's."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.support.opensandbox_server.raw import Api, Said
from tests.support.waiting import at_a_deadline


def run(daemon: Api, command: str, **more: Any) -> Said:
    said = daemon("POST", "/command", {"command": command, **more})
    assert said.status == 200, said.body
    return said


def ended(daemon: Api, command_id: str) -> dict[str, Any]:
    """The status of a background command after its end."""
    asked = (daemon("GET", f"/command/status/{command_id}").json() for _ in itertools.count())
    return next(status for status in asked if not status["running"])


def test_success_ends_with_completion(daemon: Api) -> None:
    kinds = [each["type"] for each in run(daemon, "echo a").frames()]
    assert kinds == ["init", "ping", "stdout", "execution_complete"]


def test_failure_ends_with_an_error_and_without_completion(daemon: Api) -> None:
    said = run(daemon, "echo a; exit 3")
    assert [each["type"] for each in said.frames()] == ["init", "ping", "stdout", "error"]
    assert said.error() == {
        "ename": "CommandExecError",
        "evalue": "3",
        "traceback": ["exit status 3"],
    }


@pytest.mark.parametrize(
    ("command", "why"),
    [("kill -9 $$", "signal: killed"), ("kill -SEGV $$", "signal: segmentation fault")],
    ids=["kill", "segv"],
)
def test_a_signal_is_minus_one(daemon: Api, command: str, why: str) -> None:
    error = run(daemon, command).error()
    assert error is not None
    assert (error["evalue"], error["traceback"]) == ("-1", [why])


def test_a_deadline_kills_the_whole_group(daemon: Api) -> None:
    line = "(sleep 100; echo late > /tmp/late) & echo $!; sleep 100"
    said = at_a_deadline(
        lambda deadline: run(daemon, line, timeout=int(1000 * deadline)),
        lambda said: said.texts() != [],
    )
    error = said.error()
    assert error is not None
    assert (error["evalue"], error["traceback"]) == ("-1", ["signal: killed"])
    child = said.texts()[0]
    assert run(daemon, f"kill -0 {child} 2>/dev/null || echo gone").texts() == ["gone"]


def test_output_that_others_hold_open_does_not_hold_up_the_end(daemon: Api) -> None:
    assert run(daemon, "sleep 100 & echo done").texts() == ["done"]


def test_environment_directory_and_input(daemon: Api) -> None:
    daemon("POST", "/directories", {"/work": {"mode": 755}})
    said = run(daemon, "pwd; echo $A; cat; id -u", cwd="/work", envs={"A": "x y"})
    assert said.texts() == ["/work", "x y", "0"]


@pytest.mark.parametrize(
    "body",
    [{}, {"command": ""}, {"command": "pwd", "cwd": "/none"}],
    ids=["none", "empty", "cwd"],
)
def test_a_command_that_cannot_be_is_refused(daemon: Api, body: dict[str, Any]) -> None:
    said = daemon("POST", "/command", body)
    assert (said.status, said.json()["code"]) == (400, "INVALID_REQUEST_BODY")


def test_a_command_too_long_for_the_system_is_an_error_in_the_stream(daemon: Api) -> None:
    error = run(daemon, "true " + "x" * 200_000).error()
    assert error is not None
    assert "argument list too long" in error["evalue"]


def test_much_output_arrives_whole(daemon: Api) -> None:
    said = run(daemon, "seq 20000; seq 20000 >&2")
    expected = [str(n) for n in range(1, 20001)]
    assert said.texts() == expected
    assert said.texts("stderr") == expected


def test_a_background_command_is_told_of_later(daemon: Api) -> None:
    started = run(daemon, "echo out; echo err >&2; exit 4", background=True)
    assert [each["type"] for each in started.frames()] == ["init", "execution_complete"]
    command_id = started.frames()[0]["text"]
    status = ended(daemon, command_id)
    assert (status["exit_code"], status["error"]) == (4, "exit status 4")
    logs = daemon("GET", f"/command/{command_id}/logs?cursor=4")
    assert logs.body == b"err\n"
    assert logs.headers["execd-commands-tail-cursor"] == "8"


def test_a_background_command_cannot_be_interrupted(daemon: Api) -> None:
    started = run(daemon, "sleep 100", background=True)
    command_id = started.frames()[0]["text"]
    assert daemon("DELETE", f"/command?id={command_id}").status == 500
    assert daemon("GET", f"/command/status/{command_id}").json()["running"]


def test_a_session_keeps_variables_and_directory(daemon: Api) -> None:
    session = daemon("POST", "/session", {"cwd": "/tmp"}).json()["session_id"]
    path = f"/session/{session}/run"
    daemon("POST", path, {"command": "export Q='a b'; mkdir -p in; cd in; exit 3"})
    assert daemon("POST", path, {"command": "echo $Q; pwd"}).texts() == ["a b", "/tmp/in"]


def test_a_session_can_be_made_without_a_body(daemon: Api) -> None:
    session = daemon("POST", "/session").json()["session_id"]
    assert daemon("POST", f"/session/{session}/run", {"command": "pwd"}).texts() == ["/"]


def test_an_unknown_session_is_refused(daemon: Api) -> None:
    assert daemon("POST", "/session/none/run", {"command": "pwd"}).status == 500
    assert daemon("DELETE", "/session/none").status == 404


def test_commands_run_side_by_side(daemon: Api) -> None:
    waiting = run(daemon, "until [ -e /tmp/go ]; do sleep 0.01; done; echo on", background=True)
    assert run(daemon, "touch /tmp/go; echo first").texts() == ["first"]
    command_id = waiting.frames()[0]["text"]
    assert ended(daemon, command_id)["exit_code"] == 0
