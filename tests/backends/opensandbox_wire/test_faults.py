"""What a test asks to go wrong goes wrong, once, and is written down."""

from __future__ import annotations

import http.client
import threading

import pytest

from tests.support.opensandbox_server import (
    Answer,
    CutStream,
    Delay,
    Drop,
    Gate,
    OpenSandboxServer,
)
from tests.support.opensandbox_server.raw import Api, Said

ASKED = {"image": {"uri": "debian:12"}, "timeout": 300}
BROKEN = (http.client.HTTPException, ConnectionError)


def test_a_request_is_answered_as_told_and_not_carried_out(
    server: OpenSandboxServer, api: Api
) -> None:
    server.inject("POST", "/v1/sandboxes", Answer(503, {"code": "BUSY"}, {"retry-after": "1"}))
    refused = api("POST", "/sandboxes", ASKED)
    assert (refused.status, refused.json()) == (503, {"code": "BUSY"})
    assert refused.headers["retry-after"] == "1"
    assert server.sandbox_ids == []
    assert api("POST", "/sandboxes", ASKED).status == 202


def test_some_pass_before_and_some_after(server: OpenSandboxServer, api: Api) -> None:
    server.inject("*", "/v1/sandboxes", Answer(500), skip=1, times=2)
    assert [api("GET", "/sandboxes").status for _ in range(4)] == [200, 500, 500, 200]


def test_faults_can_be_lifted(server: OpenSandboxServer, api: Api) -> None:
    server.inject("GET", "/v1/*", Answer(500, b"gone"), times=None)
    assert [api("GET", "/sandboxes").body for _ in range(2)] == [b"gone", b"gone"]
    server.clear_faults()
    assert api("GET", "/sandboxes").status == 200


def test_a_request_dropped_before_is_not_carried_out(server: OpenSandboxServer, api: Api) -> None:
    server.inject("POST", "/v1/sandboxes", Drop())
    with pytest.raises(BROKEN):
        api("POST", "/sandboxes", ASKED)
    assert server.sandbox_ids == []


def test_a_creation_dropped_after_is_carried_out(server: OpenSandboxServer, api: Api) -> None:
    server.inject("POST", "/v1/sandboxes", Drop("after"))
    with pytest.raises(BROKEN):
        api("POST", "/sandboxes", ASKED)
    assert len(server.sandbox_ids) == 1


def test_a_command_dropped_after_is_carried_out(server: OpenSandboxServer, daemon: Api) -> None:
    server.inject("POST", "/command", Drop("after", "reset"))
    with pytest.raises(BROKEN):
        daemon("POST", "/command", {"command": "echo x >> /tmp/x"})
    assert daemon("POST", "/command", {"command": "cat /tmp/x"}).texts() == ["x"]


@pytest.mark.parametrize("n_frames", [0, 3])
def test_a_stream_breaks_after_its_frames_and_the_command_goes_on(
    server: OpenSandboxServer, daemon: Api, n_frames: int
) -> None:
    server.inject("POST", "/command", CutStream(n_frames))
    with pytest.raises(http.client.IncompleteRead) as caught:
        daemon("POST", "/command", {"command": "echo a; echo b; sleep 0.05; touch /tmp/done"})
    assert caught.value.partial.count(b"\n\n") == n_frames
    said = daemon("POST", "/command", {"command": "until [ -e /tmp/done ]; do sleep 0.01; done"})
    assert said.error() is None


def test_a_delayed_request_is_carried_out(server: OpenSandboxServer, api: Api) -> None:
    server.inject("GET", "/v1/sandboxes", Delay(0.01))
    assert api("GET", "/sandboxes").status == 200


def test_a_request_waits_at_a_gate(server: OpenSandboxServer, api: Api) -> None:
    gate = Gate()
    server.inject("POST", "/v1/sandboxes", gate)
    said: list[Said] = []
    asking = threading.Thread(target=lambda: said.append(api("POST", "/sandboxes", ASKED)))
    asking.start()
    assert gate.reached.wait(50)
    assert server.sandbox_ids == []
    gate.release()
    asking.join()
    assert said[0].status == 202


