"""Code runs in contexts that keep their state, and its events are those of the real daemon."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.support.opensandbox_server import OpenSandboxServer
from tests.support.opensandbox_server.raw import Api, Said, ask


def run(daemon: Api, code: str, language: str = "python", context: str | None = None) -> Said:
    wanted = {"language": language} if context is None else {"language": language, "id": context}
    said: Said = daemon("POST", "/code", {"code": code, "context": wanted})
    return said


def create(daemon: Api, language: str = "python", **more: Any) -> str:
    return str(daemon("POST", "/code/context", {"language": language, **more}).json()["id"])


def test_output_then_count_then_value_then_completion(daemon: Api) -> None:
    frames = run(daemon, "x = 41\nprint('hi')\nx + 1").frames()
    assert [each["type"] for each in frames] == [
        "init",
        "ping",
        "stdout",
        "execution_count",
        "result",
        "execution_complete",
    ]
    assert (frames[2]["text"], frames[4]["results"]) == ("hi\n", {"text": "42"})


def test_an_exception_is_an_error_with_the_lines_of_the_code(daemon: Api) -> None:
    said = run(daemon, "x = 1\n1 / 0")
    error = said.error()
    assert error is not None
    assert (error["ename"], error["evalue"]) == ("ZeroDivisionError", "division by zero")
    assert error["traceback"][1] == '  File "<ipython-input-1>", line 2, in <module>'
    assert said.frames()[-1]["type"] == "execution_complete"


@pytest.mark.parametrize(
    ("code", "name"), [("1 +", "SyntaxError"), ("exit(3)", "SystemExit")], ids=["syntax", "exit"]
)
def test_other_failures_are_errors_too(daemon: Api, code: str, name: str) -> None:
    error = run(daemon, code).error()
    assert error is not None
    assert error["ename"] == name


def test_a_language_has_a_context_by_default_that_keeps_its_names(daemon: Api) -> None:
    first = run(daemon, "x = 1").frames()[0]["text"]
    second = run(daemon, "print(x)")
    assert second.frames()[0]["text"] == first
    assert second.texts() == ["1\n"]


def test_contexts_do_not_see_each_other(daemon: Api) -> None:
    one, other = create(daemon), create(daemon)
    run(daemon, "x = 1", context=one)
    error = run(daemon, "x", context=other).error()
    assert error is not None
    assert error["ename"] == "NameError"


def test_a_context_stands_in_its_directory(daemon: Api) -> None:
    context = create(daemon, cwd="/new/place")
    said = run(daemon, "import os; print(os.getcwd())", context=context)
    assert said.texts() == ["/new/place\n"]


def test_errors_of_programs_that_code_starts_come_too(daemon: Api) -> None:
    said = run(daemon, "import os; code = os.system('echo out; echo err >&2')")
    assert (said.texts(), said.texts("stderr")) == (["out\n"], ["err\n"])


def test_the_shell_keeps_its_state_and_has_one_output(daemon: Api) -> None:
    run(daemon, "x=3; cd /tmp; f() { echo f$x; }", "bash")
    said = run(daemon, "f; pwd; echo err >&2", "bash")
    assert "".join(said.texts()) == "f3\n/tmp\nerr\n"


def test_a_failure_of_the_shell_is_an_error_without_a_name(daemon: Api) -> None:
    assert run(daemon, "(exit 4)", "bash").error() == {
        "ename": "",
        "evalue": "4",
        "traceback": [],
    }


@pytest.mark.parametrize(
    ("language", "code"),
    [("bash", "exit 3"), ("python", "import os; os._exit(3)")],
    ids=["bash", "python"],
)
def test_a_context_that_ended_starts_anew(daemon: Api, language: str, code: str) -> None:
    context = create(daemon, language)
    error = run(daemon, code, language, context).error()
    assert error is not None
    assert error["ename"] == "DeadKernelError"
    assert run(daemon, "true" if language == "bash" else "1", language, context).error() is None


@pytest.mark.parametrize(
    ("language", "why"),
    [("go", "no kernel specs found"), ("cobol", "unknown language: cobol")],
)
def test_a_language_that_does_not_run_is_refused(daemon: Api, language: str, why: str) -> None:
    said = run(daemon, "1", language)
    assert (said.status, said.json()["message"]) == (500, f"error running codes {why}")
    assert daemon("POST", "/code/context", {"language": language}).status == 500


def test_an_image_without_the_runtime_runs_no_code(server: OpenSandboxServer, api: Api) -> None:
    asked = {"image": {"uri": "debian:12"}, "timeout": 300}
    path = f"/sandboxes/{api('POST', '/sandboxes', asked).json()['id']}/proxy/44772/code"
    said = ask(server.domain, "POST", path, {"code": "1", "context": {"language": "python"}})
    assert said.status == 500
    assert "not configured" in said.json()["message"]


def test_contexts_are_listed_and_ended(daemon: Api) -> None:
    python, bash = create(daemon), create(daemon, "bash")
    listed = daemon("GET", "/code/contexts?language=python").json()
    assert listed == [{"id": python, "language": "python"}]
    assert daemon("GET", f"/code/contexts/{bash}").json()["language"] == "bash"
    assert daemon("DELETE", f"/code/contexts/{python}").status == 200
    assert daemon("DELETE", "/code/contexts?language=bash").status == 200
    assert daemon("GET", "/code/contexts").json() == []
    assert daemon("DELETE", f"/code/contexts/{python}").status == 404
    assert run(daemon, "1", context=python).status == 500


def test_what_runs_can_be_interrupted_and_nothing_else_runs_beside_it(daemon: Api) -> None:
    context = create(daemon)
    code = "open('/tmp/started', 'w').close()\nwhile True: pass"
    said: list[Said] = []
    running = threading.Thread(target=lambda: said.append(run(daemon, code, context=context)))
    running.start()
    daemon("POST", "/command", {"command": "until [ -e /tmp/started ]; do sleep 0.01; done"})
    busy = run(daemon, "1", context=context)
    assert busy.status == 200
    assert busy.frames()[-1] == {
        "code": "RUNTIME_ERROR",
        "message": "error running codes session is busy",
    }
    assert daemon("DELETE", f"/code?id={context}").status == 200
    running.join()
    error = said[0].error()
    assert error is not None
    assert error["ename"] == "KeyboardInterrupt"


@pytest.mark.parametrize("language", ["python", "bash"])
def test_an_interrupt_of_what_does_not_run_changes_nothing(daemon: Api, language: str) -> None:
    context = create(daemon, language)
    run(daemon, "x=1", language, context)
    assert daemon("DELETE", f"/code?id={context}").status == 200
    show = "print(x)" if language == "python" else "echo $x"
    assert run(daemon, show, language, context).texts() == ["1\n"]


def test_an_interrupt_of_nothing_is_refused(daemon: Api) -> None:
    assert daemon("DELETE", "/code?id=none").status == 500


def test_code_is_needed(daemon: Api) -> None:
    said = daemon("POST", "/code", {"context": {"language": "python"}})
    assert (said.status, said.json()["code"]) == (400, "INVALID_REQUEST_BODY")
