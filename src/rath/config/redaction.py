"""Redaction of secrets that somebody repeats: in errors, in answers, in streams and in logs."""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import lru_cache
from traceback import TracebackException
from typing import TypeVar, cast
from urllib.parse import quote, quote_plus

from msgspec import Struct, structs

from rath.config.secrets import HIDDEN

__all__ = [
    "MIN_IN_ANSWER",
    "Redactor",
    "TextRedactor",
    "cause_without",
    "guard_logs",
    "redact",
    "redact_json",
]

_MIN_SECRET = 6
"""A shorter key is no secret, and hiding it would only garble texts."""

MIN_IN_ANSWER = 16
"""Characters of a key that is hidden in answers too. Shorter ones are words that people put where
no key is needed ("ollama", "lm-studio"), and an answer may well be about them; a guess, and half
of the shortest key that a vendor gives out."""

_MIN_HELD = 4
"""Characters of a key at the end of a piece that are kept back until it is clear what follows."""

_HIDDEN_BYTES = HIDDEN.encode()
_IN_HTML = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"}
_HTML_QUOTES = {ord('"'): "&quot;", ord("'"): "&#x27;"}
_PERCENT = re.compile("%[0-9A-F]{2}")

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


@dataclass(frozen=True, slots=True)
class Redactor:
    """Hides the secrets of one endpoint, each in the forms that the place calls for."""

    secrets: tuple[str, ...] = field(repr=False)

    def text(self, text: str) -> str:
        """Return a text for people without the secrets, in whatever form they were written."""
        for secret in self.secrets:
            text = redact(text, secret)
        return text

    def json_bytes(self, content: bytes) -> bytes:
        """Return the JSON of an answer without long secrets; `content` itself if it has none."""
        for secret in self.secrets:
            if len(secret) >= MIN_IN_ANSWER:
                for _, form in _json_forms(secret):
                    content = content.replace(form, _HIDDEN_BYTES)
        return content

    def json_text(self, data: str) -> str:
        """Return the JSON of an event without long secrets; `data` itself if it has none."""
        for secret in self.secrets:
            data = redact_json(data, secret)
        return data

    def value(self, value: T) -> T:
        """Return a value with long secrets hidden in every text that it holds, at any depth."""
        if all(len(secret) < MIN_IN_ANSWER for secret in self.secrets):
            return value
        return cast("T", self._value(value))  # only texts are changed

    def cause(self, exc: E) -> E | None:
        """Return `exc` as a cause, unless a traceback would show a secret of it."""
        return cause_without(exc, self.text)

    def _value(self, value: object) -> object:
        if isinstance(value, str):
            return self.json_text(value)
        if isinstance(value, Mapping):
            table = cast("Mapping[object, object]", value)
            return {self._value(key): self._value(inner) for key, inner in table.items()}
        if isinstance(value, list | tuple):
            items = [self._value(inner) for inner in cast("Iterable[object]", value)]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, Struct):
            changed = {name: self._value(it) for name, it in structs.asdict(value).items()}
            return structs.replace(value, **changed)
        if is_dataclass(value) and not isinstance(value, type):
            names = [item.name for item in fields(value) if item.init]
            return replace(value, **{name: self._value(getattr(value, name)) for name in names})
        return value


def redact(text: str, secret: str) -> str:
    """Return `text` with a key replaced wherever it stands, in whatever form it was written.

    Known are JSON, Python, HTML, addresses, and base64 of any text that holds the key.
    """
    if len(secret) >= _MIN_SECRET:
        for form in _forms(secret):
            text = text.replace(form, HIDDEN)
    return text


def redact_json(text: str, secret: str) -> str:
    """Return `text` with a long key replaced where it stands as it is or as JSON writes it."""
    if len(secret) >= MIN_IN_ANSWER:
        for form, _ in _json_forms(secret):
            text = text.replace(form, HIDDEN)
    return text


def cause_without(exc: E, hide: Callable[[str], str]) -> E | None:
    """Return `exc` as a cause, unless a traceback would show of it what `hide` hides."""
    text = "".join(TracebackException.from_exception(exc, limit=0).format())
    return exc if hide(text) == text else None


