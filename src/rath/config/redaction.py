"""Redaction: secrets in settings, addresses, command lines, errors, answers, streams and logs.

where it stands        its secrets          a text without them
setting                looks_secret         redact_setting
address                address_secrets      address_name, redact_address
command line           argv_secrets         redact_argv
anything that somebody repeats              Redactor, TextRedactor, guard_logs
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields, is_dataclass, replace
from functools import lru_cache
from traceback import TracebackException
from typing import NamedTuple, TypeAlias, TypeVar, cast
from urllib.parse import SplitResult, parse_qsl, quote, quote_plus, unquote, urlsplit

from msgspec import Struct, structs

from rath._core.dataclasses import dataclass
from rath._core.text import valid_unicode

__all__ = ["HIDDEN", "MIN_IN_ANSWER", "REFERENCE", "Hide", "Redactor", "TextRedactor",
           "address_name", "address_secrets", "argv_secrets", "find_secret",
           "find_secret_attribute", "guard_logs", "is_secret_file", "is_url", "looks_random",
           "looks_secret", "printable", "redact", "redact_address", "redact_argv",
           "redact_content", "redact_setting"]  # fmt: skip

HIDDEN = "***"
"""Text in the place of a secret."""

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
    shortest: int = _MIN_SECRET
    """Characters of a secret at least; shorter ones are words that stand in texts anyway."""

    def text(self, text: str) -> str:
        """Return a text for people without the secrets, in whatever form they were written."""
        for secret in sorted(filter(None, self.secrets), key=len, reverse=True):
            if self.shortest <= len(secret) < _MIN_SECRET:
                text = text.replace(secret, HIDDEN)
            text = redact(text, secret)
        return text

    def json_bytes(self, content: bytes) -> bytes:
        """Return the JSON of an answer without long secrets; `content` itself if it has none."""
        for _, form in self._long_forms():
            content = content.replace(form, _HIDDEN_BYTES)
        return content

    def json_text(self, data: str) -> str:
        """Return the JSON of an event without long secrets; `data` itself if it has none."""
        for form, _ in self._long_forms():
            data = data.replace(form, HIDDEN)
        return data

    def value(self, value: T) -> T:
        """Return a value with long secrets hidden in every text that it holds, at any depth."""
        if all(len(secret) < MIN_IN_ANSWER for secret in self.secrets):
            return value
        return cast("T", self._value(value))  # only texts are changed

    def cause(self, exc: E) -> E | None:
        """Return `exc` as a cause, unless a traceback would show a secret of it."""
        text = "".join(TracebackException.from_exception(exc, limit=0).format())
        return exc if self.text(text) == text else None

    def _long_forms(self) -> Iterator[tuple[str, bytes]]:
        for secret in self.secrets:
            if len(secret) >= MIN_IN_ANSWER:
                yield from _json_forms(secret)

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


class TextRedactor:
    """Hides a long key in a text that comes in pieces, also one that is spread over several.

    The end of a piece that may be the beginning of the key is kept back until the next one comes,
    except for fewer than four characters, which end too many words.
    """

    __slots__ = ("_beginnings", "_n_given", "_tail", "has_hidden", "secret")

    def __init__(self, secret: str) -> None:
        self.secret: str = secret if len(secret) >= MIN_IN_ANSWER else ""
        self._beginnings = _beginnings(self.secret)
        self._tail = ""
        """The end of the text, as far as it is a beginning of the key."""

        self._n_given = 0
        """How many characters of the tail were given out."""

        self.has_hidden: bool = False
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
    escaped = repr(text)[1:-1]
    return {doubled, doubled.replace("'", "\\'"), escaped, _in_json(text)}


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


# ---------------------------------------------------------------- settings

_SECRET_NAME = re.compile("key|token|secret|passw|pwd|credential|auth|bearer|cookie", re.IGNORECASE)
_COUNT_NAME = re.compile(r"(^|_)(max|min|n|total|budget|prompt|completion)_.*tokens$")
_WHOLLY_SECRET = frozenset({"env", "environ", "environment", "headers"})
"""Tables whose every value may be a secret, whatever it is called."""

_DIRECTORIES = frozenset({"OLDPWD", "PWD"})
"""Variables of a shell that no password stands in."""

# Greedy, since passwords are also written with the characters that end a host.
_LOGIN = re.compile(r"(?<=://)\S*(?=@)")
_QUERY_OF_URL = re.compile(r"(?<=[?#])\S*=\S*")

REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A variable of the environment in a setting."""


