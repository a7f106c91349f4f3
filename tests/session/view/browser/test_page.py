from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from benchmarks.explorer import long_session
from rath.session import ChunkRow, ChunkTable, Session
from rath.session.record import Verdict
from rath.session.view import write_page
from rath.testing import tool_call
from tests.session.view.browser.conftest import Open
from tests.session.view.page.conftest import SlowRun, serving, slow_run
from tests.support.branches import Family
from tests.support.sessions import FunctionTool, run

pytestmark = pytest.mark.timeout(60)  # seconds; the machine may be busy


ROW = ".line.row"


def chosen(page: Page) -> str:
    """The text of the line that is selected."""
    return page.locator(".line.selected").inner_text()


def test_opens_without_a_complaint_and_asks_for_nothing(open_page: Open, page_file: Path) -> None:
    page, seen = open_page(page_file, offline=True)
    expect(page).to_have_title("What does the note say? · " + page.title().split(" · ")[1])
    expect(page.locator(ROW).first).to_contain_text("What does the note say?")
    assert seen.complaints == []
    assert seen.asked == [page_file.as_uri()]


def test_the_graph_shows_branches_and_their_merge(
    open_page: Open, made_family: tuple[Family, Path]
) -> None:
    family, path = made_family
    page, _ = open_page(path)
    for parent in (family.left, family.right):
        merge = family.joined.provenance.parents[0].id
        edge = page.locator(f'path.edge[data-from="{parent.id}"][data-to="{merge}"]')
        expect(edge).to_have_count(1)
    forks = page.locator(f'path.edge[data-from="{family.found.id}"]')
    expect(forks).to_have_count(2)
    expect(page.locator("circle.node.merge")).to_have_count(3)
    # The two messages stand on the lines of the merges that took them in.
    expect(page.locator(".session")).to_have_count(10)
    assert page.locator("#sessions").inner_text().count("Make it two.") == 2


def test_a_session_of_the_graph_shows_its_rows(
    open_page: Open, made_family: tuple[Family, Path]
) -> None:
    family, path = made_family
    page, _ = open_page(path)
    page.click(f'[data-session="{family.left.id}"]')
    expect(page.locator(".rows-head")).to_contain_text(str(family.left.id)[:8])
    expect(page.locator(ROW)).to_have_count(len(family.left.chunk_table))
    expect(page.locator(".line.event", has_text="is two passed")).to_have_count(1)


def test_a_tool_row_opens_to_where_it_ran_and_what_it_changed(
    open_page: Open, page_file: Path
) -> None:
    page, _ = open_page(page_file)
    page.locator(ROW, has_text="edit_workspace_file").nth(1).click()
    evidence = page.locator(".evidence")
    expect(evidence).to_contain_text("backend\nlocal", use_inner_text=True)
    expect(evidence.locator(".change .del")).to_have_text("-one\n")
    expect(evidence.locator(".change .add")).to_have_text("+two\n")
    expect(evidence).to_contain_text("non idempotent")


def test_an_answer_opens_to_what_the_model_saw(open_page: Open, page_file: Path) -> None:
    page, _ = open_page(page_file)
    page.locator(ROW, has_text="The note says one.").click()
    evidence = page.locator(".evidence")
    expect(evidence).to_contain_text("Change the note.")
    expect(evidence).to_contain_text("Rows 0 to 2 of its session")
    expect(evidence).to_contain_text("unpriced")
    evidence.get_by_role("button", name="0", exact=True).click()
    assert "What does the note say?" in chosen(page)


def test_the_keyboard_reaches_everything(open_page: Open, page_file: Path) -> None:
    page, _ = open_page(page_file)
    page.keyboard.press("j")
    assert "read_workspace_file" in chosen(page)
    page.keyboard.press("k")
    assert "What does the note say?" in chosen(page)
    page.keyboard.press("End")
    assert "Two is better." in chosen(page)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()
    page.keyboard.press("g")
    page.keyboard.press("k")
    expect(page.locator(".rows-head")).to_contain_text("merge")
    page.keyboard.press("Enter")
    expect(page.locator("#rows")).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()


@pytest.mark.parametrize(
    ("query", "count"),
    [
        pytest.param("note says", "3", id="words"),
        pytest.param("kind:user", "3", id="kind"),
        pytest.param("tool:edit", "4", id="tool"),
        pytest.param("model:scripted two", "3", id="model and word"),
        pytest.param("kind:verdict", "2", id="verdicts"),
        pytest.param("nothing says this", "none", id="nothing"),
    ],
)
def test_search_counts_what_it_finds(
    open_page: Open, page_file: Path, query: str, count: str
) -> None:
    page, _ = open_page(page_file)
    page.fill("#search", query)
    reports = page.locator(".search .told")
    expect(reports).to_have_text("none" if count == "none" else f"1 of {count}")


def test_search_goes_to_the_next_and_the_previous(open_page: Open, page_file: Path) -> None:
    page, _ = open_page(page_file)
    page.fill("#search", "the note says")
    expect(page.locator(".line.selected mark")).to_have_text("The note says")
    assert "one" in chosen(page)
    page.press("#search", "Enter")
    assert "two" in chosen(page)
    page.press("#search", "Shift+Enter")
    assert "one" in chosen(page)
    page.keyboard.press("Escape")
    expect(page.locator(".told")).to_have_text("")
    expect(page.locator("mark")).to_have_count(0)


