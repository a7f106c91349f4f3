"""Secrets of a server's settings: where they stand, and texts without them.

setting            secrets in texts        credentials in answers (16 characters and more)
address            `address_secrets`       its random parts
argv               `argv_secrets`          its random words
env, headers       `setting_secrets`       those of `credential_settings`
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from rath._core.text import valid_unicode
from rath.config import redaction
from rath.config.secrets import HIDDEN, looks_secret, shown
from rath.errors import ConfigError

__all__ = [
    "INHERITED",
    "REFERENCE",
    "Hide",
    "address_name",
    "address_secrets",
    "argv_secrets",
    "credential_settings",
    "expand",
    "is_url",
    "looks_random",
    "printable",
    "read_variable",
    "redact",
    "redact_address",
    "redact_argv",
    "redact_json",
    "server_environment",
    "setting_secrets",
]

Hide: TypeAlias = Callable[[str], str]
"""Makes of a secret what stands in its place."""

INHERITED = frozenset(
    {
        "HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
        "VIRTUAL_ENV",
        "APPDATA", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROCESSOR_ARCHITECTURE",
        "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "USERNAME", "USERPROFILE",
    }
)  # fmt: skip
"""Variables of this process that servers see, with all `LC_*`; keys and tokens stay out."""

REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A variable of the environment in a setting."""

_PLAIN = re.compile(
    "api|app|beta|connect|context|data|default|dev|endpoint|events?|gradio|https?|index|invoke|"
    "json|jsonrpc|latest|local|localhost|main|mcp|messages?|open|post|prod|production|protocol|"
    "proxy|public|remote|resources?|rest|root|rpc|run|search|serve|servers?|services?|sessions?|"
    r"sse|stable|staging|stream|streamable|test|tools?|transport|web|ws|v?\d{1,3}|"
)
"""Words that addresses of servers have in common, and versions, so that no secret is one."""

_BETWEEN_WORDS = re.compile(r"[-_.~]")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:@\[\]\\]+)(:(\d{0,5}|\$\{\w+\}))?")
_LOGIN = re.compile(r"(?<=://)\S*(?=@)")
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
_MIN_SECRET_CHARS = 4


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return `text` with each of `secrets` replaced by asterisks; very short ones are none."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= _MIN_SECRET_CHARS:
            text = redaction.redact(text.replace(secret, HIDDEN), secret)
    return text


def redact_json(value: object, tokens: Iterable[str]) -> Any:
    """Return JSON with long tokens hidden in each text and name in it, at any depth."""
    return redaction.Redactor(tuple(dict.fromkeys(tokens))).value(value)


def printable(text: str) -> str:
    """Return `text` without escapes and control characters, line breaks and tabs apart."""
    return _ESCAPES.sub("", valid_unicode(text))


# ---------------------------------------------------------------- environment


def server_environment(added: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a server: the few inherited ones, then `added`, its references read.

    Raises:
        ConfigError: A value refers to a variable that is not set.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        # A value of this form is a function of a shell, which some shells run when they start.
        if (name in INHERITED or name.startswith("LC_")) and not value.startswith("()")
    }
    return inherited | {name: expand(value, f"env.{name}") for name, value in added.items()}


def expand(value: str, where: str) -> str:
    """Return `value` with `${NAME}` replaced by that variable of the environment.

    Args:
        value: A setting.
        where: What it is, for the error.

    Raises:
        ConfigError: Such a variable is not set; its name is told, never a value.
    """
    return REFERENCE.sub(lambda match: read_variable(match[1], where), value)


def read_variable(name: str, where: str) -> str:
    """Return a variable of the environment.

    Raises:
        ConfigError: It is not set, or empty.
    """
    value = os.environ.get(name)
    if not value:
        raise ConfigError(
            f"{where} of an MCP server refers to the environment variable {name!r}, which is not "
            "set; set it before the program starts, or correct the name"
        )
    return value


def setting_secrets(settings: Mapping[str, str]) -> list[str]:
    """Return the parts of settings that no text may hold: the values, and their long words.

    A server that is sent `Bearer TOKEN` may say `TOKEN` again.

    Raises:
        ConfigError: A variable that they refer to is not set.
    """
    found: list[str] = []
    for name, value in settings.items():
        full = expand(value, name)
        found += [full, *(word for word in full.split() if len(word) >= _MIN_CHARS)]
        found += [read_variable(match[1], name) for match in REFERENCE.finditer(value)]
    return found


def credential_settings(settings: Mapping[str, str]) -> dict[str, str]:
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
    return len(text) >= redaction.MIN_IN_ANSWER and is_mixed and "/" not in text


# ---------------------------------------------------------------- addresses


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
        return cast("str", shown("", word))  # a text for a text
    return _KEY.sub(lambda match: hide(match[0]), word)