def looks_secret(name: str) -> bool:
    """Return whether what bears this name is probably a secret; numbers of tokens are not."""
    folded = name.strip("-").replace("-", "_").casefold()
    is_secret = _SECRET_NAME.search(folded) is not None or folded in _WHOLLY_SECRET
    return is_secret and _COUNT_NAME.search(folded) is None


def redact_setting(name: str, value: object) -> object:
    """Return `value`, which stands under `name`, as it may be shown: its secrets are hidden.

    Hidden are values with a telling name at any depth, what follows an option with such a name
    in a command, and of an address user, password and query.
    """
    is_secret = looks_secret(name)
    if isinstance(value, Mapping):
        table = cast("Mapping[object, object]", value)
        return {
            key: HIDDEN if is_secret else redact_setting(str(key), it) for key, it in table.items()
        }
    if isinstance(value, str | int | float | list | tuple) and value != "" and is_secret:
        return HIDDEN
    if isinstance(value, list | tuple):
        return list(_redact_items(name, cast("Iterable[object]", value)))
    return _redact_url(value) if isinstance(value, str) else value


def _redact_items(name: str, words: Iterable[object]) -> Iterator[object]:
    is_next_secret = False
    for word in words:
        option, equals, _ = str(word).partition("=")
        is_option = option.startswith("-") and looks_secret(option)
        if is_next_secret and not is_option:
            yield HIDDEN
        elif is_option and equals:
            yield f"{option}={HIDDEN}"
        else:
            yield redact_setting(name, word)
        is_next_secret = is_option and not equals


def _redact_url(text: str) -> str:
    """Hide what an address may hold beside host and path."""
    if "://" not in text:
        return text
    return _QUERY_OF_URL.sub(HIDDEN, _LOGIN.sub(HIDDEN, text))


def find_secret(name: str, value: object) -> str | None:
    """Return the place in a setting where a secret may stand, None where there is none.

    That is a text under a telling name, any text among headers and variables, an address with a
    login or a query, a command's option, a key of a vendor's form, or what this process has as a
    secret in its environment. Such a place reads `options['api_key']`.
    """
    return _secret_in(name, value, name, _environment_secrets(), looks_secret)


def find_secret_attribute(owner: object) -> str | None:
    """Return the name of an attribute in which a secret may stand, None where there is none.

    As `find_secret` does, but for names that are common in programs (`tokenizer`, `sort_key`).
    """
    secrets = [text for text in _environment_secrets() if len(text) >= MIN_IN_ANSWER]
    for name, value in getattr(owner, "__dict__", {}).items():
        with suppress(RecursionError):  # a value may hold itself
            found = _secret_in(name, value, name, secrets, _names_credential)
            if found is not None:
                return found
    return None


def _names_credential(name: str) -> bool:
    return _CREDENTIAL.search(name.replace("-", "_").casefold()) is not None


def _environment_secrets() -> list[str]:
    named = ((name, text) for name, text in os.environ.items() if name not in _DIRECTORIES)
    return [text for name, text in named if looks_secret(name) and _is_long(text)]


