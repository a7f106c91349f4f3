"""Read-only `dict` and `list`: what a row says may be read and sent, and never written."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NoReturn, cast

_HOW_TO_CHANGE = (
    "the payload of a row is read-only, because other sessions share it; change a copy, "
    "`copy.deepcopy(row.payload)`, and make a new row of that"
)


def _raise(*_args: object, **_named: object) -> NoReturn:
    raise TypeError(_HOW_TO_CHANGE)


_refuse: Any = _raise


class FrozenDict(dict[str, Any]):
    """A dict that cannot be written; `copy.deepcopy` gives a plain one, all the way down."""

    __slots__ = ()

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {key: copy.deepcopy(value, memo) for key, value in self.items()}

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)


class FrozenList(list[Any]):
    """A list that cannot be written; `copy.deepcopy` gives a plain one, all the way down."""

    __slots__ = ()

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(value, memo) for value in self]

    def __reduce__(self) -> tuple[type[FrozenList], tuple[list[Any]]]:
        return FrozenList, (list(self),)


def frozen_mapping(mapping: Mapping[str, Any]) -> FrozenDict:
    """Return a read-only copy of `mapping`, its lists and mappings read-only as well."""
    if isinstance(mapping, FrozenDict):
        return mapping
    return FrozenDict({key: _frozen(value) for key, value in mapping.items()})


def _frozen(value: object) -> object:
    if isinstance(value, str) or value is None or isinstance(value, FrozenList):
        return value
    if isinstance(value, Mapping):
        return frozen_mapping(cast("Mapping[str, object]", value))
    if isinstance(value, list):
        return FrozenList([_frozen(item) for item in cast("list[object]", value)])
    if isinstance(value, tuple):
        return tuple([_frozen(item) for item in cast("tuple[object, ...]", value)])
    return value
