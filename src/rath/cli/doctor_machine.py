"""Checks of `rath doctor` on the installation, the planes and the files of this machine."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path
from typing import Any

import rath
from rath._core.registry import EntryDescription
from rath._core.retention import empty_trash, in_trash
from rath._installation import (
    PACKAGE,
    extra_command,
    install_command,
    requirements_of,
    unmet_bound,
)
from rath.backend import Capabilities
from rath.backend import registry as backends
from rath.backend.bubblewrap import BubblewrapBackend
from rath.backend.opensandbox import OpenSandboxBackend
from rath.backend.opensandbox.connection import find_connection
from rath.backend.persistence.paths import forks_root, local_root, sandboxes_dir
from rath.backend.persistence.registry import PersistentSandboxRegistry, prunable_forks, prune_forks
from rath.cli.doctor_models import usable_configs
from rath.cli.render import CheckFinding, Fix, Level, count_of, progress
from rath.config.paths import resolve_config_dir
from rath.errors import ConfigError, RathError
from rath.memory import registry as memories
from rath.memory.persistence.paths import local_memory_root
from rath.session.log.index import StoreIndex, index_file
from rath.session.log.store import SessionStore
from rath.session.persistence.store import FileStore, default_store

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

_COLLECT = "rath gc --older-than 30d removes what was not used for 30 days, and this with it"

_PROBE = b"rath doctor\n" * 400
"""More than fits beside a file's name, so that a full disk is noticed."""

_installation, _extra = partial(CheckFinding, "Installation"), partial(CheckFinding, "Extras")
_file = partial(CheckFinding, "Files")


def check_installation() -> Iterator[CheckFinding]:
    """Yield what is found about Python, the packages and the clock."""
    python = platform.python_version()
    installed = _version(PACKAGE)
    wanted = "" if installed is None else ",".join(_metadata_of("Requires-Python"))
    bound = unmet_bound(wanted, python)
    if bound is None:
        yield _installation("Python", "ok", python)
    else:
        yield _installation("Python", "problem", f"{python}, and rath needs {bound}")
    if installed is None:
        text = f"{rath.__version__}, run from its source: what it requires is not known"
        yield _installation("rath", "note", text)
    elif installed != rath.__version__:
        text = f"{rath.__version__} is loaded, and {installed} is what the installation says"
        yield _installation("rath", "warning", text, "install it again")
    else:
        yield _installation("rath", "ok", installed)
    for needed in requirements_of():
        if needed.extra is None:
            found = _version(needed.name)
            problem = needed.problem(found)
            if problem is None:
                yield _installation(needed.name, "ok", str(found))
            else:
                yield _installation(needed.name, "problem", problem, needed.advice)
    # The files of this installation cannot be of tomorrow.
    if Path(rath.__file__).stat().st_mtime > time.time() + 86_400:
        text = f"it says {datetime.now(UTC).date()}, and rath was installed later than that"
        yield _installation("clock", "warning", text, "endpoints refuse a wrong clock")


def check_extras() -> Iterator[CheckFinding]:
    """Yield which extras are installed, and in versions that do."""
    needed = requirements_of()
    for extra in _metadata_of("Provides-Extra") if needed else ():
        parts = [each for each in needed if each.extra == extra]
        versions = {each.name: _version(each.name) for each in parts}
        about = f" ({_PURPOSES[extra]})" if extra in _PURPOSES else ""
        wrong = [
            (each, problem) for each in parts if (problem := each.problem(versions[each.name]))
        ]
        if None in versions.values():
            advice = extra_command(extra) or install_command(parts)
            yield _extra(extra, "note", f"not installed{about}", advice)
            continue
        for each, problem in wrong:
            yield _extra(extra, "warning", f"{each.name} {problem}", each.advice)
        if not wrong:
            named = ", ".join(f"{name} {found}" for name, found in versions.items())
            yield _extra(
                extra, "ok", (named if len(parts) <= 3 else f"{len(parts)} packages") + about
            )


def _metadata_of(name: str, package: str = PACKAGE) -> list[str]:
    try:
        return list(metadata(package).get_all(name) or ())
    except PackageNotFoundError:
        return []


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _sandbox_text(found: EntryDescription) -> str:
    """Return how a backend that works here isolates, and what limits or serves it."""
    assert isinstance(found.capabilities, Capabilities)
    text = f"usable, isolation: {found.capabilities.isolation.value}"
    cls = backends.get_class(found.name)
    if issubclass(cls, BubblewrapBackend):
        text += f", limits by {cls.limits_by()}"
    if issubclass(cls, OpenSandboxBackend):
        server = find_connection()
        text += f", server {server.domain.rpartition('@')[2]} ({server.origin}; not asked)"
    return text


_PLANES: tuple[tuple[str, str, Any, Callable[[EntryDescription], str]], ...] = (
    ("Sandboxes", "backend", backends, _sandbox_text),
    ("Memories", "memory", memories, lambda _: "usable"),
)
"""Group of findings, section of the config, registry, and the text of a driver that works here."""


def check_planes() -> Iterator[CheckFinding]:
    """Yield which drivers of sandboxes and of memories can be used here."""
    configs = [store.config for store in usable_configs()]
    for group, section, plane, text_of in _PLANES:
        tables = [getattr(config, section).providers for config in configs]
        chosen = {entry.backend_kind for table in tables for entry in table.values()}
        names = plane.list_names()
        for name in [*names, *sorted(chosen.difference(names))]:
            # What a config names must be there; what only might be used need not.
            is_chosen = name in chosen
            level: Level = "problem" if is_chosen else "note"
            try:
                found: EntryDescription = plane.describe(name)
                level = level if found.problem else "ok"
                text = found.problem or text_of(found)
            except Exception as exc:  # noqa: BLE001  # plug-ins raise anything; it is told here
                kind = "" if isinstance(exc, RathError) else f"{type(exc).__name__}: "
                level, text = "problem" if is_chosen else "warning", f"{kind}{exc}"
            yield CheckFinding(group, name, level, text)