def test_requests_are_counted_and_kept(server: OpenSandboxServer, daemon: Api) -> None:
    for text in ("a", "b"):
        daemon("POST", "/command", {"command": f"echo {text}"})
    assert server.calls["POST", "/command"] == 2
    bodies = [request.json() for request in server.matching("POST", "/comm*")]
    assert bodies == [{"command": "echo a"}, {"command": "echo b"}]
    assert {request.sandbox_id for request in server.matching("*", "/command")} == {
        server.sandbox_ids[0]
    }
    server.wait_for("POST", "/command", n_requests=2)


def test_a_request_that_does_not_come_is_missed(server: OpenSandboxServer) -> None:
    with pytest.raises(TimeoutError, match="0 of 1 POST /command"):
        server.wait_for("POST", "/command", timeout=0)


def test_a_restart_keeps_files_and_forgets_processes(
    server: OpenSandboxServer, daemon: Api
) -> None:
    daemon("POST", "/command", {"command": "echo kept > /tmp/file"})
    daemon("POST", "/code", {"code": "x = 1", "context": {"language": "python"}})
    server.restart()
    assert daemon("POST", "/command", {"command": "cat /tmp/file"}).texts() == ["kept"]
    assert daemon("GET", "/code/contexts").json() == []


def test_a_restart_may_leave_sandboxes_alone(server: OpenSandboxServer, daemon: Api) -> None:
    daemon("POST", "/code", {"code": "x = 1", "context": {"language": "python"}})
    server.restart(sandboxes="kept")
    assert len(daemon("GET", "/code/contexts").json()) == 1


def test_a_sandbox_that_crashed_is_listed_and_answers_nothing(
    server: OpenSandboxServer, api: Api, daemon: Api
) -> None:
    server.crash(server.sandbox_ids[0])
    with pytest.raises(BROKEN):
        daemon("GET", "/ping")
    listed = api("GET", "/sandboxes").json()["items"]
    assert [each["status"]["state"] for each in listed] == ["Failed"]
    refused = [
        api("POST", f"/sandboxes/{listed[0]['id']}/{verb}")
        for verb in ("pause", "resume", "snapshots")
    ]
    assert [each.status for each in refused] == [409, 409, 409]


def test_a_daemon_that_is_killed_breaks_what_it_was_doing(daemon: Api) -> None:
    with pytest.raises(BROKEN):
        daemon("POST", "/command", {"command": "kill -9 $PPID"})


def test_a_paused_sandbox_answers_when_it_is_resumed(
    server: OpenSandboxServer, api: Api, daemon: Api
) -> None:
    path = f"/sandboxes/{server.sandbox_ids[0]}"
    started = daemon("POST", "/command", {"command": "sleep 100", "background": True})
    api("POST", f"{path}/pause")
    said: list[Said] = []
    status = f"/command/status/{started.frames()[0]['text']}"
    asking = threading.Thread(target=lambda: said.append(daemon("GET", status)))
    asking.start()
    server.wait_for("GET", status)
    assert said == []
    api("POST", f"{path}/resume")
    asking.join()
    assert said[0].json()["running"]


def test_the_end_of_a_paused_sandbox_breaks_what_waits_for_it(
    server: OpenSandboxServer, api: Api, daemon: Api
) -> None:
    path = f"/sandboxes/{server.sandbox_ids[0]}"
    api("POST", f"{path}/pause")
    broken: list[BaseException] = []

    def wait() -> None:
        try:
            daemon("GET", "/ping")
        except BROKEN as exc:
            broken.append(exc)

    waiting = threading.Thread(target=wait)
    waiting.start()
    server.wait_for("GET", "/ping")
    api("DELETE", path)
    waiting.join()
    assert len(broken) == 1
