"""Take the pictures of `rath view` that the pages show: `python docs/explorer_screenshots.py`.

They are taken of the page that example 16 writes, of many branches and of an evaluation, in
Chromium by Playwright.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, ViewportSize, sync_playwright

from rath import flow
from rath.eval import Evaluation, Exact, evaluate
from rath.eval import write_page as write_runs
from rath.session import Session
from rath.session.view import write_page
from rath.testing import ScriptedClient

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "source" / "_static"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SIZE: ViewportSize = {"width": 1280, "height": 760}


def write_example(folder: Path) -> Path:
    """Run the example and return its page."""
    environment = {
        **os.environ,
        "RATH_EXAMPLE_PROVIDER": "scripted",
        "OPENRATH_HOME": str(folder),
    }
    command = [sys.executable, str(ROOT / "example" / "16_explorer.py"), str(folder)]
    subprocess.run(command, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / "session.html"


def write_branches(folder: Path) -> Path:
    """Write the page of a session with 24 branches, each judged by a check."""
    answers = [f"I let `mean` raise, and test {n} lists that are empty." for n in range(24)]
    client = ScriptedClient(["An empty list divides by zero.", *answers])
    agent = flow.Agent("You mend small programs.", client.provider, system_tools=False)
    found = agent(Session.create("user", "What does stats.py do with an empty list?")).synchronize()
    workspace = folder / "empty"
    workspace.mkdir()
    made: list[Session] = []
    for n in range(24):
        asked = found.fork().merge(Session.from_user_message(f"Mend it, in way {n + 1}."))
        branch = agent(asked.to("local", spec=str(workspace))).synchronize()
        branch.check("tests pass", "true" if n % 3 else "false")
        branch.close_sandbox()
        made.append(branch)
    return write_page(made[7], folder / "branches.html", others=made)


def write_evaluation(folder: Path) -> Path:
    """Write the page of an evaluation beside an earlier one."""
    sums = [(n, n * 7 % 11) for n in range(12)]
    rows = [
        {"key": f"sum {n}", "input": f"{a} + {b}?", "expected": str(a + b), "tags": ["small"]}
        for n, (a, b) in enumerate(sums, start=1)
    ]

    def carry_out(job: str, wrong: int) -> Evaluation:
        client = ScriptedClient([str(a + b + (n % wrong == 0)) for n, (a, b) in enumerate(sums)])
        agent = flow.Agent("You add numbers.", client.provider, system_tools=False)
        return evaluate(agent, rows, Exact(), store=str(folder), job=job, concurrency=1)

    before, after = carry_out("monday", 2), carry_out("tuesday", 5)
    return write_runs(after, folder / "runs.html", [before])


def show_answer(page: Page) -> None:
    page.locator(".line.row.assistant").nth(2).click()


def show_diff(page: Page) -> None:
    page.locator(".line.row.tool_result", has_text="edit_workspace_file").first.click()
    page.locator(".change").evaluate("change => change.scrollIntoView({block: 'center'})")


def show_comparison(page: Page) -> None:
    branches = page.locator(".session:not(.plain)")
    branches.nth(2).click()
    branches.nth(1).click()
    page.keyboard.press("c")
    page.locator(".pair .cell.assistant").nth(0).click()


def show_last(page: Page) -> None:
    page.locator(".line.row").last.click()


def show_runs(page: Page) -> None:
    page.wait_for_selector("#items tbody tr")


SHOTS: tuple[tuple[str, str, Literal["light", "dark"], Callable[[Page], None]], ...] = (
    ("explorer-light", "session", "light", show_answer),
    ("explorer-dark", "session", "dark", show_answer),
    ("explorer-diff", "session", "light", show_diff),
    ("explorer-compare", "session", "light", show_comparison),
    ("explorer-branches", "branches", "light", show_last),
    ("explorer-runs", "runs", "light", show_runs),
)


def main() -> None:
    chromium = shutil.which("chromium")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        pages = {
            "session": write_example(folder),
            "branches": write_branches(folder),
            "runs": write_evaluation(folder),
        }
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        for picture, kind, scheme, prepare in SHOTS:
            page = browser.new_page(viewport=SIZE, color_scheme=scheme)
            page.goto(pages[kind].as_uri())
            page.wait_for_selector("html[data-ready]")
            prepare(page)
            page.screenshot(path=PICTURES / f"{picture}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
