"""How a session is replayed: strictly from its record, or going on from one of its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rath.llm.provider import Provider
from rath.session.tooling import Tool

if TYPE_CHECKING:
    from rath.session.session import Session


class Replaying:
    """What a session can do with its record."""

    __slots__ = ()

    def replay(
        self: Any,
        *,
        at: int | None = None,
        prompt: str | None = None,
        provider: Provider | None = None,
        tool_results: Mapping[str, object] | None = None,
        agent: Callable[[Session], Session] | None = None,
        tools: Sequence[Tool] | None = None,
    ) -> Session:
        """Run this session again: from its record alone, or from a row on with another course.

        `replay()` runs every recorded operation of this session, and of those that it came from,
        by the same code: models and tools answer from the record, so there is no network, no key
        and no effect. Each request is rendered again and must have the recorded sha256; rows,
        record and outcome must come out the same. Waits.

        `replay(at=...)` makes a branch with the rows before one row, and lets a model go on from
        there, live. Calls of tools whose results are cut off read as interrupted, unless
        `tool_results` has another one. The branch works in the sandbox of this session, with the
        files as they are now. Returns at once.

        Args:
            at: Index of the first row that the branch leaves out; a negative one counts from the
                end. Needed with all that follows, but for `tool_results`: there the first row
                with another result is meant.
            prompt: What the user says next.
            provider: Model to ask; by default the session's, else the recorded one, if this
                machine would ask it at the recorded endpoint.
            tool_results: By call id, what tools are to have given instead.
            agent: Goes on in the place of the recorded agent, with tools and a model of its own.
            tools: The tools that the recorded agent had beside the built-in ones.

        Returns:
            The replayed session, with the same id and rows; or the new one of the branch.

        Raises:
            ReplayDifference: The replay is not what the record says; tells the first difference.
            PersistenceError: The record does not hold what is needed.
            ValueError: There is no such row or call, or arguments exclude each other; or a tool
                that the recorded agent had was not given.
        """
        # The replays run operations, which are written against sessions.
        from rath.session.replay import branch, strict  # noqa: PLC0415

        course = branch.Course(prompt, provider, tool_results, agent, tools)
        if at is None and course.is_empty:
            return strict.replay_strictly(self)
        return branch.replay_live(self, at, course)
