"""One browser for each worker, and pages to open in it.

Playwright leaves the thread that it is used on with a running event loop, so that thread is one of
its own: these tests run on it, and all others never meet it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from rath.session.view import write_page
from tests.support.branches import Family, family
from tests.support.browser import CHROMIUM, NO_CHROMIUM, Seen, opened, running_browser

Open = Callable[..., tuple[Page, Seen]]

_thread = ThreadPoolExecutor(1, thread_name_prefix="browser")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Run a test of this directory on the thread of the browser."""
    test = pyfuncitem.obj
    wanted = {name: pyfuncitem.funcargs[name] for name in signature(test).parameters}
    _thread.submit(test, **wanted).result()
    return True


@pytest.fixture(scope="session")
def browser() -> Generator[Browser]:
    """Chromium, with a profile of its own; ended when the worker ends."""
    if CHROMIUM is None:
        pytest.skip(NO_CHROMIUM)
    stack = ExitStack()
    yield _thread.submit(stack.enter_context, running_browser()).result()
    _thread.submit(stack.close).result()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Open an address or a file in a window of its own, closed after the test."""
    stack = ExitStack()

    def open_it(address: str | Path, **options: Any) -> tuple[Page, Seen]:
        where = address if isinstance(address, str) else address.as_uri()
        return stack.enter_context(opened(browser, where, **options))

    yield open_it
    _thread.submit(stack.close).result()


@pytest.fixture(scope="session")
def made_family(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Family, Path]]:
    """Sessions with branches and a merge, and the page of the merge."""
    folder = tmp_path_factory.mktemp("family")
    made = family(folder)
    yield made, write_page(made.joined, folder / "page.html")
    made.close()


@pytest.fixture
def page_file(made_family: tuple[Family, Path]) -> Path:
    """The page of a merge of two branches."""
    return made_family[1]
