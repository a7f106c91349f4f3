"""The workflow that does nothing: what a selector returns when the task is done."""

from __future__ import annotations

from rath.flow.workflow import Workflow
from rath.session import Session

__all__ = ["EmptyWorkflow"]


class EmptyWorkflow(Workflow):
    """Returns the very session it was given."""

    def forward(self, session: Session) -> Session:
        return session
