"""The documented API of 1.3: every name at its path, every parameter by its name."""

from __future__ import annotations

import importlib
import inspect
import json
from functools import reduce
from typing import Any

import pytest

from tests.support.public_names import DOCUMENTED_NAMES, DROPPED

pytestmark = pytest.mark.timeout(120)  # the first import of an SDK on a busy machine

FACTS = DOCUMENTED_NAMES
"""By module: its public names; the parameters of its functions, classes and methods ("=" marks a
default, "*" what follows by keyword alone); properties of classes; constants and enum members."""

OTHER_VALUES = {
    ("rath.config.credentials", "SECRET_SECTIONS"): "a memory's key is a secret too",
    ("rath.session.persistence", "CURRENT_SCHEMA_VERSION"): "files carry checksums since version 2",
}
MODULES = sorted(FACTS.keys() - DROPPED.keys())


def facts(section: str) -> list[Any]:
    """Return the (module, name, fact) of a section as parameters of a test."""
    return [
        pytest.param(module, name, fact, id=f"{module}:{name}")
        for module in MODULES
        for name, fact in FACTS[module].get(section, {}).items()
    ]


def found(module: str, dotted: str) -> Any:
    """Return what a dotted name of a module stands for."""
    return reduce(getattr, dotted.split("."), importlib.import_module(module))


def parameters(module: str, dotted: str) -> inspect.Signature:
    """Return the signature of a callable as its caller sees it."""
    signature = inspect.signature(found(module, dotted))
    owner, _, method = dotted.rpartition(".")
    if not owner or not inspect.isfunction(found(module, dotted)):
        return signature
    if isinstance(inspect.getattr_static(found(module, owner), method), staticmethod):
        return signature
    return signature.replace(parameters=list(signature.parameters.values())[1:])


@pytest.mark.parametrize("module", MODULES)
def test_documented_names_are_at_their_path(module: str) -> None:
    imported = importlib.import_module(module)
    assert [name for name in FACTS[module].get("names", ()) if not hasattr(imported, name)] == []


@pytest.mark.parametrize(("module", "name", "documented"), facts("parameters"))
def test_documented_parameters_are_accepted_by_keyword(
    module: str, name: str, documented: list[str]
) -> None:
    signature = parameters(module, name)
    by_keyword = [each for each in documented if not each.startswith("*")]
    signature.bind(**{each.rstrip("="): None for each in by_keyword})
    signature.bind(**{each: None for each in by_keyword if not each.endswith("=")})


@pytest.mark.parametrize(("module", "name", "documented"), facts("parameters"))
def test_documented_parameters_keep_their_order(
    module: str, name: str, documented: list[str]
) -> None:
    n_positional = next(
        (at for at, each in enumerate(documented) if each.startswith("*")), len(documented)
    )
    positional = [each.rstrip("=") for each in documented[:n_positional]]
    bound = parameters(module, name).bind_partial(*range(n_positional))
    assert list(bound.arguments.items()) == [(each, at) for at, each in enumerate(positional)]


@pytest.mark.parametrize(("module", "name", "documented"), facts("members"))
def test_documented_properties_are_there(module: str, name: str, documented: list[str]) -> None:
    owner = found(module, name)
    known = {*dir(owner), *inspect.get_annotations(owner)}
    assert [each for each in documented if each not in known] == []


@pytest.mark.parametrize(("module", "name", "documented"), facts("values"))
def test_documented_values_are_the_same(module: str, name: str, documented: object) -> None:
    value = found(module, name)
    value = getattr(value, "value", value)
    is_same = json.loads(json.dumps(value)) == documented
    assert is_same != ((module, name) in OTHER_VALUES)


@pytest.mark.parametrize("module", sorted(DROPPED))
def test_dropped_modules_are_gone(module: str) -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(module)
