"""Clauses on the evidence of calls: whether it is true, and whether a key stands in it."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, cast

from rath.conformance.chat.subject import ChatSubject
from rath.conformance.contract import Clauses, Skipped, expect
from rath.llm.base import ChatClient
from rath.llm.custom_client import CustomDraft
from rath.llm.evidence import evidence_of
from rath.llm.provider import Provider

__all__ = ["CLIENT", "EVIDENCE"]

CLIENT = Clauses[ChatSubject]()
EVIDENCE = Clauses[ChatSubject]()

_clause = EVIDENCE.add("")
_FROM_SESSION = frozenset({"messages", "system", "tools"})
_SHORTEST_SECRET = 6
"""A shorter key may stand anywhere by chance."""


@CLIENT.add("")
def it_is_a_chat_client(subject: ChatSubject) -> None:
    client: object = subject.client
    expect(isinstance(client, ChatClient), f"`provider` and `complete`, got {client!r}")
    found: object = subject.client.provider
    expect(isinstance(found, Provider), f"a Provider as `provider`, got {found!r}")


@_clause
def the_digest_is_that_of_the_body(subject: ChatSubject) -> None:
    for call in subject.answered():
        digest = sha256(call.body).hexdigest()
        found = call.evidence.request_digest
        expect(found == digest, f"sha256 of the body, {digest}, got {found}")


@_clause
def the_evidence_names_client_and_model(subject: ChatSubject) -> None:
    for call in subject.answered():
        evidence, facts = call.evidence, call.draft.facts
        for name in ("provider_kind", "adapter", "adapter_version", "renderer", "requested_model"):
            found = getattr(evidence, name)
            # A client that only knows `complete` may ask a model that it does not tell.
            expect(bool(found) or name == "requested_model", f"{name} in the evidence")
            expect(found == getattr(facts, name), f"{name} as the draft tells it, got {found!r}")
        served = call.response.model or None
        found = evidence.served_model
        expect(found == served, f"{served!r} as the served model, got {found!r}")
        endpoint = evidence.endpoint or ""
        expect(not {"@", "?"} & set(endpoint), f"scheme, host and path, got {endpoint!r}")


@_clause
def the_evidence_says_where_values_came_from(subject: ChatSubject) -> None:
    for call in subject.answered():
        origins = dict(call.evidence.origins)
        if isinstance(call.draft, CustomDraft):
            continue
        expect(bool(origins.get("model")), f"the model's origin, got {origins!r}")
        if call.evidence.credential is not None:
            expect(bool(origins.get("api_key")), f"the key's origin, got {origins!r}")


@_clause
def the_evidence_says_what_came_back(subject: ChatSubject) -> None:
    for call in subject.answered():
        evidence, choice = call.evidence, call.response.primary_choice
        expect(evidence.status == "done", f"the status 'done', got {evidence.status!r}")
        expect(evidence.error is None, f"no error, got {evidence.error!r}")
        expect(not evidence.partial_text, f"no partial text, got {evidence.partial_text!r}")
        for found, answer in (
            (evidence.finish_reason, choice.finish_reason),
            (evidence.usage, call.response.usage),
            (evidence.reasoning, choice.message.reasoning_content),
        ):
            expect(found == answer, f"{answer!r} as in the answer, got {found!r}")


@_clause
def the_evidence_counts_attempts(subject: ChatSubject) -> None:
    for call in subject.answered():
        attempts = call.evidence.attempts
        numbers = [attempt.number for attempt in attempts]
        expect(numbers == list(range(1, len(attempts) + 1)), f"1, 2, ..., got {numbers!r}")
        if isinstance(call.draft, CustomDraft):
            continue  # it owns its retries, and nobody hears of them
        expect(bool(attempts), "the attempts of the call")
        expect(attempts[-1].error is None, f"a last attempt without error, got {attempts!r}")
        expect(all(each.error for each in attempts[:-1]), f"errors before it, got {attempts!r}")


@_clause
def the_evidence_measures_time(subject: ChatSubject) -> None:
    for call in subject.answered():
        evidence = call.evidence
        started, first = evidence.started, evidence.first_token_ms
        expect(started.tzinfo is not None, f"a time with its zone, got {started!r}")
        expect(call.started <= started <= call.ended, f"when it began, got {started!r}")
        expect(0 <= evidence.queued_ms <= evidence.duration_ms, "a wait within the duration")
        if call.deltas is None:
            expect(first is None, f"no first token of an answer that came whole, got {first!r}")
        elif first is not None and (call.deltas or not isinstance(call.draft, CustomDraft)):
            duration = evidence.duration_ms
            expect(0 <= first <= duration, f"a first token within {duration} ms, got {first!r}")


@_clause
def the_parameters_are_those_of_the_body(subject: ChatSubject) -> None:
    for call in subject.answered():
        parameters = call.evidence.parameters
        wrong = _FROM_SESSION & parameters.keys()
        expect(not wrong, f"no {sorted(wrong)} among the parameters")
        try:
            body: object = json.loads(call.body)
        except ValueError:
            continue
        if isinstance(body, dict):
            fields = cast("dict[str, Any]", body)
            for name, value in json.loads(json.dumps(dict(parameters), default=dict)).items():
                expect(fields.get(name) == value, f"{name}={value!r} as in the body")


@_clause
def the_key_appears_nowhere(subject: ChatSubject) -> None:
    if len(subject.secret) < _SHORTEST_SECRET:
        raise Skipped("no key is known, or one too short to look for; pass secret=...")
    for place, text in _texts(subject):
        expect(subject.secret not in text, f"no key in {place}")


def _texts(subject: ChatSubject) -> Iterator[tuple[str, str]]:
    """Give every text that the client made, with its place."""
    yield "the client's repr", f"{subject.client!r} {subject.client}"
    yield "its provider's repr", f"{subject.provider!r} {subject.provider}"
    for call in subject.calls:
        yield "a draft", f"{call.draft!r} {call.draft.facts!r}"
        yield "a body", call.body.decode(errors="replace")
        yield "the evidence", repr(call.evidence)
        yield "an answer", repr(call.response)
    for error in subject.errors:
        yield "an error", "".join(traceback.format_exception(error))
        yield "the evidence of an error", repr(evidence_of(error))
    for line in subject.log:
        yield "the log", line
