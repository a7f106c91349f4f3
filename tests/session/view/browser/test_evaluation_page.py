"""The page of an evaluation in a browser."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from rath import flow
from rath.eval import Contains, Evaluation, Exact, evaluate, write_page
from rath.session.persistence.store import FileStore
from rath.testing import ScriptedClient
from tests.session.view.browser.conftest import Open

ROWS = [
    {"key": "good", "input": "2 + 2?", "expected": "4", "tags": ["sum"]},
    {"key": "<b>bad</b>", "input": "Rain?", "expected": "wet"},
    {"key": "failed", "input": "Snow?", "expected": "cold"},
]


def test_answers_stand_worst_first_and_show_their_sessions(open_page: Open, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")

    def carry_out(job: str, *answers: str | ValueError) -> Evaluation:
        team = flow.Agent("You answer.", ScriptedClient(answers).provider, system_tools=False)
        return evaluate(
            team, ROWS, [Exact(), Contains()], store=store, job=job, concurrency=1, retries=0
        )

    before = carry_out("before", "4", "wet", "cold")
    after = carry_out("after", "4", "<i>dry</i>", ValueError("no"))
    target = tmp_path / "page.html"
    write_page(after, target, [before])
    page, seen = open_page(target)
    keys = page.locator("#items tbody tr td:first-child")
    expect(keys).to_have_text(["failed", "<b>bad</b>", "good"])
    runs = page.locator("#runs tbody tr")
    expect(runs).to_have_count(2)
    expect(runs.filter(has_text="before")).to_contain_text("1.000 [1.000, 1.000]")
    expect(page.locator("#chart path")).to_have_count(2)
    bad = page.locator("#items tbody tr").nth(1)
    expect(bad).to_contain_text("0.000 (-1.00)")
    page.get_by_role("button", name="<b>bad</b>").click()
    about = page.locator("#about")
    expect(about.locator(".row")).to_have_count(2)
    expect(about.locator(".row.assistant pre")).to_have_text("<i>dry</i>")
    expect(about.locator("table tbody tr")).to_have_count(2)
    expect(about).to_contain_text("target: wet")
    page.keyboard.press("Escape")
    expect(about).to_be_hidden()
    page.locator("#tag").select_option("sum")
    expect(keys).to_have_text(["good"])
    page.locator("#tag").select_option("")
    page.locator("#search").fill("snow")
    expect(keys).to_have_text(["failed"])
    assert seen.complaints == []
    assert [each for each in seen.asked if not each.startswith(("file:", "data:"))] == []
