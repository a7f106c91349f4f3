"""The address of a server, told without what may be a secret in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from rath.config.secrets import HIDDEN
from rath.mcp.environment import REFERENCE

__all__ = ["Hide", "address_secrets", "is_url", "named_address", "told_address"]

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

_MIN_CHARS = 8
"""Shortest part that is a secret in other texts, without a digit in it. A guess."""

_MIN_CHARS_WITH_DIGIT = 4


class _Parts(NamedTuple):
    scheme: str
    login: str
    host: str
    path: str
    query: str
    fragment: str


def is_url(text: str) -> bool:
    """Tell whether a text is an address that servers are spoken to at."""
    return text.lower().startswith(("http://", "https://"))


def named_address(url: str, *, hide: Hide = lambda _: HIDDEN) -> str:
    """Return what a server at an address is called: scheme, host, port and path.

    Tokens stand in paths too, and look like anything, so that each part of the path that is none
    of the words that such addresses have in common is hidden. `${NAME}` stays as it is.

    Args:
        url: An address, its references not read.
        hide: What to write in place of a part that may be a secret.
    """
    parts = _parts(url)
    return f"{parts.scheme}://{parts.host or HIDDEN}{_told_path(parts.path, hide)}"


def told_address(url: str, *, hide: Hide) -> str:
    """Return all of an address, login and query included, with each possible secret hidden."""
    parts = _parts(url)
    login = f"{_told(parts.login, hide)}@" if parts.login else ""
    query = f"?{_told_query(parts.query, hide)}" if parts.query else ""
    fragment = f"#{_told(parts.fragment, hide)}" if parts.fragment else ""
    path = _told_path(parts.path, hide)
    return f"{parts.scheme}://{login}{parts.host or HIDDEN}{path}{query}{fragment}"


def address_secrets(url: str) -> list[str]:
    """Return the parts of an address that no text may hold: it is what is sent, references read.

    Short words are none by themselves, only together with what stands beside them.
    """
    found: list[str] = []

    def keep(secret: str) -> str:
        found.append(secret)
        return HIDDEN

    told_address(url, hide=keep)
    parts = _parts(url)
    found += [value for _, value in parse_qsl(parts.query)]
    found += [*parts.login.split(":", 1), parts.login, parts.query]
    alone = [form for secret in found for form in (secret, unquote(secret)) if _is_long(form)]
    if HIDDEN in _told_path(parts.path, lambda _: HIDDEN):
        alone += [parts.path, parts.path.rstrip("/")]
    return list(dict.fromkeys(alone))


def _is_long(text: str) -> bool:
    has_digit = any(map(str.isdigit, text))
    return len(text) >= (_MIN_CHARS_WITH_DIGIT if has_digit else _MIN_CHARS)


def _parts(url: str) -> _Parts:
    """Return the parts of an address; the host is empty where it cannot be told from a login."""
    try:
        split = urlsplit(url)
    except ValueError:  # whose text shows what was read
        split = SplitResult(url.partition("://")[0].lower(), "", "", "", "")
    login, _, host = split.netloc.rpartition("@")
    if not _HOST.fullmatch(host):
        # A password with a slash in it, for one, ends up here.
        return _Parts(split.scheme, "", "", f"/{url.partition('://')[2]}", "", "")
    return _Parts(split.scheme, login, host, split.path, split.query, split.fragment)


def _told_path(path: str, hide: Hide) -> str:
    return "/".join(_told(segment, hide) for segment in path.split("/"))


def _told_query(query: str, hide: Hide) -> str:
    pairs = (pair.partition("=") for pair in query.split("&"))
    return "&".join(
        f"{name if equals else _told(name, hide)}{equals}{_told(value, hide)}"
        for name, equals, value in pairs
    )


def _told(text: str, hide: Hide) -> str:
    """Return a part as it may be shown: its references stay, the rest only if it is harmless."""
    told, end = "", 0
    for found in REFERENCE.finditer(text):
        told += _shown(text[end : found.start()], hide) + found[0]
        end = found.end()
    return told + _shown(text[end:], hide)


def _shown(text: str, hide: Hide) -> str:
    is_harmless = all(map(_PLAIN.fullmatch, _BETWEEN_WORDS.split(text.lower())))
    return text if is_harmless else hide(text)
