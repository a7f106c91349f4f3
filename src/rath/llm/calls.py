"""The way of every model call: the base of clients with its tries, and the gate of an endpoint.

provider -> [ offline switch -> transport -> gate -> request -> answer ] -> evidence
            '---------------------- each try ----------------------'
"""

from __future__ import annotations

import asyncio
from abc import ABC
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import ClassVar, Generic, Literal, Protocol, TypeVar
from urllib.parse import urlsplit

from rath import __version__
from rath._async import retry as retries
from rath._async.limiter import Caps, Gate, Limiter
from rath.errors import InvalidRequestError, ProviderConnectionError, ProviderStatusError
from rath.llm.chat_response import RathLLMStreamDelta
from rath.llm.credentials import AccountSource, RequestTarget
from rath.llm.errors import ModelLister, explain_refusal, retry_verdict
from rath.llm.evidence import CallPermit, CallRecorder, DraftFacts, OnDelta
from rath.llm.offline import refuse_live_call
from rath.llm.provider import Provider
from rath.llm.transport import Transport

T = TypeVar("T")

_PORTS = {"http": 80, "https": 443}

Whose = Literal["our", "custom"]

_limiter = Limiter()

_is_inside: ContextVar[bool] = ContextVar("rath_inside_custom_client", default=False)
"""Whether the current code was called by a call that holds a place at a gate of others."""


class CallSlot(Protocol):
    """The place that a call holds while it is open."""

    def leave(self) -> None:
        """End the call."""
        ...

    async def give_way(self, waiting: Awaitable[T]) -> T:
        """Return what `waiting` gives; no place is held until then."""
        ...


class LimitPlace(CallSlot, CallPermit, Protocol):
    """A place under the limits of others, which hear what became of the try that has it.

    To `leave` it once more does nothing.
    """

    def is_valid(self) -> bool:
        """Tell whether the request may still be sent; it had to be within a short time."""
        ...


class CallLimits(Protocol):
    """Limits of whoever runs this code, such as a job, on top of those of a provider."""

    async def enter(self, place: str, *, goes_first: bool, is_counted: bool) -> LimitPlace:
        """Wait until a request may be sent; who gets the place must leave it.

        Args:
            place: What all calls to one endpoint have in common.
            goes_first: Whether the call, or one that waits for it, holds a place already.
            is_counted: Whether tokens and money of the call count.

        Raises:
            RathError: No further call may be made.
        """
        ...


call_limits: ContextVar[CallLimits | None] = ContextVar("rath_call_limits", default=None)
"""Limits of the job whose item the current code belongs to."""


class CallSource(AccountSource, Protocol):
    """Fields that the providers for chat, embeddings and pictures have in common."""

    @property
    def retry_max_attempts(self) -> int | None: ...

    @property
    def retry_base_seconds(self) -> float | None: ...

    @property
    def timeout(self) -> float | None: ...


P = TypeVar("P", bound=CallSource)


class ModelCaller(ABC, Generic[P]):
    """Base of our clients: the facts of a call, its tries, and the offline switch.

    Args:
        provider: What the client is made for.
        sleep: Waits between tries; for tests.
    """

    kind: ClassVar[str]
    renderer: ClassVar[str]
    """Name and version of the code that writes bodies; a change of bytes changes it."""

    sdk: str | None = None
    """The package that sends, where it is not our own client."""

    def __init__(self, provider: P, *, sleep: retries.Sleep = asyncio.sleep) -> None:
        self._provider = provider
        self.sleep = sleep
        attempts, base = provider.retry_max_attempts, provider.retry_base_seconds
        self.retry_policy: retries.RetryPolicy = retries.RetryPolicy(
            max_attempts=retries.DEFAULT_MAX_ATTEMPTS if attempts is None else attempts,
            base=retries.DEFAULT_BASE_SECONDS if base is None else base,
        )

    @property
    def provider(self) -> P:
        """The provider that the client was made for."""
        return self._provider

    def retryable(self, error: BaseException) -> float | bool:
        """Tell whether another try may mend `error`, or after how many seconds it may."""
        return retry_verdict(error)

    def call_facts(self, target: RequestTarget, *, tools_digest: str | None = None) -> DraftFacts:
        """Return the facts of calls to `target`."""
        return DraftFacts(
            provider_kind=getattr(self._provider, "provider_kind", None) or self.kind,
            adapter=f"{type(self).__module__}:{type(self).__qualname__}",
            adapter_version=__version__,
            renderer=self.renderer,
            sdk=self.sdk,
            endpoint=target.endpoint,
            requested_model=target.model,
            origins=target.origins,
            tools_digest=tools_digest,
        )

    async def complete_call(
        self,
        call: CallRecorder,
        attempt: Callable[[], Awaitable[T]],
        target: RequestTarget,
        *,
        list_models: ModelLister | None = None,
        n_images: int = 0,
    ) -> T:
        """Return what `attempt` gives, after as many tries as the provider allows.

        Args:
            call: Records the tries and the failure.
            attempt: One try; its answer is decoded.
            target: Who is asked.
            list_models: Asks the endpoint for its models, to explain a refused one.
            n_images: Images in the request.

        Raises:
            ProviderError: The last try failed.
        """
        try:
            return await retries.retry(
                partial(_begin_try, call, attempt),
                policy=self.retry_policy,
                retryable=self.retryable,
                on_attempt=call.end_try,
                sleep=self.sleep,
            )
        except ProviderStatusError as exc:
            explained = exc
            if list_models is not None:
                explained = await explain_refusal(exc, target, list_models)
            if n_images and isinstance(explained, InvalidRequestError):
                explained.add_note(
                    f"the request shows images, which not every model reads (images: {n_images})"
                )
            call.fail(explained)
            if explained is exc:
                raise
            raise explained from exc
        except Exception as exc:
            if isinstance(exc, ProviderConnectionError) and len(call.attempts) > 1:
                exc.add_note(f"{len(call.attempts)} tries failed; this is the last one")
            call.fail(exc)
            raise
        except asyncio.CancelledError:
            call.cancel()
            raise


