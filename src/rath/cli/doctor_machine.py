"""What `rath doctor` says of the installation and the machine."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import rath
from rath import backend, memory
from rath.cli.findings import Finding, Level
from rath.cli.model_targets import usable_configs
from rath.cli.requirements import (
    Requirement,
    extras_of,
    installed_version,
    python_bounds_of,
    requirements_of,
    unmet,
)
from rath.config.paths import resolve_config_dir
from rath.errors import RathError
from rath.memory.persistence.paths import local_memory_root
from rath.session.persistence.paths import sessions_dir

__all__ = ["check_installation", "check_planes", "check_stores"]

_PACKAGE = "openrath"
_PURPOSES: Mapping[str, str] = {
    "local": "models inside the process",
    "local-weights": "a small language model for it, 491 MB",
    "litellm": "the vendors that LiteLLM speaks to",
}
_LEAST_FREE = 256_000_000
"""Bytes on the disk of the stores below which somebody should know; a guess."""

_PROBE = b"rath doctor\n" * 400
"""More than fits beside a file's name, so that a full disk is noticed."""


def check_installation() -> list[Finding]:
    """Return what is found about Python, the packages, the extras and the clock."""
    return [*_check_python(), *_check_packages(), *_check_extras(), *_check_clock()]


def check_planes() -> list[Finding]:
    """Return which sandboxes and memories can be used here."""
    chosen = [store.config for store in usable_configs()]
    sandboxes = {entry.backend_kind for each in chosen for entry in each.backend.providers.values()}
    memories = {entry.backend_kind for each in chosen for entry in each.memory.providers.values()}
    return [
        *_check_plane("Sandboxes", backend.list_names(), _sandbox, sandboxes),
        *_check_plane("Memories", memory.list_names(), _memory, memories),
    ]


def check_stores() -> list[Finding]:
    """Return whether what rath keeps can be written; nothing stays behind."""
    try:
        home = resolve_config_dir()
    except OSError as exc:
        return [Finding("Files", "home", "problem", str(exc))]
    places = {"home": home, "sessions": sessions_dir(), "memory": local_memory_root()}
    for store in usable_configs():
        for name, entry in store.config.memory.providers.items():
            if entry.path:
                places[f"memory {name}"] = Path(entry.path).expanduser()
    findings = [_check_writable(subject, path) for subject, path in places.items()]
    return [*findings, *_check_space(home)]


def _check_python() -> Iterator[Finding]:
    found = platform.python_version()
    try:
        wanted = python_bounds_of(_PACKAGE)
    except PackageNotFoundError:
        wanted = ""
    bound = unmet(wanted, found)
    if bound is None:
        yield Finding("Installation", "Python", "ok", found)
    else:
        yield Finding("Installation", "Python", "problem", f"{found}, and rath needs {bound}")
    installed = installed_version(_PACKAGE)
    if installed is None:
        text = f"{rath.__version__}, run from its source: what it requires is not known"
        yield Finding("Installation", "rath", "note", text)
    elif installed != rath.__version__:
        text = f"{rath.__version__} is loaded, and {installed} is what the installation says"
        yield Finding("Installation", "rath", "warning", text, "install it again")
    else:
        yield Finding("Installation", "rath", "ok", installed)


def _requirements() -> list[Requirement]:
    try:
        return requirements_of(_PACKAGE)
    except PackageNotFoundError:
        return []


def _check_packages() -> Iterator[Finding]:
    for needed in _requirements():
        if needed.extra is None:
            yield _judge_package("Installation", needed, level="problem")


def _judge_package(group: str, needed: Requirement, *, level: Level) -> Finding:
    found = installed_version(needed.name)
    wanted = f"{needed.name}{needed.bounds}"
    if found is None:
        text = "is not installed"
        return Finding(group, needed.name, level, text, f'pip install "{wanted}"')
    if unmet(needed.bounds, found) is not None:
        text = f"{found}, and rath needs {needed.bounds}"
        return Finding(group, needed.name, level, text, f'pip install "{wanted}"')
    return Finding(group, needed.name, "ok", found)


