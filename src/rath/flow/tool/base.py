"""The tool that a model can call: its name, its schema and what it does to a session."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

from rath._core.options import origin_of
from rath._core.references import Reduction, Referenced, not_portable
from rath.config.redaction import find_secret_attribute
from rath.session import Session
from rath.session.tooling import ApprovalRule, ToolEffects

__all__ = ["FlowToolCall"]


class FlowToolCall(Referenced, ABC):
    """A function with a JSON Schema that a model may call during a run.

    Subclass it and give `name`, `parameters` and `__call__`, which may be `def` or `async def`.
    """

    parallel_safe: bool = False
    """Whether calls may run beside other calls of their round; if not, a call is a barrier."""

    timeout: float | None = None
    """Seconds one call may take; None takes the loop's own limit."""

    effects: ToolEffects = "non_idempotent"
    """Effects of repeating a call; only "read_only" and "idempotent" calls are ever repeated
    without asking."""

    approval: ApprovalRule = "never"
    """Whether somebody must allow a call before it is made: "never", "always", or a function that
    gets a `CallRequest` and says so."""

    show_traceback: bool = False
    """Whether the model reads where and how the tool raised; the record has that anyway."""

    _description: str | None
    """What an object says of itself, where it does."""

    def _pickle_reference(self) -> Reduction | None:
        """Return None: its class and its attributes.

        Raises:
            TypeError: An attribute holds what must not travel.
        """
        refuse_secrets(self)
        return None

    @property
    @abstractmethod
    def name(self) -> str:
        """Name under which the model calls it; unique among the tools of a run."""

    @property
    def description(self) -> str | None:
        """Description for the model: the effect of the tool, and when to use it."""
        return None

    def with_description(self, text: str) -> Self:
        """Return a copy of this tool that models are told `text` of.

        Raises:
            TypeError: The class decides the text; override this method to change that.
        """
        if not self.has_own_description:
            raise TypeError(
                f"the description of tool {self.name!r} is decided by its class "
                f"{type(self).__name__}; override with_description there"
            )
        tool = copy.copy(self)
        tool._description = text  # noqa: SLF001  # a copy of this very object
        if tool.description != text:
            raise TypeError(
                f"{type(self).__name__}.description does not say its _description; override "
                "with_description there"
            )
        return tool

    @property
    def has_own_description(self) -> bool:
        """Whether the description belongs to the object, so that `with_description` works."""
        return "_description" in vars(self)

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Any]:
        """JSON Schema of the arguments; the loop checks every call against it."""

    @property
    def origin(self) -> str:
        """Origin of the tool, for the record: `module:qualname` of its class."""
        return origin_of(type(self))

    @abstractmethod
    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        """Run one call and return what the model shall read, as text or something JSON can hold.

        A `rath.llm.image.Image` may stand in it, in lists, tuples and dicts too: the model is shown
        it beside the text, in which its label stands.

        Args:
            session: A snapshot of the calling session: its rows so far and its sandbox.
            arguments: What the model gave, already checked against `parameters`.
        """

    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """Return what a call works on: calls with equal keys never overlap."""
        return ("safe", self.name) if self.parallel_safe else ("global",)


def refuse_secrets(owner: object) -> None:
    """Refuse to send an object whose attributes may hold a secret.

    Raises:
        TypeError: One may; the text names it.
    """
    place = find_secret_attribute(owner)
    if place is not None:
        raise not_portable(
            f"{type(owner).__name__}.{place} may hold a secret, which must not travel",
            "leave it out, and read it from the environment where it is used",
        )
