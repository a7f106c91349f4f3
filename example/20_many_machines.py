"""20: a workflow over a dataset on a Ray cluster. A worker is killed, and no answer is repeated."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import rath
from _shared import provider_from_env
from rath import flow
from rath.errors import MissingExtra

# Here each worker is a process of this machine; with the address of a cluster, of any of its nodes.
ENGINE = "ray://local?workers=2&num_cpus=0.5"
QUESTIONS = [{"id": name, "input": f"Why is there {name}?"} for name in ("rain", "snow", "hail")]


class Team(rath.Workflow):
    """Drafts an answer, and checks it; the worker that has the first draft on snow is killed."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def forward(self, session: rath.Session) -> rath.Session:
        # Made on the worker, so that it says which one answers.
        worker = f"process {os.getpid()}"
        provider = provider_from_env([f"A draft of {worker}."])
        draft = rath.Agent("Answer.", provider)(session)
        killed = Path(self.folder, "killed")
        if "snow" in str(session.rows[0].payload["content"]) and not killed.exists():
            killed.write_text(draft.text())
            os.kill(os.getpid(), 9)
        provider = provider_from_env([f"Checked by {worker}."])
        return rath.Agent("Check the answer.", provider)(draft)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            job = flow.map(Team(folder), QUESTIONS, key="id", engine=ENGINE)
        except MissingExtra as exc:
            print("skipped:", exc)
            return
        for item in job:
            answers = item.session.rows[1:] if item.session else ()
            texts = " ".join(str(row.payload["content"]) for row in answers)
            print(f"{item.key} is {item.state}: {texts}")
        print("the killed worker had:", Path(folder, "killed").read_text())
        print(job.report())


if __name__ == "__main__":
    main()
