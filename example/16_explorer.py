"""16: branch a session, check and merge the branches, and write one page that shows it all."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import rath
from _shared import provider_from_env
from rath.session.view import write_page
from rath.testing import tool_call

SOURCE = 'def mean(values):\n    """Return the mean."""\n    return sum(values) / len(values)\n'
EDIT = {"path": "stats.py", "old": "    return sum(values) / len(values)\n"}
RAISES = '    if not values:\n        raise ValueError("no values")\n' + EDIT["old"]
GIVES_0 = "    return sum(values) / len(values) if values else 0.0\n"

rath.autosave()
provider = provider_from_env(
    [
        tool_call("read_workspace_file", {"path": "stats.py"}),
        "`mean` divides by zero for an empty list. It could raise, or return 0.",
        tool_call("edit_workspace_file", {**EDIT, "new": RAISES}, content="I let it raise."),
        "An empty list is a ValueError now.",
        tool_call("edit_workspace_file", {**EDIT, "new": GIVES_0}, content="I return 0."),
        tool_call("run_shell_command", {"cmd": "python3 -c 'import stats; print(stats.mean([]))'"}),
        "The mean of an empty list is 0.0 now.",
        "Raising is better: a mean of nothing is a mistake of the caller. I keep the first branch.",
    ]
)
worker = rath.Agent("You mend small programs. Use the tools, then say what you did.", provider)
reviewer = rath.Agent("Two branches were merged. Say which one is better.", provider)

with tempfile.TemporaryDirectory() as folder:
    workspace = Path(folder, "project")
    workspace.mkdir()
    Path(workspace, "stats.py").write_text(SOURCE)
    question = rath.Session.create("user", "What does stats.py do with an empty list?")
    found = worker(question.to("local", spec=str(workspace))).synchronize()

    # Each branch gets files of its own; what the checks say is in the record of the branch.
    branches: list[rath.Session] = []
    for wish in ("Let it raise.", "Let it return 0."):
        made = worker(found.fork(workspace="copy"), wish).synchronize()
        made.check("still a mean", "python3 -c 'import stats; assert stats.mean([1, 3]) == 2'")
        branches.append(made)
    joined = reviewer(branches[0].merge(branches[1])).synchronize()

    target = Path(sys.argv[1] if len(sys.argv) > 1 else folder, "session.html")
    write_page(joined, target, compare=None if len(sys.argv) < 3 else branches[1])
    print("the review:", joined.text())
    print(f"{target.name}: {len(joined.rows)} rows on {target.stat().st_size // 1000} kB")
    print(f"the same from the record: rath view {joined.id} --open")
    for session in (question, found, *branches, joined):
        session.close_sandbox()
