"""Where the files of rath live."""

from __future__ import annotations

from pathlib import Path

from rath.config.env import env_value

__all__ = [
    "CONFIG_FILENAME",
    "OPENRATH_HOME_ENV",
    "PROJECT_MARKER_DIR",
    "USER_DIR_NAME",
    "is_project_local",
    "resolve_config_dir",
    "resolve_config_path",
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
        FileNotFoundError: `OPENRATH_HOME` names something that is not a directory.
    """
    named = env_value(OPENRATH_HOME_ENV)
    if named is not None:
        directory = Path(named).expanduser().resolve()
        if directory.exists() and not directory.is_dir():
            raise FileNotFoundError(
                f"{OPENRATH_HOME_ENV} names {str(directory)!r}, which is not a directory; name a "
                "directory, which may be new"
            )
        return directory
    project = Path(PROJECT_MARKER_DIR)
    return project.resolve() if project.is_dir() else user_config_dir()


def resolve_config_path() -> Path:
    """Return the config file in `resolve_config_dir()`; it may not exist yet."""
    return resolve_config_dir() / CONFIG_FILENAME


def user_config_dir() -> Path:
    """Return `.openrath` in the user's home; creates nothing."""
    return Path.home() / USER_DIR_NAME


def is_project_local(config_dir: Path) -> bool:
    """Return whether a directory is the `.openrath` of the working directory."""
    return _real(config_dir) == _real(Path(PROJECT_MARKER_DIR))


def comes_from_project(config_dir: Path) -> bool:
    """Return whether what stands there was brought by a project rather than by the user.

    It differs from `is_project_local` in one place: in the user's home directory, `.openrath` is
    the user's own.
    """
    return is_project_local(config_dir) and _real(config_dir) != _real(user_config_dir())


def _real(path: Path) -> Path:
    return path.expanduser().resolve()
