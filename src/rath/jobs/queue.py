"""The engine on a queue in PostgreSQL: its URL, and what stands in the queue of an item.

Needs the extra `queue`, which is imported on first use.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING
from urllib.parse import unquote
from uuid import UUID

from msgspec import Struct

from rath.errors import EngineError, MissingExtra
from rath.jobs.engine import Rate
from rath.session.bindings import WorkspaceMode

if TYPE_CHECKING:
    from rath.jobs.queue_driver import QueueEngine

DEFAULT_QUEUE = "rath"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,29}")
"""A channel of PostgreSQL has at most 63 bytes, and 23 of them are procrastinate's."""


class QueuedItem(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An attempt at an item as the queue has it: ids, names and limits, never code or secrets.

    Whoever can write to the database can write one, so that a worker takes nothing from it but a
    choice among the workflows that it allows, and a session of its own store.
    """

    job: UUID
    driver: UUID
    """Which of the processes that have driven the job is to hear of it."""

    name: str
    reference: str
    """`module:name` of the workflow."""

    store: str
    """`portable_url` of the store of the job, for messages: a worker uses its own."""

    run: UUID
    attempt: int
    session: UUID
    """The input."""

    concurrency: int
    timeout: float | None
    workspace: WorkspaceMode
    rate: Rate | None
    budget_usd: Decimal | None
    used_usd: Decimal

    def __post_init__(self) -> None:
        if self.budget_usd is not None and not self.budget_usd.is_finite():
            raise ValueError("budget_usd is no amount")
        if not self.used_usd.is_finite():
            raise ValueError("used_usd is no amount")


def check_queue_name(name: str) -> str:
    """Return the name of a queue.

    Raises:
        ValueError: It is none.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} names no queue; expected up to 30 letters, digits, '_', '-' and '.'"
        )
    return name


def split_queue(url: str) -> tuple[str, str]:
    """Return the URL of a database without `queue=NAME`, and the name of the queue.

    Raises:
        ValueError: That is no name of a queue.
    """
    place, _, query = url.partition("?")
    options = [each for each in query.split("&") if each]
    named = [unquote(each[6:]) for each in options if each.startswith("queue=")]
    others = "&".join(each for each in options if not each.startswith("queue="))
    name = check_queue_name(next(filter(None, named), DEFAULT_QUEUE))
    return (f"{place}?{others}" if others else place), name


def queue_engine(rest: str) -> QueueEngine:
    """Return the engine that has items carried out by `rath worker`.

    Args:
        rest: `//user@host:5432/database?queue=NAME`; besides what libpq takes, `schema=NAME` as in
            the URL of a store. The queue is `rath` by default.

    Raises:
        MissingExtra: procrastinate or psycopg is not installed.
        EngineError: It is no such URL.
    """
    try:
        from rath.jobs.queue_driver import QueueEngine
        from rath.session.log.postgres_connection import Address
    except ImportError as exc:
        raise MissingExtra("queue", "carrying out jobs by a queue in PostgreSQL") from exc
    try:
        url, name = split_queue(f"postgres:{rest}")
        return QueueEngine(Address.from_url(url), name)
    except ValueError as exc:
        # Not its text: that of an address speaks of a store, and none repeats a secret.
        raise EngineError(
            "the URL of the queue cannot be understood; write it as in "
            f"postgres://user@host:5432/database?queue={DEFAULT_QUEUE}, with special characters "
            "as %XX, and a name of at most 30 letters, digits, '_', '-' and '.'"
        ) from exc
