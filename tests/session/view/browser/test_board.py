"""The page of jobs and evaluations in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from rath import flow
from rath.eval import (
    Contains,
    Evaluation,
    Exact,
    Example,
    evaluate,
    load_evaluation,
    write_page,
)
from rath.eval.page import EvaluationPageLimits
from rath.session import Session
from rath.session.persistence.store import FileStore
from rath.testing import ScriptedClient
from tests.session.view.browser.conftest import Open
from tests.session.view.browser.test_page import ALL
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(60)  # seconds; the machine may be busy

JOB = "</script><script>window.hacked = 1</script>"
ROWS = [
    {"key": "good", "input": "2 + 2?", "expected": "4", "tags": ["sum"]},
    {"key": "<b>bad</b>", "input": "Rain?", "expected": "wet"},
    {"key": "failed", "input": "Snow?", "expected": "cold"},
]


def carry_out(store: FileStore, job: str, *answers: str | ValueError) -> Evaluation:
    team = flow.Agent("You answer.", ScriptedClient(answers).provider, system_tools=False)
    scorers = [Exact(), Contains()]
    return evaluate(team, ROWS, scorers, store=store, job=job, concurrency=1, retries=0)


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of an evaluation beside an earlier one."""
    folder = tmp_path_factory.mktemp("evaluations")
    store = FileStore(folder / "store")
    before = carry_out(store, "before", "4", "wet", "cold")
    after = carry_out(store, "after", "4", "<i>dry</i>", ValueError("no"))
    return write_page(after, folder / "page.html", [before])


def keys(page: Page) -> list[str]:
    return page.locator("#items tbody tr td:first-child").all_inner_texts()


def test_runs_stand_worst_first_beside_those_of_the_evaluation_before(
    open_page: Open, evaluations: Path
) -> None:
    page, seen = open_page(evaluations)
    expect(page.locator("#items tbody tr")).to_have_count(3)
    assert keys(page) == ["failed", "<b>bad</b>", "good"]
    numbers = page.locator("#numbers tbody tr")
    expect(numbers).to_have_count(2)
    expect(numbers.filter(has_text="before")).to_contain_text("1.000 [1.000, 1.000]")
    expect(page.locator("#chart path")).to_have_count(2)
    bad = page.locator("#items tbody tr").nth(1)
    expect(bad).to_contain_text("0.000 (-1.00)")
    page.locator("#tag").select_option("sum")
    assert keys(page) == ["good"]
    page.locator("#tag").select_option("")
    page.locator("#find").fill("snow")
    assert keys(page) == ["failed"]
    page.locator("#find").fill("")
    page.locator("#state").select_option("done")
    page.locator("#by").select_option("exact")
    assert keys(page) == ["<b>bad</b>", "good"]
    assert seen.complaints == []
    assert [each for each in seen.asked if not each.startswith(("file:", "data:"))] == []


def test_a_run_opens_its_session_and_escape_leads_back(open_page: Open, evaluations: Path) -> None:
    page, seen = open_page(evaluations)
    expect(page.locator(".panes")).to_be_hidden()
    page.get_by_role("button", name="<b>bad</b>", exact=True).click()
    expect(page.locator(".board")).to_be_hidden()
    expect(page.locator(".line.row.assistant .text")).to_have_text("<i>dry</i>")
    expect(page.locator(".about")).to_contain_text("exact 0.000 (-1.00)")
    expect(page.locator(".about")).to_contain_text("expected wet")
    # Of the other runs nothing is in the graph.
    expect(page.locator(".lineage .count")).to_have_text("2 sessions")
    page.keyboard.press("Escape")
    expect(page.locator(".board")).to_be_visible()
    expect(page.get_by_role("button", name="<b>bad</b>", exact=True)).to_be_focused()
    page.keyboard.press("r")
    expect(page.locator(".panes")).to_be_visible()
    page.get_by_role("button", name="← Runs").click()
    expect(page.locator(".board")).to_be_visible()
    assert seen.complaints == []


