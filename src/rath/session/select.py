"""Letting a model choose one of several described ways to go on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import cast
from uuid import UUID, uuid4

from rath._async.deferred import Deferred
from rath._core.lazy_imports import lazy_function
from rath._core.text import one_line_preview, short_id
from rath.llm.chat_response import RathLLMChatChoice
from rath.llm.provider import Provider, ProviderOrigin
from rath.session.body import Body, suspension
from rath.session.calls.oneshot import OneShot, noting
from rath.session.calls.requests import offload
from rath.session.loop import call_site, check_executor, provider_for
from rath.session.operation import Place
from rath.session.provider_builtin import SessionLoopExecutor, candidates_for
from rath.session.record import Entry, ModelCall, Operation, parent_sink
from rath.session.run.budget import Budget, check_budget
from rath.session.scope import begin_operation, collect_session, current_source
from rath.session.session import Session

# Only where a program is resumed.
_find_selection = lazy_function("rath.session.programs", "find_selection")

NOTHING = -1
"""The index that means: none of them."""

_NO_CANDIDATE = frozenset({"none", "none of them", "nothing"})
_MAX_QUOTED = 200
"""Characters of an answer that the second question quotes; a guess."""

_MARKUP = " \t*_`\"'.!"
_FENCE = re.compile(r"\s*```\w*\n(.*)\n\s*```\s*", re.DOTALL)
_STATEMENT = re.compile(
    r"(?:(?:i|we|my|the|so|thus|therefore|will|would|choose|pick|select|answer|choice|selection"
    r"|is|number|index|option|candidate|workflow)\b:?[ \t]+)+(\S.*)",
    re.IGNORECASE,
)
"""A clause that says nothing but which candidate is chosen."""

_PREAMBLE = re.compile(
    r"\s*(?:(?:out )?of|among|from|given|so|thus|therefore|hence)\b", re.IGNORECASE
)
"""How a clause begins that may stand before such a one: "Of the 2 candidates"."""

_HEDGED = re.compile(r"\b(?:if|unless|when|not|never|no|or|otherwise|except)\b|n't", re.IGNORECASE)
"""Words that may turn the meaning of a choice."""

_CHOICE_KEYS = ("index", "choice", "name")

Selection = tuple[int, str]


def select_session(
    user_session: Session,
    agent_session: Session,
    *workflow_descriptions: str,
    agent_provider: Provider | None = None,
    executor: SessionLoopExecutor | None = None,
) -> Selection:
    """Ask a model which description fits the session best, and wait for its answer.

    Makes no session: the call becomes a late entry of the user session's record. An answer is read
    where it is a choice: a number or a description of the menu as a line of its own, as a JSON
    value or member, or in a clause such as "choose 1". Another answer is asked for once more, in
    a second call of the same entry's operation; where that cannot be read either, none is chosen.

    Args:
        user_session: What the choice is about; waits for it.
        agent_session: Instructions for the choice.
        workflow_descriptions: The candidates, numbered from 0.
        agent_provider: Model to ask; the user session's provider by default.
        executor: Completes the request in place of the provider's client.

    Returns:
        Index and description of the candidate, or (-1, "") for none of them, also when neither
        answer names one candidate, and without a call when the session was cancelled or waits, or
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
    place, served = begin_operation("select", user_session, agent_session, candidates)
    shot = OneShot(
        purpose="select",
        operation=uuid4() if served is None else served.run_id,
        candidates=candidates,
        question=_menu(workflow_descriptions),
    )
    if served is None and current_source() is not None:
        earlier = _chosen_before(place, user_session, agent_session, shot.question)
        # One that chose nothing has failed: it is asked again.
        if earlier is not None and _problem(earlier) is None:
            return _chosen(earlier, workflow_descriptions)
    check_budget("select_session", shot.candidates)
    budget = Budget(provider, session=user_session.id, run=shot.operation)
    cells = (user_session.core.body, agent_session.core.body)
    inherited, site = user_session.core.inheritor(), call_site()
    entries: list[Entry] = []

    def note(entry: Entry) -> None:
        entries.append(entry)
        if isinstance(entry, ModelCall):
            budget.count(entry)
        parent_sink()(entry, None)

    async def execute(_: Deferred[RathLLMChatChoice | None]) -> RathLLMChatChoice | None:
        user, agent = inherited(await cells[0]), await cells[1]
        if suspension(user, agent) is not None:
            return None
        if await budget.begin(user, lambda: user_session) is not None:
            return None
        with noting(f"in a selection for session {user_session.id}, started at {site}"):
            digest = await offload(len(user.table), user.table.digest)
            note(_operation(shot.operation, user_session.id, place, (digest, agent)))
            choice = await shot.ask(user, agent, note)
            stopped = await budget.after_call(lambda: user_session)
            if stopped is None and _is_unclear(choice, workflow_descriptions):
                question = _again(shot.question, choice.message.content or "")
                choice = await replace(shot, question=question).ask(user, agent, note)
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
            user_session.add_entry(*entries)
        collect_session(user_session)
    return (NOTHING, "") if choice is None else _chosen(choice, workflow_descriptions)


