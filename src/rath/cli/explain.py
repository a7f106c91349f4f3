"""`rath explain`: the five questions, answered from a stored session alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import typer

from rath.cli.loaded import loaded
from rath.cli.outline import counted, head, short
from rath.cli.sessions import AsJson, EvidenceMissing, SessionText, StoreUrl
from rath.cli.show_calls import brief_provider, brief_seen, show_provider, show_seen
from rath.cli.show_effects import (
    brief_changed,
    brief_origin,
    brief_where,
    show_changed,
    show_origin,
    show_where,
)
from rath.cli.terminal import Misuse, say_json
from rath.session import Session
from rath.session.questions import (
    Missing,
    Question,
    what_changed,
    what_was_seen,
    where_from,
    where_tools_ran,
    who_answered,
)
from rath.session.questions.encode import Answer, encode_answer

__all__ = ["app", "require_evidence"]

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True)
class _Asked:
    """How a question is answered and shown."""

    answer: Callable[..., Any]
    show: Callable[[Any], None]
    brief: Callable[[Any], None]


_QUESTIONS: Mapping[Question, _Asked] = {
    "seen": _Asked(what_was_seen, show_seen, brief_seen),
    "provider": _Asked(who_answered, show_provider, brief_provider),
    "where": _Asked(where_tools_ran, show_where, brief_where),
    "changed": _Asked(what_changed, show_changed, brief_changed),
    "origin": _Asked(where_from, show_origin, brief_origin),
}


@app.command()
def explain(
    session: SessionText,
    seen: Annotated[bool, typer.Option("--seen", help="What did the model see?")] = False,
    provider: Annotated[bool, typer.Option("--provider", help="Which provider answered?")] = False,
    where: Annotated[bool, typer.Option("--where", help="Where did tools run?")] = False,
    changed: Annotated[bool, typer.Option("--changed", help="What changed?")] = False,
    origin: Annotated[
        bool, typer.Option("--origin", help="Where did the final state come from?")
    ] = False,
    turn: Annotated[
        int | None,
        typer.Option("--turn", metavar="N", help="Only this answer of a model, and its tools."),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Answer the five questions of a session: all of them in brief, or one of them in full.

    The exit status is 3 where evidence is missing; it is named, and what there is is shown.
    """
    flags: Sequence[tuple[Question, bool]] = (
        ("seen", seen),
        ("provider", provider),
        ("where", where),
        ("changed", changed),
        ("origin", origin),
    )
    asked: list[Question] = [name for name, is_asked in flags if is_asked]
    every: list[Question] = [name for name, _ in flags]
    with loaded(session, store=store) as (found,):
        answers = _answers(found, asked or every, turn)
        if as_json:
            encoded = {name: encode_answer(answer) for name, answer in answers.items()}
            say_json({"session": str(found.id), **encoded})
        else:
            _show(found, answers, is_brief=not asked)
    require_evidence([each for answer in answers.values() for each in answer.missing])


def require_evidence(missing: Sequence[Missing]) -> None:
    """End with status 3 where evidence is missing, and name each kind once.

    Raises:
        EvidenceMissing: Some is missing.
    """
    if missing:
        kinds: dict[str, dict[str, None]] = {}
        for each in missing:
            kinds.setdefault(each.reason, {})[each.kind] = None
        told = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in kinds.items())
        raise EvidenceMissing(f"evidence is missing: {told}")


def _answers(session: Session, asked: Sequence[Question], turn: int | None) -> dict[str, Any]:
    try:
        return {name: _QUESTIONS[name].answer(session, turn=turn) for name in asked}
    except ValueError as exc:
        raise Misuse(str(exc)) from exc


def _show(session: Session, answers: Mapping[str, Answer], *, is_brief: bool) -> None:
    if is_brief:
        head(f"session {short(session.id)}, {counted(len(session.chunk_table), 'row')}")
    for name, answer in answers.items():
        question = _QUESTIONS[cast("Question", name)]
        (question.brief if is_brief else question.show)(answer)
