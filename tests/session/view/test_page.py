from __future__ import annotations

import base64
import json
import re
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from hypothesis import given

from rath.session import Session
from rath.session.view import PageLimits, write_page
from rath.session.view.page import SCRIPTS, STYLES, page_html
from tests.support.api import PageEncoder, nodes_of
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