def check_stores() -> Iterator[CheckFinding]:
    """Yield whether what rath stores can be written, and what is there; nothing stays behind."""
    try:
        places = {"home": resolve_config_dir(), "memory": local_memory_root()}
    except OSError as exc:
        yield _file("home", "problem", str(exc))
        return
    for store in usable_configs():
        for name, entry in store.config.memory.providers.items():
            if entry.path:
                places[f"memory {name}"] = Path(entry.path).expanduser()
    for subject, path in places.items():
        yield _writable(subject, path)
    try:
        sessions = default_store()  # a server is not asked
        if isinstance(sessions, FileStore):
            yield _writable("sessions", sessions.directory)
        else:
            yield _file("sessions", "ok", f"{sessions.where}, which was not asked")
    except ConfigError:
        pass  # the config says for itself what is wrong with it
    except (RathError, ValueError) as exc:
        advice = "mend OPENRATH_STORE, or sessions.store in the config"
        yield _file("sessions", "problem", str(exc), advice)
    yield from _check_workspaces()


def _check_workspaces() -> Iterator[CheckFinding]:
    """Yield which sandboxes are stored, and what programs left behind that were killed."""
    registry = PersistentSandboxRegistry()
    try:
        n_local, n_remote = len(registry.list_local()), len(registry.list_remote())
        n_forks, half_removed = len(prunable_forks()), [*in_trash(local_root())]
        half_removed += in_trash(forks_root())
    except OSError as exc:
        yield _file("sandboxes", "problem", f"cannot be listed: {exc}")
        return
    if n_local or n_remote:
        remote = f"{n_remote} remote sandbox{'' if n_remote == 1 else 'es'}"
        text = f"{count_of(n_local, 'workspace')} and {remote} in {sandboxes_dir()}"
        yield _file("sandboxes", "ok", text)
    if n_forks:
        text = f"{count_of(n_forks, 'copied workspace')} left by programs that were killed"
        yield _file("sandboxes", "note", text, fix=_LEFTOVERS)
    if half_removed:
        text = f"{len(half_removed)} removed in part: a program was killed, or is at it"
        yield _file("sandboxes", "note", text, _COLLECT, fix=_LEFTOVERS)


def _remove_leftovers() -> None:
    prune_forks()
    for root in (local_root(), forks_root()):
        empty_trash(root)


_LEFTOVERS = Fix("remove what killed programs left", _remove_leftovers)


def check_disk() -> Iterator[CheckFinding]:
    """Yield how much is free on the disk of the stores."""
    try:
        home = resolve_config_dir()
        free = shutil.disk_usage(_nearest_directory(home)).free
    except OSError:
        return
    text = f"{free / 1e9:.1f} GB are free"
    if free < _LEAST_FREE:
        yield _file("disk", "warning", f"only {text} where {home} is", "free some")
    else:
        yield _file("disk", "ok", text)


def _writable(subject: str, path: Path) -> CheckFinding:
    """Find out whether a directory can be written or, where it is not there, made."""
    if not path.exists():
        above = _nearest_directory(path)
        if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
            make = Fix(f"create {path}", partial(path.mkdir, 0o700, parents=True, exist_ok=True))
            return _file(subject, "ok", f"{path} is not there yet and can be made", fix=make)
        text = f"{path} is not there and cannot be made in {above}"
        return _file(subject, "problem", text, f"make {above} writable")
    try:
        with tempfile.NamedTemporaryFile(dir=path, prefix=".doctor_") as file:
            file.write(_PROBE)
            file.flush()
    except OSError as exc:
        text = f"{path} cannot be written: {exc.strerror or exc}"
        advice = "make it writable, or name another directory in OPENRATH_HOME"
        return _file(subject, "problem", text, advice, fix=_opening_fix(path))
    return _file(subject, "ok", f"{path} can be written")


def _opening_fix(path: Path) -> Fix | None:
    """Return what lets the user write a directory, where it is the user's own and closed."""
    try:
        found = path.stat()
    except OSError:
        return None
    mode = stat.S_IMODE(found.st_mode)
    is_own = os.name == "posix" and found.st_uid == os.getuid()
    if not is_own or mode & stat.S_IRWXU == stat.S_IRWXU:
        return None
    return Fix(f"make {path} writable for you", partial(path.chmod, mode | stat.S_IRWXU))


def check_index() -> Iterator[CheckFinding]:
    """Yield whether the index of stored sessions can be read; one that is in use is left alone."""
    try:
        store = default_store()
        path = index_file(store)
    except (RathError, ValueError, OSError):
        return  # the check of the stores says so
    if path is None or not path.is_file() or path.with_name(f"{path.name}-wal").exists():
        return
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as opened:
            (problem,) = opened.execute("PRAGMA quick_check(1)").fetchone()
    except (sqlite3.Error, OSError) as exc:
        problem = str(exc)
    if problem == "ok":
        yield _file("index", "ok", f"{path} can be read")
        return
    advice = f"delete {path}; the next `rath ls` makes it anew"
    fix = Fix(f"rebuild {path}", partial(_rebuild_index, path, store))
    yield _file("index", "warning", f"{path} is damaged: {problem}", advice, fix=fix)


def _rebuild_index(path: Path, store: SessionStore) -> None:
    path.unlink(missing_ok=True)
    with StoreIndex(store) as index, progress("reading sessions") as report:
        index.refresh(report)


def _nearest_directory(path: Path) -> Path:
    return next(above for above in (path, *path.parents) if above.exists())
