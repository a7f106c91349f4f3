"""The public names of the library with their signatures, and the file that holds them.

Public is what packages export and what the reference documents. After a change that is meant:
`python -m tests.support.public_names` writes the file anew.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import inspect
import json
import pkgutil
import re
import sys
import types
import typing
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

import rath

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "source" / "reference"
STORED = ROOT / "tests" / "data" / "public_names.json"
DOCUMENTED_NAMES: dict[str, dict[str, Any]] = json.loads(
    (ROOT / "tests" / "data" / "documented_names.json").read_text("utf-8")
)
"""The documented names of 1.3 by module, as `tests/test_documented_names.py` holds them."""
DROPPED = {
    "rath.backend.dedicated_loop": "one runtime serves all planes, so no backend has its own loop",
    "rath.utils": "its helpers were those of the test suite",
    "rath.utils.decoding": "its helpers were those of the test suite",
    "rath.utils.env": "its helpers were those of the test suite",
}
"""Documented modules that are gone on purpose, each with its reason."""

EXPORTING_MODULES = ("rath.session.hooks", "rath.session.traces")
"""Modules that say what they export, as packages do."""

DIRECTIVE = re.compile(r"^\.\. (?:py:)?(auto\w+|currentmodule):: ([\w.]+)$")
MEMBERS = re.compile(r"^   :members: *(.*)$")


def exporting_packages() -> Iterator[tuple[str, set[str]]]:
    """Every package that says what it exports, with those names."""
    packages = [
        found.name for found in pkgutil.walk_packages(rath.__path__, "rath.") if found.ispkg
    ]
    for name in ("rath", *packages, *EXPORTING_MODULES):
        package = importlib.import_module(name)
        if "._" not in name and hasattr(package, "__all__"):
            yield name, {*package.__all__}


def reference_names() -> Iterator[tuple[str, set[str]]]:
    """The module and the names of every directive in the pages of the reference."""
    for page in sorted(REFERENCE.glob("*.md")):
        current = module = ""
        for line in page.read_text("utf-8").splitlines():
            directive = DIRECTIVE.match(line)
            if directive is None:
                members = MEMBERS.match(line)
                if members and module:
                    listed = {name.strip() for name in members[1].split(",")} - {""}
                    yield module, listed or exported(importlib.import_module(module))
                continue
            kind, dotted = directive.groups()
            module = dotted if kind == "automodule" else ""
            if kind == "currentmodule":
                current = dotted
            elif kind != "automodule":
                owner, _, name = dotted.rpartition(".")
                yield owner or current, {name}


def exported(module: ModuleType) -> set[str]:
    """What autodoc takes for the members of a module."""
    if hasattr(module, "__all__"):
        return {*module.__all__}
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }


@cache
def public_names() -> dict[str, frozenset[str]]:
    """The public names of every public module."""
    names: dict[str, set[str]] = defaultdict(set)
    for module, facts in DOCUMENTED_NAMES.items():
        if module not in DROPPED:
            names[module].update(facts.get("names", ()))
    for module, found in (*exporting_packages(), *reference_names()):
        names[module].update(found)
    return {module: frozenset(found) for module, found in sorted(names.items())}


# ---------------------------------------------------------------- signatures as text

INNER_BASES = {"object", "ABC", "Protocol", "Generic"}
PLAIN_TYPES: tuple[type[Any], ...] = (str, int, float, bytes, tuple, frozenset, enum.Enum)
SPECIAL_METHODS = {
    f"__{name}__"
    for name in ("add", "bool", "call", "contains", "enter", "exit", "getitem", "iter", "len", "or")
}
DOTTED = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
FORWARD = re.compile(r"ForwardRef\('([^']*)'[^)]*\)")


@dataclasses.dataclass
class Text:
    """A text that stands for itself in a signature."""

    text: str

    def __repr__(self) -> str:
        return self.text


def type_text(annotation: object) -> str:
    """Write a type as its source would, without the modules of its names."""
    if isinstance(annotation, str):
        return annotation
    if typing.get_origin(annotation) in {typing.Union, types.UnionType}:
        return " | ".join(type_text(each) for each in typing.get_args(annotation))
    text = inspect.formatannotation(annotation)
    return DOTTED.sub("", FORWARD.sub(r"\1", text)).replace("NoneType", "None")


def value_text(value: object) -> str:
    """Write a default so that it is the same in every process and wherever its type is defined."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, type) or inspect.isroutine(value):
        return str(value.__name__)
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, set | frozenset):
        items = typing.cast("frozenset[object]", value)  # of whatever
        return "{" + ", ".join(sorted(value_text(each) for each in items)) + "}"
    return DOTTED.sub("", ADDRESS.sub("", repr(value)))


def signature_text(function: Any) -> str:
    """Write the signature of a callable."""
    signature = inspect.signature(function)
    empty = inspect.Parameter.empty
    parameters: list[inspect.Parameter] = []
    for each in signature.parameters.values():
        # What `self` has to be is a matter of how the class is put together.
        is_typed = each.annotation is not empty and each.name not in {"self", "cls"}
        if not each.name.startswith("_"):
            parameters.append(
                each.replace(
                    annotation=Text(type_text(each.annotation)) if is_typed else empty,
                    default=empty if each.default is empty else Text(value_text(each.default)),
                )
            )
    returns = signature.return_annotation
    returns = returns if returns is empty else Text(type_text(returns))
    return str(signature.replace(parameters=parameters, return_annotation=returns))


