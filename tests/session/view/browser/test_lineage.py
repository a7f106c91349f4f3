"""The lineage of many sessions: branches that fold, lanes that are used again, conversations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from rath import flow
from rath.session import Session
from rath.session.record import Verdict
from rath.session.view import write_page
from rath.testing import ScriptedClient
from tests.session.view.browser.conftest import Open

pytestmark = pytest.mark.timeout(60)  # seconds; the machine may be busy

N = 30


def branches(n: int, *, has_verdicts: bool = True, fails: bool = False) -> tuple[Session, ...]:
    """A session, and so many forks of it that were asked and answered."""
    answers = ["It divides by zero.", *(f"Way {each}" + "!" * each for each in range(n))]
    client = ScriptedClient([*answers, ValueError("no more")])
    agent = flow.Agent("Mend it.", client.provider, system_tools=False)
    found = agent(Session.create("user", "What does it do?")).synchronize()
    made: list[Session] = []
    for each in range(n):
        asked = found.fork().merge(Session.from_user_message(f"Way {each}, please."))
        made.append(agent(asked).synchronize())
        if has_verdicts:
            judge(made[-1], each / n)
    if fails:
        failed = agent(found.fork())
        with pytest.raises(ValueError, match="no more"):
            failed.synchronize()
        made.append(failed)
    return (found, *made)


def judge(session: Session, score: float) -> None:
    session.add_entry(
        Verdict(
            operation=session.record[-1].operation,
            name="tests",
            judge="pytest",
            passed=score > 0.5,
            score=score,
            report="",
        )
    )


def page_of(open_page: Open, folder: Path, made: tuple[Session, ...], shown: int) -> Page:
    page, seen = open_page(write_page(made[shown], folder / "page.html", others=made))
    assert seen.complaints == []
    return page


def lanes(page: Page) -> int:
    """How many lanes the graph takes."""
    places = page.locator(".art circle, .art rect").evaluate_all(
        "all => all.map((each) => each.getAttribute('cx') ?? each.getAttribute('x'))"
    )
    return len(set(places))


def test_many_branches_are_one_line_with_the_best_and_the_worst(
    open_page: Open, tmp_path: Path
) -> None:
    made = branches(N)
    page = page_of(open_page, tmp_path, made, 8)
    group = page.locator(".group")
    expect(group).to_contain_text("30 branches")
    expect(group).to_contain_text("1 below")
    expect(page.locator("#sessions [role=treeitem]")).to_have_count(6)
    group.get_by_role("button", name="best 0.97").click()
    expect(page.locator(".rows-head")).to_contain_text(str(made[N].id)[:8])
    group.get_by_role("button", name="worst 0.00").click()
    expect(page.locator(".rows-head")).to_contain_text(str(made[1].id)[:8])
    expect(page.locator(".session.selected")).to_contain_text("Way 0, please.")


def test_branches_unfold_onto_lanes_that_are_used_again(open_page: Open, tmp_path: Path) -> None:
    page = page_of(open_page, tmp_path, branches(N), 0)
    page.locator(".group").click(position={"x": 200, "y": 10})
    expect(page.locator(".group")).to_have_attribute("aria-expanded", "true")
    expect(page.locator(".session", has_text="Agent")).to_have_count(N + 1)
    assert lanes(page) == 2
    page.locator(".group").click(position={"x": 200, "y": 10})
    expect(page.locator(".session", has_text="Agent")).to_have_count(1)


def test_the_keyboard_unfolds_branches_and_folds_them_again(
    open_page: Open, tmp_path: Path
) -> None:
    page = page_of(open_page, tmp_path, branches(5), 0)
    tree = page.locator("#sessions")
    page.keyboard.press("g")
    expect(tree).to_be_focused()
    page.keyboard.press("j")
    current = page.locator(".cursor")
    expect(current).to_contain_text("5 branches")
    page.keyboard.press("Enter")
    expect(current).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("j")
    expect(page.locator(".session.selected")).to_contain_text("fork")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".cursor")).to_contain_text("fork")
    page.keyboard.press("k")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".cursor")).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".cursor")).to_have_attribute("aria-expanded", "true")
    active = tree.get_attribute("aria-activedescendant")
    assert active == page.locator(".cursor").get_attribute("id")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param({}, "shortest", id="tokens"),
        pytest.param({"fails": True}, "1 of 6 not completed", id="outcome"),
    ],
)
def test_branches_without_verdicts_compare_by_what_is_known(
    open_page: Open, tmp_path: Path, options: dict[str, bool], words: str
) -> None:
    page = page_of(open_page, tmp_path, branches(5, has_verdicts=False, **options), 0)
    expect(page.locator(".group")).to_contain_text(words)


def test_branches_that_are_merged_again_stay_folded(open_page: Open, tmp_path: Path) -> None:
    found, *made = branches(6)
    joined = made[0]
    for each in made[1:]:
        joined = joined.merge(each)
    page = page_of(open_page, tmp_path, (joined, found), 0)
    expect(page.locator(".group").nth(0)).to_contain_text("6 branches")
    expect(page.locator(".group").nth(1)).to_contain_text("4 merges")
    expect(page.locator("#sessions [role=treeitem]")).to_have_count(5)


def say(session: Session, text: str) -> Session:
    return session.say(text)


def merge(session: Session, text: str) -> Session:
    return session.merge(Session.from_user_message(text))


@pytest.mark.parametrize("go_on", [say, merge])
def test_a_conversation_is_one_strand(
    open_page: Open, tmp_path: Path, go_on: Callable[[Session, str], Session]
) -> None:
    client = ScriptedClient([f"Answer {each}." for each in range(5)])
    agent = flow.Agent("Answer.", client.provider, system_tools=False)
    session = agent(Session.create("user", "How many bridges?")).synchronize()
    for each in range(1, 5):
        session = agent(go_on(session, f"And in {1900 + each}?")).synchronize()
    page = page_of(open_page, tmp_path, (session,), 0)
    expect(page.locator("#sessions [role=treeitem]")).to_have_count(2)
    expect(page.locator(".group")).to_contain_text("Conversation, 4 turns")
    expect(page.locator(".session.selected")).to_contain_text("And in 1904?")
    inputs = page.locator(".line.band", has_text="input")
    expect(inputs).to_have_count(0)
    page.locator(".group").click()
    expect(page.locator(".session", has_text="And in 1902?")).to_have_count(2)
    assert lanes(page) == 1
