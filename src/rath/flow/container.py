"""Containers whose items are parts of a workflow: a list, a dict and a chain."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Self, overload

from rath.flow.workflow import Workflow
from rath.session import Session
from rath.session.derive import MergedFiles

__all__ = ["Merge", "Sequential", "WorkflowDict", "WorkflowList"]


class WorkflowList(Workflow, MutableSequence[Workflow]):
    """A list of workflows; its items are parts of the workflow that holds it.

    It behaves like `list` and compares by identity. It is not called itself: its items are.
    """

    def __init__(self, workflows: Iterable[Workflow] = (), *, description: str = "") -> None:
        super().__init__(description)
        self._items: list[Workflow] = []
        self.extend(workflows)

    def named_children(self) -> tuple[tuple[str, Workflow], ...]:
        """Return further attributes by name, then the items by position."""
        items = tuple((str(index), item) for index, item in enumerate(self._items))
        return (*super().named_children(), *items)

    def insert(self, index: int, value: Workflow) -> None:
        """Put a workflow before position `index`."""
        self._items.insert(index, _check_workflow(value))

    def forward(self, session: Session) -> Session:
        raise NotImplementedError(_NOT_CALLED.format(type(self).__name__))

    @overload
    def __getitem__(self, index: int) -> Workflow: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Workflow | Self:
        return self._like(self._items[index]) if isinstance(index, slice) else self._items[index]

    @overload
    def __setitem__(self, index: int, value: Workflow) -> None: ...
    @overload
    def __setitem__(self, index: slice, value: Iterable[Workflow]) -> None: ...
    def __setitem__(self, index: int | slice, value: Workflow | Iterable[Workflow]) -> None:
        if isinstance(index, slice):
            if not isinstance(value, Iterable):
                raise TypeError(f"a slice takes workflows, got {type(value).__name__}")
            self._items[index] = [_check_workflow(item) for item in value]
        else:
            self._items[index] = _check_workflow(value)

    def __delitem__(self, index: int | slice) -> None:
        del self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def _like(self, items: Iterable[Workflow]) -> Self:
        return type(self)(items)


class WorkflowDict(Workflow, MutableMapping[str, Workflow]):
    """A dict of workflows; its values are parts of the workflow that holds it.

    It behaves like `dict`, keeps insertion order and compares by identity. It is not called
    itself: its values are.
    """

    def __init__(
        self,
        workflows: Mapping[str, Workflow] | Iterable[tuple[str, Workflow]] = (),
        *,
        description: str = "",
    ) -> None:
        super().__init__(description)
        self._items: dict[str, Workflow] = {}
        self.update(workflows)

    def named_children(self) -> tuple[tuple[str, Workflow], ...]:
        """Return further attributes by name, then the values under their keys, in order."""
        return (*super().named_children(), *self._items.items())

    def forward(self, session: Session) -> Session:
        raise NotImplementedError(_NOT_CALLED.format(type(self).__name__))

    def popitem(self) -> tuple[str, Workflow]:
        """Take out the item that was put in last."""
        return self._items.popitem()

    def __getitem__(self, key: str) -> Workflow:
        return self._items[key]

    def __setitem__(self, key: str, value: Workflow) -> None:
        self._items[_check_key(key)] = _check_workflow(value)

    def __delitem__(self, key: str) -> None:
        del self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    # Mapping compares by content, which would leave a workflow without a hash.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class Sequential(WorkflowList):
    """Workflows that run one after another, each on the session of the one before.

    Example:
        >>> from rath import flow
        >>> flow.Sequential(flow.EmptyWorkflow(), flow.EmptyWorkflow())
        Sequential(
          (0): EmptyWorkflow()
          (1): EmptyWorkflow()
        )
    """

    def __init__(self, *workflows: Workflow, description: str = "") -> None:
        super().__init__(workflows, description=description)

    def forward(self, session: Session) -> Session:
        """Run the chain; an empty one returns the session itself."""
        for workflow in self:
            session = workflow(session)
        return session

    def _like(self, items: Iterable[Workflow]) -> Self:
        return type(self)(*items)


_NOT_CALLED = (
    "{0} holds workflows and does not say in which order they run; call its items, or use "
    "flow.Sequential"
)


def _check_workflow(value: object) -> Workflow:
    if not isinstance(value, Workflow):
        raise TypeError(f"only workflows can be held here, got {type(value).__name__}")
    return value


def _check_key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a workflow is held under a name, got a key of {type(key).__name__}")
    if not key or "." in key:
        raise ValueError(f"the name {key!r} is empty or has a dot, which separates names in paths")
    return key


class Merge:
    """A function of sessions: their rows one after the other, those that they share once.

    Args:
        files: With which files the merged session begins, as in `Session.merge`.
    """

    def __init__(self, files: MergedFiles | None = None) -> None:
        self.files: MergedFiles | None = files

    def __call__(self, session: Session, *others: Session) -> Session:
        """Return all of them merged, in this order."""
        return functools.reduce(
            lambda merged, other: merged.merge(other, files=self.files), others, session
        )

    def __repr__(self) -> str:
        return "Merge()" if self.files is None else f"Merge(files={self.files!r})"
