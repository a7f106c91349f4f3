"""Take the pictures of `rath view` that the pages show: `python docs/explorer_screenshots.py`.

They are taken of the page that example 16 writes, in Chromium by Playwright.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "source" / "_static"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SIZE = {"width": 1280, "height": 760}


def write_page(folder: str) -> str:
    """Run the example and return the address of its page."""
    environment = {**os.environ, "RATH_EXAMPLE_PROVIDER": "scripted", "OPENRATH_HOME": folder}
    command = [sys.executable, str(ROOT / "example" / "16_explorer.py"), folder]
    subprocess.run(command, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return Path(folder, "session.html").as_uri()


def show_answer(page: Page) -> None:
    page.locator(".line.row.assistant").nth(2).click()


def show_diff(page: Page) -> None:
    page.locator(".line.row.tool_result", has_text="edit_workspace_file").first.click()
    page.locator(".change").evaluate("change => change.scrollIntoView({block: 'center'})")


def show_comparison(page: Page) -> None:
    branches = page.locator(".session", has=page.locator("b", has_text="loop"))
    branches.nth(2).click()
    branches.nth(1).click()
    page.keyboard.press("c")
    page.locator(".pair .cell.assistant").nth(0).click()


SHOTS = (
    ("explorer-light", "light", show_answer),
    ("explorer-dark", "dark", show_answer),
    ("explorer-diff", "light", show_diff),
    ("explorer-compare", "light", show_comparison),
)


def main() -> None:
    chromium = shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        address = write_page(folder)
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        for name, scheme, prepare in SHOTS:
            page = browser.new_page(viewport=SIZE, color_scheme=scheme)
            page.goto(address)
            page.wait_for_selector("html[data-ready]")
            prepare(page)
            page.screenshot(path=PICTURES / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