def test_keys_of_sessions_do_nothing_among_the_runs(open_page: Open, evaluations: Path) -> None:
    page, seen = open_page(evaluations, size=(390, 300))
    page.locator("#numbers .grid-box").focus()
    for key in ("s", "y", "c", "m"):
        page.keyboard.press(key)
    expect(page.locator(".status")).to_have_text("")
    page.keyboard.press("PageDown")
    # A string would be evaluated, which the policy of the page forbids.
    wait_until(lambda: page.locator(".board").evaluate("board => board.scrollTop") > 0)
    page.keyboard.press("/")
    expect(page.locator("#find")).to_be_focused()
    assert seen.complaints == []


def test_a_run_stands_beside_the_same_one_of_the_evaluation_before(
    open_page: Open, evaluations: Path
) -> None:
    page, seen = open_page(evaluations)
    page.get_by_role("button", name="Compare <b>bad</b> with the run before").click()
    expect(page.locator(".versus")).to_contain_text("A after ·")
    expect(page.locator(".versus")).to_contain_text("B before ·")
    pair = page.locator(".pair").filter(has_text="dry")
    expect(pair.locator('[data-side="b"]')).to_contain_text("wet")
    page.keyboard.press("Escape")
    expect(page.locator(".board")).to_be_visible()
    assert seen.complaints == []


def test_an_address_opens_a_row_of_a_run(open_page: Open, evaluations: Path) -> None:
    page, _ = open_page(evaluations)
    page.get_by_role("button", name="good", exact=True).click()
    page.keyboard.press("End")
    page.keyboard.press("k")
    page.keyboard.press("k")
    expect(page.locator(".line.selected .index")).to_have_text("1")
    address = page.evaluate("location.href.split('#')[0]")
    session = page.locator(".rows-head code").first.get_attribute("title")
    other, seen = open_page(f"{address}#{session}/1")
    expect(other.locator(".line.selected .index")).to_have_text("1")
    expect(other.locator(".about")).to_contain_text("good")
    assert seen.complaints == []


def test_a_job_without_scores_has_a_page_too(open_page: Open, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    client = ScriptedClient([ALL, ALL])
    agent = flow.Agent(ALL, client.provider, system_tools=False)
    key = ALL.replace("\ud800", "")
    rows = [{"key": f"{at} {key}", "input": ALL} for at in range(2)]
    flow.map(
        agent, rows, key="key", job=JOB, store=store, concurrency=1, progress=False
    ).synchronize()
    target = write_page(load_evaluation(JOB, store), tmp_path / "page.html")
    page, seen = open_page(target)
    expect(page.locator("#items tbody tr")).to_have_count(2)
    expect(page.locator("#items tbody tr").first).to_contain_text("done")
    page.locator("#items .link").first.click()
    expect(page.locator(".line.row.assistant")).to_contain_text("hacked")
    assert page.evaluate("[window.hacked, ({}).polluted]") == [None, None]
    assert page.locator("body :is(iframe, img, b[onclick])").count() == 0
    assert seen.complaints == []


def test_the_error_of_a_scorer_stands_with_the_run(open_page: Open, tmp_path: Path) -> None:
    def broken(example: Example, session: Session) -> float:
        raise ValueError(f"no ruler <b> for {example.key} {session.id}")

    agent = flow.Agent("Answer.", ScriptedClient(["4"]).provider, system_tools=False)
    store = FileStore(tmp_path / "store")
    done = evaluate(agent, ROWS[:1], [Exact(), broken], store=store, job="job")
    page, _ = open_page(write_page(done, tmp_path / "page.html"))
    expect(page.locator("#items tbody tr")).to_contain_text("error")
    page.get_by_role("button", name="good", exact=True).click()
    expect(page.locator(".about")).to_contain_text("broken error ValueError: no ruler <b> for good")


def test_sessions_beyond_the_limit_are_named_only(open_page: Open, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    done = carry_out(store, "job", "4", "dry", "cold")
    limits = EvaluationPageLimits(max_rows=3)
    page, _ = open_page(write_page(done, tmp_path / "page.html", limits=limits))
    expect(page.locator("#items tbody .link")).to_have_count(1)
    expect(page.locator("#items tbody [title^='rath view ']")).to_have_count(2)
