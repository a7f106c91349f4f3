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
    expect(page.locator(".sums tbody tr")).to_have_count(len(made.key_averages()))
    root = page.locator(".box[data-kind=workflow]").bounding_box()
    model = page.locator(".box[data-kind=model]").first.bounding_box()
    assert root is not None
    assert model is not None
    assert model["y"] > root["y"]
    page.locator(".box[data-kind=run]").last.click()
    expect(page.locator(".flame .about dd").first).to_have_text("second")
    expect(boxes.filter(has_text="first")).to_have_count(0)
    page.keyboard.press("Escape")
    expect(boxes).to_have_count(len(made.events()))
    assert seen.complaints == []
    assert [each for each in seen.asked if not each.startswith(("file:", "data:"))] == []


def test_the_explorer_shows_the_profile_of_its_session(open_page: Open, tmp_path: Path) -> None:
    session = team()
    made = profiler.profile_sessions([session])
    page, seen = open_page(write_page(session, tmp_path / "x.html", profile=made.flame_data()))
    boxes = page.locator(".box")
    rows = page.get_by_label("Rows", exact=True).first
    expect(boxes.first).to_be_hidden()
    page.get_by_role("button", name="Profile").click()
    expect(boxes).to_have_count(len(made.events()))
    expect(rows).to_be_hidden()
    assert page.url.endswith("#profile")
    page.reload()
    expect(boxes.first).to_be_visible()
    page.locator(".box[data-kind=model]").last.click()
    page.keyboard.press("Escape")
    expect(boxes).to_have_count(len(made.events()))
    page.keyboard.press("Escape")
    expect(rows).to_be_visible()
    page.keyboard.press("f")
    page.locator(".box[data-kind=tool]").click()
    page.get_by_role("button", name="Show its session").click()
    expect(rows).to_be_visible()
    expect(page.locator(".rows-head .who")).to_contain_text("first")
    assert seen.complaints == []


def test_a_page_without_a_profile_has_no_view_of_it(open_page: Open, tmp_path: Path) -> None:
    page, seen = open_page(write_page(team(), tmp_path / "x.html"))
    expect(page.get_by_role("button", name="Profile")).to_have_count(0)
    page.keyboard.press("f")
    expect(page.get_by_label("Rows", exact=True).first).to_be_visible()
    assert seen.complaints == []