class TextRedactor:
    """Hides a long key in a text that comes in pieces, also one that is spread over several.

    The end of a piece that may be the beginning of the key is kept back until the next one comes,
    except for fewer than four characters, which end too many words.
    """

    __slots__ = ("_beginnings", "_n_given", "_tail", "has_hidden", "secret")

    def __init__(self, secret: str) -> None:
        self.secret = secret if len(secret) >= MIN_IN_ANSWER else ""
        self._beginnings = _beginnings(self.secret)
        self._tail = ""
        """The end of the text, as far as it is a beginning of the key."""

        self._n_given = 0
        """How many characters of the tail were given out."""

        self.has_hidden = False
        """Whether the key was found so far."""

    def feed(self, text: str) -> str:
        """Return what of `text`, and of what was kept back, may be given out now."""
        if self.is_clear(text):
            return text
        secret = self.secret
        pending, begin, end = self._tail + text, self._n_given, 0
        pieces: list[str] = []
        while (found := pending.find(secret, end)) >= 0:
            pieces += [pending[begin:found], HIDDEN]
            begin = end = found + len(secret)
            self.has_hidden = True
        n_kept = self._n_of_key(pending[end:])
        n_held = n_kept if n_kept >= _MIN_HELD else 0
        pieces.append(pending[begin : len(pending) - n_held])
        self._n_given = max(0, begin - (len(pending) - n_kept)) if n_held else n_kept
        self._tail = secret[:n_kept]
        return "".join(pieces)

    def flush(self) -> str:
        """Return what was kept back, for nothing follows; the better part of a key stays hidden."""
        held = self._tail[self._n_given :]
        if 2 * len(self._tail) > len(self.secret):
            held, self.has_hidden = HIDDEN, True
        self._tail, self._n_given = "", 0
        return held

    def is_clear(self, text: str) -> bool:
        """Tell, fast, whether a piece neither holds nor begins nor continues the key."""
        if not self.secret or not text:
            return True
        if self._tail or text.endswith(self._beginnings.get(text[-1], ())):
            return False
        return len(text) < len(self.secret) or self.secret not in text

    def is_in(self, value: object) -> bool:
        """Tell whether the key stands in a text, or in one that a JSON value holds."""
        if not self.secret:
            return False
        if isinstance(value, str):
            return self.secret in value
        if isinstance(value, Mapping):
            return any(map(self.is_in, cast("Mapping[str, object]", value).values()))
        return isinstance(value, list | tuple) and any(
            map(self.is_in, cast("Iterable[object]", value))
        )

    def _n_of_key(self, text: str) -> int:
        """Return how many characters at the end of `text` are a beginning of the key."""
        for beginning in self._beginnings.get(text[-1:], ()):
            if text.endswith(beginning):
                return len(beginning)
        return 0


class _LogFilter(logging.Filter):
    """Lets every record pass, without the keys that it knows."""

    def __init__(self) -> None:
        super().__init__()
        self._forms: dict[str, tuple[str, str]] = {}
        """A key, and how it may stand in a record."""

    def add(self, secret: str) -> None:
        """Hide a key from now on."""
        self._forms[secret] = (repr(secret)[1:-1], quote(secret, safe=""))

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            message = record.getMessage()
        except (TypeError, ValueError):
            return True  # the handler tells of arguments that do not fit
        redacted = self._redact(message)
        if redacted != message:
            record.msg, record.args = redacted, None
        if record.exc_info and record.exc_info[0] is not None:
            text = logging.Formatter().formatException(record.exc_info)
            redacted = self._redact(text)
            if redacted != text:
                record.exc_info, record.exc_text = None, redacted
        return True

    def _redact(self, text: str) -> str:
        for secret, forms in self._forms.copy().items():
            if any(form in text for form in forms):
                text = redact(text, secret)
        return text


_log_filter = _LogFilter()

_LATE_LOGGERS = ("connection", "http11", "http2", "proxy", "socks")
"""Loggers below "httpcore" and "httpcore2", which are imported only with the first connection."""


def guard_logs(libraries: Iterable[str], *secrets: str) -> None:
    """Keep long keys out of the logs of these libraries from now on.

    They log addresses, status lines and headers as they come, before anyone else has them. A
    library is imported before, or its loggers are `_LATE_LOGGERS`.
    """
    for secret in secrets:
        if len(secret) >= MIN_IN_ANSWER:
            _log_filter.add(secret)
    roots = set(libraries)
    for library in roots:
        for name in _LATE_LOGGERS if library in {"httpcore", "httpcore2"} else ():
            logging.getLogger(f"{library}.{name}")
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in roots:
            # Adding it again changes nothing.
            logging.getLogger(name).addFilter(_log_filter)


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


@lru_cache(maxsize=128)
def _beginnings(secret: str) -> Mapping[str, tuple[str, ...]]:
    """Return what a key may begin with, by the last character, longest first."""
    found: dict[str, tuple[str, ...]] = {}
    for end in range(1, len(secret)):
        last = secret[end - 1]
        found[last] = (secret[:end], *found.get(last, ()))
    return found
