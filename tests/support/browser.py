"""A real browser for the tests of pages: Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Page,
    Request,
    expect,
    sync_playwright,
)

CHROMIUM = shutil.which("chromium")
NO_CHROMIUM = "there is no chromium; on Debian and Ubuntu: apt-get install chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
WIDE = (1400, 860)

expect.set_options(timeout=15_000)  # milliseconds; the machine may be busy


@dataclass(slots=True)
class Seen:
    """What a page did beside what it shows."""

    complaints: list[str] = field(default_factory=list[str])
    """What it wrote to the console, and errors that nobody caught."""

    asked: list[str] = field(default_factory=list[str])
    """The addresses that it asked for."""


@contextmanager
def running_browser() -> Generator[Browser]:
    """A browser with a profile of its own, which ends with the block."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser, address: str, *, size: tuple[int, int] = WIDE, **options: Any
) -> Generator[tuple[Page, Seen]]:
    """The page at an address, when it can be used; a window of its own."""
    width, height = size
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    try:
        page, seen = context.new_page(), Seen()

        def tell_message(message: ConsoleMessage) -> None:
            seen.complaints.append(f"{message.type}: {message.text}")

        def tell_request(request: Request) -> None:
            seen.asked.append(request.url)

        page.on("console", tell_message)
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.on("dialog", lambda dialog: seen.complaints.append(f"dialog: {dialog.message}"))
        page.on("request", tell_request)
        page.goto(address)
        page.wait_for_selector("html[data-ready]", timeout=10_000)
        yield page, seen
    finally:
        context.close()
