"""Control groups: what all processes of a sandbox may use together, where we may make groups."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterator, Sequence

from rath._core.dataclasses import dataclass
from rath.backend.host.paths import is_stale, new_name

_CONTROLLERS = ("memory", "pids")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A directory below which groups can be made, and what they can limit."""

    parent: str
    controllers: tuple[str, ...]
    version: int

    def settings(self, memory_bytes: int, processes: int) -> list[tuple[str, str]]:
        """Return which file of a group gets which content; the first that is there, required."""
        memory, n = str(memory_bytes), str(processes)
        settings: list[tuple[str, str]] = []
        if "memory" in self.controllers and self.version == 1:
            settings += [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)]
        if "memory" in self.controllers and self.version == 2:
            settings += [("memory.max", memory), ("memory.swap.max", "0")]
        if "pids" in self.controllers:
            settings.append(("pids.max", n))
        return settings


_OPTIONAL = ("memory.memsw.limit_in_bytes", "memory.swap.max")
"""Files of kernels that count swap; without them there is no swap to count, or no way to."""


class ControlGroups:
    """Makes a group for each sandbox, and removes those that dead processes have left."""

    def __init__(self, hierarchies: Sequence[Hierarchy]) -> None:
        self.hierarchies: tuple[Hierarchy, ...] = tuple(hierarchies)

    @classmethod
    def here(cls) -> ControlGroups | None:
        """Return the groups that this process can make; None when it cannot limit both."""
        found = list(find_hierarchies("/proc/self/mountinfo", "/proc/self/cgroup"))
        limited = {controller for each in found for controller in each.controllers}
        return cls(found) if limited.issuperset(_CONTROLLERS) else None

    def make(self, memory_bytes: int, processes: int) -> ControlGroup:
        """Make a group in each hierarchy and set its limits.

        Raises:
            OSError: The kernel refuses.
        """
        name = new_name("bwrap")
        group = ControlGroup(tuple(os.path.join(each.parent, name) for each in self.hierarchies))
        try:
            for directory, hierarchy in zip(group.directories, self.hierarchies, strict=True):
                os.mkdir(directory)
                for file, content in hierarchy.settings(memory_bytes, processes):
                    path = os.path.join(directory, file)
                    if file not in _OPTIONAL or os.path.exists(path):
                        with open(path, "w", encoding="utf-8") as limit:
                            limit.write(content)
        except BaseException:
            group.remove()
            raise
        return group

    def prune(self) -> None:
        """Remove the groups of processes that have ended, with what still runs in them."""
        for hierarchy in self.hierarchies:
            with contextlib.suppress(OSError):
                for name in filter(is_stale, os.listdir(hierarchy.parent)):
                    ControlGroup((os.path.join(hierarchy.parent, name),)).remove()


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The directories of one group, one in each hierarchy."""

    directories: tuple[str, ...]

    @property
    def entrances(self) -> list[str]:
        """Files into which a process writes 0 to become a member."""
        return [os.path.join(directory, "cgroup.procs") for directory in self.directories]

    def remove(self) -> None:
        """Kill what is left in the group, and remove it; blocks for half a second at most.

        What the kernel has not buried by then keeps its directory; `prune` removes that later.
        """
        left = self.directories
        pause = 0.001
        while left and pause < 0.3:
            for directory in left:
                _kill_members(directory)
            left = tuple(directory for directory in left if not _is_removed(directory))
            if left:
                # The kernel tells nobody when the last member of a group has been buried.
                time.sleep(pause)
                pause *= 2


def find_hierarchies(mounts: str, own: str) -> Iterator[Hierarchy]:
    """Yield the hierarchies that are mounted and in which we can make groups.

    Args:
        mounts: File as /proc/self/mountinfo.
        own: File as /proc/self/cgroup.
    """
    for hierarchy in _mounted(mounts, own):
        found = _open_to_us(hierarchy)
        if found is not None:
            yield found


def _mounted(mounts: str, own: str) -> Iterator[Hierarchy]:
    """Yield the hierarchies that are mounted, each with the group of this process as parent."""
    groups: dict[str, str] = {}
    with open(own, encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            groups |= dict.fromkeys(controllers.split(","), path)
    with open(mounts, encoding="utf-8") as file:
        for line in file:
            place, _, kind = line.partition(" - ")
            _, _, _, root, point, *_ = place.split(" ")
            system, _, options = kind.split()[:3]
            if system == "cgroup2":
                yield Hierarchy(_below(point, root, groups.get("", "/")), _CONTROLLERS, 2)
            elif system == "cgroup":
                named = tuple(each for each in _CONTROLLERS if each in options.split(","))
                if named:
                    yield Hierarchy(_below(point, root, groups.get(named[0], "/")), named, 1)


def _below(point: str, root: str, path: str) -> str:
    """Return where the group `path` is found when the group `root` is mounted at `point`."""
    inside = os.path.relpath(path, root)
    return point if inside == "." or inside.startswith("..") else os.path.join(point, inside)


def _open_to_us(hierarchy: Hierarchy) -> Hierarchy | None:
    """Return the hierarchy with the nearest group above ours below which we can make groups."""
    parent = hierarchy.parent
    if hierarchy.version == 1:
        return hierarchy if _is_open(parent) else None
    # Version 2: a group with processes of its own seldom has groups with limits below it.
    while _is_open(parent):
        enabled = _enabled(parent)
        if enabled:
            return Hierarchy(parent, enabled, 2)
        parent = os.path.dirname(parent)
    return None


def _is_open(group: str) -> bool:
    entrance = os.path.join(group, "cgroup.procs")
    return os.access(group, os.W_OK | os.X_OK) and os.access(entrance, os.W_OK)


def _enabled(group: str) -> tuple[str, ...]:
    """Return which of the two limits groups below `group` can have."""
    try:
        with open(os.path.join(group, "cgroup.subtree_control"), encoding="utf-8") as file:
            words = file.read().split()
    except OSError:
        return ()
    return tuple(each for each in _CONTROLLERS if each in words)


def _kill_members(directory: str) -> None:
    with contextlib.suppress(OSError), open(os.path.join(directory, "cgroup.procs")) as members:
        for pid in map(int, members):
            # 0 stands for a process that this one cannot see.
            if pid > 0:
                os.kill(pid, signal.SIGKILL)


def _is_removed(directory: str) -> bool:
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return True
    except OSError as exc:
        return exc.errno != errno.EBUSY
    return True
