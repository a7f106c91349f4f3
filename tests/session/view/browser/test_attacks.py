"""What stands in a session is shown as text, whatever it says, and does nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from rath.session import ChunkRow, ChunkTable, Session
from rath.session.record import Verdict
from rath.session.view import write_page
from rath.testing import tool_call
from tests.session.view.browser.conftest import Open
from tests.support.sessions import FunctionTool, run

pytestmark = pytest.mark.timeout(60)  # seconds; the machine may be busy
ATTACKS = (
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<svg onload='window.hacked = 1'>",
    '"><iframe srcdoc="<script>parent.hacked = 1</script>"></iframe>',
    "<!--<script>",
    "javascript:window.hacked = 1",
    "{{code}} {{data}} ${window.hacked = 1}",
    "\u2028window.hacked = 1\u2029",
    "\ud800 \x00 \x1b[31m \u202egnp.exe",
    "__proto__",
)
ALL = "\n".join(ATTACKS)


def answer(_: Session, arguments: Mapping[str, Any]) -> object:
    return {"said": ALL, ALL: arguments, "__proto__": {"polluted": 1}}


def hostile_session() -> Session:
    """Texts that attack wherever a text can stand: rows, names, arguments, results, reports."""
    user = Session(
        ChunkTable(
            (
                *Session.from_user_message(ALL).chunk_table,
                ChunkRow(f"kind {ALL}", {"content": ALL, "__proto__": ALL}),
                ChunkRow("constructor", {"content": "a kind that objects have"}),
            )
        ),
        lineage_operator=f"operator {ALL}",
        lineage_extras=((ALL, ALL),),
    )
    name = "<b onclick=window.hacked=1>tool"
    made = run(
        [
            tool_call(name, {"q": ALL, "__proto__": {"polluted": 1}}, id=ALL, content=ALL),
            tool_call("constructor", ALL),
            ALL,
        ],
        FunctionTool(name, answer, schema={"type": "object", "description": ALL}),
        user=user,
        agent=Session.from_agent_prompt(ALL),
    ).synchronize()
    made.add_entry(
        Verdict(
            operation=made.record[0].operation,
            name=ALL,
            judge=ALL,
            passed=False,
            score=math.nan,
            report=ALL,
            workspace_digest=ALL,
        )
    )
    return made


def test_hostile_texts_stay_texts(open_page: Open, tmp_path: Path) -> None:
    path = write_page(hostile_session(), tmp_path / "page.html")
    page, seen = open_page(path)
    odd = page.locator(".line", has_text="a kind that objects have").locator(".speaker")
    expect(odd).to_have_text("constructor")
    lines = page.locator(".line")
    for at in range(lines.count()):
        lines.nth(at).click()
        for folded in page.locator(".evidence details:not([open]) > summary").all():
            folded.click()
    expect(page.locator(".evidence")).to_contain_text("onerror")
    page.fill("#search", "<img src=x")
    expect(page.locator("mark").first).to_have_text("<img src=x")
    assert page.evaluate("[window.hacked, ({}).polluted]") == [None, None]
    assert page.locator(".panes :is(script, iframe, img, b[onclick])").count() == 0
    assert seen.complaints == []
    assert seen.asked == [path.as_uri()]
