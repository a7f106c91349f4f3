"""Tool calls of one run, shown to its hooks before they are made and after."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import UUID

from rath._core.blobs import Blob
from rath._core.text import valid_unicode
from rath.backend.abc import SandboxIdentity
from rath.llm.image import Image
from rath.session.chunk import RowId
from rath.session.content import ToolFeedback
from rath.session.encode import ResultText, encode_failure
from rath.session.hooks.asked import HookFailed, ask_hook
from rath.session.hooks.values import (
    AfterToolHook,
    BeforeToolHook,
    Deny,
    LoopHooks,
    ToolResultText,
    hook_name,
)
from rath.session.record import Change, ChangedPart
from rath.session.running.finished import CALL_INTERRUPTED, Finished, Prepared
from rath.session.session import Session
from rath.session.tooling import CallRequest

_log = logging.getLogger("rath.session.loop")

Place = tuple[int, int]
"""Index of the row in which a model asked, and which of the calls of that row it is."""

Again = Callable[[Prepared, Mapping[str, Any]], Awaitable[Prepared]]
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

    shown: dict[Place, Prepared] = field(default_factory=dict[Place, Prepared])
    """What became of calls that were shown before they are made."""

    async def before(
        self,
        prepared: Prepared,
        session: Session,
        place: Place,
        *,
        again: Again,
    ) -> Prepared:
        """Return a call as its hooks let it pass: as it is, with other arguments, or denied.

        Args:
            prepared: A call whose arguments are good; any other comes back as it is.
            session: The snapshot that its tool sees.
            place: Where the model asked.
            again: Checks other arguments.
        """
        if place in self.shown:
            return self.shown[place]
        if prepared.refusal is None and place not in self.passed:
            for index, hook in enumerate(self.hooks.before_tool):
                about = f"before {place[0]}.{place[1]}.{index}"
                try:
                    prepared = await self._before(hook, prepared, session, place, again, about)
                except HookFailed as exc:
                    prepared = _denied_by_failure(prepared, hook, exc)
                if prepared.refusal is not None:
                    break
        self.shown[place] = prepared
        return prepared

    def denied(self, row: int, sandbox: SandboxIdentity | None) -> dict[int, Finished]:
        """Return what becomes of the calls of a row that hooks have denied, by place.

        Args:
            row: Index of the row in which the model asked.
            sandbox: Where they would have been made.
        """
        return {
            at: Finished(one, one.refusal, one.refused_as, sandbox=sandbox)
            for (shown_in, at), one in self.shown.items()
            if shown_in == row and one.refusal is not None and one.refused_as == "denied"
        }

    async def after(
        self, finished: Finished, session: Session, place: Place, tell: Callable[[Finished], None]
    ) -> Finished:
        """Return what became of a call with the result that the model may read.

        One that is cut off while a hook looks at it is told to `tell` without its result.
        """
        self.shown.pop(place, None)
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
        prepared: Prepared,
        session: Session,
        place: Place,
        again: Again,
        about: str,
    ) -> Prepared:
        request = _request(prepared, session)
        given = await self._ask(hook, request, prepared=prepared, about=about)
        if given is None:
            return prepared
        if isinstance(given, Deny):
            reason: object = given.reason
            if not isinstance(reason, str):
                raise HookFailed(hook_name(hook), "denied it for a reason that is no text")
            return _denied(prepared, hook_name(hook), f": {valid_unicode(reason)}")
        arguments = _arguments(given, request, hook_name(hook))
        if arguments == prepared.arguments:
            return prepared
        new = await again(prepared, arguments)
        if new.refusal is not None:
            return _denied(prepared, hook_name(hook), ", which gave it arguments that do not fit")
        texts = (_json(prepared.arguments or {}), _json(arguments))
        self._note("arguments", hook, place, prepared, texts)
        return new

    async def _after(
        self, hook: AfterToolHook, finished: Finished, session: Session, about: str
    ) -> ResultText | None:
        """Return the result that a hook gives, None where it leaves it as it is."""
        prepared, result = finished.prepared, finished.result
        shown = ToolResultText(result.shown, result.failure, result.images)
        request = _request(prepared, session)
        try:
            given = await self._ask(hook, request, shown, prepared=prepared, about=about)
            new = shown if given is None else _result(given, hook_name(hook))
        except HookFailed as exc:
            _log.warning(
                "a result of tool %r is withheld: %s", prepared.call.name, exc, exc_info=exc
            )
            message = f"the result was withheld: {exc}. The call was made"
            failure = encode_failure("withheld", message)
            return replace(failure, full=result.full, exit_code=result.exit_code)
        if new == shown:
            return None
        return replace(result, shown=new.text, failure=new.error_kind, images=new.images)

    async def _ask(
        self, hook: Callable[..., Any], *arguments: object, prepared: Prepared, about: str
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
        prepared: Prepared,
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


def _request(prepared: Prepared, session: Session) -> CallRequest:
    # A copy: what a hook changes in place is no word of it.
    return CallRequest(
        session=session,
        call_id=prepared.call.id,
        tool=prepared.call.name,
        arguments=copy.deepcopy(prepared.arguments or {}),
    )


def _denied(prepared: Prepared, hook: str, why: str) -> Prepared:
    refusal = encode_failure("denied", f"the call was denied by the hook {hook}{why}")
    return replace(prepared, refusal=refusal, refused_as="denied")


def _denied_by_failure(prepared: Prepared, hook: BeforeToolHook, exc: HookFailed) -> Prepared:
    _log.warning("a call of tool %r is denied: %s", prepared.call.name, exc, exc_info=exc)
    return _denied(prepared, hook_name(hook), f", which {exc.problem}")


def _arguments(given: object, request: CallRequest, hook: str) -> dict[str, Any]:
    if not isinstance(given, CallRequest):
        raise HookFailed(
            hook, f"returned {type(given).__name__}, expected a CallRequest, Deny or None"
        )
    if (given.call_id, given.tool) != (request.call_id, request.tool):
        raise HookFailed(hook, "returned another call; only its arguments can be changed")
    arguments: object = given.arguments
    if not isinstance(arguments, Mapping):
        raise HookFailed(hook, f"returned arguments of type {type(arguments).__name__}")
    try:
        # As the record holds them.
        return cast("dict[str, Any]", json.loads(_json(given.arguments)))
    except (TypeError, ValueError, RecursionError) as exc:
        raise HookFailed(hook, "returned arguments that have no JSON form") from exc


def _result(given: object, hook: str) -> ToolResultText:
    if not isinstance(given, ToolResultText):
        raise HookFailed(
            hook, f"returned {type(given).__name__}, expected a ToolResultText or None"
        )
    text: object = given.text
    images: object = given.images
    kind: object = given.error_kind
    if not isinstance(text, str):
        raise HookFailed(hook, f"returned a result whose text is a {type(text).__name__}")
    if not (kind is None or isinstance(kind, str)):
        raise HookFailed(hook, f"returned a result whose error_kind is a {type(kind).__name__}")
    if not isinstance(images, tuple) or not all(isinstance(one, Image) for one in images):
        raise HookFailed(hook, "returned a result whose images are no tuple of images")
    failure = None if kind is None else valid_unicode(kind)
    return replace(given, text=valid_unicode(text), error_kind=failure)


def _read(old: ResultText, new: ResultText) -> tuple[str, str]:
    """Return what the model would read of two results; of images that differ, their labels."""
    if old.images == new.images:
        return old.shown, new.shown
    before, after = (ToolFeedback("", "", one.shown, one.images).described for one in (old, new))
    return before, after


def _json(arguments: Mapping[str, Any]) -> str:
    return valid_unicode(json.dumps(dict(arguments), ensure_ascii=False))
