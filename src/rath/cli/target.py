"""The config files that count here, and which of them a verb writes to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rath.cli.terminal import Misuse
from rath.config.credentials import CREDENTIALS_FILENAME
from rath.config.env import env_value
from rath.config.paths import (
    CONFIG_FILENAME,
    OPENRATH_HOME_ENV,
    PROJECT_MARKER_DIR,
    is_project_local,
    resolve_config_path,
    user_config_dir,
)

__all__ = ["ForProject", "Place", "all_places", "target_path"]

ForProject = Annotated[
    bool | None,
    typer.Option(
        "--project/--user",
        help="The config of this directory, or your own; by default the one that "
        "`rath config path` shows as written to.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class Place:
    """A config file that may exist."""

    role: str
    """OPENRATH_HOME, project or user."""

    file: Path

    @property
    def exists(self) -> bool:
        """Whether it is there."""
        return self.file.is_file()

    @property
    def has_keys(self) -> bool:
        """Whether keys stand beside it."""
        return self.file.with_name(CREDENTIALS_FILENAME).is_file()

    @property
    def is_written(self) -> bool:
        """Whether it is the one that is written to unless another is asked for."""
        return self.file == resolve_config_path()


def all_places() -> list[Place]:
    """Return where configs are looked for, the strongest first."""
    if env_value(OPENRATH_HOME_ENV) is not None:
        return [Place(OPENRATH_HOME_ENV, resolve_config_path())]
    if is_project_local(user_config_dir()):
        return [Place("user", resolve_config_path())]
    return [Place("project", target_path(True)), Place("user", target_path(False))]


def target_path(for_project: bool | None) -> Path:
    """Return the config file to write to; it may not exist yet.

    Raises:
        Misuse: One of two was asked for where there is only one.
    """
    if for_project is None:
        return resolve_config_path()
    if env_value(OPENRATH_HOME_ENV) is not None:
        raise Misuse(
            f"{OPENRATH_HOME_ENV} is set, so its directory is the only one; unset it, or leave "
            "out --project and --user"
        )
    project = Path(PROJECT_MARKER_DIR).resolve()
    return (project if for_project else user_config_dir()) / CONFIG_FILENAME