def test_two_branches_stand_side_by_side_from_where_they_part(
    open_page: Open, made_family: tuple[Family, Path], tmp_path: Path
) -> None:
    family, _ = made_family
    path = write_page(family.left, tmp_path / "page.html", compare=family.right)
    page, seen = open_page(path)
    expect(page.locator(".fold")).to_contain_text("4 rows in common")
    pair = page.locator(".pair", has_text="Make it two.")
    expect(pair.locator('[data-side="a"]')).to_contain_text("Make it two.")
    expect(pair.locator('[data-side="b"]')).to_contain_text("Make it three.")
    pair.locator('[data-side="b"]').click()
    expect(page.locator(".evidence")).to_contain_text("Make it three.")
    page.keyboard.press("h")
    expect(page.locator(".evidence")).to_contain_text("Make it two.")
    page.click(".fold")
    expect(page.locator(ROW)).to_have_count(4)
    page.keyboard.press("c")
    expect(page.locator(".pair")).to_have_count(0)
    assert seen.complaints == []


CONTRAST = """() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const color = numbers(getComputedStyle(one).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const faint = [];
  for (const element of document.querySelectorAll("body *")) {
    const isText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!isText || !element.getClientRects().length) continue;
    const [a, b] = [numbers(getComputedStyle(element).color), behind(element)].map(light);
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) faint.push([element.className, element.textContent.slice(0, 30), contrast]);
  }
  return faint;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(open_page: Open, page_file: Path, scheme: str) -> None:
    page, _ = open_page(page_file, color_scheme=scheme)
    page.locator(ROW, has_text="edit_workspace_file").nth(1).click()
    # 4.5 to 1: WCAG 2.2, success criterion 1.4.3.
    assert page.evaluate(CONTRAST) == []


def test_light_and_dark_follow_the_system_and_the_switch(open_page: Open, page_file: Path) -> None:
    page, _ = open_page(page_file, color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.keyboard.press("t")
    light = page.evaluate(background)
    assert dark != light
    page.emulate_media(color_scheme="light")
    page.keyboard.press("t")
    assert page.evaluate(background) == dark


def test_a_phone_shows_one_pane_at_a_time(open_page: Open, page_file: Path) -> None:
    page, _ = open_page(page_file, size=(390, 800))
    expect(page.locator(".evidence")).to_be_hidden()
    page.locator(ROW, has_text="The note says one.").click()
    expect(page.locator(".evidence")).to_be_visible()
    expect(page.locator(".rows")).to_be_hidden()
    page.get_by_role("button", name="Lineage").click()
    expect(page.locator(".lineage")).to_be_visible()
    for name in ("Keys (?)", "Next match (n)"):
        box = page.get_by_role("button", name=name).bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 390


def test_ten_thousand_rows_stay_usable(open_page: Open, tmp_path: Path) -> None:
    path = write_page(long_session(10_000), tmp_path / "page.html")
    page, _ = open_page(path)
    page.keyboard.press("End")
    expect(page.locator(".line.selected .index")).to_have_text("9999")
    assert page.locator(".line").count() < 100
    page.fill("#search", "kind:user")
    expect(page.locator(".told")).to_have_text("1 of 1")


def test_a_session_without_rows_has_a_page(open_page: Open, tmp_path: Path) -> None:
    page, seen = open_page(write_page(Session.create("empty"), tmp_path / "page.html"))
    expect(page.locator(".rows-head")).to_contain_text("0 rows")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    assert seen.complaints == []


__all__ = ["slow_run"]


def test_a_page_follows_the_run_to_its_end(open_page: Open, slow_run: SlowRun) -> None:
    with serving(slow_run.session) as served:
        page, seen = open_page(served.address)
        expect(page.locator(".live")).to_have_text("live")
        expect(page.locator(".rows-head")).to_contain_text("running")
        expect(page.locator(".line.row")).to_have_count(2)
        expect(page.locator(".line.now")).to_contain_text("runswait, since")
        slow_run.may_go_on.set()
        expect(page.locator(".line.row")).to_have_count(4)
        expect(page.locator(".live")).to_have_text("ended: completed")
        expect(page.locator(".line.row").last).to_contain_text("The wait is over.")
        expect(page.locator(".rows-head")).to_contain_text("completed")
    assert seen.complaints == []
    assert seen.asked == [served.address, f"{served.address}events/0"]


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


def test_a_tool_that_raised_shows_its_traceback(open_page: Open, tmp_path: Path) -> None:
    def fails(*_: object) -> object:
        raise ValueError(f"no weather {ALL}")

    made = run([tool_call("look", {}), "done"], FunctionTool("look", fails)).synchronize()
    page, seen = open_page(write_page(made, tmp_path / "page.html"))
    page.locator(ROW, has_text="look").nth(1).click()
    raised = page.locator(".evidence section", has_text="Where it raised")
    expect(raised).to_contain_text("in fails")
    expect(raised).to_contain_text("raise ValueError(")
    page.fill("#search", "no weather")
    expect(page.locator(".told")).to_have_text("1 of 1")
    assert page.evaluate("window.hacked") is None
    assert seen.complaints == []


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
