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
from rath._core.retention import in_trash
from rath.backend.bubblewrap import BubblewrapBackend
from rath.backend.opensandbox import OpenSandboxBackend
from rath.backend.opensandbox.connection import find_connection
from rath.backend.persistence.paths import forks_root, local_root, sandboxes_dir
from rath.backend.persistence.registry import PersistentSandboxRegistry, prunable_forks
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
from rath.errors import ConfigError, RathError
from rath.memory.persistence.paths import local_memory_root
from rath.session.persistence.store import FileStore, default_store

__all__ = ["check_installation", "check_planes", "check_stores"]

_PACKAGE = "openrath"
_PURPOSES: Mapping[str, str] = {
    "local": "models inside the process",
    "local-weights": "a small language model for it, 491 MB",
    "litellm": "the vendors that LiteLLM speaks to",
    "opensandbox": "sandboxes on an OpenSandbox server",
    "openviking": "memory on an OpenViking server",
    "postgres": "sessions in a PostgreSQL database",
    "vectors": "finding notes by their vectors",
}
_LEAST_FREE = 256_000_000
"""Bytes on the disk of the stores below which somebody should know; a guess."""

_PRUNE_FORKS = (
    'python -c "from rath.backend.persistence import prune_forks; prune_forks()" removes them'
)
_PRUNE = (
    'python -c "from datetime import timedelta; from rath.persistence import gc; '
    'gc(older_than=timedelta(days=30), dry_run=False)" finishes it, and removes what was not used '
    "for 30 days"
)

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
    places = {"home": home, "memory": local_memory_root()}
    for store in usable_configs():
        for name, entry in store.config.memory.providers.items():
            if entry.path:
                places[f"memory {name}"] = Path(entry.path).expanduser()
    findings = [_check_writable(subject, path) for subject, path in places.items()]
    return [*findings, *_check_sessions(), *_check_sandboxes(), *_check_space(home)]


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
    group: str, names: list[str], describe: Callable[[str], tuple[bool, str]], chosen: set[str]
) -> Iterator[Finding]:
    for name in [*names, *sorted(chosen.difference(names))]:
        # What a config names must be there; what only might be used need not.
        missing: Level = "problem" if name in chosen else "note"
        try:
            is_usable, text = describe(name)
        except Exception as exc:  # noqa: BLE001  # plug-ins raise anything; it is told here
            level: Level = "problem" if name in chosen else "warning"
            kind = "" if isinstance(exc, RathError) else f"{type(exc).__name__}: "
            yield Finding(group, name, level, f"{kind}{exc}")
            continue
        yield Finding(group, name, "ok" if is_usable else missing, text)


def _sandbox(name: str) -> tuple[bool, str]:
    """Return whether a backend can be used, and how, or why not and what to do about it."""
    cls = backend.get_class(name)
    reason = cls.unavailable_reason()
    if reason is not None:
        return False, reason
    text = f"usable, isolation: {cls.capabilities().isolation.value}"
    if issubclass(cls, BubblewrapBackend):
        text += f", limits by {cls.limits_by()}"
    if issubclass(cls, OpenSandboxBackend):
        server = find_connection()
        text += f", server {server.domain.rpartition('@')[2]} ({server.origin}; not asked)"
    return True, text


def _memory(name: str) -> tuple[bool, str]:
    if memory.get_class(name).is_available():
        return True, "usable"
    return False, "says that it cannot work here: is_available() is False"


def _check_sandboxes() -> Iterator[Finding]:
    """Tell which sandboxes are kept, and what programs left behind that were killed."""
    kept = PersistentSandboxRegistry()
    try:
        n_local, n_remote = len(kept.list_local()), len(kept.list_remote())
        n_forks, half_removed = len(prunable_forks()), [*in_trash(local_root())]
        half_removed += in_trash(forks_root())
    except OSError as exc:
        yield Finding("Files", "sandboxes", "problem", f"cannot be listed: {exc}")
        return
    if n_local or n_remote:
        text = f"{_counted(n_local, 'workspace')} and {_counted(n_remote, 'remote sandbox', 'es')}"
        yield Finding("Files", "sandboxes", "ok", f"{text} in {sandboxes_dir()}")
    if n_forks:
        text = f"{_counted(n_forks, 'copied workspace')} left by programs that were killed"
        yield Finding("Files", "sandboxes", "note", text, _PRUNE_FORKS)
    if half_removed:
        text = f"{len(half_removed)} removed in part: a program was killed, or is at it"
        yield Finding("Files", "sandboxes", "note", text, _PRUNE)


def _counted(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"


def _check_sessions() -> Iterator[Finding]:
    """Tell which store sessions go to; a server is not asked."""
    try:
        store = default_store()
    except ConfigError:
        return  # the config says for itself what is wrong with it
    except (RathError, ValueError) as exc:
        advice = "mend OPENRATH_STORE, or sessions.store in the config"
        yield Finding("Files", "sessions", "problem", str(exc), advice)
        return
    if isinstance(store, FileStore):
        yield _check_writable("sessions", store.directory)
    else:
        yield Finding("Files", "sessions", "ok", f"{store.where}, which was not asked")


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
