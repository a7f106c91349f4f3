from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from pydantic import BaseModel

from rath._core.blobs import Blob
from rath.session import ChunkRow, ChunkTable, Session, system_text_chunk, user_text_chunk
from rath.session.operation import Place
from rath.session.record import Operation, ToolRun
from rath.session.view import PageLimits, write_page
from rath.session.view.page import SCRIPTS, STYLES, page_html
from tests.support.api import Entry, PageEncoder, encode_plain, nodes_of
from tests.support.images import picture
from tests.support.sessions import run, sessions

MAX_LINES = 400


def element(page: str, tag: str) -> str:
    """What stands between the tags of an element."""
    found = re.search(rf"<{tag}[^>]*>(.*?)</{tag.split()[0]}>", page, re.DOTALL)
    assert found is not None
    return found[1]


def html_of(session: Session, *, title: str = "title") -> str:
    heads = [session.as_parent()]
    return page_html(PageEncoder(PageLimits()).encode(nodes_of(heads)), heads, title=title)


def test_a_page_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    assert write_page(run(["hello"]).synchronize(), str(path)) == path
    assert "hello" in path.read_text("utf-8")


@given(sessions)
def test_the_data_can_be_read_back_whatever_was_said(session: Session) -> None:
    page = html_of(session)
    data = json.loads(element(page, 'script type="application/json"'))
    assert len(data["rows"]) == len(session.chunk_table)


