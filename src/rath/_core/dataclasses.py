"""Dataclasses whose methods are written on first use: a program uses a third of those it loads.

    from rath._core.dataclasses import dataclass

It stands for the decorator of the standard library, which writes the methods of each class as text
and compiles them, 0.3 ms a class. Here the class gets its slots at once, and for each method a
descriptor; the first read of one of them has the standard library write them all.
"""

from __future__ import annotations

import dataclasses
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

_OPTIONS = {"eq", "frozen", "kw_only", "repr", "slots"}
_TABLES = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
_REPLACE = ("__replace__",) if sys.version_info >= (3, 13) else ()
_CLASS_VAR = "ClassVar["
_NO_FIELDS = ("ClassVar", "InitVar", "KW_ONLY")


class _OnFirstUse:
    """Stands for a method or a table of a dataclass until it is read."""

    __slots__ = ("_defaults", "_name", "_options", "_owner")

    def __init__(self, options: dict[str, bool], defaults: dict[str, Any]) -> None:
        self._options = options
        self._defaults = defaults

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        _write_methods(self._owner, self._options, self._defaults)
        written = self._owner.__dict__[self._name]
        return written.__get__(instance, owner) if callable(written) else written


def _dataclass(cls: type | None = None, /, **options: bool) -> Any:
    if cls is None:
        return partial(_make, options)
    return _make(options, cls)


def _make(options: dict[str, bool], cls: type) -> type:
    return _with_slots(cls, options) if _is_plain(cls, options) else _written(cls, options)


def _written(cls: type, options: dict[str, bool]) -> type:
    make: Any = dataclasses.dataclass(**options)
    written: type = make(cls)
    return written


def _is_plain(cls: type, options: dict[str, bool]) -> bool:
    """Tell whether the class is of the usual form; any other is left to the standard library."""
    return (
        type(cls) is type
        and options.get("slots", False)
        and options.keys() <= _OPTIONS
        and cls.__dict__.keys().isdisjoint(("__slots__", "__setattr__", "__delattr__"))
        and all(_is_usual(kind) for kind in cls.__annotations__.values())
        # Without slots, a base leaves it to this class to have those of its fields.
        and all("__slots__" in base.__dict__ for base in cls.__mro__[1:-1] if _has_fields(base))
    )


def _is_usual(annotation: object) -> bool:
    """Tell whether it is certain from its text what it makes of a name: a field, or a ClassVar."""
    return isinstance(annotation, str) and not any(
        word in annotation.removeprefix(_CLASS_VAR) for word in _NO_FIELDS
    )


def _has_fields(base: type) -> bool:
    return "__dataclass_fields__" in base.__dict__


def _with_slots(cls: type, options: dict[str, bool]) -> type:
    namespace = dict(cls.__dict__)
    kinds = cls.__annotations__
    names = [name for name, kind in kinds.items() if not kind.startswith(_CLASS_VAR)]
    defaults = {name: namespace.pop(name) for name in names if name in namespace}
    is_frozen, has_eq = options.get("frozen", False), options.get("eq", True)
    own_hash = namespace.get("__hash__")
    has_hash = own_hash is not None or ("__hash__" in namespace and "__eq__" not in namespace)

    deferred = ["__init__", *_TABLES, *_REPLACE]
    deferred += ["__repr__"] if options.get("repr", True) else []
    deferred += ["__eq__"] if has_eq else []
    for name in deferred:
        namespace.setdefault(name, _OnFirstUse(options, defaults))
    if namespace.get("__doc__") is None:
        namespace["__doc__"] = _OnFirstUse(options, defaults)
    if has_eq and not has_hash:
        namespace["__hash__"] = _OnFirstUse(options, defaults) if is_frozen else None
    if is_frozen:
        namespace |= {"__setattr__": _refuse_assignment, "__delattr__": _refuse_deletion}
        namespace.setdefault("__getstate__", _get_state)
        namespace.setdefault("__setstate__", _set_state)

    inherited = {name for base in cls.__mro__[1:-1] for name in _slots_of(base)}
    namespace["__slots__"] = tuple(name for name in names if name not in inherited)
    namespace["__qualname__"] = cls.__qualname__
    for descriptor in ("__dict__", "__weakref__"):
        namespace.pop(descriptor, None)
    return type(cls.__name__, cls.__bases__, namespace)


def _slots_of(base: type) -> tuple[str, ...]:
    slots = base.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _write_methods(cls: type, options: dict[str, bool], defaults: dict[str, Any]) -> None:
    """Replace the descriptors of `cls` by the methods that the standard library writes for it.

    Two threads may do so at the same time; they write the same.
    """
    bases: list[Any] = [base for base in cls.__mro__[:0:-1] if dataclasses.is_dataclass(base)]
    fields: dict[str, Any] = {}
    for base in bases:
        fields |= base.__dataclass_fields__
    inherited: dict[str, Any] = {}
    if bases:
        inherited["__dataclass_fields__"] = fields
        inherited["__dataclass_params__"] = bases[-1].__dataclass_params__
    namespace = {
        "__annotations__": cls.__annotations__,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        **defaults,
    }
    if isinstance(cls.__dict__["__doc__"], str):
        namespace["__doc__"] = cls.__doc__
    if hasattr(cls, "__post_init__"):
        namespace["__post_init__"] = None  # it is called by its name
    carrier = type("Inherited", (), inherited)
    complete = _written(type(cls.__name__, (carrier,), namespace), options)
    for name, value in [*cls.__dict__.items()]:
        if isinstance(value, _OnFirstUse):
            setattr(cls, name, complete.__dict__[name])


def _refuse_assignment(_self: object, name: str, _value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(_self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)


if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    dataclass = _dataclass
