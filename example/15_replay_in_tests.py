"""15: a test records its model once and replays it offline; what was changed is named."""

from __future__ import annotations

import tempfile
from pathlib import Path

import rath
from _shared import provider_from_env
from rath import flow
from rath.errors import ReplayDifference
from rath.session import Session
from rath.session.content import ToolFeedback
from rath.testing import tool_call

provider = provider_from_env(
    [
        tool_call("run_shell_command", {"cmd": "date +%Y"}, content="I look."),
        "It is the year that the clock says.",
        "It is 1999: party time.",
    ]
)
cassette = Path(tempfile.mkdtemp()) / "year.jsonl"
agent = flow.Agent("Say which year it is. Look at the clock of the machine.", provider)


@rath.cassette(cassette)
def test_year(question: str) -> Session:
    out = agent(Session.from_user_message(question).to("local")).synchronize()
    assert out.text()
    return out


first = test_year("Which year is it?")
print("recorded:", cassette.name, len(first.chunk_table), "rows")

with rath.offline():  # From here on a live call would be an error.
    again = test_year("Which year is it?")
    print("replayed:", again.text() == first.text(), "same session:", again.id == first.id)
    try:
        test_year("What time is it?")
    except ReplayDifference as difference:
        print("differs:", difference.problem)

    # The session alone: each request is rendered again and has the recorded sha256.
    print("strictly:", first.replay().chunk_table == first.chunk_table)

# A branch that goes on live, from the row where the tool gave something else.
results = {
    row.content.call_id: "1999"
    for row in first.chunk_table
    if isinstance(row.content, ToolFeedback)
}
if results:
    print("had it been 1999:", first.replay(tool_results=results, provider=provider).text())
