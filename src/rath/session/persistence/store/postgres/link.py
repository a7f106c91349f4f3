"""A connection that threads share, and that is made anew after it broke."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from rath.errors import PersistenceError
from rath.session.persistence.store.postgres.address import Address
from rath.session.persistence.store.postgres.tables import enter_schema

T = TypeVar("T")

_DURABLE = "SET synchronous_commit TO on"
_NOT_DURABLE = "SET synchronous_commit TO off"

Work = Callable[[psycopg.Connection], T]


class Link:
    """One connection to a database, used by one thread at a time.

    Args:
        address: Which database.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.life = 0
        """Which connection it is on by now: what was held on an earlier one is lost."""

        self._busy = threading.RLock()
        self._connection: psycopg.Connection | None = None
        self._process = 0
        self._is_durable: bool | None = None

    def run(self, what: str, work: Work[T]) -> T:
        """Return what `work` returns, on a connection that answers.

        Args:
            what: What does not work when it fails, for the message.
            work: Called once.

        Raises:
            PersistenceError: The server cannot be reached or refuses, or the connection broke.
        """
        with self._busy:
            try:
                return self._worked(self._answering(), work)
            except psycopg.Error as exc:
                raise self.address.error(what, exc) from exc

    def run_on(self, life: int, what: str, work: Work[T]) -> T:
        """Return what `work` returns, on the same connection as before.

        Raises:
            PersistenceError: As `run`, or the connection of that life is gone.
        """
        with self._busy:
            is_own = self._process == os.getpid()
            if not is_own or life != self.life or self._connection is None:
                raise PersistenceError(
                    f"{self.address.where}: {what}: the connection that held the lock broke; what "
                    "was written before can still be read"
                )
            try:
                return self._worked(self._connection, work)
            except psycopg.Error as exc:
                raise self.address.error(what, exc) from exc

    def set_durable(self, connection: psycopg.Connection, *, durable: bool) -> None:
        """Let what is committed next survive a loss of power, or not wait for that.

        Who makes a line durable makes those before it so: commits keep their order.
        """
        if self._is_durable != durable:
            self._is_durable = None
            connection.execute(_DURABLE if durable else _NOT_DURABLE)
            self._is_durable = durable

    def close(self) -> None:
        """Give the connection back; the next use makes a new one."""
        with self._busy:
            self._drop()

    def _worked(self, connection: psycopg.Connection, work: Work[T]) -> T:
        try:
            return work(connection)
        finally:
            # Also after an interrupt: nobody knows what the server makes of what it was sent.
            if connection.info.transaction_status != TransactionStatus.IDLE:
                self._drop()

    def _answering(self) -> psycopg.Connection:
        if self._process != os.getpid():
            # A fork must not talk on the connection of its parent, nor close it.
            self._connection, self._process = None, os.getpid()
        if self._connection is not None:
            try:
                self._connection.execute("SELECT 1")
            except psycopg.Error:
                self._drop()
            else:
                return self._connection
        connection = self.address.connect()
        try:
            enter_schema(connection, self.address.schema)
        except BaseException:
            connection.close()
            raise
        self.life += 1
        self._is_durable = None
        self._connection = connection
        return connection

    def _drop(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
            self._connection = None