# ---------------------------------------------------------------- names as lines


def own_classes(cls: Any) -> list[type]:
    """The classes of the library that give `cls` its members, nearest first."""
    return [each for each in cls.__mro__ if each.__module__.partition(".")[0] == "rath"]


def class_lines(cls: Any) -> Iterator[str]:
    """What a class promises: bases, constructor, fields and public members."""
    own = own_classes(cls)
    public = {name for names in public_names().values() for name in names}
    bases = [
        each.__name__
        for each in cls.__mro__[1:]
        if each.__name__ not in INNER_BASES
        and not each.__name__.startswith("_")
        and (each not in own or each.__name__ in public)
    ]
    yield f"class({', '.join(bases)})"
    if issubclass(cls, enum.Enum):
        yield from (f"{name} = {each.value!r}" for name, each in cls.__members__.items())
    elif not getattr(cls, "_is_protocol", False) and any(
        {"__init__", "__new__"} & vars(each).keys() for each in own
    ):
        yield f"constructor {signature_text(cls)}"
    fields = dict(field_lines(cls))
    yield from fields.values()
    names = {name for each in own for name in vars(each)} - fields.keys() - {"model_config"}
    if issubclass(cls, enum.Enum):
        names -= cls.__members__.keys()
    for name in sorted(names):
        if not name.startswith("_") or name in SPECIAL_METHODS:
            yield member_line(name, inspect.getattr_static(cls, name))


def field_lines(cls: Any) -> Iterator[tuple[str, str]]:
    """The public fields and annotated attributes of a class, with their defaults."""
    defaults: dict[str, str] = {}
    if dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            if field.default is not dataclasses.MISSING:
                defaults[field.name] = value_text(field.default)
            elif field.default_factory is not dataclasses.MISSING:
                defaults[field.name] = "<factory>"
    elif issubclass(cls, BaseModel):
        model: type[BaseModel] = cls
        for name, info in model.model_fields.items():
            if info.default_factory is not None:
                defaults[name] = "<factory>"
            elif not info.is_required():
                defaults[name] = value_text(info.default)
    annotations: dict[str, object] = {}
    for each in reversed(own_classes(cls)):
        annotations |= inspect.get_annotations(each)
    for name, annotation in annotations.items():
        if not name.startswith("_"):
            default = f" = {defaults[name]}" if name in defaults else ""
            yield name, f"{name}: {type_text(annotation)}{default}"


def member_line(name: str, member: Any) -> str:
    """Write one member of a class."""
    if type(member) in {staticmethod, classmethod}:
        return f"{type(member).__name__} {name}{signature_text(member.__func__)}"
    if isinstance(member, property | functools.cached_property):
        getter = member.fget if isinstance(member, property) else member.func
        settable = isinstance(member, property) and member.fset is not None
        returns = inspect.signature(getter).return_annotation if getter else "None"
        return f"property {name}: {type_text(returns)}{' (settable)' if settable else ''}"
    if inspect.isfunction(member):
        is_async = "async " if inspect.iscoroutinefunction(member) else ""
        return f"{is_async}def {name}{signature_text(member)}"
    return f"attribute {name}"


def value_lines(name: str, value: Any) -> Iterator[str]:
    """What a public name promises, one line for each thing that it consists of."""
    if inspect.ismodule(value):
        yield f"module {value.__name__}"
    elif inspect.isclass(value) and not typing.get_origin(value):
        yield from class_lines(value)
    elif inspect.isroutine(value):
        yield member_line(name, value)
    elif isinstance(value, PLAIN_TYPES):
        yield f"value {value_text(value)}"
    elif typing.get_origin(value) or isinstance(value, types.UnionType):
        yield f"type {type_text(value)}"
    else:
        yield f"object {type(value).__name__}"


def described_names() -> dict[str, dict[str, list[str]]]:
    """Every public name with its lines, by module; where it is an alias, the path of the first."""
    first: dict[int, str] = {}
    described: dict[str, dict[str, list[str]]] = {}
    for module in sorted(public_names(), key=lambda each: (each.count("."), each)):
        imported = importlib.import_module(module)
        described[module] = {}
        for name in sorted(public_names()[module]):
            value = getattr(imported, name)
            path = f"{module}.{name}"
            if inspect.isclass(value) or inspect.isfunction(value):
                path = first.setdefault(id(value), path)
            is_first = path == f"{module}.{name}"
            described[module][name] = [*value_lines(name, value)] if is_first else [f"is {path}"]
    return described


def text_of(described: dict[str, dict[str, list[str]]]) -> str:
    """Write the public names as the file that is compared line by line."""
    return json.dumps(described, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(f"{STORED.write_text(text_of(described_names()), 'utf-8')} characters\n")
