"""Credentials that a server repeats in what it answers: they reach no row and no file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from rath.config.redaction import MIN_IN_ANSWER, redact_json
from rath.config.secrets import looks_secret
from rath.mcp.environment import REFERENCE

__all__ = ["hidden_in", "looks_random", "telling"]


def telling(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that are credentials by their name, or by that of a variable in them.

    The others may be a directory or a team, which answers are about.
    """
    return {
        name: value
        for name, value in settings.items()
        if looks_secret(name) or any(looks_secret(each[1]) for each in REFERENCE.finditer(value))
    }


def looks_random(text: str) -> bool:
    """Tell whether a word is probably a token: it is long, and has digits beside letters."""
    is_mixed = any(map(str.isdigit, text)) and any(map(str.isalpha, text))
    return len(text) >= MIN_IN_ANSWER and is_mixed and "/" not in text


def hidden_in(value: object, tokens: Iterable[str]) -> Any:
    """Return JSON with long tokens hidden in each text and name in it, at any depth."""
    known = [token for token in dict.fromkeys(tokens) if len(token) >= MIN_IN_ANSWER]
    return _hidden_in(value, known) if known else value


def _hidden_in(value: object, tokens: list[str]) -> object:
    if isinstance(value, str):
        for token in tokens:
            value = redact_json(value, token)
        return value
    if isinstance(value, Mapping):
        table = cast("Mapping[object, object]", value)
        return {_hidden_in(key, tokens): _hidden_in(it, tokens) for key, it in table.items()}
    if isinstance(value, list):
        return [_hidden_in(each, tokens) for each in cast("list[object]", value)]
    return value
