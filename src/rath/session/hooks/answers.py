"""An answer of a model, shown to the hooks of its run before it becomes a row."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Literal, Self, cast
from uuid import UUID

from rath._core.blobs import Blob
from rath.llm.tool_args import parse_tool_arguments
from rath.session.chunk import ChunkKind, ChunkRow, RowId, make_row
from rath.session.content import AssistantTurn, ToolCall
from rath.session.hooks.asked import HookFailed, ask_hook
from rath.session.hooks.values import ModelHook, ModelTurn, hook_name
from rath.session.record import Change, Entry, ModelCall
from rath.session.session import Session

MODEL_HOOK_TIMEOUT = 60.0
"""Seconds that a model hook may take with one answer: time for a model call of its own; a guess."""

_NAME = re.compile("[A-Za-z0-9_-]{1,64}")
"""Names of functions as every vendor takes them."""


class Answering:
    """One question to a model whose answer is shown to hooks.

    The entry of the call that is answered waits for them, so that it names a row only where there
    is one: a run that a hook ends has a call that failed.

    Args:
        hooks: At least one.
        note: Gets the entries.
        row: The row that the answer will become.
        operation: The run that asks.
        session: Gives a snapshot for the hooks.
    """

    def __init__(
        self,
        hooks: tuple[ModelHook, ...],
        note: Callable[[Entry], None],
        *,
        row: RowId,
        operation: UUID,
        session: Callable[[], Session],
    ) -> None:
        self._hooks = hooks
        self._note = note
        self._row = row
        self._operation = operation
        self._session = session
        self._held: ModelCall | None = None
        self._changes: list[Change] = []
        self._said: AssistantTurn | None = None

    def hold(self, call: ModelCall) -> None:
        """Note a call that failed; keep one that was answered until its hooks are done."""
        if call.status == "done":
            self._held = call
        else:
            self._note(call)

    async def shown(self, row: ChunkRow) -> ChunkRow:
        """Return the row that the hooks make of an answer.

        Raises:
            Exception: What a hook raised, with a note that names it.
            TimeoutError: A hook took too long.
            TypeError: A hook gave something that cannot be an answer.
        """
        self._said = cast("AssistantTurn", row.content)
        session = self._session()
        for index, hook in enumerate(self._hooks):
            content = cast("AssistantTurn", row.content)
            turn = ModelTurn(session=session, text=content.text, calls=content.calls)
            given = await self._asked(hook, turn, f"answer {self._row.index}.{index}")
            if given is None or (given.text, given.calls) == (turn.text, turn.calls):
                continue
            new = make_row(ChunkKind.ASSISTANT, AssistantTurn(given.text, tuple(given.calls)))
            change = Change(
                operation=self._operation,
                rows=(self._row,),
                hook=hook_name(hook),
                what="answer",
                before=_as_blob(row),
                after=_as_blob(new),
            )
            self._changes.append(change)
            row = new
        return row

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        call = self._held
        if call is None:
            return
        if error is None:
            self._note(call)
            for change in self._changes:
                self._note(change)
            return
        status: Literal["cancelled", "failed"]
        status = "cancelled" if isinstance(error, asyncio.CancelledError) else "failed"
        problem = f"{type(error).__name__}: a hook of the run ended it after the answer"
        said = "" if self._said is None else self._said.text or ""
        evidence = replace(call.evidence, status=status, error=problem, partial_text=said)
        self._note(replace(call, rows=(), status=status, evidence=evidence))

    async def _asked(self, hook: ModelHook, turn: ModelTurn, about: str) -> ModelTurn | None:
        try:
            limit, session = MODEL_HOOK_TIMEOUT, self._row.session
            given = await ask_hook(hook, turn, limit=limit, session=session, about=about)
        except HookFailed as exc:
            failed = exc
        else:
            return _checked(hook_name(hook), given, turn)
        cause = failed.__cause__
        if cause is None:
            raise TimeoutError(f"{failed} with an answer; what it has not seen is not shown")
        # A coroutine cannot raise StopIteration.
        if isinstance(cause, Exception) and not isinstance(cause, StopIteration):
            cause.add_note(f"in the hook {hook_name(hook)}")
            raise cause
        raise RuntimeError(str(failed)) from cause


def _as_blob(row: ChunkRow) -> Blob:
    return Blob.from_bytes(json.dumps(dict(row.payload), ensure_ascii=False).encode())


def _checked(name: str, given: object, turn: ModelTurn) -> ModelTurn | None:
    """Return what a model hook gave.

    Raises:
        TypeError: It cannot be an answer.
    """
    if given is None:
        return None
    if not isinstance(given, ModelTurn):
        raise TypeError(
            f"the hook {name} returned {type(given).__name__}, expected a ModelTurn, or None to "
            "leave the answer as it is; dataclasses.replace(turn, text=...) makes one"
        )
    text: object = given.text
    if text is not None and not isinstance(text, str):
        raise TypeError(f"the hook {name} gave an answer whose text is a {type(text).__name__}")
    listed: object = given.calls
    if not isinstance(listed, tuple | list):
        raise TypeError(f"the hook {name} gave an answer whose calls are a {type(listed).__name__}")
    calls = tuple(cast("Sequence[ToolCall]", listed))
    for call in calls:
        # What the model wrote itself is dealt with as ever.
        problem = None if call in turn.calls else _problem(call)
        if problem is not None:
            raise TypeError(f"the hook {name} gave a call that cannot be made: {problem}")
    more = Counter(call.id for call in calls) - Counter(call.id for call in turn.calls)
    twice = [one for one in more if [call.id for call in calls].count(one) > 1]
    if twice:
        raise TypeError(f"the hook {name} gave calls with the same id: {', '.join(twice)}")
    return ModelTurn(session=turn.session, text=given.text, calls=calls)


def _problem(call: object) -> str | None:
    if not isinstance(call, ToolCall):
        return f"expected a ToolCall, got {type(call).__name__}"
    parts: tuple[object, ...] = (call.id, call.name, call.arguments, call.type)
    if not all(isinstance(part, str) for part in parts):
        return "id, name, arguments and type must be text"
    if not call.id:
        return f"the call of {call.name!r} has no id"
    if not _NAME.fullmatch(call.name):
        return f"{call.name!r} is no name of a function; expected {_NAME.pattern}"
    if parse_tool_arguments(call.arguments)[1]:
        return f"the arguments of {call.id!r} are no JSON object"
    return None