def _secret_in(
    place: str, value: object, name: str, secrets: Sequence[str], is_name: Callable[[str], bool]
) -> str | None:
    if isinstance(value, Mapping):
        is_wholly = name.replace("-", "_").casefold().rpartition("_")[2] in _WHOLLY_SECRET
        for key, it in cast("Mapping[object, object]", value).items():
            inner = f"{place}[{key!r}]"
            if is_wholly and it not in (None, ""):
                return inner
            found = _secret_in(inner, it, str(key), secrets, is_name)
            if found is not None:
                return found
        return None
    if isinstance(value, list | tuple | set | frozenset):
        items = list(cast("Iterable[object]", value))
        nested = (_secret_in(place, it, name, secrets, is_name) for it in items)
        is_shown = list(_redact_items("", [it for it in items if isinstance(it, str)]))
        hidden = place if HIDDEN in is_shown else None
        return hidden or next((found for found in nested if found is not None), None)
    if isinstance(value, bytes | bytearray):
        return place if is_name(name) and value else None
    if not isinstance(value, str) or not value:
        return None
    is_secret = is_name(name) or _redact_url(value) != value or _VENDOR_KEY.search(value)
    return place if is_secret or any(each in value for each in secrets) else None


def redact_content(text: str) -> str:
    """Return what was said without secrets of this process's environment, and vendors' keys."""
    hidden = Redactor(tuple(_environment_secrets()), MIN_IN_ANSWER).text(text)
    return _VENDOR_KEY.sub(HIDDEN, hidden)


_SECRET_FILE = re.compile(
    r"(?!\.env\.(dist|example|sample|template)$)"
    r"(\.env(\..+)?|.+\.env|[._]netrc|\.(dockercfg|git-credentials|htpasswd|my\.cnf|npmrc|pgpass|pypirc)"
    r"|id_(rsa|dsa|ecdsa|ed25519)(_sk)?|.+\.(jks|kdbx|key|keystore|ovpn|p12|pem|pfx|ppk))",
    re.IGNORECASE,
)
_SECRET_DIRS = frozenset({".aws", ".azure", ".docker", ".gcloud", ".gnupg", ".kube", ".ssh"})
_DATA_SUFFIXES = frozenset(
    ("", ".cfg", ".conf", ".csv", ".ini", ".json", ".properties", ".toml", ".txt", ".xml", ".yaml",
     ".yml")
)  # fmt: skip
_SECRET_WORD = re.compile(
    "(access|api|private)?keys?|tokens?|secrets?|pass(phrase|wd|word)s?|pwds?|cred(ential)?s|auth"
    "|bearer|cookies?"
)
"""Whole words of a file's name: `tokenizer.json` and `author.txt` hold no secret."""

_CREDENTIAL = re.compile(
    r"(^|_)((access|api|private|secret|signing)_?keys?|(access|api|auth|bearer|refresh)_?tokens?"
    r"|secrets?|pass(phrase|wd|word)s?|pwd|credentials?|authorization|cookies?)($|_)"
    "|^_?token$"
)
"""Names of attributes that hold credentials."""

_VENDOR_KEY = re.compile(
    r"\b(?:sk|pk|rk|ghp|gho|ghs|glpat|github_pat|xox[a-z]|hf|npm|pypi)[-_](?=[\w-]*\d)[\w-]{8,}"
    r"|\beyJ[A-Za-z0-9_.=-]{16,}"
)
"""Forms of keys by which they are known wherever they stand."""

_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY")


def is_secret_file(path: str, content: bytes) -> bool:
    """Tell whether a file probably holds secrets, by its name or what is in it.

    Known are the usual places of keys and passwords, data that is called so (not code: `auth.py`),
    private keys, and what this process has as a secret in its environment.
    """
    *above, name = path.split("/")
    stem, dot, suffix = name.casefold().rpartition(".")
    stem, suffix = (stem, dot + suffix) if stem else (name.casefold(), "")
    words = re.split(r"[^a-z0-9]+", stem) if suffix in _DATA_SUFFIXES else ()
    if (
        _SECRET_FILE.fullmatch(name)
        or not _SECRET_DIRS.isdisjoint(above)
        or any(map(_SECRET_WORD.fullmatch, words))
        or _PRIVATE_KEY.search(content)
    ):
        return True
    secrets = [text for text in _environment_secrets() if len(text) >= MIN_IN_ANSWER]
    return any(os.fsencode(each) in content for each in secrets)


