"""Which store belongs to the project that the program runs in."""

from __future__ import annotations

from pathlib import Path
from uuid import NAMESPACE_URL, UUID, uuid5

from rath.config.paths import PROJECT_MARKER_DIR, user_config_dir

_MARKERS = (".git", "pyproject.toml", PROJECT_MARKER_DIR)


def project_root(directory: Path) -> Path:
    """Return the nearest directory, from `directory` upwards, that is the root of a project.

    It holds `.git`, `pyproject.toml` or `.openrath`, other than the one of the user's home; where
    there is none, the project is `directory` itself.
    """
    start = directory.resolve()
    own = _users_own()
    for place in (start, *start.parents):
        if any((place / name).exists() and place / name != own for name in _MARKERS):
            return place
    return start


def _users_own() -> Path | None:
    """Return the directory of the user, which marks no project; None where it is not known."""
    try:
        return user_config_dir().resolve()
    except OSError:
        return None


def store_id(root: Path, namespace: str | None = None) -> UUID:
    """Return the stable id of a project's store, or of one of its namespaces."""
    project = uuid5(NAMESPACE_URL, root.as_uri())
    return project if namespace is None else uuid5(project, namespace)
