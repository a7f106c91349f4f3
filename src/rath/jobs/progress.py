"""The progress bar of a job on a terminal: items by state, tokens, money and the time left."""

from __future__ import annotations

import sys
from collections import Counter
from decimal import Decimal
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from rich.progress import Progress

    from rath.llm.chat_response import RathLLMTokenUsage


class EndedItem(Protocol):
    """What the bar shows of an item."""

    @property
    def state(self) -> str: ...  # as the class says
    @property
    def usage(self) -> RathLLMTokenUsage | None: ...
    @property
    def cost(self) -> Decimal | None: ...


class JobProgress:
    """A bar that goes on with the items of a job; quiet where there is no terminal.

    Args:
        name: The job.
        n_items: How many items it has.
        shown: Whether to show it; None where stderr is a terminal.
    """

    def __init__(self, name: str, n_items: int, *, shown: bool | None) -> None:
        self._name = name
        self._n_items = n_items
        self._shown = sys.stderr.isatty() if shown is None else shown
        self._counts: Counter[str] = Counter()
        self._tokens = 0
        self._usd = Decimal(0)
        self._in_flight = 0
        self._bar: Progress | None = None

    @property
    def in_flight(self) -> int:
        """How many items are at a worker."""
        return self._in_flight

    @in_flight.setter
    def in_flight(self, number: int) -> None:
        self._in_flight = number
        self._show()

    def add(self, item: EndedItem) -> None:
        """Count an item that has ended."""
        self._counts[item.state] += 1
        self._tokens += 0 if item.usage is None else item.usage.total_tokens
        self._usd += item.cost or 0
        self._show()

    def text(self) -> str:
        """Return the counts in words."""
        states = ("done", "failed", "waiting", "cancelled")
        parts = [f"{self._counts[state]} {state}" for state in states if self._counts[state]]
        parts += [f"{self._in_flight} in flight", f"{self._tokens:,} tokens"]
        if self._usd:
            parts.append(f"{self._usd:.2f} USD")
        return ", ".join(parts)

    def __enter__(self) -> Self:
        if self._shown:
            # Loaded here: most jobs run where nobody looks.
            from rich.console import Console  # noqa: PLC0415
            from rich.progress import (  # noqa: PLC0415
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[counts]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._bar.add_task(self._name, total=self._n_items, counts=self.text())
            self._bar.start()
            self._show()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show(self) -> None:
        if self._bar is not None:
            n_ended = sum(self._counts.values())
            self._bar.update(self._bar.task_ids[0], completed=n_ended, counts=self.text())