def looks_random(text: str) -> bool:
    """Tell whether a word is probably a token: it is long, and has digits beside letters."""
    is_mixed = any(map(str.isdigit, text)) and any(map(str.isalpha, text))
    return len(text) >= MIN_IN_ANSWER and is_mixed and "/" not in text


def printable(text: str) -> str:
    """Return `text` without escapes and control characters, line breaks and tabs apart."""
    return _ESCAPES.sub("", valid_unicode(text))


# ---------------------------------------------------------------- addresses

Hide: TypeAlias = Callable[[str], str]
"""Makes of a secret what stands in its place."""

_PLAIN = re.compile(
    "api|app|beta|connect|context|data|default|dev|endpoint|events?|gradio|https?|index|invoke|"
    "json|jsonrpc|latest|local|localhost|main|mcp|messages?|open|post|prod|production|protocol|"
    "proxy|public|remote|resources?|rest|root|rpc|run|search|serve|servers?|services?|sessions?|"
    r"sse|stable|staging|stream|streamable|test|tools?|transport|web|ws|v?\d{1,3}|"
)
"""Words that addresses of servers have in common, and versions, so that no secret is one."""

_BETWEEN_WORDS = re.compile(r"[-_.~]")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:@\[\]\\]+)(:(\d{0,5}|\$\{\w+\}))?")
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<mark>=)(?P<value>.+)", re.DOTALL)
_HEADER = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9-]*)(?P<mark>: *)(?P<value>[^/\\ ].*)", re.DOTALL)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")

_KEY = re.compile(
    r"\b(?:sk|pk|rk|ghp|gho|ghs|glpat|github_pat|xox[a-z]|hf|npm|pypi)[-_][A-Za-z0-9_-]{8,}"
    r"|\beyJ[A-Za-z0-9_.=-]{16,}"
    r"|\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b"
    r"|(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9+]{16,}={0,2}"
)
"""Forms of keys: the beginnings that vendors give theirs, and long words of random signs."""

_MIN_CHARS = 8
"""Shortest part of an address or a setting that is a secret in other texts, without a digit in it.
A guess; `Bearer` is none."""

_MIN_CHARS_WITH_DIGIT = 4


class _AddressParts(NamedTuple):
    scheme: str
    login: str
    host: str
    path: str
    query: str
    fragment: str

    @classmethod
    def of(cls, url: str) -> _AddressParts:
        """Split an address; the host is empty where it cannot be told from a login."""
        try:
            split = urlsplit(url)
        except ValueError:  # whose text shows what was read
            split = SplitResult(url.partition("://")[0].lower(), "", "", "", "")
        login, _, host = split.netloc.rpartition("@")
        if not _HOST.fullmatch(host):
            # A password with a slash in it, for one, ends up here.
            return cls(split.scheme, "", "", f"/{url.partition('://')[2]}", "", "")
        return cls(split.scheme, login, host, split.path, split.query, split.fragment)


def is_url(text: str) -> bool:
    """Tell whether a text is an address that servers are spoken to at."""
    return text.lower().startswith(("http://", "https://"))


def address_name(url: str, *, hide: Hide = lambda _: HIDDEN) -> str:
    """Return the name of a server at an address: scheme, host, port and path.

    Tokens stand in paths too, and look like anything, so that each part of the path that is none
    of the words that such addresses have in common is hidden. `${NAME}` stays as it is.

    Args:
        url: An address, its references not read.
        hide: What to write in place of a part that may be a secret.
    """
    parts = _AddressParts.of(url)
    return f"{parts.scheme}://{parts.host or HIDDEN}{_redact_path(parts.path, hide)}"


def redact_address(url: str, *, hide: Hide) -> str:
    """Return all of an address, login and query included, with each possible secret hidden."""
    parts = _AddressParts.of(url)
    login = f"{_redact_part(parts.login, hide)}@" if parts.login else ""
    pairs = (pair.partition("=") for pair in parts.query.split("&"))
    query = "&".join(
        f"{name if equals else _redact_part(name, hide)}{equals}{_redact_part(value, hide)}"
        for name, equals, value in pairs
    )
    fragment = f"#{_redact_part(parts.fragment, hide)}" if parts.fragment else ""
    path = _redact_path(parts.path, hide) + (f"?{query}" if parts.query else "")
    return f"{parts.scheme}://{login}{parts.host or HIDDEN}{path}{fragment}"


