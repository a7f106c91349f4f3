"""The command line of a server, told without what may be a secret in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import cast

from rath.config.secrets import HIDDEN, looks_secret, shown
from rath.mcp.address import Hide, is_url, named_address

__all__ = ["told_words", "word_secrets"]

_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<mark>=)(?P<value>.+)", re.DOTALL)
_HEADER = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9-]*)(?P<mark>: *)(?P<value>[^/\\ ].*)", re.DOTALL)

_LOGIN = re.compile(r"(?<=://)\S*(?=@)")

_KEY = re.compile(
    r"\b(?:sk|pk|rk|ghp|gho|ghs|glpat|github_pat|xox[a-z]|hf|npm|pypi)[-_][A-Za-z0-9_-]{8,}"
    r"|\beyJ[A-Za-z0-9_.=-]{16,}"
    r"|\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b"
    r"|(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9+]{16,}={0,2}"
)
"""What keys look like: the beginnings that vendors give theirs, and long words of random signs."""


def told_words(words: Sequence[str], *, hide: Hide = lambda _: HIDDEN) -> list[str]:
    """Return a command line as it may be shown.

    Hidden are what follows an option with a telling name, the values of variables and of headers
    that are given so, in addresses what `named_address` hides, and what looks like a key.

    Args:
        words: Program and arguments.
        hide: What to write in place of a secret.
    """
    return list(_told(words, hide))


def word_secrets(words: Sequence[str]) -> list[str]:
    """Return the parts of a command line that no text may hold."""
    found: list[str] = []

    def keep(secret: str) -> str:
        found.append(secret)
        return HIDDEN

    for word, told in zip(words, told_words(words, hide=keep), strict=True):
        if "://" in word and told != word:
            login = _LOGIN.search(word)
            found += [word, *(() if login is None else login[0].split(":", 1))]
    return [secret for secret in dict.fromkeys(found) if secret]


def _told(words: Sequence[str], hide: Hide) -> Iterator[str]:
    is_next_secret = False
    for word in words:
        option, equals, value = word.partition("=")
        is_option = option.startswith("-") and len(option) > 1
        is_secret = is_option and looks_secret(option)
        if is_next_secret and not word.startswith("--"):  # a key may begin with one dash
            yield hide(word)
            is_next_secret = False
            continue
        if is_option and equals:
            yield f"{option}={hide(value) if is_secret else _told_word(value, hide)}"
        else:
            yield _told_word(word, hide)
        is_next_secret = is_secret and not equals


def _told_word(word: str, hide: Hide) -> str:
    if is_url(word):
        return named_address(word, hide=hide)
    for pattern in (_ASSIGNMENT, _HEADER):
        found = pattern.fullmatch(word)
        if found is not None and looks_secret(found["name"]):
            return f"{found['name']}{found['mark']}{hide(found['value'])}"
    if "://" in word:
        return cast("str", shown("", word))  # a text for a text
    return _KEY.sub(lambda match: hide(match[0]), word)
