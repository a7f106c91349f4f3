"""Who is asked, in which order, with which rows, and what is left of those that failed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.errors import (
    AuthenticationError,
    ProviderError,
    ProviderServerError,
    ProviderTimeout,
    QuotaExceededError,
)
from rath.llm import (
    Provider,
    RathLLMChatRequest,
    RathLLMChatResponse,
    chat_client_for,
    register_chat_client,
)
from rath.session import (
    ChunkTable,
    Session,
    assistant_turn_chunk,
    run_session_compress,
    select_session,
    user_text_chunk,
)
from rath.session.outcome import Cancelled, Completed
from rath.session.record import ModelCall
from tests.support.api import MANY_ROWS
from tests.support.offline_vendor import OfflineVendor, Says
from tests.support.rendering import rerender_call
from tests.support.sessions import FunctionTool, run
from tests.support.waiting import PATIENCE

AGENT = Session.from_agent_prompt("You are a test.")


def echo(_: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return dict(arguments)


ECHO = FunctionTool("echo", echo)

Messages = Sequence[Mapping[str, Any]]


def down(_: Messages) -> Says:
    raise ProviderServerError("it is down", status=503)


def says(text: str) -> Callable[[Messages], Says]:
    return lambda _: Says(text)


def chain(*vendors: OfflineVendor) -> Provider:
    """The provider of the first, with the others as its fallbacks; nobody tries twice."""
    first, *others = (replace(vendor.provider, retry_max_attempts=1) for vendor in vendors)
    return replace(first, fallbacks=others)


def model_calls(session: Session) -> list[ModelCall]:
    return [entry for entry in session.partial_record if isinstance(entry, ModelCall)]


def name_of(vendor: OfflineVendor) -> str:
    provider = vendor.provider
    return f"{provider.provider_kind} {vendor.endpoint} {provider.model}"


# ---- for any failures


class Fates:
    """Vendors that work together on one run; who is down in which round is drawn beforehand."""

    def __init__(self, rounds: Sequence[Sequence[bool]]) -> None:
        self._rounds = rounds
        self.asked: list[list[int]] = [[]]
        """For each round who was asked, in order."""

        self.vendors = [OfflineVendor(self._answer(index)) for index in range(len(rounds[0]))]

    def _answer(self, index: int) -> Callable[[Messages], Says]:
        def answer(_: Messages) -> Says:
            number = len(self.asked) - 1
            self.asked[-1].append(index)
            if self._rounds[number][index]:
                return down(())
            self.asked.append([])
            is_last = number == len(self._rounds) - 1
            return Says("done") if is_last else Says(calls=("echo",))

        return answer

    def expected(self) -> list[list[int]]:
        """Begin with who answered last, go on in order, ask each once, stop when all failed."""
        n, last, expected = len(self.vendors), 0, list[list[int]]()
        for fates in self._rounds:
            order = [(last + step) % n for step in range(n)]
            up = [index for index in order if not fates[index]]
            expected.append(order[: order.index(up[0]) + 1] if up else order)
            if not up:
                return expected
            last = up[0]
        return [*expected, []]


fates = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1, max_size=6)
)


@given(rounds=fates)
def test_each_call_begins_with_who_answered_last_and_asks_each_at_most_once(
    rounds: list[list[bool]],
) -> None:
    drawn = Fates(rounds)
    out = run([], ECHO, agent_provider=chain(*drawn.vendors))
    if any(all(down) for down in rounds):
        with pytest.raises(ProviderServerError, match="it is down"):
            out.synchronize()
    else:
        assert out.text() == "done"
    assert drawn.asked == drawn.expected()


@given(rounds=fates)
def test_every_call_has_an_entry_that_says_after_whom_it_came(rounds: list[list[bool]]) -> None:
    drawn = Fates(rounds)
    out = run([], ECHO, agent_provider=chain(*drawn.vendors))
    with contextlib.suppress(ProviderServerError):
        out.synchronize()
    models = [vendor.provider.model for vendor in drawn.vendors]
    names = [name_of(vendor) for vendor in drawn.vendors]
    expected: list[tuple[str | None, str, str | None]] = []
    displaced: str | None = None
    for order, fate in zip(drawn.expected(), rounds, strict=False):
        befores = [displaced, *(names[index] for index in order)]
        for index, before in zip(order, befores, strict=False):
            expected.append((models[index], "failed" if fate[index] else "done", before))
        # Once the first choice answers again there is nothing to tell.
        displaced = befores[len(order) - 1] if order[-1] else None
    found = [
        (call.evidence.requested_model, call.status, call.evidence.fallback_from)
        for call in model_calls(out)
    ]
    assert found == expected


@given(rounds=fates)
def test_what_each_was_asked_can_be_rendered_again(rounds: list[list[bool]]) -> None:
    drawn = Fates([[*fate[:-1], False] for fate in rounds])
    provider = chain(*drawn.vendors)
    out = run([], ECHO, agent_provider=provider).synchronize()
    asked = {one.model: one for one in (provider, *provider.fallbacks)}
    for call in model_calls(out):
        assert call.seen is not None
        one = asked[call.evidence.requested_model]
        body = rerender_call(out, call, client=chat_client_for(one), provider=one)
        assert hashlib.sha256(body).hexdigest() == call.seen.request_digest


@given(rounds=fates)
def test_nobody_encodes_a_row_twice(rounds: list[list[bool]]) -> None:
    drawn = Fates([[*fate[:-1], False] for fate in rounds])
    run([], ECHO, agent_provider=chain(*drawn.vendors)).synchronize()
    for vendor in drawn.vendors:
        longest = max((len(messages) for messages in vendor.requests), default=0)
        assert vendor.n_encoded == longest


# ---- which errors


@pytest.mark.parametrize(
    ("error", "falls_back"),
    [
        (ProviderServerError("x", status=500), True),
        (ProviderTimeout("x"), True),
        (QuotaExceededError("x", status=402), True),
        (AuthenticationError("x", status=401), False),
        (ValueError("x"), False),
    ],
    ids=["500", "timeout", "quota", "401", "a bug"],
)
def test_only_what_another_may_not_have_is_left_to_another(
    error: Exception, falls_back: bool
) -> None:
    def fail(_: Messages) -> Says:
        raise error

    second = OfflineVendor(says("second"))
    out = run([], agent_provider=chain(OfflineVendor(fail), second))
    if falls_back:
        assert out.text() == "second"
    else:
        with pytest.raises(type(error)):
            out.text()
        assert second.requests == []


def test_when_all_fail_the_last_error_names_those_before() -> None:
    def spent(_: Messages) -> Says:
        raise QuotaExceededError("nothing left", status=429)

    def refuse(_: Messages) -> Says:
        raise AuthenticationError("wrong key", status=401)

    first, second, third = OfflineVendor(down), OfflineVendor(spent), OfflineVendor(refuse)
    out = run([], agent_provider=chain(first, second, third))
    with pytest.raises(AuthenticationError, match="wrong key") as caught:
        out.text()
    one, two, where = caught.value.__notes__
    assert one == f"before it, {name_of(first)} failed with ProviderServerError: it is down"
    assert two == f"before it, {name_of(second)} failed with QuotaExceededError: nothing left"
    assert "model call 1" in where
    assert [call.status for call in model_calls(out)] == ["failed"] * 3


def test_a_lone_failure_has_no_notes_of_others() -> None:
    out = run([], agent_provider=chain(OfflineVendor(down)))
    with pytest.raises(ProviderServerError) as caught:
        out.text()
    assert [note for note in caught.value.__notes__ if "before it" in note] == []


def test_each_switch_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    first, second, third = OfflineVendor(down), OfflineVendor(down), OfflineVendor(says("third"))
    with caplog.at_level(logging.WARNING, logger="rath.session.loop"):
        run([], agent_provider=chain(first, second, third)).synchronize()
    told = [record for record in caplog.records if record.name == "rath.session.loop"]
    assert [record.levelname for record in told] == ["WARNING"] * 2
    assert name_of(first) in told[0].getMessage()
    assert name_of(second) in told[1].getMessage()


def test_a_fallback_has_its_own_parameters() -> None:
    first, second = OfflineVendor(down), OfflineVendor(says("second"))
    provider = replace(
        first.provider,
        temperature=0.1,
        retry_max_attempts=3,
        retry_base_seconds=0.0,
        fallbacks=[replace(second.provider, temperature=0.9)],
    )
    failed, answered = model_calls(run([], agent_provider=provider).synchronize())
    assert (failed.evidence.parameters["temperature"], len(failed.evidence.attempts)) == (0.1, 3)
    assert (answered.evidence.parameters["temperature"], len(answered.evidence.attempts)) == (
        0.9,
        1,
    )


def test_a_fallback_that_is_not_needed_is_not_opened() -> None:
    second = OfflineVendor(says("second"))
    run([], agent_provider=chain(OfflineVendor(says("first")), second)).synchronize()
    assert second.n_clients == 1
    assert second.n_encoded == 0


def test_the_next_run_begins_with_the_first_again() -> None:
    answers = [down, says("recovered")]
    first = OfflineVendor(lambda messages: answers.pop(0)(messages))
    provider = chain(first, OfflineVendor(says("second")))
    out = run([], agent_provider=provider).synchronize()
    assert out.text() == "second"
    assert run([], user=out, agent_provider=provider).text() == "recovered"


def test_a_run_that_is_cancelled_asks_nobody_else() -> None:
    begun = threading.Event()

    class Endless:
        provider = Provider(model="m", provider_kind="endless first")

        async def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

    register_chat_client("endless first", lambda _: Endless())  # type: ignore[arg-type,return-value]  # its methods are coroutines
    second = OfflineVendor(says("never"))
    provider = replace(Endless.provider, fallbacks=[second.provider])
    out = run([], agent_provider=provider)
    assert begun.wait(PATIENCE)
    assert out.cancel().outcome == Cancelled(out.id)
    assert [call.status for call in model_calls(out)] == ["cancelled"]
    assert second.requests == []


# ---- compressions and selections


def test_a_compression_falls_back() -> None:
    provider = chain(OfflineVendor(down), OfflineVendor(says("short")))
    user = Session.from_user_message("a long story")
    out = run_session_compress(user, AGENT, agent_provider=provider)
    assert out.text() == "short"
    assert out.outcome == Completed()
    assert [(call.purpose, call.status, len(call.rows)) for call in model_calls(out)] == [
        ("compress", "failed", 0),
        ("compress", "done", 1),
    ]


def test_a_selection_falls_back() -> None:
    provider = chain(OfflineVendor(down), OfflineVendor(says("1")))
    user = Session.from_user_message("help")
    assert select_session(user, AGENT, "a", "b", agent_provider=provider) == (1, "b")
    assert [(call.purpose, call.status) for call in model_calls(user.fork())] == [
        ("select", "failed"),
        ("select", "done"),
    ]


def test_a_side_call_that_all_refuse_is_an_error_with_notes() -> None:
    provider = chain(OfflineVendor(down), OfflineVendor(down))
    with pytest.raises(ProviderError) as caught:
        run_session_compress(Session.from_user_message("x"), AGENT, agent_provider=provider)
    assert len([note for note in caught.value.__notes__ if "before it" in note]) == 1


# ---- long sessions


def test_a_fallback_reads_all_of_a_long_session() -> None:
    said = user_text_chunk("a"), assistant_turn_chunk(tool_calls=None, content="b")
    many = Session(ChunkTable(said * MANY_ROWS))
    first, second = OfflineVendor(down), OfflineVendor(says("second"))
    assert run([], user=many, agent_provider=chain(first, second)).text() == "second"
    assert first.requests == second.requests
    assert len(second.requests[0]) > MANY_ROWS


def test_one_that_was_left_long_ago_catches_up() -> None:
    rounds = [[True, False]] * MANY_ROWS + [[False, True]]
    # The second answers until it fails in the last round, and the first is asked again then.
    drawn = Fates(rounds)
    out = run([], ECHO, agent_provider=chain(*drawn.vendors), max_tool_rounds=len(rounds))
    assert out.text() == "done"
    first, second = drawn.vendors
    assert len(first.requests) == 2
    assert first.requests[-1] == second.requests[-1]
