"""`flow.DataParallel`: a workflow that is called with many sessions at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rath.errors import JobError
from rath.flow.compile import CompiledWorkflow
from rath.flow.workflow import Workflow
from rath.jobs.job import map as map_items
from rath.session.session import Session


class DataParallel:
    """A workflow over a batch of sessions, side by side, here or on the workers of an engine.

    Args:
        workflow: What runs on each session; or `module:name` of it.
        options: Those of `flow.map`, such as `engine`, `concurrency`, `retries` and `store`; not
            its `key`, since the sessions of a batch are told by their position. With `job`, the
            same batch given again is served from the record.
    """

    def __init__(self, workflow: Workflow | CompiledWorkflow | str, **options: Any) -> None:
        refused = {"key", "session", "epochs", "on_error", "ordered"} & options.keys()
        if refused:
            raise TypeError(f"DataParallel takes no {', '.join(sorted(refused))}; use flow.map")
        self.workflow = workflow
        self.options = options

    def __call__(self, sessions: Iterable[Session]) -> list[Session]:
        """Return the output of each session, in their order; waits.

        Raises:
            JobError: The run of one failed.
        """
        job = map_items(self.workflow, sessions, on_error="raise", **self.options).synchronize()
        failed = next((item for item in job.items if item.session is None), None)
        if failed is not None:
            raise JobError(
                f"the session at position {failed.key} is {failed.state}: {failed.error}"
            )
        return [item.session for item in job.items if item.session is not None]

    def __repr__(self) -> str:
        return f"DataParallel({self.workflow!r})"
