"""Nothing that a client names reaches this machine, and nothing is left of a server."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.opensandbox_server import OpenSandboxServer, UnavailableError
from tests.support.opensandbox_server.container import why_not
from tests.support.opensandbox_server.replay import IMAGE, Api, ask
from tests.support.waiting import wait_until


def processes_with(mark: str) -> list[Path]:
    """Processes of this machine with a text in their environment."""
    found: list[Path] = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(path)
    return found


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("secret")
    return path


@pytest.mark.parametrize("form", ["{0}", "/tmp/../{0}", "/tmp/../../../../..{0}", "/link{0}"])
def test_no_path_leads_to_this_machine(daemon: Api, secret: Path, form: str) -> None:
    daemon("POST", "/command", {"command": "ln -s / /link"})
    path = quote(form.format(secret))
    assert daemon("GET", f"/files/download?path={path}").status == 404
    assert daemon("DELETE", f"/files?path={path}").status == 200
    assert secret.read_text() == "secret"


def test_a_link_leads_only_into_the_sandbox(daemon: Api, secret: Path) -> None:
    command = f"ln -s {secret} /w; mkdir -p {secret.parent}; echo inside > {secret}"
    daemon("POST", "/command", {"command": command})
    assert daemon("GET", "/files/download?path=/w").body == b"inside\n"
    daemon("DELETE", f"/files?path={secret}")
    assert secret.read_text() == "secret"


def test_a_directory_of_the_host_is_bound_where_that_is_allowed(
    server: OpenSandboxServer, api: Api, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    volume = {"name": "w", "host": {"path": str(tmp_path / "shared")}, "mountPath": "/workspace"}
    said = api("POST", "/sandboxes", {"image": {"uri": IMAGE}, "volumes": [volume]})
    path = f"/sandboxes/{said.json()['id']}/proxy/44772/command"
    api("POST", path, {"command": "echo here > /workspace/file"})
    assert (tmp_path / "shared/file").read_text() == "here\n"


@pytest.mark.parametrize(
    ("volume", "code"),
    [
        ({"host": {"path": "/etc"}}, "VOLUME::HOST_PATH_NOT_ALLOWED"),
        ({"host": {"path": "{tmp}/../.."}}, "VOLUME::HOST_PATH_NOT_ALLOWED"),
        ({"host": {"path": "{tmp}/link"}}, "VOLUME::HOST_PATH_NOT_ALLOWED"),
        ({"host": {"path": "{tmp}/none"}}, "VOLUME::HOST_PATH_NOT_FOUND"),
        ({"host": {"path": "{tmp}"}, "mountPath": "/a/../b"}, "VOLUME::INVALID_MOUNT_PATH"),
        ({"host": {"path": "{tmp}"}, "mountPath": "/bin/x"}, "VOLUME::INVALID_MOUNT_PATH"),
        ({"ossfs": {"bucket": "b"}}, "VOLUME::INVALID_BACKEND"),
    ],
    ids=["outside", "dots", "link", "missing", "target-dots", "target-link", "backend"],
)
def test_other_volumes_are_refused(
    api: Api, tmp_path: Path, volume: dict[str, Any], code: str
) -> None:
    (tmp_path / "link").symlink_to("/etc")
    volume = {"name": "w", "mountPath": "/workspace", **volume}
    if "host" in volume:
        volume["host"] = {"path": volume["host"]["path"].format(tmp=tmp_path)}
    said = api("POST", "/sandboxes", {"image": {"uri": IMAGE}, "volumes": [volume]})
    assert (said.status, said.json()["code"]) == (400, code)
    assert api("GET", "/sandboxes").json()["items"] == []


@pytest.mark.parametrize(("key", "code"), [(None, "MISSING_API_KEY"), ("wrong", "INVALID_API_KEY")])
def test_a_key_is_needed(api: Api, key: str | None, code: str) -> None:
    said = api("GET", "/sandboxes", key=key)
    assert (said.status, said.json()["code"]) == (401, code)


def test_the_tree_of_a_sandbox_is_below_that_of_the_server(
    server: OpenSandboxServer, daemon: Api
) -> None:
    daemon("POST", "/command", {"command": "echo here > /file"})
    assert (server.root_of(server.sandbox_ids[0]) / "file").read_text() == "here\n"


def test_the_network_of_this_machine_is_not_reached(server: OpenSandboxServer, daemon: Api) -> None:
    port = server.domain.rpartition(":")[2]
    said = daemon("POST", "/command", {"command": f"exec 3<>/dev/tcp/127.0.0.1/{port}"})
    assert said.error() is not None


def test_processes_of_this_machine_are_not_seen(daemon: Api) -> None:
    command = f"ls /proc | grep -x {os.getpid()} || echo none; [ $$ -lt 100 ] && echo few"
    assert daemon("POST", "/command", {"command": command}).texts() == ["none", "few"]


def test_the_environment_of_this_machine_is_not_seen(daemon: Api) -> None:
    said = daemon("POST", "/command", {"command": "env | cut -d= -f1 | sort"})
    assert set(said.texts()) <= {
        "EXECD_ENVS",
        "HOME",
        "LANG",
        "OPENSANDBOX_ID",
        "PATH",
        "PWD",
        "SHLVL",
        "_",
    }


def test_orders_of_the_server_cannot_be_given_by_a_client(
    server: OpenSandboxServer, daemon: Api
) -> None:
    assert daemon("FREEZE", "/").status == 502


def test_another_port_of_a_sandbox_has_no_service(server: OpenSandboxServer, daemon: Api) -> None:
    path = f"/v1/sandboxes/{server.sandbox_ids[0]}/proxy/8000/x"
    assert ask(server.domain, "GET", path).status == 502


def test_nothing_is_left_of_a_closed_server() -> None:
    mark = uuid.uuid4().hex
    with OpenSandboxServer() as server:
        key = {"OPEN-SANDBOX-API-KEY": server.api_key}
        asked = {"image": {"uri": "debian:12"}, "env": {"MARK": mark}}
        made = ask(server.domain, "POST", "/v1/sandboxes", asked, key).json()["id"]
        path = f"/v1/sandboxes/{made}/proxy/44772"
        command = {"command": "mkdir -m 0 /shut; setsid sleep 1000 & sleep 1000 & exit"}
        ask(server.domain, "POST", f"{path}/command", command)
        root = server.root_of(made)
        # A process that is just starting has no environment yet.
        wait_until(lambda: len(processes_with(mark)) >= 3, "the commands run")
    assert processes_with(mark) == []
    assert not root.parent.parent.exists()


def test_a_server_without_bubblewrap_does_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    why_not.cache_clear()
    with pytest.raises(UnavailableError, match="bubblewrap"):
        OpenSandboxServer()
    why_not.cache_clear()
