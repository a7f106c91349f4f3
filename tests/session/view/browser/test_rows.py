"""Rows of a page: the map beside them, heat, addresses, Markdown and paper."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from playwright.sync_api import Page, expect

from benchmarks.explorer import long_session
from rath.session import Session
from rath.session.view import write_page
from tests.session.view.browser.conftest import Open
from tests.session.view.browser.test_page import hostile_session
from tests.support.branches import Family
from tests.support.sessions import run

pytestmark = pytest.mark.timeout(60)  # seconds; the machine may be busy

CLIPBOARD: dict[str, Any] = {"permissions": ["clipboard-read", "clipboard-write"]}
PICTURE = """new Promise((drawn) => requestAnimationFrame(
  () => drawn(document.querySelector(".minimap canvas").toDataURL())
))"""


def copied(page: Page) -> str:
    """What the last key or button put on the clipboard."""
    expect(page.locator(".status")).to_contain_text("Copied")
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text


def indexes(page: Page) -> list[int]:
    """The rows that are in the document, by their numbers."""
    return [int(text) for text in page.locator(".line.row .index").all_inner_texts()]


def test_the_map_of_two_thousand_rows_jumps_and_scrolls(open_page: Open, tmp_path: Path) -> None:
    page, seen = open_page(write_page(long_session(2000), tmp_path / "page.html"))
    box = page.locator(".minimap").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 20, box["y"] + box["height"] / 2)
    page.mouse.down()
    expect(page.locator(".index", has_text=re.compile("^1000$"))).to_be_visible()
    page.mouse.move(box["x"] + 20, box["y"] + box["height"] - 2)
    page.mouse.up()
    expect(page.locator(".index", has_text=re.compile("^1999$"))).to_be_visible()
    strip = page.get_by_role("scrollbar", name="Map of the rows")
    strip.focus()
    page.keyboard.press("Home")
    expect(page.locator(".index", has_text=re.compile("^1$"))).to_be_visible()
    expect(strip).to_have_attribute("aria-valuenow", "0")
    page.keyboard.press("End")
    expect(strip).to_have_attribute("aria-valuenow", "100")
    assert max(indexes(page)) == 1999
    assert seen.complaints == []


def test_the_map_shows_kinds_cost_and_time(open_page: Open, tmp_path: Path) -> None:
    page, _ = open_page(write_page(long_session(400), tmp_path / "page.html"))
    pictures = [page.evaluate(PICTURE)]
    for name in ("Cost", "Time"):
        page.keyboard.press("m")
        button = page.get_by_role("button", name=name, exact=True)
        expect(button).to_have_attribute("aria-pressed", "true")
        pictures.append(page.evaluate(PICTURE))
    page.get_by_role("button", name="Kinds", exact=True).click()
    assert page.evaluate(PICTURE) == pictures[0]
    page.fill("#search", "kind:tool")
    expect(page.locator(".told")).to_contain_text("of 199")
    pictures.append(page.evaluate(PICTURE))
    assert len(set(pictures)) == 4


def test_a_short_list_has_no_map(open_page: Open, page_file: Path) -> None:
    page, _ = open_page(write_page(Session.from_user_message("Hi."), page_file.with_name("s.html")))
    expect(page.locator(".minimap")).to_be_hidden()


def test_rows_say_by_a_bar_what_costs_most(open_page: Open, tmp_path: Path) -> None:
    user = run(["Yes."], user=Session.from_user_message("Is it?")).synchronize()
    session = run(["Word. " * 200], user=user).synchronize()
    page, _ = open_page(write_page(session, tmp_path / "page.html"))
    bars = page.locator('.warmth[data-heat="cost"]').evaluate_all(
        "all => all.map((each) => parseInt(each.style.backgroundSize))"
    )
    assert len(bars) == 2
    assert 0 < bars[0] < bars[1] == 100


def test_an_address_opens_a_row_of_a_session(
    open_page: Open, made_family: tuple[Family, Path]
) -> None:
    family, path = made_family
    page, seen = open_page(f"{path.as_uri()}#{family.left.id}/5")
    expect(page.locator(".rows-head")).to_contain_text(str(family.left.id)[:8])
    expect(page.locator(".line.selected .index")).to_have_text("5")
    expect(page.locator("#rows")).to_be_focused()
    expect(page.locator(".evidence")).to_contain_text("row\n5 of", use_inner_text=True)
    page.evaluate(f"location.hash = '#{str(family.right.id)[:8]}/6'")
    expect(page.locator(".rows-head")).to_contain_text(str(family.right.id)[:8])
    expect(page.locator(".line.selected .index")).to_have_text("6")
    page.evaluate("location.hash = '#ffffffff/1'")
    expect(page.locator(".status")).to_have_text("Session ffffffff is not in this page.")
    expect(page.locator(".line.selected .index")).to_have_text("6")
    assert seen.complaints == []


def test_the_address_follows_the_row_and_is_copied(
    open_page: Open, made_family: tuple[Family, Path]
) -> None:
    family, path = made_family
    page, _ = open_page(path, **CLIPBOARD)
    page.keyboard.press("j")
    address = f"{path.as_uri()}#{family.joined.id}/1"
    expect(page).to_have_url(address)
    page.keyboard.press("y")
    assert copied(page) == address
    page.locator(".line.row").first.click()
    page.locator(".evidence").get_by_role("button", name="Link").click()
    expect(page.locator(".status")).to_contain_text("row 0")
    assert copied(page) == f"{path.as_uri()}#{family.joined.id}/0"


def test_rows_and_sessions_are_copied_as_markdown(open_page: Open, page_file: Path) -> None:
    page, _ = open_page(page_file, **CLIPBOARD)
    page.locator(".line.row", has_text="I say two.").click()
    page.locator(".evidence").get_by_role("button", name="Markdown").click()
    row = copied(page)
    assert row.startswith("### 5 assistant (scripted) · ")
    assert "> I say two.\n\ncalls edit\\_workspace\\_file\n\n```json\n{" in row
    page.locator(".rows-head").get_by_role("button", name="Markdown").click()
    expect(page.locator(".status")).to_contain_text("rows as Markdown")
    session = copied(page)
    assert row.strip() in session
    assert "- ✓ is two passed" in session


def test_copied_markdown_has_no_html_of_others(open_page: Open, tmp_path: Path) -> None:
    tricks = ["``` a`b\n<img src=x>", "~~~\n<b>code</b>\n~~~\n<img src=y>", "![p](http://x/y.png)"]
    session = hostile_session()
    made = [run([each], user=session).synchronize() for each in tricks]
    page, _ = open_page(write_page(made[0], tmp_path / "page.html", others=made[1:]), **CLIPBOARD)
    for each in made:
        page.evaluate(f"location.hash = '#{each.id}'")
        expect(page.locator(".rows-head")).to_contain_text(str(each.id)[:8])
        page.keyboard.press("s")
        rendered = MarkdownIt("commonmark").render(copied(page))
        assert "onerror" in rendered
        assert re.findall(r"<(?:script|img|svg|iframe|b)\b", rendered) == []
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        expect(page.locator(".paper")).to_contain_text("onerror")
        assert page.locator(".paper :is(script, img, svg, iframe, b[onclick])").count() == 0
    assert page.evaluate("[window.hacked, ({}).polluted]") == [None, None]


def test_paper_gets_all_rows_in_full(open_page: Open, tmp_path: Path) -> None:
    page, seen = open_page(
        write_page(long_session(300), tmp_path / "page.html"), color_scheme="dark"
    )
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(page.locator(".paper article")).to_have_count(300)
    expect(page.locator(".paper article").last).to_be_visible()
    expect(page.locator(".panes")).to_be_hidden()
    assert page.evaluate("getComputedStyle(document.querySelector('.paper')).color") == (
        "rgb(28, 31, 35)"
    )
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    expect(page.locator(".paper")).to_have_count(0)
    expect(page.locator(".panes")).to_be_visible()
    assert seen.complaints == []
