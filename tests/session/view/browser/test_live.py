from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.session.view.browser.conftest import Open
from tests.session.view.page.conftest import SlowRun, serving, slow_run

pytestmark = pytest.mark.timeout(60)  # seconds; the machine may be busy
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
