"""Keys that must be seen nowhere, and everything in which they could be seen."""

from __future__ import annotations

import base64
import html
import importlib
import io
import json
import logging
import pickle
import pkgutil
import traceback
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from inspect import isclass
from pprint import pformat
from types import MethodType, ModuleType
from typing import Any, cast
from urllib.parse import quote

from hypothesis import strategies as st
from msgspec import structs

import rath
from rath.llm import evidence_of

MARK = "cNry"
"""Stands in every key and nowhere else, so that none is met by chance, and a part is seen too."""

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def _around(inner: st.SearchStrategy[str], *, prefix: str = "") -> st.SearchStrategy[str]:
    return st.tuples(inner, inner).map(lambda parts: f"{prefix}{parts[0]}{MARK}{parts[1]}")


def _text(alphabet: str, least: int, most: int) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=least, max_size=most)


long_keys = st.one_of(
    _around(_text(_LETTERS + "-_", 8, 24), prefix="sk-"),
    _around(_text(_LETTERS + "+/", 8, 24)).map(lambda key: key + "=="),
    _around(_text(_LETTERS + "%&?#=:@/+ ".strip(), 8, 12)),
    _around(_text(_LETTERS + "\"'\\<>{}$`", 8, 12)),
    st.sampled_from(["sk-openai-provider-", "anthropic key of model ".replace(" ", "."), "http://"])
    .map(lambda word: f"{word}{MARK}{word}x"),
)  # fmt: skip
"""Keys as vendors give them out, with all that means something in addresses, JSON and HTML."""

short_keys = _around(_text(_LETTERS + "%/\"\\'", 1, 3))
"""At least six characters."""

sendable_keys = long_keys | short_keys
odd_keys = _around(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)).map(str.strip)
"""Keys that no header can carry, as they come of a wrong copy."""

any_keys = (sendable_keys | odd_keys).filter(lambda key: len(key) >= 6)


def forms_of(key: str) -> set[str]:
    """Return how a key may be written in a text that somebody reads."""
    encoded = base64.b64encode(key.encode()).decode()
    return {
        key,
        repr(key)[1:-1],
        repr(key.encode())[2:-1],
        json.dumps(key)[1:-1],
        json.dumps(key, ensure_ascii=False)[1:-1],
        html.escape(key),
        quote(key, safe=""),
        quote(key),
        encoded[: 8 * len(key.encode()) // 6],
    }


def seen(key: str, *display: str) -> list[str]:
    """Return what of a key can be seen, with what stands before it; nothing is what we want."""
    return [
        f"...{text[max(0, text.index(form) - 60) : text.index(form)]}[{form}]"
        for text in display
        for form in (*forms_of(key), MARK)
        if form in text
    ]


def modules() -> Iterator[ModuleType]:
    """Give every module of rath that can be imported here."""
    for found in pkgutil.walk_packages(rath.__path__, "rath."):
        if found.name.endswith("__main__"):
            continue
        try:
            yield importlib.import_module(found.name)
        except ImportError:
            continue  # it needs an extra that is not installed


def public_classes() -> dict[str, type]:
    """Return every class that some module of rath offers, by module and name."""
    classes: dict[str, type] = {}
    for module in modules():
        for name in getattr(module, "__all__", ()):
            offered: object = vars(module).get(name)
            if isclass(offered) and offered.__module__.startswith("rath."):
                classes[f"{offered.__module__}:{offered.__qualname__}"] = offered
    return classes


def reachable(roots: Iterable[object]) -> list[Any]:
    """Return all objects of rath that can be reached from `roots`, however deep inside."""
    found: dict[int, Any] = {}
    waiting = list(roots)
    known: dict[int, object] = {}
    while waiting:
        value = waiting.pop()
        if id(value) in known:
            continue
        known[id(value)] = value  # kept, so that no id is given to another object
        if type(value).__module__.startswith("rath."):
            found[id(value)] = value
        waiting += _inside(value)
    return list(found.values())


def _inside(value: object) -> Iterator[object]:
    if isinstance(value, type):
        return
    if isinstance(value, Mapping):
        yield from cast("Mapping[object, object]", value).values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from cast("Iterable[object]", value)
    elif isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, MethodType):
        yield value.__self__
    elif type(value).__module__.startswith("rath."):
        yield from getattr(value, "__dict__", {}).values()
        for owner in type(value).__mro__:
            slots = vars(owner).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                mangled = f"_{owner.__name__.lstrip('_')}{name}" if name.startswith("__") else name
                yield getattr(value, mangled, None)


def shown_of(error: BaseException) -> list[str]:
    """Everything that an error shows, or carries to wherever it is sent."""
    evidence = evidence_of(error)
    remaining = () if evidence is None else structs.astuple(evidence)
    return [
        *map(str, (error, repr(error), vars(error), remaining)),
        pformat(vars(error)),
        repr(pickle.dumps(error)),
        "".join(traceback.format_exception(error)),
    ]


@contextmanager
def all_logs() -> Generator[io.StringIO]:
    """Collect what every library logs, at every level."""
    stream = io.StringIO()
    handler, root = logging.StreamHandler(stream), logging.getLogger()
    root.addHandler(handler)
    root.setLevel(1)
    try:
        yield stream
    finally:
        root.removeHandler(handler)
        root.setLevel(logging.WARNING)
