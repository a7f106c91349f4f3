from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from rath._async.deferred import Deferred
from rath._core.blobs import Blob
from rath.session import ChunkRow, ChunkTable, Session, system_text_chunk, user_text_chunk
from rath.session.operation import Place
from rath.session.record import Operation
from rath.session.view import PageLimits, write_page
from rath.session.view.page import PROFILE_SCRIPTS, SCRIPTS, STYLES, page_html
from rath.testing import tool_call
from tests.support.api import (
    Body,
    Catalogue,
    PageEncoder,
    PageNode,
    Range,
    cut_text,
    encode_plain,
    harmless,
    nodes_of,
    own_entries,
    totals,
)
from tests.support.images import picture
from tests.support.session_files import tool_run
from tests.support.sessions import FunctionTool, row_lists, run, sessions
from tests.support.waiting import PATIENCE

MAX_LINES = 400


def element(page: str, tag: str) -> str:
    """What stands between the tags of an element."""
    found = re.search(rf"<{tag}[^>]*>(.*?)</{tag.split()[0]}>", page, re.DOTALL)
    assert found is not None
    return found[1]


def html_of(session: Session, *, title: str = "title") -> str:
    heads = [session.core.as_parent()]
    return page_html(PageEncoder(PageLimits()).encode(nodes_of(heads)), heads, title=title)


@given(sessions)
def test_the_data_of_any_session_can_be_parsed(session: Session) -> None:
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


def test_the_title_of_a_page_is_the_message_of_the_user(tmp_path: Path) -> None:
    session = Session.from_user_message("What is\n1 < 2?")
    page = write_page(session, tmp_path / "page.html").read_text("utf-8")
    assert element(page, "title") == f"What is\\n1 &lt; 2? · {str(session.id)[:8]}"


def test_a_page_may_show_other_sessions_of_the_lineage(tmp_path: Path) -> None:
    start = Session.from_user_message("start")
    left, right = start.fork(), start.fork()
    page = write_page(left, tmp_path / "page.html", others=[right]).read_text("utf-8")
    assert all(str(each.id) in page for each in (start, left, right))


def test_every_asset_is_part_of_the_page_and_short() -> None:
    folder = files("rath").joinpath("view")
    names = {asset.name for asset in folder.iterdir() if asset.is_file()}
    assert names == {*STYLES, *SCRIPTS, *PROFILE_SCRIPTS, "page.html"}
    lines = {name: folder.joinpath(name).read_text("utf-8").count("\n") for name in names}
    assert {name: n for name, n in lines.items() if n > MAX_LINES} == {}


OPERATION = UUID(int=7)


def encoded(*made: Session, **limits: int) -> dict[str, Any]:
    """The data of the page of sessions."""
    encoder = PageEncoder(PageLimits(**limits))
    data: dict[str, Any] = json.loads(
        encoder.encode(nodes_of([one.core.as_parent() for one in made]))
    )
    return data


def test_a_second_encoding_has_only_new_rows_and_entries() -> None:
    encoder = PageEncoder(PageLimits())
    first = run(["one"]).synchronize()
    encoder.encode(nodes_of([first.core.as_parent()]))
    other = Session.from_agent_prompt("other")
    second = run(["two"], user=first, agent=other).synchronize()
    data = json.loads(encoder.encode(nodes_of([second.core.as_parent()])))
    assert [row["t"] for row in data["rows"]] == ["other", "two"]
    assert [entry["k"] for entry in data["entries"]] == ["operation", "model"]
    assert str(second.id) in data["ids"]
    assert str(first.id) not in data["ids"]


def test_a_tool_that_raised_says_where() -> None:
    def fails(*_: object) -> object:
        raise ValueError("no weather")

    made = run([tool_call("look", {}), "done"], FunctionTool("look", fails)).synchronize()
    entries = [each for each in encoded(made)["entries"] if each["k"] == "tool"]
    assert entries[0]["raised"].endswith(" in fails")
    assert "ValueError: no weather" in entries[0]["traceback"]


def test_images_are_embedded_up_to_both_limits() -> None:
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
    session.add_entry(tool_run(full=Blob("d", 10**9)))
    data = encoded(session)
    assert data["rows"][0]["im"][0]["why"] == "it was lost"
    assert data["entries"][0]["full"] == {"n": 10**9, "digest": "d"}


