"""What a run of the loop is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from rath._async.lazy import Deferred
from rath.llm.chat_request import RathLLMFunctionTool
from rath.llm.provider import Provider
from rath.session.body import Body
from rath.session.graph.legacy import SessionLineage
from rath.session.graph.provenance import Provenance
from rath.session.hooks.values import NO_HOOKS, LoopHooks, PassedOn
from rath.session.operation import Place
from rath.session.output.run import OutputPlan
from rath.session.output.schema import OutputSpec
from rath.session.placement import Placement
from rath.session.recall import Recall
from rath.session.recorder.header import Identity
from rath.session.recorder.plan import RecordingPlan
from rath.session.replay.stage import ServedRun
from rath.session.resume.going_on import GoingOn
from rath.session.running.candidates import Candidate
from rath.session.running.events import OnEventCb
from rath.session.running.rounds import DispatchTool
from rath.session.tooling import ApprovalRule, Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPlan:
    """All that a run was given, checked before it was submitted."""

    session: UUID
    """The session that the run makes."""

    user: Callable[[Body], Body]
    """Adds to the user's content what came to its record since."""

    cells: tuple[Deferred[Body], Deferred[Body]]
    """Content of the user's and of the agent's session."""

    provider: Provider
    """The first one; the limits of the run are its."""

    candidates: tuple[Candidate, ...]
    """The provider with its client, and then its fallbacks."""

    dispatch_tool: DispatchTool | None
    """A custom executor's `dispatch_tool`, or None."""

    tools: Mapping[str, Offer]
    schemas: tuple[RathLLMFunctionTool, ...]
    output: OutputPlan | None
    """The typed answer that is asked for, if any."""

    approval: ApprovalRule = "never"
    """Whether somebody must allow a call first, whatever its tool says."""

    max_tool_rounds: int
    on_event: OnEventCb | None
    recall: Recall | None
    timeout: float | None
    placement: Placement
    provenance: Provenance
    session_provider: Provider | None
    lineage: SessionLineage
    place: Place
    started_at: str
    """File, line and function of the call that submitted the run."""

    recording: RecordingPlan | None
    goes_on: GoingOn | None = None
    """Where the run goes on, if it had begun before."""

    served: ServedRun | None = None
    """The recorded run that answers in a replay."""

    hooks: LoopHooks = NO_HOOKS
    """Who is shown answers and calls; nobody in a replay."""

    passed_on: tuple[PassedOn, ...] = ()
    """By which hooks the user's session came in the place of another one."""

    @property
    def output_spec(self) -> OutputSpec | None:
        """How the typed answer is asked for, if any is."""
        return None if self.output is None else self.output.spec

    @property
    def who(self) -> Identity:
        """The session, as its log tells who it is."""
        recording = self.recording
        return Identity.of(
            self.session,
            self.provenance,
            self.placement,
            provider=self.session_provider,
            lineage=self.lineage,
            sandbox_handle_id=None if recording is None else recording.sandbox_handle_id,
        )
