"""Pages for everybody: small screens, dark colours, the keyboard alone, and what axe-core finds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest
from playwright.sync_api import Page, expect

from rath import flow
from rath.eval import Exact, evaluate
from rath.eval import write_page as write_runs
from rath.profiler import profile_sessions
from rath.session import Session
from rath.session.persistence.store import FileStore
from rath.session.view import write_page
from rath.testing import ScriptedClient
from tests.session.view.browser.conftest import Open
from tests.session.view.browser.test_lineage import branches
from tests.support.axe import AXE, NO_AXE, faults
from tests.support.branches import Family

pytestmark = pytest.mark.timeout(90)  # seconds; the machine may be busy

NAMES = ("session", "comparison", "branches", "runs", "flame", "profile")
PICTURES = os.environ.get("RATH_SCREENSHOTS")
"""A folder in which screenshots are kept, to look at them."""

SIZES = {"wide": (1400, 860), "narrow": (390, 800)}


@pytest.fixture(scope="module")
def pages(
    made_family: tuple[Family, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path | str]:
    """A page of each kind, by name."""
    folder = tmp_path_factory.mktemp("pages")
    family, session_page = made_family
    made = branches(6)
    store = FileStore(folder / "store")
    rows = [{"key": str(each), "input": f"{each}?", "expected": "1"} for each in range(3)]

    def carry_out(job: str) -> Path | None:
        client = ScriptedClient(["1", "2", "1"])
        agent = flow.Agent("Add.", client.provider, system_tools=False)
        done = evaluate(agent, rows, Exact(), store=store, job=job, concurrency=1)
        return write_runs(done, folder / "runs.html")

    runs = carry_out("sums")
    assert runs is not None
    flame = folder / "flame.html"
    made_profile = profile_sessions([family.joined])
    made_profile.export_html(flame, title="Profile")
    profile = write_page(family.joined, folder / "profile.html", profile=made_profile.flame_data())
    return {
        "session": session_page,
        "comparison": write_page(family.left, folder / "both.html", compare=family.right),
        "branches": write_page(made[3], folder / "branches.html", others=made),
        "runs": runs,
        "flame": flame,
        "profile": f"{profile.as_uri()}#profile",
    }


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_a_page_fits_its_window(
    open_page: Open, pages: dict[str, Path | str], name: str, scheme: str, size: str
) -> None:
    page, seen = open_page(pages[name], size=SIZES[size], color_scheme=scheme)
    picture = page.screenshot()
    if PICTURES is not None:
        Path(PICTURES, f"{name}-{scheme}-{size}.png").write_bytes(picture)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] > 127")
    assert light == (scheme == "light")
    assert seen.complaints == []


@pytest.mark.skipif(not AXE.is_file(), reason=NO_AXE)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_axe_finds_no_serious_fault(
    open_page: Open, pages: dict[str, Path | str], name: str, scheme: str, size: str
) -> None:
    page, _ = open_page(pages[name], size=SIZES[size], color_scheme=scheme)
    assert faults(page) == []


@pytest.mark.skipif(not AXE.is_file(), reason=NO_AXE)
def test_axe_finds_no_serious_fault_in_what_opens(
    open_page: Open, pages: dict[str, Path | str]
) -> None:
    page, _ = open_page(pages["session"])
    page.locator(".line.row", has_text="edit_workspace_file").nth(1).click()
    for closed in page.locator(".evidence details:not([open]) > summary").all():
        closed.click()
    assert faults(page) == []
    page.keyboard.press("?")
    assert faults(page) == []
    runs, _ = open_page(pages["runs"])
    runs.locator("#items .link").first.click()
    assert faults(runs) == []


REACHABLE = """() => [
    ...document.querySelectorAll("button, a[href], input, select, summary, [tabindex]")
  ]
  .filter((each) => each.tabIndex >= 0 && each.checkVisibility({visibilityProperty: true}))
  .map((each) => each.dataset.tab ??= String(Math.random()))"""

FOCUSED = """() => {
  const here = document.activeElement;
  const shows = (each) => {
    const style = getComputedStyle(each);
    const hasOutline = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
    return hasOutline || style.boxShadow !== "none";
  };
  const parts = [here, here.parentElement, ...here.querySelectorAll(".selected, .cursor, .frame")];
  return [here.dataset.tab ?? "", parts.some(shows), here.outerHTML.slice(0, 90)];
}"""


@pytest.mark.parametrize("name", NAMES)
def test_tab_reaches_every_control_and_the_focus_is_seen(
    open_page: Open, pages: dict[str, Path | str], name: str
) -> None:
    page, _ = open_page(pages[name])
    wanted = set(cast("list[str]", page.evaluate(REACHABLE)))
    reached: set[str] = set()
    unseen: list[str] = []
    for _ in range(len(wanted) + 3):
        page.keyboard.press("Tab")
        tab, is_seen, element = page.evaluate(FOCUSED)
        reached.add(tab)
        if tab and not is_seen:
            unseen.append(element)
    assert wanted - reached == set()
    assert unseen == []


def show_evidence(page: Page) -> None:
    page.keyboard.press("j")
    page.keyboard.press("Enter")


@pytest.mark.parametrize(
    ("keys", "opened"),
    [
        pytest.param("?", "dialog[open]", id="keys"),
        pytest.param("c", "body.comparing", id="comparison"),
        pytest.param("Enter", "body.has-evidence", id="evidence"),
    ],
)
def test_escape_closes_what_a_key_opened(
    open_page: Open, pages: dict[str, Path | str], keys: str, opened: str
) -> None:
    page, _ = open_page(pages["session"])
    page.keyboard.press("g")
    page.keyboard.press("k")
    page.keyboard.press("g")
    page.keyboard.press(keys)
    expect(page.locator(opened)).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.locator(opened)).to_have_count(0)


def test_a_session_is_looked_at_by_the_keyboard_alone(
    open_page: Open, pages: dict[str, Path | str]
) -> None:
    page, seen = open_page(pages["branches"])
    page.keyboard.press("g")
    page.keyboard.press("Home")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator(".cursor")).to_contain_text("6 branches")
    page.keyboard.press("Enter")
    page.keyboard.press("End")
    expect(page.locator(".rows-head")).to_contain_text("Agent loop")
    page.keyboard.press("Enter")
    expect(page.locator("#rows")).to_be_focused()
    page.keyboard.press("End")
    page.keyboard.press("k")
    show_evidence(page)
    expect(page.locator(".evidence")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("way")
    page.keyboard.press("Enter")
    expect(page.locator(".told")).to_contain_text("of")
    page.keyboard.press("Escape")
    expect(page.locator("#rows")).to_be_focused()
    assert seen.complaints == []


def test_a_page_without_sessions_of_others_has_no_graph_to_fall_into(
    open_page: Open, tmp_path: Path
) -> None:
    page, seen = open_page(write_page(Session.from_user_message("Hi."), tmp_path / "page.html"))
    for key in ("g", "j", "k", "End", "Home", "ArrowLeft", "ArrowRight", "Enter", "c", "r", "m"):
        page.keyboard.press(key)
    expect(page.locator(".rows-head")).to_contain_text("1 row")
    assert seen.complaints == []
