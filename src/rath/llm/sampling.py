"""What a model is asked for beside the messages: the fields that provider and request share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

__all__ = ["SAMPLING_FIELDS", "Sampling"]


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Parameters of a model call; None leaves a choice to the endpoint."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    """The older name of `max_completion_tokens`, which some servers still want."""

    stop: str | Sequence[str] | None = None
    n: int | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    """"auto", "none", "required", or the vendor's own form for one tool."""

    parallel_tool_calls: bool | None = None
    response_format: Mapping[str, Any] | None = None
    logit_bias: Mapping[str, int] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    metadata: Mapping[str, str] | None = None
    user: str | None = None
    store: bool | None = None
    service_tier: str | None = None
    extra_create_args: Mapping[str, Any] = field(default_factory=_nothing, repr=False)
    """Further keys of the request body, as the vendor names them; they win over the fields. Left
    out of `repr`: a client of your own may read headers from it."""


SAMPLING_FIELDS: tuple[str, ...] = tuple(item.name for item in fields(Sampling))
"""The names of the fields, in the order in which they are sent."""
