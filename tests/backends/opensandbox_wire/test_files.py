"""Files of a sandbox: read, written, described, moved and deleted as the real daemon does it."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.opensandbox_server.raw import Api, Said


def upload(daemon: Api, path: str, data: bytes, mode: int = 755) -> Said:
    metadata = json.dumps({"path": path, "owner": None, "group": None, "mode": mode})
    part = b'--x\r\nContent-Disposition: form-data; name="%b"; filename="f"\r\n\r\n%b\r\n'
    body = part % (b"metadata", metadata.encode()) + part % (b"file", data) + b"--x--\r\n"
    headers = {"content-type": "multipart/form-data; boundary=x"}
    said: Said = daemon("POST", "/files/upload", body, headers)
    return said


def entries(said: Said) -> list[tuple[str, str, int]]:
    return [(each["path"], each["type"], each["mode"]) for each in said.json()]


@settings(
    max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(data=st.binary(max_size=300))
def test_what_is_written_is_read(daemon: Api, data: bytes) -> None:
    assert upload(daemon, "/w/file", data).status == 200
    assert daemon("GET", "/files/download?path=/w/file").body == data


def test_a_large_file_arrives_whole(daemon: Api) -> None:
    data = bytes(range(256)) * 20_000
    upload(daemon, "/large", data)
    assert daemon("GET", "/files/download?path=/large").body == data


def test_directories_above_are_made_and_modes_look_decimal(daemon: Api) -> None:
    upload(daemon, "/w/a/file", b"x", 640)
    found = daemon("GET", "/files/info?path=/w/a/file&path=/w/a").json()
    assert {path: each["mode"] for path, each in found.items()} == {"/w/a/file": 640, "/w/a": 755}


def test_a_relative_path_stands_at_the_root(daemon: Api) -> None:
    upload(daemon, "w/file", b"x")
    assert daemon("GET", "/files/download?path=/w/file").body == b"x"


@pytest.mark.parametrize(
    ("asked", "status", "body"),
    [("bytes=1-2", 206, b"12"), ("bytes=3-", 206, b"34"), ("bytes=-2", 206, b"34")],
    ids=["both", "from", "last"],
)
def test_a_range_of_bytes(daemon: Api, asked: str, status: int, body: bytes) -> None:
    upload(daemon, "/f", b"01234")
    said = daemon("GET", "/files/download?path=/f", headers={"range": asked})
    assert (said.status, said.body) == (status, body)


def test_a_range_beyond_the_end_is_refused(daemon: Api) -> None:
    upload(daemon, "/f", b"01234")
    assert daemon("GET", "/files/download?path=/f", headers={"range": "bytes=9-"}).status == 416


def test_a_directory_cannot_be_downloaded(daemon: Api) -> None:
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        daemon("GET", "/files/download?path=/tmp")


def test_a_listing_goes_as_deep_as_asked_and_follows_no_link(daemon: Api) -> None:
    upload(daemon, "/w/b/c", b"", 644)
    upload(daemon, "/w/a", b"", 600)
    daemon("POST", "/command", {"command": "ln -s /tmp /w/link"})
    assert entries(daemon("GET", "/directories/list?path=/w&depth=2")) == [
        ("/w/a", "file", 600),
        ("/w/b", "directory", 755),
        ("/w/b/c", "file", 644),
        ("/w/link", "symlink", 777),
    ]
    assert len(entries(daemon("GET", "/directories/list?path=/w"))) == 3


@pytest.mark.parametrize("path", ["/w/file", "/w/link"], ids=["file", "link"])
def test_only_a_directory_can_be_listed(daemon: Api, path: str) -> None:
    upload(daemon, "/w/file", b"")
    daemon("POST", "/command", {"command": "ln -s /tmp /w/link"})
    assert daemon("GET", f"/directories/list?path={path}").status == 400


def test_a_search_finds_files_by_name_and_no_directories(daemon: Api) -> None:
    for path in ("/w/a.py", "/w/d.py/b.py", "/w/c.txt"):
        upload(daemon, path, b"")
    found = daemon("GET", "/files/search?path=/w&pattern=*.py").json()
    assert [each["path"] for each in found] == ["/w/a.py", "/w/d.py/b.py"]
    assert len(daemon("GET", "/files/search?path=/w").json()) == 3


@pytest.mark.parametrize(
    "target",
    [
        "/files/download?path=/none",
        "/files/info?path=/tmp&path=/none",
        "/files/search?path=/none",
        "/directories/list?path=/none",
    ],
)
def test_what_is_missing_is_not_found(daemon: Api, target: str) -> None:
    said = daemon("GET", target)
    assert (said.status, said.json()["code"]) == (404, "FILE_NOT_FOUND")


def test_a_move_makes_directories_and_replaces_nothing(daemon: Api) -> None:
    upload(daemon, "/a", b"a")
    upload(daemon, "/b", b"b")
    taken = daemon("POST", "/files/mv", [{"src": "/a", "dest": "/b"}])
    assert (taken.status, taken.json()["code"]) == (500, "RUNTIME_ERROR")
    assert daemon("POST", "/files/mv", [{"src": "/a", "dest": "/new/a"}]).status == 200
    assert daemon("GET", "/files/download?path=/new/a").body == b"a"


def test_a_text_is_replaced_wherever_it_is(daemon: Api) -> None:
    upload(daemon, "/a", b"x y x")
    said = daemon("POST", "/files/replace?verbose=true", {"/a": {"old": "x", "new": "zz"}})
    assert said.json() == {"/a": {"replacedCount": 2}}
    assert daemon("GET", "/files/download?path=/a").body == b"zz y zz"


@pytest.mark.parametrize(
    ("path", "change", "status"),
    [("/none", {"old": "a", "new": ""}, 404), ("/a", {"old": "", "new": ""}, 400)],
    ids=["missing", "empty"],
)
def test_a_replacement_that_cannot_be(
    daemon: Api, path: str, change: dict[str, Any], status: int
) -> None:
    upload(daemon, "/a", b"a")
    assert daemon("POST", "/files/replace", {path: change}).status == status


def test_permissions_and_owners_change(daemon: Api) -> None:
    upload(daemon, "/a", b"")
    daemon("POST", "/files/permissions", {"/a": {"mode": 600, "owner": "root"}})
    assert daemon("GET", "/files/info?path=/a").json()["/a"]["mode"] == 600


@pytest.mark.parametrize("owner", ["nobody-knows", "nobody"], ids=["unknown", "unmapped"])
def test_an_owner_that_cannot_be_is_an_error(daemon: Api, owner: str) -> None:
    upload(daemon, "/a", b"")
    assert daemon("POST", "/files/permissions", {"/a": {"owner": owner}}).status == 500


def test_deletion_of_what_is_missing_is_no_error(daemon: Api) -> None:
    assert daemon("DELETE", "/files?path=/none").status == 200
    assert daemon("DELETE", "/directories?path=/none").status == 200


def test_a_directory_is_deleted_as_such_with_all_in_it(daemon: Api) -> None:
    upload(daemon, "/w/a/b", b"")
    assert daemon("DELETE", "/files?path=/w").status == 500
    assert daemon("DELETE", "/directories?path=/w").status == 200
    assert daemon("GET", "/files/info?path=/w").status == 404


def test_a_deleted_link_leaves_its_target(daemon: Api) -> None:
    upload(daemon, "/w/a", b"a")
    daemon("POST", "/command", {"command": "ln -s /w /link"})
    daemon("DELETE", "/directories?path=/link")
    assert daemon("GET", "/files/download?path=/w/a").body == b"a"


def test_what_is_read_only_stays(daemon: Api) -> None:
    said = upload(daemon, "/usr/bin/new", b"")
    assert (said.status, said.json()["code"]) == (500, "RUNTIME_ERROR")


@pytest.mark.parametrize(
    ("kind", "code"),
    [("multipart/form-data; boundary=x", "INVALID_FILE_METADATA"), ("text/plain", "INVALID_FILE")],
    ids=["no-parts", "no-multipart"],
)
def test_an_upload_without_files_is_refused(daemon: Api, kind: str, code: str) -> None:
    said = daemon("POST", "/files/upload", b"--x--\r\n", {"content-type": kind})
    assert (said.status, said.json()["code"]) == (400, code)


def test_a_question_without_its_path_is_refused(daemon: Api) -> None:
    said = daemon("GET", "/files/download")
    assert (said.status, said.json()["code"]) == (400, "MISSING_QUERY")


def test_a_body_that_is_no_json_is_refused(daemon: Api) -> None:
    said = daemon("POST", "/files/mv", b"[")
    assert (said.status, said.json()["code"]) == (400, "INVALID_REQUEST_BODY")