def _operation(
    run: UUID, session: UUID, place: Place, question_and_agent: tuple[str, Body]
) -> Operation:
    """Return the entry of a selection that saw rows with a digest, behind an agent's."""
    return Operation(
        operation=run,
        kind="select",
        place=place,
        session=session,
        input_digest=question_and_agent[0],
        head=tuple(question_and_agent[1].table),
    )


def _chosen_before(
    place: Place, user: Session, agent: Session, question: str
) -> RathLLMChatChoice | None:
    bodies = (user.core.inherited(user.core.body.result()), agent.core.body.result())
    choice: RathLLMChatChoice | None = _find_selection(place, user.record, bodies, question)
    return choice


def _menu(descriptions: tuple[str, ...]) -> str:
    listed = "\n".join(f"{index}: {text}" for index, text in enumerate(descriptions))
    return (
        "Which of these should handle the conversation next?\n"
        f"{listed}\n"
        f"Answer with one number, or {NOTHING} if nothing more is to be done."
    )


def _again(question: str, answer: str) -> str:
    """Return the question after an answer that could not be read."""
    return (
        f"{question}\nThe last answer, {one_line_preview(answer, _MAX_QUOTED)!r}, does not say "
        "which one. Answer with the number alone."
    )


def _chosen(choice: RathLLMChatChoice, descriptions: tuple[str, ...]) -> Selection:
    problem = _problem(choice)
    if problem is not None:
        raise RuntimeError(f"the model {problem} where one number was asked for")
    index = _read(choice.message.content or "", descriptions)
    return (NOTHING, "") if index is None or index == NOTHING else (index, descriptions[index])


def _is_unclear(choice: RathLLMChatChoice, descriptions: tuple[str, ...]) -> bool:
    return _problem(choice) is None and _read(choice.message.content or "", descriptions) is None


def _read(answer: str, descriptions: tuple[str, ...]) -> int | None:
    """Return the index that an answer chooses, None where it is no choice of exactly one."""
    menu = _menu_of(descriptions)
    fenced = _FENCE.fullmatch(answer)
    text = answer if fenced is None else fenced[1]
    exact = menu.get(_bare(text))
    if exact is not None:
        return exact
    try:
        return _in_json(json.loads(text), menu)
    except (ValueError, RecursionError):
        pass
    lines = [line for line in text.splitlines() if line.strip()]
    named = {_in_line(line, menu) for line in lines} - {None}
    # The first or the last line says it; beside it stands nothing that may turn its meaning.
    choices = [_in_line(line, menu) for line in (lines[0], lines[-1])]
    others = [line for line in lines if _in_line(line, menu) is None]
    is_plain = not any(_HEDGED.search(line) or line.rstrip().endswith(":") for line in others)
    return named.pop() if len(named) == 1 and named <= set(choices) and is_plain else None


def _menu_of(descriptions: tuple[str, ...]) -> dict[str, int]:
    """Return the accepted texts for each candidate; a description of two of them names neither."""
    names = [_bare(text) for text in descriptions]
    menu = {name: index for index, name in enumerate(names) if names.count(name) == 1}
    for index, text in enumerate(descriptions):
        menu |= {_bare(f"{index}{mark} {text}"): index for mark in ":.)"}
    menu |= {str(index): index for index in range(NOTHING, len(descriptions))}
    return dict.fromkeys(_NO_CANDIDATE, NOTHING) | menu


def _in_json(value: object, menu: Mapping[str, int]) -> int | None:
    """Return the candidate of a JSON value: itself, or the member that names it."""
    if isinstance(value, dict):
        table = cast("dict[str, object]", value)
        members = [table[key] for key in _CHOICE_KEYS if key in table]
        members = members or (list(table.values()) if len(table) == 1 else [])
        named = {None if isinstance(each, dict) else _in_json(each, menu) for each in members}
        return named.pop() if len(named) == 1 else None
    if value is None:
        return NOTHING
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    return menu.get(_bare(str(value)))


def _in_line(line: str, menu: Mapping[str, int]) -> int | None:
    """Return the candidate that a line names, as a whole or in its last clause."""
    exact = menu.get(_bare(line))
    if exact is not None or _HEDGED.search(line):
        return exact
    *before, clause = re.split(r"[,;.][ \t]+", line.strip(_MARKUP))
    stated = _STATEMENT.fullmatch(clause)
    if stated is None or not all(map(_PREAMBLE.match, before)):
        return None
    return menu.get(_bare(stated[1]))


def _bare(text: str) -> str:
    return text.strip(f"{_MARKUP}\r\n").casefold()


def _problem(choice: RathLLMChatChoice) -> str | None:
    """Return why an answer chooses nothing, None where it does or names no candidate."""
    if choice.message.tool_calls:
        return "called tools"
    if not (choice.message.content or "").strip():
        return "said nothing"
    if choice.finish_reason not in ("stop", "length", "content_filter"):
        return f"stopped with {choice.finish_reason!r}"
    return None
