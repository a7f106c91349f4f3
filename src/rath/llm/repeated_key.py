"""A key that an endpoint repeats: hidden in the words of errors and in answers."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from traceback import TracebackException
from typing import TypeVar, cast
from urllib.parse import quote, quote_plus

from msgspec import Struct, structs

from rath.config.secrets import HIDDEN

__all__ = [
    "MIN_IN_ANSWER",
    "answer_without",
    "cause_without",
    "event_without",
    "value_without",
    "without_secret",
]

_MIN_SECRET = 6
"""A shorter key is no secret, and hiding it would only garble texts."""

MIN_IN_ANSWER = 16
"""Characters of a key that is hidden in answers too. Shorter ones are words that people put where
no key is needed ("ollama", "lm-studio"), and an answer may well be about them; a guess, and half
of the shortest key that a vendor gives out."""

_HIDDEN_BYTES = HIDDEN.encode()
_IN_HTML = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"}
_HTML_QUOTES = {ord('"'): "&quot;", ord("'"): "&#x27;"}
_PERCENT = re.compile("%[0-9A-F]{2}")

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


def without_secret(text: str, secret: str) -> str:
    """Return `text` with a key replaced wherever it stands, in whatever form it was written.

    Known are JSON, Python, HTML, addresses, and base64 of any text that holds the key.
    """
    if len(secret) >= _MIN_SECRET:
        for form in _forms(secret):
            text = text.replace(form, HIDDEN)
    return text


def answer_without(content: bytes, secret: str) -> bytes:
    """Return the JSON of an answer with a key hidden in it; `content` itself where it holds none.

    Only a long key is, as it is or as JSON writes it.
    """
    if len(secret) >= MIN_IN_ANSWER:
        for _, form in _json_forms(secret):
            content = content.replace(form, _HIDDEN_BYTES)
    return content


def event_without(data: str, secret: str) -> str:
    """Return the same for an event of a stream."""
    if len(secret) >= MIN_IN_ANSWER:
        for form, _ in _json_forms(secret):
            data = data.replace(form, HIDDEN)
    return data


def value_without(value: T, secret: str) -> T:
    """Return a value with a long key hidden in every text that it holds, at any depth."""
    if len(secret) < MIN_IN_ANSWER:
        return value
    return cast("T", _hidden_in(value, secret))  # only texts are changed


def cause_without(exc: E, hide: Callable[[str], str]) -> E | None:
    """Return `exc` as a cause, unless a traceback would show of it what `hide` hides."""
    shown = "".join(TracebackException.from_exception(exc, limit=0).format())
    return exc if hide(shown) == shown else None


def _hidden_in(value: object, secret: str) -> object:
    if isinstance(value, str):
        return event_without(value, secret)
    if isinstance(value, Mapping):
        table = cast("Mapping[object, object]", value)
        return {key: _hidden_in(inner, secret) for key, inner in table.items()}
    if isinstance(value, list | tuple):
        items = [_hidden_in(inner, secret) for inner in cast("Iterable[object]", value)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, Struct):
        changed = {name: _hidden_in(inner, secret) for name, inner in structs.asdict(value).items()}
        return structs.replace(value, **changed)
    if is_dataclass(value) and not isinstance(value, type):
        made = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        return replace(value, **{name: _hidden_in(inner, secret) for name, inner in made.items()})
    return value


@lru_cache(maxsize=128)
def _forms(secret: str) -> tuple[str, ...]:
    """Return how a key may be written in a text, longest first."""
    in_urls = {quote(secret, safe=""), quote(secret), quote_plus(secret)}
    lower = {_PERCENT.sub(lambda found: found[0].lower(), form) for form in in_urls}
    in_html = {secret.translate(_IN_HTML), secret.translate(_IN_HTML | _HTML_QUOTES)}
    as_bytes = repr(secret.encode(errors="replace"))[2:-1]
    in_json = {form for form, _ in _json_forms(secret)}
    forms = {secret, as_bytes, *in_json, *in_html, *in_urls, *lower, *_base64(secret)}
    for _ in range(2):  # a text is quoted in a text, as in the body that an exception shows
        forms |= {written for form in forms for written in _in_python(form)}
    return tuple(sorted((form for form in forms if len(form) >= _MIN_SECRET), key=len)[::-1])


@lru_cache(maxsize=128)
def _json_forms(secret: str) -> tuple[tuple[str, bytes], ...]:
    """Return how JSON may write a key, also as a text inside of a text, longest first."""
    once = {secret, _in_json(secret), _in_json(secret, ensure_ascii=False)}
    once |= {form.replace("/", "\\/") for form in once}
    forms = once | {_in_json(form) for form in once}
    ordered = sorted(forms, key=lambda form: (-len(form), form))
    return tuple((form, form.encode(errors="replace")) for form in ordered)


def _in_python(text: str) -> set[str]:
    """Return what `repr` may make of a text; which quotes it escapes, the rest of it decides."""
    doubled = text.replace("\\", "\\\\")
    printable = repr(text)[1:-1]
    return {doubled, doubled.replace("'", "\\'"), printable, _in_json(text)}


def _in_json(text: str, *, ensure_ascii: bool = True) -> str:
    return json.dumps(text, ensure_ascii=ensure_ascii)[1:-1]


def _base64(secret: str) -> set[str]:
    """Return what base64 of a text that holds the key has in it, wherever the key stands."""
    content = secret.encode(errors="replace")
    found: set[str] = set()
    for n_before in range(3):
        encoded = base64.b64encode(b"\0" * n_before + content).decode()
        # A character stands for six bits; those that have bits of the neighbours are left out.
        inner = encoded[-(-8 * n_before // 6) : 8 * (n_before + len(content)) // 6]
        found |= {inner, inner.replace("+", "-").replace("/", "_")}
    return found
