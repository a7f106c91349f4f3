"""What stands between operations and the files of a sandbox, so that frozen files stay frozen."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path

from rath._async.runtime import runtime
from rath._core.retention import remove_tree
from rath.backend.host.frozen import TREES, HostFrozen, freeze_tree
from rath.backend.host.guard_trees import Lineage, Tree
from rath.backend.host.layer import Layer, LayerKind
from rath.backend.host.paths import Workspace
from rath.backend.host.process import Command

_logger = logging.getLogger(__name__)


class Guard(ABC):
    """Lets operations of one sandbox at its files; used on the runtime loop, `freeze` anywhere."""

    @property
    @abstractmethod
    def workspace(self) -> Workspace:
        """Where the files are now; it may be another directory after the first change."""

    @property
    @abstractmethod
    def tree(self) -> Tree[HostFrozen]:
        """The directory that its operations change."""

    @property
    def layer(self) -> Layer | None:
        """The layer of a workspace of its own, None before its first change and elsewhere."""
        return None

    @property
    def layer_kind(self) -> LayerKind | None:
        """What holds the files of a workspace of its own; None for a plain directory."""
        return None

    @abstractmethod
    def reading(self) -> AbstractAsyncContextManager[None]:
        """Surround an operation that can change nothing."""

    @abstractmethod
    def writing(self) -> AbstractAsyncContextManager[None]:
        """Surround any other operation; what is frozen is safe from it.

        Raises:
            CopyFailed: Frozen files that somebody holds cannot be copied; nothing was changed.
        """

    @abstractmethod
    def freeze(self, lineage: Lineage[HostFrozen] | None) -> HostFrozen:
        """Return the files as they are now; O(1), on any thread.

        Args:
            lineage: History of the workspace before it was opened, if there is one.
        """

    @abstractmethod
    def entering(self, command: Command) -> Command:
        """Return the command that runs `command` where the files are."""

    @abstractmethod
    async def aclose(self) -> None:
        """Free what it holds; frozen files that somebody holds outlive it."""


class TreeGuard(Guard):
    """The guard of a directory that may be shared with other sandboxes of this process."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._tree = TREES.at(workspace.root)

    @property
    def workspace(self) -> Workspace:
        return self._workspace

    @property
    def tree(self) -> Tree[HostFrozen]:
        return self._tree

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[None]:
        yield

    def writing(self) -> AbstractAsyncContextManager[None]:
        return TREES.writing(self._tree)

    def freeze(self, lineage: Lineage[HostFrozen] | None) -> HostFrozen:
        return freeze_tree(self._tree, self._workspace.root, lineage)

    def entering(self, command: Command) -> Command:
        return command

    async def aclose(self) -> None:
        workspace = self._workspace
        is_there = partial(os.path.isdir, workspace.root)
        if workspace.is_owned and await runtime().call_in_worker(is_there):
            # At exit nobody is left who could use what is frozen.
            keep = nullcontext() if runtime().is_closing else self.writing()
            async with keep:
                await runtime().call_in_worker(partial(remove_owned, workspace.root))


def remove_owned(root: str) -> None:
    """Remove a directory that was made for a sandbox; what stays is logged. Blocks."""
    try:
        remove_tree(Path(root))
    except OSError as exc:
        _logger.warning("%s cannot be removed: %s; do it by hand", root, exc)
