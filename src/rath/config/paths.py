"""Where the files of rath live."""

from __future__ import annotations

from pathlib import Path

from rath.config.env import env_value

__all__ = [
    "CONFIG_FILENAME",
    "OPENRATH_HOME_ENV",
    "PROJECT_MARKER_DIR",
    "USER_DIR_NAME",
    "cache_dir",
    "comes_from_project",
    "config_layer_paths",
    "is_of_some_project",
    "is_project_local",
    "own_config_dir",
    "own_directories",
    "resolve_config_dir",
    "resolve_config_path",
    "user_config_dir",
    "working_directory",
]

OPENRATH_HOME_ENV = "OPENRATH_HOME"
CONFIG_FILENAME = "config.json"
PROJECT_MARKER_DIR = ".openrath"
USER_DIR_NAME = ".openrath"


def resolve_config_dir() -> Path:
    """Return the directory that holds everything rath keeps; creates nothing.

    It is the one that `OPENRATH_HOME` names, else `.openrath` in the working directory where that
    exists, else `.openrath` in the user's home.

    Raises:
        FileNotFoundError: `OPENRATH_HOME` names something that is not a directory, or nothing
            names one and the user's home is not known.
    """
    named = env_value(OPENRATH_HOME_ENV)
    if named is not None:
        directory = _named_directory(named)
        if directory.exists() and not directory.is_dir():
            raise FileNotFoundError(
                f"{OPENRATH_HOME_ENV} names {str(directory)!r}, which is not a directory; name a "
                "directory, which may be new"
            )
        return directory
    project = Path(PROJECT_MARKER_DIR)
    return _real(project) if project.is_dir() else user_config_dir()


def resolve_config_path() -> Path:
    """Return the config file in `resolve_config_dir()`; it may not exist yet."""
    return resolve_config_dir() / CONFIG_FILENAME


def config_layer_paths() -> tuple[Path, ...]:
    """Return the config files that values are read from, the strongest first; creates nothing.

    They are that of the project, where the working directory has an `.openrath`, and that of the
    user. `OPENRATH_HOME` replaces both by the one of the directory it names. None need exist.

    Raises:
        FileNotFoundError: See `resolve_config_dir`.
    """
    # A client asks for this each time it is made, so it does no more than it must.
    first = resolve_config_dir()
    own = None if env_value(OPENRATH_HOME_ENV) is not None else _user_config_dir()
    if own is None or first == own or first == _real(own):
        return (first / CONFIG_FILENAME,)
    return first / CONFIG_FILENAME, own / CONFIG_FILENAME


def user_config_dir() -> Path:
    """Return `.openrath` in the user's home; creates nothing.

    Raises:
        FileNotFoundError: The user's home is not known, as in some containers.
    """
    directory = _user_config_dir()
    if directory is None:
        raise FileNotFoundError(
            "the home directory of this user is not known (HOME is not set and no account tells); "
            f"set {OPENRATH_HOME_ENV} to a directory that may be written"
        )
    return directory


def own_config_dir() -> Path:
    """Return where the user's own word is kept, which no project can write; creates nothing.

    It is the directory that `OPENRATH_HOME` names, unless that is a project's, else `.openrath` in
    the user's home.

    Raises:
        FileNotFoundError: See `resolve_config_dir`.
    """
    if env_value(OPENRATH_HOME_ENV) is not None:
        named = resolve_config_dir()
        if not comes_from_project(named):
            return named
    return user_config_dir()


def own_directories() -> list[Path]:
    """Return the real directories of the user's own configs: that of his home and a named one."""
    own = _user_config_dir()
    found = [] if own is None else [_real(own)]
    if env_value(OPENRATH_HOME_ENV) is not None and not comes_from_project(resolve_config_dir()):
        found.append(resolve_config_dir())
    return found


def working_directory() -> Path | None:
    """Return the working directory, or None where it was deleted."""
    try:
        return Path.cwd()
    except OSError:
        return None


def is_project_local(config_dir: Path) -> bool:
    """Return whether a directory is the `.openrath` of the working directory."""
    return _real(config_dir) == _real(Path(PROJECT_MARKER_DIR))


def comes_from_project(config_dir: Path) -> bool:
    """Return whether what stands there was brought by a project rather than by the user.

    It differs from `is_project_local` in one place: in the user's home directory, `.openrath` is
    the user's own.
    """
    own = _user_config_dir()
    return is_project_local(config_dir) and (own is None or _real(config_dir) != _real(own))


def is_of_some_project(config_dir: Path) -> bool:
    """Return whether a directory is a project's, also one of a project that is elsewhere.

    Every `.openrath` is, but the user's own and the one that `OPENRATH_HOME` names.
    """
    if comes_from_project(config_dir):
        return True
    real = _real(config_dir)
    # By a link or as the target of one, and where the case of letters makes no difference.
    is_marked = PROJECT_MARKER_DIR in (config_dir.name.casefold(), real.name.casefold())
    return is_marked and real not in own_directories()


def _user_config_dir() -> Path | None:
    try:
        return Path.home() / USER_DIR_NAME
    except RuntimeError:
        return None


def _named_directory(named: str) -> Path:
    try:
        return _real(Path(named).expanduser())
    except RuntimeError:
        raise FileNotFoundError(
            f"{OPENRATH_HOME_ENV} names {named!r}, but there is no such user; name a directory, "
            "which may be new"
        ) from None


def _real(path: Path) -> Path:
    """Return a path without links; as it is where links turn in a circle or there is no place."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path


def cache_dir() -> Path:
    """Return the user's cache folder of rath, which may not exist yet."""
    named = env_value("XDG_CACHE_HOME")
    # The XDG specification has relative paths ignored.
    base = Path(named) if named and Path(named).is_absolute() else Path.home() / ".cache"
    return base / "openrath"
