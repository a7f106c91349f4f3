"""Letting a model choose one of several described ways to go on."""

from __future__ import annotations

import re
from functools import partial
from uuid import UUID, uuid4

from rath._async.lazy import Deferred
from rath._core.text import short_id
from rath.llm.chat_response import RathLLMChatChoice
from rath.llm.draft import ProviderOrigin
from rath.llm.provider import Provider
from rath.session.body import Body, suspension
from rath.session.encode import rows_digest
from rath.session.entry import call_site, check_executor, provider_for
from rath.session.operation import Place
from rath.session.record import Entry, ModelCall, Operation
from rath.session.replay.stage import begun, gathered
from rath.session.resume.products import selection_before
from rath.session.resume.serving import known_run
from rath.session.running.aside import aside
from rath.session.running.budget import Budget, check_budget
from rath.session.running.executors import SessionLoopExecutor, candidates_for
from rath.session.running.failure import noting
from rath.session.running.oneshot import OneShot
from rath.session.running.uplink import uplink
from rath.session.session import Session

NOTHING = -1
"""The index that means: none of them."""

Selection = tuple[int, str]


def select_session(
    user_session: Session,
    agent_session: Session,
    *workflow_descriptions: str,
    agent_provider: Provider | None = None,
    executor: SessionLoopExecutor | None = None,
) -> Selection:
    """Ask a model which description fits the session best, and wait for its answer.

    Makes no session: the call becomes a late entry of the user session's record.

    Args:
        user_session: What the choice is about; waits for it.
        agent_session: Instructions for the choice.
        workflow_descriptions: The candidates, numbered from 0.
        agent_provider: Model to ask; the user session's provider by default.
        executor: Completes the request in place of the provider's client.

    Returns:
        Index and description of the candidate, or (-1, "") for none of them, also when the
        answer names no candidate, and without a call when the session was cancelled or waits, or
        its chain is at its budget. A call that crosses a budget was paid for, so its choice holds;
        `on_budget_exceeded` is told, or the log, and later runs of the chain are stopped.

    Raises:
        ValueError: No provider, no key, an unknown provider kind, or a budget in money for a model
            without a known price.
        RuntimeError: The model called tools, was stopped, or said nothing.
        BudgetExceededError: Raised by `on_budget_exceeded`.
    """
    if not workflow_descriptions:
        return NOTHING, ""
    provider = provider_for("select_session", user_session, agent_session, agent_provider)
    check_executor("select_session", executor)
    origin: ProviderOrigin = "session" if agent_provider is None else "call"
    candidates = candidates_for(provider, executor, None, origin=origin)
    place, served = begun("select", user_session, agent_session, candidates)
    shot = OneShot(
        purpose="select",
        operation=uuid4() if served is None else served.run_id,
        candidates=candidates,
        question=_menu(workflow_descriptions),
    )
    if served is None and known_run() is not None:
        known = _chosen_before(place, user_session, agent_session, shot.question)
        # One that chose nothing has failed: it is asked again.
        if known is not None and _problem(known) is None:
            return _chosen(known, workflow_descriptions)
    check_budget("select_session", shot.candidates)
    budget = Budget(provider, session=user_session.id, run=shot.operation)
    cells = (user_session.body, agent_session.body)
    inherited, site = user_session.inheritor(), call_site()
    entries: list[Entry] = []

    def note(entry: Entry) -> None:
        entries.append(entry)
        if isinstance(entry, ModelCall):
            budget.count(entry)
        uplink()(entry)

    async def execute(_: Deferred[RathLLMChatChoice | None]) -> RathLLMChatChoice | None:
        user, agent = inherited(await cells[0]), await cells[1]
        if suspension(user, agent) is not None:
            return None
        if await budget.begin(user, lambda: user_session) is not None:
            return None
        with noting(f"in a selection for session {user_session.id}, started at {site}"):
            digest = await aside(len(user.table), partial(rows_digest, user.table))
            note(_operation(shot.operation, user_session.id, place, (digest, agent)))
            choice = await shot.ask(user, agent, note)
            await budget.after_call(lambda: user_session)
            return choice

    label = f"a selection for session {short_id(user_session.id)} ({site})"
    cell: Deferred[RathLLMChatChoice | None] = Deferred.start(
        execute, owner=uuid4(), label=label, inputs=cells, on_cancel=lambda _: None
    )
    try:
        choice = cell.result()
    finally:
        # Together, so that no crash leaves a call without what it was made for, or the reverse.
        if entries:
            user_session.add_entries(*entries)
        gathered(user_session)
    return (NOTHING, "") if choice is None else _chosen(choice, workflow_descriptions)


def _operation(run: UUID, session: UUID, place: Place, seen: tuple[str, Body]) -> Operation:
    """Return the entry of a selection that saw rows with a digest, behind an agent's."""
    return Operation(
        operation=run,
        kind="select",
        place=place,
        session=session,
        input_digest=seen[0],
        head=tuple(seen[1].table),
    )


def _chosen_before(
    place: Place, user: Session, agent: Session, question: str
) -> RathLLMChatChoice | None:
    bodies = (user.inherited(user.body.result()), agent.body.result())
    return selection_before(place, user.record, bodies, question)


def _menu(descriptions: tuple[str, ...]) -> str:
    listed = "\n".join(f"{index}: {text}" for index, text in enumerate(descriptions))
    return (
        "Which of these should handle the conversation next?\n"
        f"{listed}\n"
        f"Answer with one number, or {NOTHING} if nothing more is to be done."
    )


def _chosen(choice: RathLLMChatChoice, descriptions: tuple[str, ...]) -> Selection:
    problem = _problem(choice)
    if problem is not None:
        raise RuntimeError(f"the model {problem} where one number was asked for")
    number = re.search(r"-?\d+", choice.message.content or "")
    index = NOTHING if number is None else int(number.group())
    if 0 <= index < len(descriptions):
        return index, descriptions[index]
    return NOTHING, ""


def _problem(choice: RathLLMChatChoice) -> str | None:
    """Return why an answer chooses nothing, None where it does or names no candidate."""
    if choice.message.tool_calls:
        return "called tools"
    if not (choice.message.content or "").strip():
        return "said nothing"
    if choice.finish_reason not in ("stop", "length", "content_filter"):
        return f"stopped with {choice.finish_reason!r}"
    return None