def test_instructions_of_unknown_kinds_are_displayed_as_json() -> None:
    session = Session.from_user_message("hello")
    head = (ChunkRow("odd", {"x": 1}), system_text_chunk("Be kind."))
    session.add_entry(
        Operation(
            operation=OPERATION, kind="loop", place=Place("", 0), session=session.id, head=head
        )
    )
    data = encoded(session)
    display = data["shared"][data["entries"][0]["head"]]
    assert display == [["odd", '{\n "x": 1\n}'], ["system", "Be kind."]]


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


def node_of(session: Session) -> PageNode:
    return nodes_of([session.core.as_parent()])[-1]


def test_a_long_line_of_forks_has_all_its_sessions() -> None:
    session = Session.from_user_message("hello")
    for _ in range(2000):
        session = session.fork()
    assert len(nodes_of([session.core.as_parent()])) == 2001


def test_a_parent_that_is_known_by_its_id_alone_is_absent() -> None:
    parent = uuid4()
    session = Session(Session.from_user_message("x").chunk_table, parent_session_ids=(parent,))
    absent, _ = nodes_of([session.core.as_parent()])
    assert (absent.id, absent.state, absent.body) == (parent, "absent", None)
    assert own_entries(absent) == ()
    assert totals(absent)["title"] == ""


def test_a_run_that_goes_on_is_running_and_then_completed() -> None:
    may_end = threading.Event()

    def wait(_: object) -> str:
        may_end.wait(PATIENCE)
        return "done"

    session = run([wait])
    running = node_of(session)
    may_end.set()
    session.synchronize()
    assert (running.state, node_of(session).state) == ("running", "completed")


def test_a_failed_run_says_why() -> None:
    session = run([ValueError("no such luck")])
    with pytest.raises(ValueError, match="luck"):
        session.synchronize()
    assert (node_of(session).state, "no such luck" in node_of(session).problem) == ("failed", True)


def expanded(ranges: Sequence[Range]) -> list[int]:
    return [number for first, n in ranges for number in range(first, first + n)]


@given(row_lists, row_lists)
def test_sessions_share_their_common_rows(first: list[object], more: list[object]) -> None:
    start = Session(ChunkTable(first))  # type: ignore[arg-type]  # a list of rows
    longer = start.merge(Session(ChunkTable(more)))  # type: ignore[arg-type]  # as above
    catalogue = Catalogue()
    made = {node.id: catalogue.row_ranges(node) for node in nodes_of([longer.core.as_parent()])}
    rows = catalogue.rows.fresh()
    assert len(rows) == len(longer.chunk_table)
    for session in (start, longer):
        numbers = expanded(made[session.id])
        assert tuple(rows[number] for number in numbers) == session.chunk_table.rows


def test_a_name_that_two_rows_have_counts_for_each() -> None:
    reply = Session.from_user_message("one")
    other = user_text_chunk("two").with_id(reply.chunk_table[0].id)  # type: ignore[arg-type]  # it has one
    twin = Session.from_body(Deferred.of(Body(ChunkTable([other]))), reply.provenance)
    catalogue = Catalogue()
    nodes = [nodes_of([each.core.as_parent()])[0] for each in (reply, twin)]
    assert [catalogue.row_ranges(node) for node in nodes] == [[(0, 1)], [(1, 1)]]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_chars", 0),
        ("max_diff_chars", -1),
        ("max_image_bytes", -1),
        ("max_all_images_bytes", -1),
    ],
)
def test_a_limit_that_means_nothing_is_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        PageLimits(**{name: value})


@given(st.text(), st.integers(1, 20))
def test_a_long_text_keeps_its_ends_and_says_what_is_missing(text: str, max_chars: int) -> None:
    made = cut_text(text, max_chars)
    if len(text) <= max_chars:
        assert made == text
        return
    assert isinstance(made, list)
    head, n_left, tail = made
    assert isinstance(head, str)
    assert isinstance(tail, str)
    assert len(head) + len(tail) == max_chars
    assert n_left == len(text) - max_chars
    assert text.startswith(head)
    assert text.endswith(tail)


texts = st.text() | st.sampled_from(["</script>", "<!--<script>", "\u2028", "&lt;", "]]>"])


@given(st.lists(texts) | st.dictionaries(texts, texts))
def test_harmless_json_says_the_same_and_ends_no_script(value: object) -> None:
    made = harmless(json.dumps(value, ensure_ascii=False))
    assert json.loads(made) == value
    assert not set(made) & set("<>&\u2028\u2029")
