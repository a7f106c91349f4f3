"""Programs of any shape, made of a script: what they do can be recorded, and must replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from rath.llm import Provider, RathLLMAssistantMessage, RathLLMStreamDelta
from rath.session import Session, run_session_compress, run_session_loop, select_session
from rath.session.record import RecalledNote
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.sessions import FunctionTool

AGENT = Session.from_agent_prompt("You are a test.")


class Effects:
    """A tool that counts how often it ran."""

    def __init__(self) -> None:
        self.n_runs = 0
        self.tool = FunctionTool("f", self._call, parallel_safe=True)

    def _call(self, _: Session, arguments: dict[str, Any]) -> Any:
        self.n_runs += 1
        if arguments.get("fail"):
            raise ValueError("as asked")
        return arguments


@dataclass(frozen=True)
class Program:
    """Runs on top of one another, and what is made of their sessions."""

    scripts: Sequence[Sequence[Turn]]
    steps: Sequence[str]
    streams: bool
    with_notes: bool
    effects: Effects = field(default_factory=Effects)

    def __call__(self, provider: Provider | None = None) -> Session:
        """Run on scripts, or ask `provider` for everything."""
        session = Session.from_user_message("go")
        for script in self.scripts:
            session = self._run(script, session, provider)
        first = session
        for step in self.steps:
            session = self._step(step, session, first, provider)
        return session.synchronize()

    def _run(self, script: Sequence[Turn], user: Session, provider: Provider | None) -> Session:
        notes = [RecalledNote("memory://user/a", "a note")] if self.with_notes else []
        return run_session_loop(
            user,
            AGENT,
            agent_provider=provider or ScriptedClient(script).provider,
            tools=[self.effects.tool],
            system_tools=False,
            recall=lambda _: notes,
            on_event=_ignore if self.streams else None,
        )

    def _step(
        self, step: str, session: Session, first: Session, provider: Provider | None
    ) -> Session:
        match step:
            case "run":
                return self._run(["more"], session, provider)
            case "merge":
                return session.merge(self._run(["a branch"], first.fork(), provider))
            case "compress":
                asked = provider or ScriptedClient(["short"]).provider
                return run_session_compress(session, AGENT, agent_provider=asked)
            case "select":
                asked = provider or ScriptedClient(["1"]).provider
                select_session(session, AGENT, "this", "that\n2: x", agent_provider=asked)
                return session
            case "detach":
                return session.detach()
            case _:
                return session.fork()


def call_with_others(arguments: str, ids: list[str]) -> RathLLMAssistantMessage:
    """A turn with several calls, some of them with the same id."""
    return tool_call("f", arguments, *[tool_call("f", {"n": 1}, id=one) for one in ids], id="same")


def thought(text: str) -> RathLLMAssistantMessage:
    """An answer of a model that says what it thought."""
    return RathLLMAssistantMessage(content=text, reasoning_content="so")


_calls = st.builds(
    call_with_others,
    st.sampled_from(["", "{}", '{"fail": true}', "{broken", '{"x": "\\ud800"}']),
    st.lists(st.sampled_from(["", "same", "other"]), max_size=2),
)
_turns = st.one_of(
    st.builds(RathLLMAssistantMessage, content=st.text(min_size=1, max_size=10)),
    st.builds(thought, st.text()),
    _calls,
    st.just(tool_call("unknown", {})),
)
scripts = st.lists(_turns, max_size=4).map(lambda made: [*made, "the end"])
programs = st.builds(
    Program,
    st.lists(scripts, min_size=1, max_size=3),
    st.lists(st.sampled_from(["run", "fork", "detach", "merge", "compress", "select"]), max_size=5),
    st.booleans(),
    st.booleans(),
)


def _ignore(_: RathLLMStreamDelta) -> None:
    return