def address_secrets(url: str) -> list[str]:
    """Return the parts of an address that no text may hold: it is what is sent, references read.

    Short words are none by themselves, only together with what stands beside them.
    """
    found: list[str] = []
    redact_address(url, hide=_collector(found))
    parts = _AddressParts.of(url)
    found += [value for _, value in parse_qsl(parts.query)]
    found += [*parts.login.split(":", 1), parts.login, parts.query]
    alone = [form for secret in found for form in (secret, unquote(secret)) if _is_long(form)]
    if HIDDEN in _redact_path(parts.path, lambda _: HIDDEN):
        alone += [parts.path, parts.path.rstrip("/")]
    return list(dict.fromkeys(alone))


def _collector(found: list[str]) -> Hide:
    def hide(secret: str) -> str:
        found.append(secret)
        return HIDDEN

    return hide


def _is_long(text: str) -> bool:
    has_digit = any(map(str.isdigit, text))
    return len(text) >= (_MIN_CHARS_WITH_DIGIT if has_digit else _MIN_CHARS)


def _redact_path(path: str, hide: Hide) -> str:
    return "/".join(_redact_part(segment, hide) for segment in path.split("/"))


def _redact_part(text: str, hide: Hide) -> str:
    """Return a part as it may be shown: its references stay, the rest only if it is harmless."""

    def redacted(piece: str) -> str:
        is_harmless = all(map(_PLAIN.fullmatch, _BETWEEN_WORDS.split(piece.lower())))
        return piece if is_harmless else hide(piece)

    result, end = "", 0
    for found in REFERENCE.finditer(text):
        result += redacted(text[end : found.start()]) + found[0]
        end = found.end()
    return result + redacted(text[end:])


# ---------------------------------------------------------------- command lines


def redact_argv(argv: Sequence[str], *, hide: Hide = lambda _: HIDDEN) -> list[str]:
    """Return a command line as it may be shown.

    Hidden are what follows an option with a telling name, the values of variables and of headers
    that are given so, in addresses what `address_name` hides, and what looks like a key.

    Args:
        argv: Program and arguments.
        hide: What to write in place of a secret.
    """
    return list(_redact_words(argv, hide))


def argv_secrets(argv: Sequence[str]) -> list[str]:
    """Return the parts of a command line that no text may hold."""
    found: list[str] = []
    for word, redacted in zip(argv, redact_argv(argv, hide=_collector(found)), strict=True):
        if "://" in word and redacted != word:
            login = _LOGIN.search(word)
            found += [word, *(() if login is None else login[0].split(":", 1))]
    return [secret for secret in dict.fromkeys(found) if secret]


def _redact_words(argv: Sequence[str], hide: Hide) -> Iterator[str]:
    is_next_secret = False
    for word in argv:
        option, equals, value = word.partition("=")
        is_option = option.startswith("-") and len(option) > 1
        is_secret = is_option and looks_secret(option)
        if is_next_secret and not word.startswith("--"):  # a key may begin with one dash
            yield hide(word)
            is_next_secret = False
            continue
        if is_option and equals:
            yield f"{option}={hide(value) if is_secret else _redact_word(value, hide)}"
        else:
            yield _redact_word(word, hide)
        is_next_secret = is_secret and not equals


def _redact_word(word: str, hide: Hide) -> str:
    if is_url(word):
        return address_name(word, hide=hide)
    for pattern in (_ASSIGNMENT, _HEADER):
        found = pattern.fullmatch(word)
        if found is not None and looks_secret(found["name"]):
            return f"{found['name']}{found['mark']}{hide(found['value'])}"
    if "://" in word:
        return _redact_url(word)
    return _KEY.sub(lambda match: hide(match[0]), word)
