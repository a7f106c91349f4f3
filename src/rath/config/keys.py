"""Dotted keys of `config.json`, as in `llm.providers.main.model`, typed by the schema.

A name that holds a dot stands in double quotes: `llm.providers."my.gateway".model`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from types import NoneType, UnionType
from typing import Any, cast, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from rath._core.text import nearest
from rath.config.schema import RathConfig

__all__ = [
    "assign",
    "format_key",
    "is_known",
    "is_table",
    "near_key",
    "parse_key",
    "parse_value",
    "remove",
]

Key = tuple[str, ...]
_Table = BaseModel | dict[str, object]

_PART = re.compile(r'"(?P<quoted>[^"]*)"|(?P<plain>[^."]+)')
_PLAIN = re.compile(r'[^."]+')


def parse_key(text: str) -> Key:
    """Return the parts of a dotted key.

    Raises:
        ValueError: A part is empty, or a quote is not closed.
    """
    parts: list[str] = []
    position = 0
    while True:
        found = _PART.match(text, position)
        part = (found["quoted"] or found["plain"]) if found else None
        if found is None or not part:
            break
        parts.append(part)
        position = found.end()
        if position == len(text):
            return tuple(parts)
        if text[position] != ".":
            break
        position += 1
    raise ValueError(
        f"{text!r} is no key; expected names with a dot between them, as in "
        "llm.providers.main.model, and quotes around a name that holds a dot"
    )


def format_key(parts: Iterable[str]) -> str:
    """Return the dotted form that `parse_key` reads."""
    return ".".join(part if _PLAIN.fullmatch(part) else f'"{part}"' for part in parts)


def is_known(key: Sequence[str]) -> bool:
    """Return whether the schema has a place for a key."""
    return _type_at(key) is not None


def is_table(key: Sequence[str]) -> bool:
    """Return whether what stands at a known key has keys of its own."""
    found = _type_at(key)
    return _model(found) is not None or get_origin(found) is dict


def near_key(key: Sequence[str]) -> str | None:
    """Return the known key that an unknown one was probably meant to be, or None."""
    depth = next(n for n in range(len(key)) if not is_known(key[: n + 1]))
    siblings = _fields(_type_at(key[:depth]))
    near = nearest(key[depth], siblings)
    if near is not None:
        candidate = (*key[:depth], near, *key[depth + 1 :])
        return format_key(candidate if is_known(candidate) else candidate[: depth + 1])
    # Perhaps the beginning was left out, as in `providers.main.model`.
    under = [(name, *key) for name in RathConfig.model_fields if is_known((name, *key))]
    return format_key(under[0]) if under else None


def parse_value(key: Sequence[str], text: str) -> object:
    """Return what `text` stands for at a key.

    Numbers and switches are read as the schema has them, a list as a JSON array or as the words
    of a shell command. At a key that the schema does not know, JSON is what it says and all else
    is text.

    Raises:
        ValueError: It does not fit; the text does not repeat it, since it may be a secret.
    """
    found = _type_at(key)
    if found is None or found is object:
        return _json_or_text(text)
    if is_table(key):
        inner = ", ".join(_fields(found)) or "any name"
        raise ValueError(f"{format_key(key)} is a table; set a key in it: {inner}")
    value: object = text
    if get_origin(found) is list:
        value = _listed(format_key(key), text)
    try:
        fitting: object = TypeAdapter[object](found).validate_python(value)
    except ValidationError as exc:
        problem = exc.errors(include_url=False, include_input=False, include_context=False)[0]
        raise ValueError(f"{format_key(key)} does not take this value: {problem['msg']}") from None
    return fitting


def assign(config: RathConfig, key: Sequence[str], value: object) -> None:
    """Put a value at a key, making the tables on the way; `ConfigStore.save` checks the whole.

    Raises:
        ValueError: A part of the key on the way holds no table.
    """
    table: _Table = config
    for depth, part in enumerate(key[:-1], start=1):
        if _get(table, part) is None:
            _set(table, part, _empty(_type_at(key[:depth])))
        inside = _table(_get(table, part))
        if inside is None:
            raise ValueError(f"{format_key(key[:depth])} holds a value, so there is nothing in it")
        table = inside
    _set(table, key[-1], value)


def remove(config: RathConfig, key: Sequence[str]) -> bool:
    """Take away what stands at a key and return whether anything did."""
    table: _Table | None = config
    for part in key[:-1]:
        table = None if table is None else _table(_get(table, part))
    name = key[-1]
    if table is None or _get(table, name) is None:
        return False
    if isinstance(table, dict):
        del table[name]
        return True
    field = type(table).model_fields.get(name)
    if field is None or field.is_required():
        delattr(table, name)
    else:
        setattr(table, name, field.get_default(call_default_factory=True))
    return True


def _type_at(key: Sequence[str]) -> Any:
    """Return the type that the schema has at a key, `object` where it has any, None for none."""
    found: Any = RathConfig
    for part in key:
        model = _model(found)
        if model is not None:
            field = model.model_fields.get(part)
            found = None if field is None else _present(field.annotation)
        elif get_origin(found) is dict:
            found = get_args(found)[1]
        elif found is not object:
            return None
    return found


def _present(found: Any) -> Any:
    """Return the type of a field that may be left out."""
    given = [each for each in get_args(found) if each is not NoneType]
    return given[0] if get_origin(found) is UnionType and len(given) == 1 else found


def _model(found: Any) -> type[BaseModel] | None:
    is_model = isinstance(found, type) and issubclass(found, BaseModel)
    return cast("type[BaseModel]", found) if is_model else None


def _fields(found: Any) -> list[str]:
    model = _model(found)
    return [] if model is None else list(model.model_fields)


def _empty(found: Any) -> _Table:
    # Without a check: what a new entry still lacks may follow, and saving checks all of it.
    model = _model(found)
    return {} if model is None else model.model_construct()


def _table(value: object) -> _Table | None:
    if isinstance(value, BaseModel):
        return value
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


def _get(table: _Table, name: str) -> object:
    if isinstance(table, dict):
        return table.get(name)
    is_there = name in type(table).model_fields or name in (table.model_extra or {})
    return getattr(table, name, None) if is_there else None


def _set(table: _Table, name: str, value: object) -> None:
    if isinstance(table, dict):
        table[name] = value
    else:
        setattr(table, name, value)


def _json_or_text(text: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return value


def _listed(key: str, text: str) -> object:
    try:
        if text.lstrip().startswith("["):
            words: object = json.loads(text)
            return words
        return shlex.split(text)
    except ValueError:
        raise ValueError(
            f"{key} takes a list: a JSON array, or words with spaces between them"
        ) from None
