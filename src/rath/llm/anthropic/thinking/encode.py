"""How a call thinks, and what it may not say beside that."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, cast

__all__ = ["THOUGHTS", "Thinking", "thinking_budget", "thinking_of", "unforced"]

Json = dict[str, Any]

Thinking = Literal["manual", "adaptive", "off", "unsaid"]
"""Whether the model must think before it answers, may, must not, or does as it is used to."""

_KINDS: Mapping[object, Thinking] = {"enabled": "manual", "disabled": "off"}

THOUGHTS = frozenset({"thinking", "redacted_thinking"})
"""Types of the blocks that hold thoughts."""

_SILENT = re.compile(r"claude-(?:2|3|instant|(?:opus|sonnet|haiku)-4(?!\d))")
"""Models that think only when a request says so; all that came after them think by themselves:
https://platform.claude.com/docs/en/models/opus-5/whats-new-opus-5"""

_UNFORCED = re.compile(r"claude-(?:(?:opus|sonnet)-5[-.]5|(?:fable|mythos)-5[-.][12])(?!\d)")
"""Models that always think, so that no choice may force them to call a tool:
https://platform.claude.com/docs/en/models/opus-5-5/whats-new-opus-5-5. That 5.2 is like 5.1 is a
guess."""


def thinking_of(parameters: Mapping[str, Any]) -> Thinking:
    """Return how a call with these parameters thinks."""
    kind = _config(parameters).get("type")
    if kind is None:
        return "off" if _SILENT.search(str(parameters.get("model"))) else "unsaid"
    # Kinds that are not known yet are free ones too: only the oldest has a fixed budget.
    return _KINDS.get(kind, "adaptive")


def thinking_budget(parameters: Mapping[str, Any]) -> int:
    """Return how many tokens are set aside for thoughts, which count as tokens of the answer."""
    budget = _config(parameters).get("budget_tokens")
    return budget if isinstance(budget, int) else 0


def unforced(parameters: Json) -> Json:
    """Return parameters whose tool choice is one that thinking allows.

    It must not force a call: with a budget the API refuses that, and where the model thinks as it
    likes, some models do and the others skip thinking.
    """
    choice = parameters.get("tool_choice")
    if not isinstance(choice, Mapping):
        return parameters
    asked = cast("Mapping[str, Any]", choice)
    is_free = thinking_of(parameters) in {"off", "unsaid"}
    if asked.get("type") not in {"any", "tool"} or (
        is_free and not _UNFORCED.search(str(parameters.get("model")))
    ):
        return parameters
    kept = {name: value for name, value in asked.items() if name == "disable_parallel_tool_use"}
    return {**parameters, "tool_choice": {"type": "auto", **kept}}


def _config(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    found = parameters.get("thinking")
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}
