"""19: a workflow over a dataset. Its process is killed, and a second start repeats no answer."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from _shared import provider_from_env
from rath import flow
from rath.session import Session

DIES = "--dies" in sys.argv
QUESTIONS = [
    {"id": "sky", "input": "Why is the sky blue?"},
    {"id": "sea", "input": "Why is the sea salty?"},
    {"id": "ice", "input": "Why does ice float?"},
]


class Team(flow.Workflow):
    """Drafts an answer, and makes it short."""

    def __init__(self, *script: str) -> None:
        super().__init__()
        provider = provider_from_env(script)
        self.drafter = flow.Agent("Answer in a paragraph.", provider, system_tools=False)
        self.editor = flow.Agent("Say it in one sentence.", provider, system_tools=False)

    def forward(self, session: Session) -> Session:
        draft = self.drafter(session)
        if DIES and "salty" in str(session.chunk_table[0].payload["content"]):
            print("a draft on the sea:", draft.text(), flush=True)
            os.kill(os.getpid(), 9)
        return self.editor(draft)


def answer_all(store: str, *script: str) -> None:
    job = flow.map(Team(*script), QUESTIONS, key="id", job="why", store=store, concurrency=1)
    for item in job:
        print(item.key, item.state, item.attempts, item.session and item.session.text())
    print(job.report())


if DIES:
    answer_all(sys.argv[-1], "Air scatters blue.", "Blue light scatters.", "Rivers bring salt.")
    sys.exit()

with tempfile.TemporaryDirectory() as store:
    child = subprocess.run([sys.executable, __file__, "--dies", store])
    print("ended with", child.returncode)
    # Three answers are recorded; these are the other three.
    answer_all(store, "Salt stays in it.", "Its lattice is wide.", "It is lighter.")
