"""How calls of a chat client behave: at once, from anywhere, for a model that is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

from rath._async.bridge import is_async
from rath._async.runtime import runtime
from rath.conformance.chat.subject import ANSWER_SECONDS, How, Subject, wait_for
from rath.conformance.report import Skipped, Unlike, expect
from rath.llm.base import ChatDraft
from rath.llm.chat_request import RathLLMMessage
from rath.llm.chat_response import RathLLMChatResponse
from rath.llm.evidence import evidence_of

__all__ = ["CALLS"]

_WORDS = ("heron", "cement", "violin", "harbour")


def _calls_at_once_do_not_mix(subject: Subject) -> None:
    hows: list[How] = ["whole", subject.hows[-1]] * 2
    drafts: list[tuple[ChatDraft, How]] = [
        (subject.open(subject.echo(word), how=how), how)
        for word, how in zip(_WORDS, hows, strict=True)
    ]
    calls = subject.send_all(drafts)
    for word, call in zip(_WORDS, calls, strict=True):
        said = call.text.casefold()
        strangers = [other for other in _WORDS if other != word and other in said]
        expect(not strangers, f"an answer about {word!r} only, got {call.text!r}")
    if not any(word in call.text.casefold() for word, call in zip(_WORDS, calls, strict=True)):
        raise Skipped(f"the model repeats no words: {[call.text for call in calls]!r}")


def _it_is_used_from_several_threads_and_loops(subject: Subject) -> None:
    if is_async(subject.client.complete):
        raise Skipped("complete is a coroutine function, which rath awaits on one loop only")

    def ask(word: str) -> RathLLMChatResponse:
        # A foreign client may return anything.
        answer = cast("object", subject.client.complete(subject.echo(word)))
        if not isinstance(answer, RathLLMChatResponse):
            raise Unlike(f"expected a RathLLMChatResponse, got {answer!r}")
        return answer

    async def ask_on_a_loop(word: str) -> RathLLMChatResponse:
        return ask(word)

    works: list[Callable[[], RathLLMChatResponse]] = [
        partial(ask, _WORDS[0]),
        partial(ask, _WORDS[1]),
        lambda: asyncio.run(ask_on_a_loop(_WORDS[2])),
    ]
    for started in [runtime().start_in_worker(work) for work in works]:
        answer = wait_for(started, "an answer on a thread of its own", seconds=ANSWER_SECONDS)
        expect(bool(answer.choices), f"an answer, got {answer!r}")


def _an_unknown_model_is_an_error_that_names_it(subject: Subject) -> None:
    name = subject.unknown_model
    if name is None:
        raise Skipped("the endpoint is said to take any name")
    try:
        call = subject.ask(subject.request(RathLLMMessage("user", "Say hello."), model=name))
    except Exception as exc:  # noqa: BLE001  # a client of others raises errors of its own
        _expect_refusal(exc, name)
        return
    raise Unlike(
        f"expected an error for the model {name!r}, got {call.text!r}; for an endpoint that "
        "takes any name pass unknown_model=None"
    )


def _expect_refusal(error: Exception, name: str) -> None:
    expect(name in str(error), f"an error that names {name!r}, got {error!r}")
    evidence = evidence_of(error)
    if evidence is None:
        raise Unlike(f"expected an error with evidence, got {error!r}") from error
    expect(evidence.status == "failed", f"the status 'failed', got {evidence.status!r}")
    expect(bool(evidence.error), "the error in its evidence")
    asked = evidence.requested_model
    expect(asked == name, f"{name!r} as the requested model, got {asked!r}")


CALLS = (
    _calls_at_once_do_not_mix,
    _it_is_used_from_several_threads_and_loops,
    _an_unknown_model_is_an_error_that_names_it,
)
