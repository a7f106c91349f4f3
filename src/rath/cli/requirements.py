"""What an installed package requires, and whether that is there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, version
from itertools import zip_longest

__all__ = [
    "Requirement",
    "extras_of",
    "installed_version",
    "python_bounds_of",
    "requirements_of",
    "unmet",
]

_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)\s*(\[[^\]]*\])?\s*\(?(?P<bounds>[^;()]*)\)?\s*(;\s*(?P<marker>.*))?"
)
_EXTRA = re.compile(r"extra\s*==\s*['\"](?P<name>[^'\"]+)['\"]")
_BOUND = re.compile(r"(?P<sign>[<>=!~]=?=?)\s*(?P<version>[^\s,]+)")
_NUMBERS = re.compile(r"v?(?:\d+!)?(\d+(?:\.\d+)*)")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package that another one needs."""

    name: str
    bounds: str
    """As declared, such as `>=3.0,<4`; empty for any version."""

    extra: str | None
    """The extra that needs it, None where it is always needed."""


def requirements_of(package: str) -> list[Requirement]:
    """Return what a package requires; what holds only for other systems or Pythons is left out.

    Raises:
        PackageNotFoundError: It is not installed.
    """
    declared: Iterable[str] = metadata(package).get_all("Requires-Dist") or ()
    return list(_parsed(declared, own=package))


def python_bounds_of(package: str) -> str:
    """Return which versions of Python a package takes; empty where it does not say."""
    return ",".join(metadata(package).get_all("Requires-Python") or ())


def extras_of(package: str) -> list[str]:
    """Return the names of the extras of a package, as it declares them."""
    return list(metadata(package).get_all("Provides-Extra") or ())


def installed_version(package: str) -> str | None:
    """Return the version of a package, None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def unmet(bounds: str, found: str) -> str | None:
    """Return the first bound that a version does not keep to, None where it keeps to all.

    Only the numbers of a release are compared: 3.0rc1 counts as 3.0, and `===` is taken for `==`.
    """
    for bound in _BOUND.finditer(bounds):
        if not _holds(_numbers(found), bound["sign"], bound["version"]):
            return f"{bound['sign']}{bound['version']}"
    return None


def _parsed(declared: Iterable[str], *, own: str) -> Iterator[Requirement]:
    for line in declared:
        found = _REQUIREMENT.match(line)
        if found is None or found["name"] == own:
            continue
        extra = _EXTRA.search(found["marker"] or "")
        rest = _EXTRA.sub("", found["marker"] or "")
        # What else a marker says cannot be judged here.
        if not re.search(r"\w", rest):
            yield Requirement(found["name"], found["bounds"].strip(), extra and extra["name"])


def _holds(found: tuple[int, ...], sign: str, wanted: str) -> bool:
    limit = _numbers(wanted)
    if wanted.endswith(".*"):
        is_inside = found[: len(limit)] == limit
        return is_inside if sign == "==" else not is_inside
    if sign == "~=":
        return _compared(found, limit) >= 0 and found[: len(limit) - 1] == limit[:-1]
    order = _compared(found, limit)
    return {
        "<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0, "!=": order != 0,
    }.get(sign, order == 0)  # fmt: skip


def _numbers(text: str) -> tuple[int, ...]:
    found = _NUMBERS.match(text)
    return tuple(map(int, found[1].split("."))) if found else ()


def _compared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return a number below, at or above 0, as the first version is older, equal or newer."""
    for mine, theirs in zip_longest(one, other, fillvalue=0):
        if mine != theirs:
            return mine - theirs
    return 0
