"""Answers and events that resemble those of vendors, with anything where something is expected."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

from hypothesis import strategies as st

__all__ = [
    "anthropic_answers",
    "anthropic_events",
    "openai_answers",
    "openai_chunks",
    "with_one_odd_value",
]

Odd = st.SearchStrategy[Any]

_NUMBERS = st.sampled_from([-1, 0, 1, 2**70, 10**400, 1e999, math.nan, 0.5])
_ANYTHING: Odd = st.recursive(
    st.none() | st.booleans() | _NUMBERS | st.sampled_from(["", "a", "stop", "text", "\ud83d"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=3,
)


def with_one_odd_value(whole: object) -> Odd:
    """JSON that is right but for one value, which is anything."""
    return st.builds(_replaced, st.just(whole), st.sampled_from([*_places(whole)]), _ANYTHING)


def _places(value: object) -> Iterator[tuple[str | int, ...]]:
    yield ()
    for name, inner in _items(value):
        yield from ((name, *place) for place in _places(inner))


def _replaced(value: Any, place: tuple[str | int, ...], odd: object) -> object:
    if not place:
        return odd
    changed = {name: _replaced(inner, place[1:], odd) if name == place[0] else inner
               for name, inner in _items(value)}  # fmt: skip
    return changed if isinstance(value, Mapping) else [*changed.values()]


def _items(value: object) -> list[tuple[str | int, object]]:
    if isinstance(value, Mapping):
        return [*cast("Mapping[str | int, object]", value).items()]
    return [*enumerate(cast("list[object]", value))] if isinstance(value, list) else []


def _mostly(likely: Odd) -> Odd:
    """One time in sixteen anything: an answer has many fields."""
    return st.integers(0, 15).flatmap(lambda drawn: _ANYTHING if drawn == 15 else likely)


def _either(*likely: object) -> Odd:
    return _mostly(st.sampled_from(likely))


def _object(**fields: Odd) -> Odd:
    """Objects with most of these fields."""
    some = {name: st.integers(0, 15).flatmap(_present(value)) for name, value in fields.items()}
    made = st.fixed_dictionaries(some)
    return _mostly(
        made.map(lambda found: {name: each[0] for name, each in found.items() if each is not None})
    )


def _present(value: Odd) -> Any:
    def choose(drawn: int) -> st.SearchStrategy[tuple[Any] | None]:
        return st.none() if drawn == 15 else st.tuples(value)

    return choose


def _list(items: Odd) -> Odd:
    return _mostly(st.lists(items, min_size=1, max_size=3))


_COUNT = _either(0, 7)
_TEXT = _either("", "a", "b c")
_INDEX = _either(0, 1)

# ---------------------------------------------------------------- chat completions

_usage = _object(
    prompt_tokens=_COUNT,
    completion_tokens=_COUNT,
    total_tokens=_COUNT,
    prompt_tokens_details=_object(cached_tokens=_COUNT),
    completion_tokens_details=_object(reasoning_tokens=_COUNT),
    prompt_cache_hit_tokens=_COUNT,
)
_function = _object(name=_TEXT, arguments=_either("{}", '{"a": 1}', ""), input=_TEXT)
_calls = _list(
    _object(
        index=_INDEX, id=_TEXT, type=_either("function", "custom"), function=_function,
        custom=_function,
    )
)  # fmt: skip
_message = _object(
    content=_TEXT,
    refusal=_TEXT,
    reasoning_content=_TEXT,
    tool_calls=_calls,
    function_call=_ANYTHING,
    annotations=_list(_object(type=_TEXT)),
)
_choice = _object(
    index=_INDEX,
    finish_reason=_either("stop", "tool_calls", "odd"),
    message=_message,
    delta=_message,
    logprobs=_ANYTHING,
)
_error = st.just("it broke") | _object(
    type=_either("overloaded_error", "odd"), code=_either(429, "x"), message=_TEXT
)

openai_chunks = _object(
    id=_TEXT,
    model=_TEXT,
    created=_COUNT,
    service_tier=_TEXT,
    choices=_list(_choice),
    usage=_usage,
    error=st.integers(0, 15).flatmap(lambda drawn: _error if drawn == 15 else st.none()),
)
openai_answers = openai_chunks.filter(lambda found: isinstance(found, dict))

# ---------------------------------------------------------------- Anthropic's messages

_read = _object(
    input_tokens=_COUNT,
    output_tokens=_COUNT,
    cache_read_input_tokens=_COUNT,
    cache_creation_input_tokens=_COUNT,
    cache_creation=_object(ephemeral_1h_input_tokens=_COUNT),
    output_tokens_details=_object(thinking_tokens=_COUNT),
    service_tier=_TEXT,
)
_reason = _either("end_turn", "tool_use", "refusal", "odd")
_refused = _object(type=_TEXT, explanation=_TEXT)
_block = _object(
    type=_either("text", "thinking", "tool_use", "odd"),
    text=_TEXT,
    thinking=_TEXT,
    signature=_TEXT,
    citations=_list(_ANYTHING),
    id=_TEXT,
    name=_TEXT,
    input=_object(a=_ANYTHING),
)
_piece = _object(
    type=_either("text_delta", "thinking_delta", "input_json_delta", "signature_delta",
                 "citations_delta", "odd"),
    text=_TEXT,
    thinking=_TEXT,
    partial_json=_either("", "{}", '{"a'),
    signature=_TEXT,
    citation=_ANYTHING,
    stop_reason=_reason,
    stop_details=_refused,
    usage=_read,
)  # fmt: skip
_anthropic_message = _object(
    type=_either("message", "message", "message", "error"),
    id=_TEXT,
    model=_TEXT,
    content=_list(_block),
    stop_reason=_reason,
    stop_details=_refused,
    usage=_read,
)

anthropic_answers = _anthropic_message.filter(lambda found: isinstance(found, dict))
anthropic_events = _object(
    type=_either("content_block_start", "content_block_delta", "content_block_stop",
                 "message_start", "message_delta", "message_stop"),
    index=_INDEX,
    content_block=_block,
    delta=_piece,
    message=_anthropic_message,
    usage=_read,
) | _object(type=st.just("error"), error=_error)  # fmt: skip
