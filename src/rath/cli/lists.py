"""Options and ends that all lists share: filter, limit, JSON, and what was left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Generic, TypeVar, cast

import typer

from rath._core.dataclasses import dataclass
from rath.cli.render import count_of
from rath.cli.terminal import note, say_json

T = TypeVar("T")

Limit = Annotated[
    int, typer.Option("--limit", "-n", min=0, help="Only the first so many; 0 for all.")
]
TextFilter = Annotated[
    str | None,
    typer.Option("--filter", metavar="TEXT", help="Only those with this text, in any case."),
]
MOST_LISTED = 100
"""Of a list, unless a limit is given."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """The part of a list that is shown."""

    items: Sequence[T]
    n_found: int
    """Of all that fit the filters."""

    n_left_out: int

    noun: str
    """Of one of them, as "session"."""

    order: str = "first"
    """Which of them are shown: "first" or "newest"."""

    @property
    def cut_note(self) -> str:
        """What is left out and how to get it, empty where all is shown."""
        if not self.n_left_out:
            return ""
        found = count_of(self.n_found, self.noun)
        n_shown = self.n_found - self.n_left_out
        return f"the {self.order} {n_shown:,} of {found}; --limit 0 lists all"


def page_of(
    items: Iterable[T], noun: str, *, text: str | None = None, limit: int = 0, order: str = "first"
) -> Page[T]:
    """Return the items with a text in them, as far as the limit goes; 0 is none.

    Args:
        items: Dataclasses, mappings or other values; the text is looked for in what they hold.
        noun: Of one of them.
        text: The filter, in any case.
        limit: How many are shown.
        order: Which ones are shown.
    """
    wanted = (text or "").casefold()
    found = [each for each in items if wanted in _words(each).casefold()] if wanted else [*items]
    shown = found[:limit] if limit else found
    return Page(shown, len(found), len(found) - len(shown), noun, order)


def say_page(
    page: Page[T],
    name: str,
    show: Callable[[Sequence[T]], None],
    *,
    as_json: bool,
    empty: str,
    facts: Mapping[str, object] | None = None,
    encode: Callable[[T], object] = lambda each: each,
) -> None:
    """Write a page of a list, and on stderr what is left out, or that there is nothing.

    Args:
        page: What is shown.
        name: Of the list in JSON.
        show: Writes the items for a person.
        as_json: Write JSON, which says too what is left out.
        empty: What to say of an empty list, if anything.
        facts: Members of the JSON that stand before the list.
        encode: Returns an item for JSON.
    """
    cut_note = page.cut_note
    if as_json:
        payload: dict[str, Any] = {**(facts or {}), name: [encode(each) for each in page.items]}
        payload |= {"n_found": page.n_found, "is_cut": bool(cut_note)}
        say_json(payload | ({"hint": cut_note} if cut_note else {}))
    elif page.items:
        show(page.items)
    if cut_note:
        note(cut_note)
    elif empty and not page.items and not as_json:
        note(empty)


def _words(item: object) -> str:
    """Return all texts that an item holds, on lines of their own."""
    if isinstance(item, Mapping):
        return "\n".join(map(_words, cast("Mapping[object, object]", item).values()))
    if is_dataclass(item) and not isinstance(item, type):
        return "\n".join(_words(getattr(item, each.name)) for each in fields(item))
    if isinstance(item, list | tuple):
        return "\n".join(map(_words, cast("Sequence[object]", item)))
    return "" if item is None else str(item)
