"""Data for workflows: the items of a dataset as sessions, in an order that can be gone on with."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar, cast, runtime_checkable

from rath._async.runtime import runtime, wait_interruptibly
from rath.session.session import Session

__all__ = ["SessionLoader", "session_of"]

T = TypeVar("T")
STATE_VERSION = 1


@runtime_checkable
class _Indexed(Protocol):
    """A dataset that gives any of its items by position."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def session_of(item: object) -> Session:
    """Return the session that a workflow is called with for an item of data.

    Args:
        item: A session, the text of a user, or a mapping or an object whose `input` is one of both.

    Raises:
        TypeError: It is something else.
    """
    made: object = item
    if not isinstance(item, Session | str):
        made = member_of(item, "input")
    if isinstance(made, str):
        return Session.from_user_message(made)
    if not isinstance(made, Session):
        raise TypeError(
            f"no session can be made of {item!r:.80}: expected a Session, a text, or something "
            "with `input`; or give the function that makes one"
        )
    return made  # pyright: ignore[reportUnknownVariableType]  # of any output


def member_of(item: object, name: str) -> object:
    """Return a member of a mapping, or an attribute of an object; None where there is none."""
    if isinstance(item, Mapping):
        return cast("Mapping[object, object]", item).get(name)
    return getattr(item, name, None)


class SessionLoader(Generic[T]):
    """Iterates over a dataset and yields what is made of its items, by default sessions.

    Each iteration is an epoch. `state_dict()` says how far the epoch under way has come; a loader
    of the same dataset with that state goes on behind the last item that was yielded.

    Args:
        dataset: A sequence, anything with `len` and positions, or an iterable, whose items come in
            its own order.
        sampler: The positions of an epoch, in order; iterated anew for each.
        shuffle: Whether to take the items in an order of chance, another one in each epoch.
        seed: Decides that order; the same seed and epoch give the same order everywhere.
        collate: Makes what is yielded of an item, or of a list of items where `batch_size` is set.
        batch_size: How many items are yielded together, as a list; None yields each alone.
        prefetch: How many items or batches are made ahead, side by side on worker threads.

    Raises:
        TypeError: The dataset has no positions, and `sampler` or `shuffle` needs them.
        ValueError: Both `sampler` and `shuffle` are given, or a number is out of its range.
    """

    def __init__(
        self,
        dataset: Sequence[Any] | Iterable[Any],
        *,
        sampler: Iterable[int] | None = None,
        shuffle: bool = False,
        seed: int = 0,
        collate: Callable[[Any], T] | None = None,
        batch_size: int | None = None,
        prefetch: int = 0,
    ) -> None:
        if sampler is not None and shuffle:
            raise ValueError("give a sampler or shuffle=True, not both: a sampler has its order")
        if (sampler is not None or shuffle) and not isinstance(dataset, _Indexed):
            raise TypeError(
                f"a sampler and shuffle=True need a dataset with len() and positions; "
                f"{type(dataset).__name__} has none"
            )
        if prefetch < 0:
            raise ValueError(f"prefetch must be at least 0, not {prefetch}")
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1 or None, not {batch_size}")
        self.dataset = dataset
        self.sampler = sampler
        self.shuffle = shuffle
        self.seed = seed
        self.batch_size = batch_size
        self.prefetch = prefetch
        self._collate = collate
        self._epoch = 0
        self._position = 0

    def __len__(self) -> int:
        """Return how many items or batches an epoch has."""
        if self.sampler is not None:
            n_items = sum(1 for _ in self.sampler)
        elif isinstance(self.dataset, _Indexed):
            n_items = len(self.dataset)
        else:
            raise TypeError(f"{type(self.dataset).__name__} has no length")
        return n_items if self.batch_size is None else -(-n_items // self.batch_size)

    def __iter__(self) -> Iterator[T]:
        """Yield the rest of the epoch under way, or a new one."""
        made: deque[tuple[int, Future[T]]] = deque()
        rest = self._rest()
        try:
            for n_taken, items in rest:
                made.append((n_taken, runtime().start_in_worker(partial(self._made_of, items))))
                if len(made) > self.prefetch:
                    yield self._next(made)
            while made:
                yield self._next(made)
        finally:
            for _, future in made:
                future.cancel()
        self._epoch, self._position = self._epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return how far the epoch under way has come, as plain JSON."""
        return {**self._order(), "epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the loader of a state was.

        Raises:
            ValueError: It is the state of another order, or none.
        """
        for name, value in self._order().items():
            if state.get(name) != value:
                raise ValueError(
                    f"the state is of another loader: its {name} is {state.get(name)!r}, and here "
                    f"it is {value!r}"
                )
        epoch, position = state.get("epoch"), state.get("position")
        if not (isinstance(epoch, int) and isinstance(position, int)) or min(epoch, position) < 0:
            raise ValueError(f"no state of a loader: epoch {epoch!r}, position {position!r}")
        self._epoch, self._position = epoch, position

    def _order(self) -> dict[str, Any]:
        """Return what decides the order of the items."""
        n_shuffled = len(cast("_Indexed", self.dataset)) if self.shuffle else None
        return {
            "version": STATE_VERSION,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "n_shuffled": n_shuffled,
        }

    def _next(self, made: deque[tuple[int, Future[T]]]) -> T:
        n_taken, future = made.popleft()
        wait_interruptibly(future)
        result = future.result()
        self._position += n_taken
        return result

    def _rest(self) -> Iterator[tuple[int, Any]]:
        """Yield what is left of the epoch: how many items, and these or the one."""
        items = islice(self._items(), self._position, None)
        if self.batch_size is None:
            yield from ((1, item) for item in items)
            return
        while batch := list(islice(items, self.batch_size)):
            yield len(batch), batch

    def _items(self) -> Iterator[Any]:
        dataset = self.dataset
        if self.sampler is None and not self.shuffle:
            yield from dataset
            return
        indexed = cast("_Indexed", dataset)
        order: Iterable[int] = range(len(indexed)) if self.sampler is None else self.sampler
        if self.shuffle:
            order = list(order)
            random.Random(f"{self.seed} {self._epoch}").shuffle(order)
        for index in order:
            yield indexed[index]

    def _made_of(self, items: Any) -> T:
        if self._collate is not None:
            return self._collate(items)
        made = session_of(items) if self.batch_size is None else [session_of(one) for one in items]
        return cast("T", made)
