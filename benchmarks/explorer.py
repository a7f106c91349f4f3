"""The page of a long session: making it, its size, and the time until a browser shows it."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import uuid4

from msgspec import structs

from benchmarks.endpoint import Endpoint
from benchmarks.measure import interleave, measure
from benchmarks.ours import AddTool
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, Line
from rath._async.deferred import Deferred
from rath._core.vector import Vector
from rath.session import ChunkRow, ChunkTable, RowId, Session, run_session_loop
from rath.session.body import Body
from rath.session.record import Entry, ModelCall, ToolRun
from rath.session.view import write_page
from rath.testing import ScriptedClient, tool_call

_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
_TEXT = "Both numbers are known now, so I add them and go on with what comes next. " * 4


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """Write the page, and open it in a browser where there is one."""
    del endpoint
    session = long_session(sizes.page_rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        write = partial(write_page, session, path)
        cost = interleave({"ours": lambda: measure(write)}, repeats=sizes.repeats)["ours"]
        what = f"page of {sizes.page_rows} rows"
        made = [
            Line(f"{what}: write", cost.wall, "s"),
            Line(f"{what}: size", path.stat().st_size / 1e6, "MB"),
        ]
        usable = _browser()
        if usable is None:
            print("explorer: no chromium or no playwright here; the page is not opened",
                  file=sys.stderr)  # fmt: skip
            return made
        seconds = usable(path.as_uri(), sizes.repeats)
    return [*made, Line(f"{what}: usable", seconds, "s", target=AtMost(1))]


def long_session(n_rows: int) -> Session:
    """Return a session of that many rows with all its evidence: one round of a run, many times."""
    client = ScriptedClient([tool_call("add", {"a": 1, "b": 2}, content=_TEXT), "The sum is 3."])
    made = run_session_loop(
        Session.from_user_message("Add many numbers."),
        Session.from_agent_prompt("You add numbers."),
        agent_provider=client.provider,
        tools=[AddTool()],
        system_tools=False,
    ).synchronize()
    question, asked, answered, _ = made.chunk_table
    begun, call, run, _ = made.record
    rows: list[ChunkRow] = [question]
    entries: list[Entry] = [begun]
    assert isinstance(call, ModelCall)
    assert isinstance(run, ToolRun)
    for number in range(1, n_rows):
        row, entry = ((asked, call), (answered, run))[(number + 1) % 2]
        name = RowId(made.id, number)
        rows.append(row.with_id(name))
        entries.append(structs.replace(entry, id=uuid4(), rows=(name,)))
    body = Body(ChunkTable(rows), Vector(entries))
    return Session.from_body(Deferred.of(body), made.provenance, id=made.id)


def _browser() -> Callable[[str, int], float] | None:
    """Return what opens an address so many times and gives the median; None without a browser."""
    chromium = shutil.which("chromium")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        return None
    return partial(_usable_after, chromium)


def _usable_after(chromium: str, address: str, repeats: int) -> float:
    """Return the median of the seconds from the opening until the first rows are shown.

    Cost: reading the file, its data and code; in a window that is new each time.
    """
    playwright = importlib.import_module("playwright.sync_api")
    taken: list[float] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=_FLAGS)
        for _ in range(repeats):
            page = browser.new_page(viewport={"width": 1400, "height": 860})
            page.goto(address)
            page.wait_for_selector("html[data-ready]")
            taken.append(float(page.get_attribute("html", "data-ready")) / 1000)
            page.close()
        browser.close()
    return sorted(taken)[len(taken) // 2]