def _begin_try(call: CallRecorder, attempt: Callable[[], Awaitable[T]], _: int) -> Awaitable[T]:
    facts = call.facts
    refuse_live_call(facts.endpoint, facts.requested_model, kind=facts.provider_kind)
    return attempt()


async def enter_endpoint(
    call: CallRecorder, transport: Transport, caps: Caps | None = None
) -> CallSlot:
    """Return the gate of an endpoint when a call may be sent there; see `pass_gate`."""
    call.reached(
        transport.endpoint, sdk_version=transport.sdk_version, credential=transport.credential
    )
    return await pass_gate(call, caps)


def caps_of(provider: Provider) -> Caps | None:
    """Return the limits that a provider sets, None when it sets none."""
    in_flight, per_minute = provider.max_in_flight, provider.max_requests_per_minute
    return None if in_flight is None and per_minute is None else Caps(in_flight, per_minute)


async def pass_gate(call: CallRecorder, caps: Caps | None, *, whose: Whose = "our") -> CallSlot:
    """Wait until a call may be sent to its endpoint; whoever gets the gate must `leave` it.

    The time that was waited is added to the evidence of the call, also when the wait is cancelled.
    Without caps nothing is waited for, and the call counts for those that have some.

    Args:
        call: Says where it goes, and hears how long it waited.
        caps: What its provider allows.
        whose: Whose client calls. Those of others are counted by themselves, since many of them
            call through one of ours: a call would hold the very place that it waits for.
    """
    place = _place(whose, call.facts.provider_kind, call.endpoint)
    limits = call_limits.get()
    if limits is not None:
        return await _pass_both(limits, call, caps, whose, place)
    return await _pass_own(call, caps, whose, place)


async def _pass_both(
    limits: CallLimits, call: CallRecorder, caps: Caps | None, whose: Whose, place: str
) -> CallSlot:
    """Wait for `limits` and then for the gate of the process: in one order, so never in a circle.

    What a custom client asks through one of ours is part of its own call, as in the record.
    """
    is_inside = _is_inside.get()
    enter = partial(
        limits.enter,
        place,
        goes_first=is_inside and whose == "custom",
        is_counted=not is_inside,
    )
    clock = asyncio.get_running_loop().time
    start = clock()
    try:
        outer = await enter()
    finally:
        call.queued_ms += (clock() - start) * 1000
    try:
        queued_ms = call.queued_ms
        gate = await _pass_own(call, caps, whose, place)
        try:
            if call.queued_ms > queued_ms and not outer.is_valid():
                outer.leave()
                start = clock()
                try:
                    outer = await limits.enter(place, goes_first=True, is_counted=not is_inside)
                finally:
                    call.queued_ms += (clock() - start) * 1000
        except BaseException:
            gate.leave()
            raise
    except BaseException:
        outer.leave()
        raise
    call.permit = outer
    return _BothPlaces(outer, gate)


class _BothPlaces:
    """A place under the limits of others, and one at the gate of the process."""

    __slots__ = ("_gate", "_outer")

    def __init__(self, outer: LimitPlace, gate: CallSlot) -> None:
        self._outer, self._gate = outer, gate

    def leave(self) -> None:
        self._gate.leave()
        self._outer.leave()

    async def give_way(self, waiting: Awaitable[T]) -> T:
        return await self._gate.give_way(self._outer.give_way(waiting))


async def _pass_own(call: CallRecorder, caps: Caps | None, whose: Whose, place: str) -> Gate:
    """Wait for the gate of the process."""
    if whose == "custom" and caps is not None and _is_inside.get():
        # Two such clients that call each other would wait for each other's places.
        caps = Caps(None, caps.per_minute, goes_first=True)
    gate = _limiter.gate(place)
    if gate.enter_at_once(caps):
        call.was_sent = True
        return gate
    assert caps is not None  # who has none never waits
    clock = asyncio.get_running_loop().time
    start = clock()
    try:
        await gate.enter(caps)
    finally:
        call.queued_ms += (clock() - start) * 1000
    call.was_sent = True
    return gate


@contextmanager
def inside_custom_client() -> Generator[None]:
    """Let the calls that are made inside wait for no place at the gates of custom clients."""
    token = _is_inside.set(True)
    try:
        yield
    finally:
        _is_inside.reset(token)


def giving_way(gate: CallSlot, on_delta: OnDelta) -> OnDelta:
    """Return `on_delta` for a call that has passed `gate` and holds no place while it awaits.

    What takes the deltas may stand still because a callback asks the same endpoint: if a place
    were held meanwhile, the two would wait for each other. So whoever holds one of ours waits for
    the endpoint alone, and no call can wait for ever.
    """

    def give(delta: RathLLMStreamDelta) -> Awaitable[None] | None:
        waiting = on_delta(delta)
        return None if waiting is None else gate.give_way(waiting)

    return give


@lru_cache(maxsize=256)
def _place(whose: Whose, provider_kind: str, endpoint: str | None) -> str:
    """Return what all calls to one endpoint have in common, whatever their path, key and model.

    A client that does not say where it calls is told by its kind.
    """
    parts = urlsplit(endpoint or "")
    if not parts.hostname:
        return f"{whose} {provider_kind}"
    port = parts.port or _PORTS.get(parts.scheme)
    return f"{whose} {parts.scheme}://{parts.hostname}:{port}"
