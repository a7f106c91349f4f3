"""19: a workflow over a dataset. Its process is killed, and a second start repeats no answer."""

from __future__ import annotations

import os
import subprocess
import sys

import rath
from _shared import provider_from_env
from rath import flow

DIES = "--dies" in sys.argv
JOB = sys.argv[-1] if DIES else f"why-{os.getpid()}"  # a job is continued by its name
QUESTIONS = [
    {"id": "sky", "input": "Why is the sky blue?"},
    {"id": "sea", "input": "Why is the sea salty?"},
    {"id": "ice", "input": "Why does ice float?"},
]


class Team(rath.Workflow):
    """Drafts an answer, and makes it short."""

    def __init__(self, *script: str) -> None:
        provider = provider_from_env(script)
        self.drafter = rath.Agent("Answer in a paragraph.", provider)
        self.editor = rath.Agent("Say it in one sentence.", provider)

    def forward(self, session: rath.Session) -> rath.Session:
        draft = self.drafter(session)
        if DIES and "salty" in str(session.rows[0].payload["content"]):
            print("a draft on the sea:", draft.text(), flush=True)
            os.kill(os.getpid(), 9)
        return self.editor(draft)


def answer_all(*script: str) -> None:
    job = flow.map(Team(*script), QUESTIONS, key="id", job=JOB, concurrency=1)
    for item in job:
        answer = "" if item.session is None else item.session.text()
        print(f"{item.key} is {item.state}: {answer}")
    print(job.report())


if DIES:
    answer_all("Air scatters blue.", "Blue light scatters.", "Rivers bring salt.")
    sys.exit()

child = subprocess.run([sys.executable, __file__, "--dies", JOB])
print("the process ended with", child.returncode)
# Three answers are recorded; these are the other three.
answer_all("Salt stays in it.", "Its lattice is wide.", "It is lighter.")
print(f"each item of it: rath jobs show {JOB}")