def _check_extras() -> Iterator[Finding]:
    needed = _requirements()
    for extra in extras_of(_PACKAGE) if needed else ():
        parts = [each for each in needed if each.extra == extra]
        judged = [_judge_package("Extras", each, level="warning") for each in parts]
        purpose = _PURPOSES.get(extra, "")
        about = f" ({purpose})" if purpose else ""
        missing = [each for each in parts if installed_version(each.name) is None]
        if missing:
            text = f"not installed{about}"
            yield Finding("Extras", extra, "note", text, f'pip install "{_PACKAGE}[{extra}]"')
            continue
        wrong = [finding for finding in judged if finding.level != "ok"]
        for finding in wrong:
            text = f"{finding.subject} {finding.text}"
            yield Finding("Extras", extra, "warning", text, finding.advice)
        if not wrong:
            yield Finding("Extras", extra, "ok", f"{_versions(parts)}{about}")


def _versions(parts: list[Requirement]) -> str:
    if len(parts) > 3:
        return f"{len(parts)} packages"
    return ", ".join(f"{each.name} {installed_version(each.name)}" for each in parts)


def _check_clock() -> Iterator[Finding]:
    """Compare the clock with the files of this installation, which cannot be of tomorrow."""
    written = Path(rath.__file__).stat().st_mtime
    if written > time.time() + 86_400:
        now = datetime.now(UTC).date()
        text = f"it says {now}, and rath was installed later than that"
        yield Finding("Installation", "clock", "warning", text, "endpoints refuse a wrong clock")


def _check_plane(
    group: str, names: list[str], describe: Callable[[str], str | None], chosen: set[str]
) -> Iterator[Finding]:
    for name in [*names, *sorted(chosen.difference(names))]:
        # What a config names must be there; what only might be used need not.
        missing: Level = "problem" if name in chosen else "note"
        try:
            found = describe(name)
        except Exception as exc:  # noqa: BLE001  # plug-ins raise anything; it is told here
            level: Level = "problem" if name in chosen else "warning"
            kind = "" if isinstance(exc, RathError) else f"{type(exc).__name__}: "
            yield Finding(group, name, level, f"{kind}{exc}")
            continue
        if found is None:
            text = "says that it cannot work here: is_available() is False"
            yield Finding(group, name, missing, text)
        else:
            yield Finding(group, name, "ok", found)


def _sandbox(name: str) -> str | None:
    cls = backend.get_class(name)
    if not cls.is_available():
        return None
    return f"usable, isolation: {cls.capabilities().isolation.value}"


def _memory(name: str) -> str | None:
    return "usable" if memory.get_class(name).is_available() else None


def _check_writable(subject: str, path: Path) -> Finding:
    if not path.exists():
        return _check_creatable(subject, path)
    try:
        with tempfile.NamedTemporaryFile(dir=path, prefix=".doctor_") as file:
            file.write(_PROBE)
            file.flush()
    except OSError as exc:
        text = f"{path} cannot be written: {exc.strerror or exc}"
        advice = "make it writable, or name another directory in OPENRATH_HOME"
        return Finding("Files", subject, "problem", text, advice)
    return Finding("Files", subject, "ok", f"{path} can be written")


def _check_creatable(subject: str, path: Path) -> Finding:
    above = _existing(path)
    if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
        return Finding("Files", subject, "ok", f"{path} is not there yet and can be made")
    text = f"{path} is not there and cannot be made in {above}"
    return Finding("Files", subject, "problem", text, f"make {above} writable")


def _existing(path: Path) -> Path:
    return next(above for above in (path, *path.parents) if above.exists())


def _check_space(home: Path) -> Iterator[Finding]:
    try:
        free = shutil.disk_usage(_existing(home)).free
    except OSError:
        return
    shown = f"{free / 1e9:.1f} GB are free"
    if free < _LEAST_FREE:
        yield Finding("Files", "disk", "warning", f"only {shown} where {home} is", "free some")
    else:
        yield Finding("Files", "disk", "ok", shown)
