"""15: a test records its model once and replays it offline; what was changed is named."""

from __future__ import annotations

import tempfile
from pathlib import Path

import rath
from _shared import provider_from_env
from rath.errors import ReplayDifference
from rath.session.content import ToolFeedback
from rath.testing import tool_call


@rath.tool(effects="read_only")
def year() -> int:
    """Look at the calendar on the wall."""
    return 2024


rath.autosave()
provider = provider_from_env(
    [tool_call("year", {}), "It is 2024, by the calendar.", "It is 1999: party time."]
)
agent = rath.Agent("Say which year it is. Look at the calendar.", provider, [year])
cassette = Path(tempfile.mkdtemp(), "year.jsonl")


@rath.cassette(cassette)
def test_year(question: str) -> rath.Session:
    out = agent(rath.Session.from_user_message(question)).synchronize()
    assert out.text()
    return out


first = test_year("Which year is it?")
print(f"recorded in {cassette.name}: {first.text()}")

with rath.offline():  # from here on a live call would be an error
    again = test_year("Which year is it?")
    print("replayed without a model:", again.text() == first.text())
    try:
        test_year("What time is it?")
    except ReplayDifference as difference:
        print("another question:", difference.problem)

    # The session alone: each request is rendered again and has the recorded sha256.
    print("the session replayed, row by row the same:", first.replay().rows == first.rows)

# A branch that continues live, from the row where the tool gave something else.
contents = [row.content for row in first.rows]
results = {each.call_id: "1999" for each in contents if isinstance(each, ToolFeedback)}
if results:
    other = first.replay(tool_results=results, provider=provider, tools=[year])
    print("had it been 1999:", other.text())
