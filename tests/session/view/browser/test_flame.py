"""The flame view of a profile in a browser."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from rath import profiler
from rath.flow import Agent, Workflow
from rath.session import Session
from rath.session.view import write_page
from rath.testing import ScriptedClient, tool_call
from tests.session.view.browser.conftest import Open
from tests.support.sessions import FunctionTool


def team() -> Session:
    look = FunctionTool("look", lambda *_: "x")
    one = Agent("a", ScriptedClient([tool_call("look", {}), "1"]).provider, [look])
    two = Agent("b", ScriptedClient(["<b>2</b>"]).provider, system_tools=False)

    class Team(Workflow):
        def __init__(self) -> None:
            self.first, self.second = one, two

        def forward(self, session: Session) -> Session:
            return self.second(self.first(session))

    return Team()(Session.from_user_message("go")).synchronize()


def test_boxes_nest_and_one_is_shown_alone(open_page: Open, tmp_path: Path) -> None:
    made = profiler.profile_sessions([team()])
    target = tmp_path / "flame.html"
    made.export_html(target, title="<Team>")
    page, seen = open_page(target)
    boxes = page.locator(".box")
    expect(boxes).to_have_count(len(made.events()))
    expect(page.locator("h1")).to_have_text("<Team>")
    expect(page.locator("#sums tbody tr")).to_have_count(len(made.key_averages()))
    root = page.locator(".box[data-kind=workflow]").bounding_box()
    model = page.locator(".box[data-kind=model]").first.bounding_box()
    assert root is not None
    assert model is not None
    assert model["y"] > root["y"]
    page.locator(".box[data-kind=run]").last.click()
    expect(page.locator("#about dd").first).to_have_text("second")
    expect(boxes.filter(has_text="first")).to_have_count(0)
    page.keyboard.press("Escape")
    expect(boxes).to_have_count(len(made.events()))
    assert seen.complaints == []
    assert [each for each in seen.asked if not each.startswith(("file:", "data:"))] == []


def test_the_page_of_a_session_leads_to_its_profile(open_page: Open, tmp_path: Path) -> None:
    session = team()
    flame = tmp_path / "a b.profile.html"
    profiler.profile_sessions([session]).export_html(flame, title="Its profile")
    target = write_page(session, tmp_path / "a b.html", profile="a%20b.profile.html")
    page, seen = open_page(target)
    page.get_by_role("link", name="Profile").click()
    expect(page.locator("h1")).to_have_text("Its profile")
    assert seen.complaints == []
