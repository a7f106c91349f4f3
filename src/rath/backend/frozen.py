"""The files of a workspace at one moment, from which other workspaces begin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from rath.backend.manifest import Manifest


class FrozenWorkspace(ABC):
    """The files of a workspace as they were when it was frozen.

    Freezing costs nothing: the files are copied before somebody changes them, at the latest. They
    stay as long as the object is held.
    """

    @abstractmethod
    async def amanifest(self) -> Manifest:
        """Return what it holds, without ignored directories."""

    @abstractmethod
    async def aread(self, path: str) -> bytes:
        """Return the content of a file, the target of a link.

        Raises:
            FileNotFoundError: It holds no such file.
        """

    @abstractmethod
    def base_with(self, other: FrozenWorkspace) -> FrozenWorkspace | None:
        """Return the youngest frozen files that both came from; None where there are none."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """Content and mode of a file that is put into a new workspace."""

    data: bytes
    mode: int
    """Type and permission bits, `st_mode`; for a link `data` is its target."""


@dataclass(frozen=True, slots=True)
class Seed:
    """What a new workspace begins with."""

    frozen: FrozenWorkspace
    changes: Mapping[str, NewFile | None] = field(default_factory=dict[str, "NewFile | None"])
    """What differs from the frozen files, by path; None where a file is left out."""


Origin = Callable[[], Awaitable[Seed]]
"""Finds what a workspace begins with, when it is opened; called on the runtime, once."""
