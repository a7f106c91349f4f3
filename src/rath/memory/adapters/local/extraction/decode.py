"""What a model answers, read as memos: whatever it wrote, they are few, short and plain text."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

from rath._core.text import valid_unicode

MAX_MEMOS = 32
"""Memos of one answer; the rest is left out. A guess far above what a talk is worth."""

MAX_MEMO_BYTES = 2000
"""A longer memo is cut; about a page."""

MAX_ROWS = 64
"""Messages that a memo may name as its sources."""

MAX_ANSWER_CHARS = 1_000_000
"""Only the first part of a longer answer is read."""

DEFAULT_CATEGORY = "general"
_MAX_CATEGORY_CHARS = 32
_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_NOT_IN_A_CATEGORY = re.compile(r"[^\w-]+")
_CONTROL = {code: None for code in range(32) if chr(code) not in "\t\n"} | {127: None}


@dataclass(frozen=True, slots=True)
class Memo:
    """One thing worth remembering."""

    content: str
    """Text without control characters, of at most `MAX_MEMO_BYTES` bytes, not blank."""
    category: str
    """One plain segment of a URI."""
    messages: tuple[int, ...]
    """Numbers of the messages that it comes from, sorted."""


def decode_memos(answer: str, numbers: Collection[int]) -> tuple[Memo, ...] | None:
    """Return the memos of an answer, each once; None where it holds no JSON array.

    Args:
        answer: What the model wrote: an array, in a fence, or with words around it.
        numbers: The messages that it was shown; what it says of others is dropped.
    """
    text = answer[:MAX_ANSWER_CHARS]
    for candidate in _candidates(text):
        items = _items(candidate)
        if items is not None:
            return unite(_memos(items, numbers))[:MAX_MEMOS]
    return None


def unite(memos: Iterable[Memo]) -> tuple[Memo, ...]:
    """Make one memo of those that say the same; the first of them gives text and category."""
    united: dict[str, Memo] = {}
    for memo in memos:
        words = " ".join(memo.content.split()).casefold()
        known = united.setdefault(words, memo)
        both = sorted({*known.messages, *memo.messages})[:MAX_ROWS]
        united[words] = replace(known, messages=tuple(both))
    return tuple(united.values())


def category_of(name: str) -> str:
    """Return a plain segment of a URI for what a model calls a category."""
    folded = unicodedata.normalize("NFKC", valid_unicode(name)).casefold()
    plain = _NOT_IN_A_CATEGORY.sub("-", folded)[:_MAX_CATEGORY_CHARS].strip("-")
    return plain or DEFAULT_CATEGORY


def _candidates(text: str) -> Iterator[str]:
    yield text
    yield from (found.group(1) for found in _FENCE.finditer(text))
    yield text[text.find("[") : text.rfind("]") + 1]


def _items(text: str) -> list[object] | None:
    """Return the elements of an array, or of the array in an object, as some servers wrap it."""
    try:
        given: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict):
        return _list(given)
    fields = cast("dict[str, object]", given)
    if "content" in fields:
        return [fields]
    lists = (_list(value) for value in fields.values())
    return next((each for each in lists if each is not None), None)


def _list(value: object) -> list[object] | None:
    return cast("list[object]", value) if isinstance(value, list) else None


def _memos(items: list[object], numbers: Collection[int]) -> Iterator[Memo]:
    for item in items:
        if not isinstance(item, Mapping):
            continue
        fields = cast("Mapping[str, object]", item)
        content = _content(fields.get("content"))
        if content:
            yield Memo(content, _category(fields), _numbers(fields.get("rows"), numbers))


def _content(value: object) -> str:
    if not isinstance(value, str):
        return ""
    plain = valid_unicode(value).translate(_CONTROL).strip()
    return plain.encode()[:MAX_MEMO_BYTES].decode(errors="ignore").strip()


def _category(fields: Mapping[str, object]) -> str:
    """Return the category that is named, or else the directory of the URI that is proposed."""
    named, uri = fields.get("category"), fields.get("uri")
    if isinstance(named, str):
        return category_of(named)
    if isinstance(uri, str):
        return category_of(uri.rpartition("/")[0].rpartition("/")[2])
    return DEFAULT_CATEGORY


def _numbers(value: object, known: Collection[int]) -> tuple[int, ...]:
    named = _list(value) or []
    # JSON's `true` is an int in Python, and a message in no transcript.
    found = {each for each in named if isinstance(each, int) and not isinstance(each, bool)}
    return tuple(sorted(found.intersection(known))[:MAX_ROWS])
