"""What people and hooks say about the tool calls and answers of a run."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field, replace
from types import TracebackType
from typing import Any, Literal, Self, assert_never, cast
from uuid import UUID

from msgspec.structs import replace as replace_struct

from rath._async.bridge import call_either
from rath._async.deferred import nesting
from rath._async.workers import UserExit
from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath._core.text import valid_unicode
from rath.backend.abc import SandboxIdentity
from rath.llm.image import Image
from rath.llm.tool_args import parse_tool_arguments
from rath.session.calls.results import CALL_INTERRUPTED, CallResult, CheckedCall, recorded_call
from rath.session.chunk import ChunkKind, ChunkRow, RowId, make_row
from rath.session.content import AssistantTurn, ResultText, ToolCall, ToolFeedback, encode_failure
from rath.session.hooks import (
    AfterToolHook,
    BeforeToolHook,
    Deny,
    HookFailed,
    LoopHooks,
    ModelHook,
    ModelTurn,
    ToolResultText,
    ask_hook,
    hook_name,
)
from rath.session.operation import call_scope, operation_scope
from rath.session.outcome import NeedsApproval, NeedsDecision, NeedsInput, Outcome
from rath.session.record import Change, ChangedPart, Entry, Interrupt, ModelCall
from rath.session.session import Session
from rath.session.tooling import (
    ApprovalRule,
    CallRequest,
    InnerRun,
    Question,
    ToolOffer,
    current_call,
    tool_digest,
)

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
        self._call: ModelCall | None = None
        self._changes: list[Change] = []
        self._turn: AssistantTurn | None = None

    def hold(self, call: ModelCall) -> None:
        """Note a call that failed; keep one that was answered until its hooks are done."""
        if call.status == "done":
            self._call = call
        else:
            self._note(call)

    async def run_hooks(self, row: ChunkRow) -> ChunkRow:
        """Return the row that the hooks make of an answer.

        Raises:
            Exception: What a hook raised, with a note that names it.
            TimeoutError: A hook took too long.
            TypeError: A hook gave something that cannot be an answer.
        """
        self._turn = cast("AssistantTurn", row.content)
        session = self._session()
        for index, hook in enumerate(self._hooks):
            content = cast("AssistantTurn", row.content)
            turn = ModelTurn(session=session, text=content.text, calls=content.calls)
            returned = await self._call_hook(hook, turn, f"answer {self._row.index}.{index}")
            if returned is None or (returned.text, returned.calls) == (turn.text, turn.calls):
                continue
            new = make_row(ChunkKind.ASSISTANT, AssistantTurn(returned.text, tuple(returned.calls)))
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
        call = self._call
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
        partial_text = "" if self._turn is None else self._turn.text or ""
        evidence = replace_struct(
            call.evidence, status=status, error=problem, partial_text=partial_text
        )
        self._note(replace_struct(call, rows=(), status=status, evidence=evidence))

    async def _call_hook(self, hook: ModelHook, turn: ModelTurn, about: str) -> ModelTurn | None:
        try:
            limit, session = MODEL_HOOK_TIMEOUT, self._row.session
            returned = await ask_hook(hook, turn, limit=limit, session=session, about=about)
        except HookFailed as exc:
            failed = exc
        else:
            return _check_turn(hook_name(hook), returned, turn)
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


def _check_turn(name: str, returned: object, turn: ModelTurn) -> ModelTurn | None:
    """Check the value that a model hook returned.

    Raises:
        TypeError: It cannot be an answer.
    """
    if returned is None:
        return None
    if not isinstance(returned, ModelTurn):
        raise TypeError(
            f"the hook {name} returned {type(returned).__name__}, expected a ModelTurn, or None to "
            "leave the answer as it is; dataclasses.replace(turn, text=...) makes one"
        )
    text: object = returned.text
    if text is not None and not isinstance(text, str):
        raise TypeError(
            f"the hook {name} gave an answer whose text is of type {type(text).__name__}"
        )
    listed: object = returned.calls
    if not isinstance(listed, tuple | list):
        raise TypeError(
            f"the hook {name} gave an answer whose calls are of type {type(listed).__name__}"
        )
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
    return ModelTurn(session=turn.session, text=returned.text, calls=calls)


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


_log = logging.getLogger("rath.session.loop")

Place = tuple[int, int]
"""Index of the row in which a model asked, and which of the calls of that row it is."""

Again = Callable[[CheckedCall, Mapping[str, Any]], Awaitable[CheckedCall]]
"""Checks and places a call with other arguments; a refusal says what is wrong with them."""


@dataclass(slots=True)
class CallHooks:
    """Shows the calls of one run to its hooks, each before it is made and after it once."""

    hooks: LoopHooks
    session: UUID
    operation: UUID
    note: Callable[[Change], None]
    """Gets each change as it is made."""

    passed: frozenset[Place] = frozenset()
    """Calls that had passed when the run was cut off, or that somebody has decided about."""

    checked_calls: dict[Place, CheckedCall] = field(default_factory=dict[Place, CheckedCall])
    """What became of calls that were shown before they are made."""

    async def before(
        self,
        prepared: CheckedCall,
        session: Session,
        place: Place,
        *,
        again: Again,
    ) -> CheckedCall:
        """Return a call as its hooks let it pass: as it is, with other arguments, or denied.

        Args:
            prepared: A call whose arguments are good; any other comes back as it is.
            session: The snapshot that its tool sees.
            place: Where the model asked.
            again: Checks other arguments.
        """
        if place in self.checked_calls:
            return self.checked_calls[place]
        if prepared.refusal is None and place not in self.passed:
            for index, hook in enumerate(self.hooks.before_tool):
                about = f"before {place[0]}.{place[1]}.{index}"
                try:
                    prepared = await self._before(hook, prepared, session, place, again, about)
                except HookFailed as exc:
                    prepared = _deny_by_failure(prepared, hook, exc)
                if prepared.refusal is not None:
                    break
        self.checked_calls[place] = prepared
        return prepared

    def denied(self, row: int, sandbox: SandboxIdentity | None) -> dict[int, CallResult]:
        """Return the results of the calls of a row that hooks have denied, by place.

        Args:
            row: Index of the row in which the model asked.
            sandbox: Where they would have been made.
        """
        return {
            at: CallResult(one, one.refusal, one.refused_as, sandbox=sandbox)
            for (in_row, at), one in self.checked_calls.items()
            if in_row == row and one.refusal is not None and one.refused_as == "denied"
        }

    async def after(
        self,
        finished: CallResult,
        session: Session,
        place: Place,
        tell: Callable[[CallResult], None],
    ) -> CallResult:
        """Return a finished call with the result that the model may read.

        One that is cut off while a hook looks at it is told to `tell` without its result.
        """
        self.checked_calls.pop(place, None)
        if finished.is_cut_off or finished.prepared.refusal is not None:
            return finished
        try:
            for index, hook in enumerate(self.hooks.after_tool):
                about = f"after {place[0]}.{place[1]}.{index}"
                new = await self._after(hook, finished, session, about)
                if new is not None:
                    texts = _read(finished.result, new)
                    self._note("result", hook, place, finished.prepared, texts)
                    finished = replace(finished, result=new)
        except asyncio.CancelledError:
            cut_off = replace(finished, status="interrupted", is_cut_off=True)
            tell(replace(cut_off, result=CALL_INTERRUPTED))
            raise
        return finished

    async def _before(
        self,
        hook: BeforeToolHook,
        prepared: CheckedCall,
        session: Session,
        place: Place,
        again: Again,
        about: str,
    ) -> CheckedCall:
        request = _request(prepared, session)
        returned = await self._ask(hook, request, prepared=prepared, about=about)
        if returned is None:
            return prepared
        if isinstance(returned, Deny):
            reason: object = returned.reason
            if not isinstance(reason, str):
                raise HookFailed(hook_name(hook), "denied it for a reason that is no text")
            return _deny(prepared, hook_name(hook), f": {valid_unicode(reason)}")
        arguments = _arguments(returned, request, hook_name(hook))
        if arguments == prepared.arguments:
            return prepared
        new = await again(prepared, arguments)
        if new.refusal is not None:
            return _deny(prepared, hook_name(hook), ", which gave it arguments that do not fit")
        texts = (_json(prepared.arguments or {}), _json(arguments))
        self._note("arguments", hook, place, prepared, texts)
        return new

    async def _after(
        self, hook: AfterToolHook, finished: CallResult, session: Session, about: str
    ) -> ResultText | None:
        """Return the result that a hook gives, None where it leaves it as it is."""
        prepared, result = finished.prepared, finished.result
        before = ToolResultText(result.shown, result.failure, result.images)
        request = _request(prepared, session)
        try:
            returned = await self._ask(hook, request, before, prepared=prepared, about=about)
            new = before if returned is None else _result(returned, hook_name(hook))
        except HookFailed as exc:
            _log.warning(
                "a result of tool %r is withheld: %s", prepared.call.name, exc, exc_info=exc
            )
            message = f"the result was withheld: {exc}. The call was made"
            failure = encode_failure("withheld", message)
            return replace(failure, full=result.full, exit_code=result.exit_code)
        if new == before:
            return None
        return replace(result, shown=new.text, failure=new.error_kind, images=new.images)

    async def _ask(
        self, hook: Callable[..., Any], *arguments: object, prepared: CheckedCall, about: str
    ) -> object:
        assert prepared.offer is not None, "a call without a tool is refused"
        return await ask_hook(
            hook, *arguments, limit=prepared.offer.limit, session=self.session, about=about
        )

    def _note(
        self,
        what: ChangedPart,
        hook: Callable[..., Any],
        place: Place,
        prepared: CheckedCall,
        texts: tuple[str, str],
    ) -> None:
        before, after = (Blob.from_bytes(text.encode()) for text in texts)
        change = Change(
            operation=self.operation,
            rows=(RowId(self.session, place[0]),),
            hook=hook_name(hook),
            what=what,
            before=before,
            after=after,
            call_id=prepared.call.id,
            call=place[1],
        )
        self.note(change)


def _request(prepared: CheckedCall, session: Session) -> CallRequest:
    # A copy: what a hook or a rule changes in place is no word of it.
    return CallRequest(
        session=session,
        call_id=prepared.call.id,
        tool=prepared.call.name,
        arguments=copy.deepcopy(prepared.arguments or {}),
    )


def _deny(prepared: CheckedCall, hook: str, why: str) -> CheckedCall:
    refusal = encode_failure("denied", f"the call was denied by the hook {hook}{why}")
    return replace(prepared, refusal=refusal, refused_as="denied")


def _deny_by_failure(prepared: CheckedCall, hook: BeforeToolHook, exc: HookFailed) -> CheckedCall:
    _log.warning("a call of tool %r is denied: %s", prepared.call.name, exc, exc_info=exc)
    return _deny(prepared, hook_name(hook), f", which {exc.problem}")


def _arguments(returned: object, request: CallRequest, hook: str) -> dict[str, Any]:
    if not isinstance(returned, CallRequest):
        raise HookFailed(
            hook, f"returned {type(returned).__name__}, expected a CallRequest, Deny or None"
        )
    if (returned.call_id, returned.tool) != (request.call_id, request.tool):
        raise HookFailed(hook, "returned another call; only its arguments can be changed")
    arguments: object = returned.arguments
    if not isinstance(arguments, Mapping):
        raise HookFailed(hook, f"returned arguments of type {type(arguments).__name__}")
    try:
        # As the record holds them.
        return cast("dict[str, Any]", json.loads(_json(returned.arguments)))
    except (TypeError, ValueError, RecursionError) as exc:
        raise HookFailed(hook, "returned arguments that have no JSON form") from exc


def _result(returned: object, hook: str) -> ToolResultText:
    if not isinstance(returned, ToolResultText):
        raise HookFailed(
            hook, f"returned {type(returned).__name__}, expected a ToolResultText or None"
        )
    text: object = returned.text
    images: object = returned.images
    kind: object = returned.error_kind
    if not isinstance(text, str):
        raise HookFailed(hook, f"returned a result whose text is of type {type(text).__name__}")
    if not (kind is None or isinstance(kind, str)):
        raise HookFailed(
            hook, f"returned a result whose error_kind is of type {type(kind).__name__}"
        )
    if not isinstance(images, tuple) or not all(isinstance(one, Image) for one in images):
        raise HookFailed(hook, "returned a result whose images are no tuple of images")
    failure = None if kind is None else valid_unicode(kind)
    return replace(returned, text=valid_unicode(text), error_kind=failure)


def _read(old: ResultText, new: ResultText) -> tuple[str, str]:
    """Return two results as the model would read them; of images that differ, their labels."""
    if old.images == new.images:
        return old.shown, new.shown
    before, after = (ToolFeedback("", "", one.shown, one.images).described for one in (old, new))
    return before, after


def _json(arguments: Mapping[str, Any]) -> str:
    return valid_unicode(json.dumps(dict(arguments), ensure_ascii=False))


def has_rule(offer: ToolOffer | None, rule: ApprovalRule) -> bool:
    """Tell whether anybody may want to allow a call of a tool first."""
    return offer is not None and not (offer.approval == "never" and rule == "never")


async def to_be_allowed(
    prepared: Mapping[int, CheckedCall], rule: ApprovalRule, session: Session, *, row: int
) -> list[int]:
    """Return which calls of a turn somebody must allow first, by their places in it.

    The rules are asked one after another: that of the tool, then that of the run. One that gives no
    answer, or none that is a bool, counts as yes, and the log says so.

    Args:
        prepared: The calls; one that is refused anyway is not asked about.
        rule: That of the run.
        session: A snapshot, which the rules see.
        row: Index of the row in which the model asked.
    """
    wanted: list[int] = []
    for at, one in prepared.items():
        offer = one.offer
        if one.refusal is not None or offer is None:
            continue
        request = _request(one, session)
        # What a rule asks of agents has a place of its own, beside that of the tool.
        with call_scope(session.id, row, at), operation_scope("approval"):
            is_wanted = await _says_yes(offer.approval, request, offer.limit)
            if is_wanted or await _says_yes(rule, request, offer.limit):
                wanted.append(at)
    return wanted


async def _says_yes(rule: ApprovalRule, request: CallRequest, limit: float) -> bool:
    """Ask one rule, under the deadline of the tool."""
    if isinstance(rule, str):
        return rule == "always"
    deadline = asyncio.timeout(limit)
    with nesting() as nested:
        try:
            async with deadline:
                verdict: object = await call_either(rule, request)
        except Exception as exc:  # noqa: BLE001  # a tool's lane: what is not known to be allowed is asked
            cause = exc.cause if isinstance(exc, UserExit) else exc
            why = f"it raised {type(cause).__name__}"
            if isinstance(exc, TimeoutError) and deadline.expired():
                nested.cancel()
                why = f"it gave no answer within {limit:g} s"
            _log.warning("%s", _mistaken(request, rule, why), exc_info=cause)
            return True
    if verdict is True or verdict is False:
        return verdict
    why = f"it gave {type(verdict).__name__}, expected a bool"
    _log.warning("%s", _mistaken(request, rule, why))
    return True


def _mistaken(request: CallRequest, rule: object, why: str) -> str:
    name = getattr(rule, "__qualname__", type(rule).__qualname__)
    return (
        f"the approval rule {name} could not say whether call {request.call_id!r} "
        f"({request.tool}) needs an approval: {why}; so it needs one"
    )


@dataclass(frozen=True, slots=True)
class Round:
    """The calls of a turn as one run makes them."""

    operation: UUID
    turn_row: RowId
    """The row in which the model asked."""

    calls: Mapping[int, ToolCall]
    """By their place in it."""

    tools: Mapping[str, ToolOffer]


@dataclass(frozen=True, slots=True)
class Suspending:
    """How a run ends that waits."""

    outcome: Outcome
    entries: tuple[Entry, ...]
    """What is noted of it."""

    inner: tuple[Session, ...] = ()
    """Sessions inside its calls that wait."""


def for_approval(here: Round, places: list[int]) -> Suspending:
    """Return how a run ends that waits for approvals: none of its calls was made now.

    Args:
        here: The round.
        places: The calls that somebody must allow.
    """
    entry = _interrupt(here, places, "approval")
    return Suspending(NeedsApproval(here.turn_row.session, entry.calls), (entry,))


def for_answers(here: Round, done: Mapping[int, CallResult]) -> Suspending | None:
    """Return how a run ends some of whose calls wait, None where none does.

    Args:
        here: The round.
        done: What became of its calls.
    """
    waiting = [
        (at, one, waits) for at, one in sorted(done.items()) if (waits := one.waits) is not None
    ]
    if not waiting:
        return None
    entries: list[Entry] = []
    outcomes: list[Outcome] = []
    inner: list[InnerRun] = []
    for at, one, waits in waiting:
        entries.append(recorded_call(one, here.operation)[0])
        match waits:
            case Question(text, schema):
                plain_schema = None if schema is None else dict(schema)
                entries.append(_interrupt(here, [at], "input", question=text, schema=plain_schema))
                outcomes.insert(len(outcomes) - len(inner), NeedsInput(here.turn_row.session, text))
            case InnerRun() as run:
                entries.append(_inner_interrupt(here, at, run))
                outcomes.append(run.outcome)
                inner.append(run)
            case _:
                assert_never(waits)
    return Suspending(outcomes[0], tuple(entries), tuple(run.session for run in inner))


def _inner_interrupt(here: Round, at: int, run: InnerRun) -> Interrupt:
    outcome = run.outcome
    reason: Literal["approval", "input", "decision"] = "decision"
    if isinstance(outcome, NeedsApproval | NeedsInput):
        reason = "approval" if isinstance(outcome, NeedsApproval) else "input"
    question = outcome.question if isinstance(outcome, NeedsInput) else None
    return _interrupt(here, [at], reason, question=question, child=run.child)


def _interrupt(
    here: Round,
    places: list[int],
    reason: Literal["approval", "input", "decision"],
    *,
    question: str | None = None,
    schema: Mapping[str, Any] | None = None,
    child: UUID | None = None,
) -> Interrupt:
    calls = [here.calls[at] for at in places]
    return Interrupt(
        operation=here.operation,
        rows=(here.turn_row,),
        reason=reason,
        calls=tuple(call.id for call in calls),
        question=question,
        places=tuple(places),
        bound=tuple(tool_digest(here.tools[call.name]) for call in calls),
        schema=schema,
        child=child,
    )


def pass_on(child: Session) -> Session:
    """Return a session that a tool has made, unless it waits for somebody: then the caller waits.

    The run that called the tool ends then, with the outcome of `child`, which names that session.
    When it goes on the tool is called again from its start, and makes `child` again: that one is
    found by its place and goes on too. What the tool does before must be idempotent.

    Args:
        child: A session that was made inside this call; waits for its run.

    Raises:
        RuntimeError: It is called outside of a tool call.
    """
    call = current_call("pass_on")
    outcome = child.outcome
    if isinstance(outcome, NeedsApproval | NeedsInput | NeedsDecision):
        call.wait_for(InnerRun(outcome.session, outcome, child))
    return child