def test_only_its_own_style_and_code_are_allowed() -> None:
    page = html_of(Session.from_user_message("</script><script>alert(1)</script>"))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    for kind, tag in (("style-src", "style"), ("script-src", 'script type="module"')):
        digest = base64.b64encode(sha256(element(page, tag).encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy[1]
    assert policy[1].startswith("default-src 'none'; base-uri 'none'; form-action 'none'")
    assert "connect-src" not in policy[1]
    assert "alert(1)</script>" not in page


def test_the_title_is_text_and_not_markup() -> None:
    assert "<title>&lt;b&gt;{{code}}</title>" in html_of(
        Session.from_user_message("x"), title="<b>{{code}}"
    )


def test_the_page_is_named_for_what_the_user_said(tmp_path: Path) -> None:
    session = Session.from_user_message("What is\n1 < 2?")
    page = write_page(session, tmp_path / "page.html").read_text("utf-8")
    assert element(page, "title") == f"What is\\n1 &lt; 2? · {str(session.id)[:8]}"


def test_others_of_the_lineage_can_be_shown_too(tmp_path: Path) -> None:
    start = Session.from_user_message("start")
    left, right = start.fork(), start.fork()
    page = write_page(left, tmp_path / "page.html", others=[right]).read_text("utf-8")
    assert all(str(each.id) in page for each in (start, left, right))


def test_every_asset_is_part_of_the_page_and_short() -> None:
    folder = files("rath").joinpath("view")
    names = {asset.name for asset in folder.iterdir() if asset.is_file()}
    assert names == {*STYLES, *SCRIPTS, "page.html"}
    lines = {name: folder.joinpath(name).read_text("utf-8").count("\n") for name in names}
    assert {name: n for name, n in lines.items() if n > MAX_LINES} == {}


OPERATION = UUID(int=7)


BLOB = Blob.from_bytes(b"shown")


def encoded(*made: Session, **limits: int) -> dict[str, Any]:
    """The data of the page of sessions."""
    encoder = PageEncoder(PageLimits(**limits))
    data: dict[str, Any] = json.loads(encoder.encode(nodes_of([one.as_parent() for one in made])))
    return data


def entry_of(entry: Entry) -> dict[str, Any]:
    """An entry, as the page of a session has it that holds nothing else."""
    session = Session.from_user_message("hello")
    session.add_entry(entry)
    data = encoded(session)
    made: dict[str, Any] = data["entries"][0]
    for name in ("who", "where"):
        if name in made:
            made[name] = data["shared"][made[name]]
    return made


def tool_run(**changes: Any) -> ToolRun:
    """A tool run that says the least."""
    known: dict[str, Any] = {
        "operation": OPERATION,
        "call_id": "call",
        "tool": "edit",
        "origin": "built-in",
        "schema_digest": None,
        "effects_declared": "idempotent",
        "arguments": None,
        "sandbox": None,
        "status": "done",
        "error_kind": None,
        "exit_code": None,
        "signal": None,
        "duration_ms": 1.0,
        "shown": BLOB,
        "full": None,
        "file_effects": (),
    }
    return ToolRun(**(known | changes))


@given(sessions)
def test_each_row_stands_once_and_in_order(session: Session) -> None:
    fork = session.fork()
    data = encoded(fork)
    assert len(data["rows"]) == len(session.chunk_table)
    assert [row["i"] for row in data["rows"]] == list(range(len(data["rows"])))
    assert [made.get("rows", []) for made in data["sessions"]] == [
        [[0, len(data["rows"])]] if data["rows"] else []
    ] * 2


def test_only_what_is_new_is_told_again() -> None:
    encoder = PageEncoder(PageLimits())
    first = run(["one"]).synchronize()
    encoder.encode(nodes_of([first.as_parent()]))
    second = run(["two"], user=first).synchronize()
    data = json.loads(encoder.encode(nodes_of([second.as_parent()])))
    assert [row["t"] for row in data["rows"]] == ["You are a test.", "two"]
    assert [entry["k"] for entry in data["entries"]] == ["operation", "model"]
    assert str(second.id) in data["ids"]
    assert str(first.id) not in data["ids"]


def test_images_are_shown_up_to_both_limits() -> None:
    small, large = picture(b"s"), picture(b"l" * 100)
    session = Session.from_user_message("look", images=[small, large, picture(b"t")])
    limits = {"max_image_bytes": 50, "max_all_images_bytes": len(small)}
    first, second, third = encoded(session, **limits)["rows"][0]["im"]
    assert (first["m"], first["n"], "b" in first) == ("image/png", len(small), True)
    assert second["why"] == "larger than 50 bytes"
    assert third["why"] == "the images of this page have reached their limit"


def test_an_image_whose_bytes_are_gone_says_so() -> None:
    row = user_text_chunk("look", images=[picture(b"s")])
    image = replace(row.images[0], blob=Blob(row.images[0].blob.digest, 9), absent="it was lost")
    session = Session(ChunkTable([row.with_images((image,))]))
    assert encoded(session)["rows"][0]["im"][0]["why"] == "it was lost"


def test_a_result_whose_bytes_were_not_kept_has_its_digest() -> None:
    made = entry_of(tool_run(full=Blob("d", 10**9)))
    assert made["full"] == {"n": 10**9, "digest": "d"}


def test_instructions_that_are_no_text_are_told_as_data() -> None:
    session = Session.from_user_message("hello")
    head = (ChunkRow("odd", {"x": 1}), system_text_chunk("Be kind."))
    session.add_entry(
        Operation(
            operation=OPERATION, kind="loop", place=Place("", 0), session=session.id, head=head
        )
    )
    data = encoded(session)
    shown = data["shared"][data["entries"][0]["head"]]
    assert shown == [["odd", '{\n "x": 1\n}'], ["system", "Be kind."]]


class Point(BaseModel):
    x: int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param("a", "a", id="text"),
        pytest.param({"a": (1, 2)}, '{\n "a": [\n  1,\n  2\n ]\n}', id="data"),
        pytest.param({"a": range(1, 2)}, '{\n "a": [\n  1\n ]\n}', id="sequence"),
        pytest.param(MappingProxyType({"a": 1}), '{\n "a": 1\n}', id="mapping"),
        pytest.param({(1, 2): 3}, "{(1, 2): 3}", id="no JSON"),
        pytest.param([Point(x=1)], '[\n "x=1"\n]', id="object"),
    ],
)
def test_any_data_becomes_text(value: object, text: str) -> None:
    assert encode_plain(value) == text
