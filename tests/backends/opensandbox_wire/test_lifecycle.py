"""The lifecycle API: sandboxes are made, listed, changed and ended as the real server does it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.opensandbox_server import OpenSandboxServer
from tests.support.opensandbox_server.raw import Api

ASKED: dict[str, Any] = {"image": {"uri": "debian:12"}, "timeout": 300}


def create(api: Api, **more: Any) -> str:
    said = api("POST", "/sandboxes", {**ASKED, **more})
    assert said.status == 202, said.body
    return str(said.json()["id"])


@pytest.mark.parametrize(
    ("key", "code"),
    [(None, "MISSING_API_KEY"), ("wrong", "INVALID_API_KEY")],
    ids=["no-key", "wrong-key"],
)
def test_a_key_is_needed(api: Api, key: str | None, code: str) -> None:
    said = api("GET", "/sandboxes", key=key)
    assert (said.status, said.json()["code"]) == (401, code)


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"timeout": 59}, 422, None),
        ({"snapshotId": "one"}, 400, "SANDBOX::INVALID_PARAMETER"),
        ({"image": None, "snapshotId": "none"}, 404, "SNAPSHOT::NOT_FOUND"),
        ({"metadata": {"k": "a:b"}}, 400, "SANDBOX::INVALID_METADATA_LABEL"),
        ({"metadata": {"k": "a" * 64}}, 400, "SANDBOX::INVALID_METADATA_LABEL"),
        ({"metadata": {"opensandbox.io/x": "a"}}, 400, "SANDBOX::INVALID_METADATA_LABEL"),
        ({"image": {"uri": "localhost/none:1"}}, 500, "DOCKER::SANDBOX_IMAGE_PULL_FAILED"),
    ],
    ids=["short", "two-sources", "no-snapshot", "label", "long-label", "reserved", "image"],
)
def test_what_the_real_server_refuses_is_refused(
    api: Api, change: dict[str, Any], status: int, code: str | None
) -> None:
    said = api("POST", "/sandboxes", {**ASKED, **change})
    assert (said.status, said.json().get("code")) == (status, code)
    assert api("GET", "/sandboxes").json()["items"] == []


@pytest.mark.parametrize("body", [b"[", b"{}", b'{"image": {}}'], ids=["none", "empty", "no-uri"])
def test_a_body_that_cannot_be_read_is_refused(api: Api, body: bytes) -> None:
    assert api("POST", "/sandboxes", body).status in (400, 422)


def test_a_list_has_pages_newest_first(api: Api) -> None:
    ids = [create(api) for _ in range(3)]
    first = api("GET", "/sandboxes?pageSize=2").json()
    second = api("GET", "/sandboxes?pageSize=2&page=2").json()
    assert [item["id"] for item in first["items"] + second["items"]] == ids[::-1]
    assert first["pagination"] == {
        "page": 1,
        "pageSize": 2,
        "totalItems": 3,
        "totalPages": 2,
        "hasNextPage": True,
    }


@pytest.mark.parametrize("query", ["page=0", "pageSize=0", "pageSize=201"])
def test_a_page_that_cannot_be_is_refused(api: Api, query: str) -> None:
    assert api("GET", f"/sandboxes?{query}").status == 422


def test_a_list_can_be_filtered(api: Api) -> None:
    wanted = create(api, metadata={"team": "rath", "k": "v"})
    create(api, metadata={"team": "other"})
    paused = create(api, metadata={"team": "rath"})
    api("POST", f"/sandboxes/{paused}/pause")
    found = api("GET", "/sandboxes?state=Running&metadata=team%3Drath%26k%3Dv").json()
    assert [item["id"] for item in found["items"]] == [wanted]


def test_metadata_changes_by_merging(api: Api) -> None:
    sandbox_id = create(api, metadata={"a": "1", "b": "2"})
    said = api("PATCH", f"/sandboxes/{sandbox_id}/metadata", {"a": None, "c": "3"})
    assert said.json()["metadata"] == {"b": "2", "c": "3"}


def test_only_what_runs_can_be_paused_and_only_what_is_paused_resumed(api: Api) -> None:
    path = f"/sandboxes/{create(api)}"
    said = [api("POST", f"{path}/{verb}") for verb in ("resume", "pause", "pause", "resume")]
    assert [each.status for each in said] == [409, 202, 409, 202]
    assert said[0].json()["code"] == "DOCKER::SANDBOX_NOT_PAUSED"
    assert said[2].json()["code"] == "DOCKER::SANDBOX_NOT_RUNNING"


def test_a_sandbox_is_gone_when_its_time_is_over(server: OpenSandboxServer, api: Api) -> None:
    path = f"/sandboxes/{create(api, timeout=60)}"
    server.advance(59)
    assert api("GET", path).status == 200
    server.advance(1)
    said = api("GET", path)
    assert (said.status, said.json()["code"]) == (404, "DOCKER::SANDBOX_NOT_FOUND")
    assert server.sandbox_ids == []


def test_renewal_moves_the_end(server: OpenSandboxServer, api: Api) -> None:
    path = f"/sandboxes/{create(api, timeout=60)}"
    until = (datetime.now(UTC) + timedelta(seconds=120)).isoformat()
    api("POST", f"{path}/renew-expiration", {"expiresAt": until})
    server.advance(100)
    assert api("GET", path).status == 200


def test_renewal_into_the_past_is_refused(api: Api) -> None:
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    said = api("POST", f"/sandboxes/{create(api)}/renew-expiration", {"expiresAt": past})
    assert (said.status, said.json()["code"]) == (400, "DOCKER::INVALID_EXPIRATION")


def test_the_end_of_a_sandbox_ends_its_processes_and_files(
    server: OpenSandboxServer, api: Api
) -> None:
    sandbox_id = create(api)
    root = server.root_of(sandbox_id)
    assert root.is_dir()
    assert api("DELETE", f"/sandboxes/{sandbox_id}").status == 204
    assert not root.exists()


def test_the_daemon_is_reached_through_the_server_too(api: Api) -> None:
    sandbox_id = create(api)
    path = f"/sandboxes/{sandbox_id}"
    endpoint = api("GET", f"{path}/endpoints/44772?use_server_proxy=true").json()["endpoint"]
    assert endpoint.endswith(f"/v1{path}/proxy/44772")
    assert api("GET", f"{path}/proxy/44772/ping", key=None).status == 200


def test_a_directory_of_the_host_is_bound_where_that_is_allowed(
    server: OpenSandboxServer, api: Api, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    volume = {"name": "w", "host": {"path": str(tmp_path / "shared")}, "mountPath": "/workspace"}
    path = f"/sandboxes/{create(api, volumes=[volume])}/proxy/44772/command"
    api("POST", path, {"command": "echo here > /workspace/file"})
    assert (tmp_path / "shared/file").read_text() == "here\n"


@pytest.mark.parametrize(
    ("volume", "code"),
    [
        ({"host": {"path": "/etc"}}, "VOLUME::HOST_PATH_NOT_ALLOWED"),
        ({"host": {"path": "{tmp}/../.."}}, "VOLUME::HOST_PATH_NOT_ALLOWED"),
        ({"host": {"path": "{tmp}/link"}}, "VOLUME::HOST_PATH_NOT_ALLOWED"),
        ({"host": {"path": "{tmp}/none"}}, "VOLUME::HOST_PATH_NOT_FOUND"),
        ({"host": {"path": "{tmp}"}, "subPath": "../x"}, "VOLUME::INVALID_SUB_PATH"),
        ({"host": {"path": "{tmp}"}, "mountPath": "/a/../b"}, "VOLUME::INVALID_MOUNT_PATH"),
        ({"host": {"path": "{tmp}"}, "mountPath": "/bin/x"}, "VOLUME::INVALID_MOUNT_PATH"),
        ({"ossfs": {"bucket": "b"}}, "VOLUME::INVALID_BACKEND"),
    ],
    ids=["outside", "dots", "link", "missing", "sub", "target-dots", "target-link", "backend"],
)
def test_other_volumes_are_refused(
    api: Api, tmp_path: Path, volume: dict[str, Any], code: str
) -> None:
    (tmp_path / "link").symlink_to("/etc")
    volume = {"name": "w", "mountPath": "/workspace", **volume}
    if "host" in volume:
        volume["host"] = {"path": volume["host"]["path"].format(tmp=tmp_path)}
    said = api("POST", "/sandboxes", {**ASKED, "volumes": [volume]})
    assert (said.status, said.json()["code"]) == (400, code)


def test_a_named_volume_outlives_its_sandbox(api: Api) -> None:
    volume = {"name": "v", "pvc": {"claimName": "data"}, "mountPath": "/data"}
    first = create(api, volumes=[volume])
    api("POST", f"/sandboxes/{first}/proxy/44772/command", {"command": "echo kept > /data/x"})
    api("DELETE", f"/sandboxes/{first}")
    path = f"/sandboxes/{create(api, volumes=[{**volume, 'readOnly': True}])}/proxy/44772/command"
    said = api("POST", path, {"command": "cat /data/x; echo no > /data/x"})
    assert [each["text"] for each in said.frames() if each["type"] == "stdout"] == ["kept"]
    assert said.frames()[-1]["error"]["evalue"] == "1"


def test_a_snapshot_holds_the_files_of_its_moment(api: Api) -> None:
    path = f"/sandboxes/{create(api)}"
    command = f"{path}/proxy/44772/command"
    api("POST", command, {"command": "mkdir /w; echo one > /w/a; ln -s /etc/shadow /w/link"})
    made = api("POST", f"{path}/snapshots", {"name": "first"})
    api("POST", command, {"command": "echo two > /w/a"})
    assert (made.status, made.json()["status"]["state"]) == (202, "Creating")
    snapshot = api("GET", f"/snapshots/{made.json()['id']}").json()
    assert snapshot["status"]["state"] == "Ready"
    again = create(api, image=None, snapshotId=snapshot["id"])
    said = api(
        "POST",
        f"/sandboxes/{again}/proxy/44772/command",
        {"command": "cat /w/a; readlink /w/link"},
    )
    texts = [each["text"] for each in said.frames() if each["type"] == "stdout"]
    assert texts == ["one", "/etc/shadow"]


def test_snapshots_are_listed_and_deleted(api: Api) -> None:
    sandbox_id = create(api)
    made = api("POST", f"/sandboxes/{sandbox_id}/snapshots").json()["id"]
    assert [each["id"] for each in api("GET", "/snapshots").json()["items"]] == [made]
    assert api("GET", "/snapshots?sandboxId=other").json()["items"] == []
    assert api("DELETE", f"/snapshots/{made}").status == 204
    assert api("GET", f"/snapshots/{made}").status == 404


def test_an_unknown_path_is_not_found(api: Api) -> None:
    assert api("GET", "/nothing").status == 404
