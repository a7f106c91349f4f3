"""The installation of rath: what its extras need, and the commands that install what is missing.

Everything is read from the metadata of the distribution, as pip and uv wrote it. No command names
the distribution alone: an index may have another one under its name.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from urllib.request import url2pathname

__all__ = [
    "PACKAGE",
    "Requirement",
    "extra_command",
    "install_advice",
    "install_command",
    "needed_of",
    "requirements_of",
    "unmet_bound",
]

PACKAGE = "openrath"

_MAX_LISTED = 3
"""Packages that a command beside that of their extra may name; a guess at what is read."""

_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)\s*(?P<extras>\[[^\]]*\])?\s*\(?(?P<bounds>[^;()]*)\)?\s*"
    r"(;\s*(?P<marker>.*))?"
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

    own_extras: str = ""
    """What is needed of its own extras, such as `[binary]`."""

    def problem(self, found: str | None) -> str | None:
        """Return why a version does not do, None where it does."""
        if found is None:
            return "is not installed"
        if unmet_bound(self.bounds, found) is not None:
            return f"{found}, and rath needs {self.bounds}"
        return None

    @property
    def advice(self) -> str:
        """The command that installs it."""
        return install_command([self])

    @property
    def is_met(self) -> bool:
        """Whether a version that does is installed."""
        found = _find(self.name)
        return self.problem(None if found is None else found.version) is None


def requirements_of(package: str = PACKAGE) -> list[Requirement]:
    """Return what a package requires, nothing where it is not installed.

    What holds only for other systems or Pythons is left out.
    """
    found: list[Requirement] = []
    installed = _find(package)
    for declared in (installed and installed.requires) or ():
        parsed = _REQUIREMENT.match(declared)
        if parsed is None or parsed["name"] == package:
            continue
        marker = parsed["marker"] or ""
        extra = _EXTRA.search(marker)
        # What else a marker says cannot be judged here.
        if not re.search(r"\w", _EXTRA.sub("", marker)):
            bounds, own = parsed["bounds"].strip(), parsed["extras"] or ""
            found.append(Requirement(parsed["name"], bounds, extra and extra["name"], own))
    return found


def needed_of(extra: str, packages: Sequence[str] = ()) -> list[Requirement]:
    """Return what an extra of rath requires, or those of it that are named; `_` counts as `-`."""
    listed = [each for each in requirements_of() if each.extra == extra]
    wanted = {name.replace("_", "-") for name in packages}
    return [each for each in listed if each.name in wanted] or listed


def install_command(needed: Sequence[Requirement], *, again: bool = False) -> str:
    """Return the command that installs packages, by the tool that installed rath.

    Args:
        needed: The packages.
        again: Install also what is there.
    """
    specs = [f'"{each.name}{each.own_extras}{each.bounds}"' for each in needed]
    flag = "--force-reinstall" if _installer() == "pip" else "--reinstall"
    return " ".join([_tool(), *([flag] if again else []), *specs])


def extra_command(extra: str) -> str | None:
    """Return the command that installs an extra of rath from where rath was installed from.

    None where that is not known, or was an index: the name there may be somebody else's.
    """
    installed = _find(PACKAGE)
    if installed is None:
        # Run from its source, which stands in a clone or nowhere that is known.
        clone = Path(__file__).resolve().parents[2]
        return _sync(clone, extra) if (clone / "pyproject.toml").is_file() else None
    origin: dict[str, Any] = json.loads(installed.read_text("direct_url.json") or "{}")
    url = str(origin.get("url", ""))
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        at = f"@{vcs['commit_id']}" if vcs.get("commit_id") else ""
        source = f"{vcs.get('vcs', 'git')}+{_without_login(url)}{at}"
        return f'{_tool()} "{PACKAGE}[{extra}] @ {source}"'
    if not url.startswith("file:"):
        return f'{_tool()} "{PACKAGE}[{extra}] @ {_without_login(url)}"' if url else None
    path = Path(url2pathname(urlsplit(url).path))
    if not path.exists():
        return None
    is_editable = origin.get("dir_info", {}).get("editable", False)
    is_own_environment = Path(sys.prefix).resolve().parent == path.resolve()
    if is_editable and is_own_environment and _installer() == "uv":
        return _sync(path, extra)
    return f'{_tool()} {"-e " if is_editable else ""}"{path}[{extra}]"'


def install_advice(extra: str, packages: Sequence[str] = ()) -> str:
    """Return which packages of an extra are missing, and the commands that install them.

    It goes on a sentence that ends with "needs", such as "the engine 'ray' needs".

    Args:
        extra: Its name.
        packages: Those of it that are needed; all of them by default.
    """
    asked = needed_of(extra, packages)
    of_extra = extra_command(extra)
    if not asked:
        how = of_extra or "install rath again from where you have it, with that extra"
        return f"the extra {extra!r}, which is not installed: {how}"
    missing = [each for each in asked if not each.is_met]
    named = ", ".join(each.name for each in missing or asked)
    it = "it" if len(missing or asked) == 1 else "them"
    if not missing:
        command = install_command(asked, again=True)
        return f"{named}, which cannot be imported here. Install {it} again: {command}"
    if of_extra is None:
        return f"{named}. Install {it}: {install_command(missing)}"
    if len(missing) > _MAX_LISTED:
        return f"{named}. Install {it}: {of_extra}"
    return (
        f"{named}. Install {it}: {install_command(missing)} "
        f"(or the whole extra {extra!r}: {of_extra})"
    )


def unmet_bound(bounds: str, found: str) -> str | None:
    """Return the first bound that a version does not keep to, None where it keeps to all.

    Only the numbers of a release are compared: 3.0rc1 counts as 3.0, and `===` is taken for `==`.
    """
    for bound in _BOUND.finditer(bounds):
        if not _holds(_numbers(found), bound["sign"], bound["version"]):
            return f"{bound['sign']}{bound['version']}"
    return None


def _holds(found: tuple[int, ...], sign: str, wanted: str) -> bool:
    limit = _numbers(wanted)
    if wanted.endswith(".*"):
        return (found[: len(limit)] == limit) == (sign == "==")
    pairs = [*zip_longest(found, limit, fillvalue=0)]
    mine, other = tuple(one for one, _ in pairs), tuple(two for _, two in pairs)
    if sign == "~=":
        return mine >= other and found[: len(limit) - 1] == limit[:-1]
    return {
        "<": mine < other, "<=": mine <= other, ">": mine > other, ">=": mine >= other,
        "!=": mine != other,
    }.get(sign, mine == other)  # fmt: skip


def _numbers(text: str) -> tuple[int, ...]:
    found = _NUMBERS.match(text)
    return tuple(map(int, found[1].split("."))) if found else ()


def _find(package: str) -> Distribution | None:
    try:
        return distribution(package)
    except PackageNotFoundError:
        return None


def _installer() -> str:
    installed = _find(PACKAGE)
    return ((installed and installed.read_text("INSTALLER")) or "uv").strip()


def _tool() -> str:
    return "pip install" if _installer() == "pip" else "uv pip install"


def _sync(clone: Path, extra: str) -> str:
    # Without `--inexact` it would take out the other extras.
    return f"uv sync --extra {extra} --inexact, in {clone}"


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
