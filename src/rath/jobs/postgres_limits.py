"""The limits of a job as one row of PostgreSQL, for workers that share nothing but a database."""

from __future__ import annotations

from functools import partial
from typing import cast

import msgspec
import psycopg
from psycopg import sql

from rath._async.runtime import runtime
from rath.jobs.engine import JobSpec
from rath.jobs.limits import Lease, LeaseRequest, LimitState, SharedLimits
from rath.session.log.postgres_connection import Address, SharedConnection

_TABLE = "job_limits"

MAKE_TABLE = """
CREATE TABLE IF NOT EXISTS job_limits (job uuid PRIMARY KEY, state jsonb NOT NULL)
"""
_ADD = "INSERT INTO job_limits VALUES (%s, %s::jsonb) ON CONFLICT DO NOTHING"
_LOCK = """
WITH locked AS MATERIALIZED (SELECT state FROM job_limits WHERE job = %s FOR UPDATE)
SELECT state::text, extract(epoch FROM clock_timestamp())::float8 FROM locked
"""
"""The time is told once the row is ours: what was granted while we waited is not from later."""

_decode_state = msgspec.json.Decoder(LimitState).decode
_SAVE = "UPDATE job_limits SET state = %s::jsonb WHERE job = %s"


class PostgresLimits:
    """The limits of one job, shared by all who name its database; see `SharedLimits`.

    Each exchange is one short transaction on a worker thread, with the row locked, and the clock is
    that of the database. The row outlives the workers and the driver, and so does what was used.

    Args:
        address: The database, and the schema.
        spec: The job. Of `used_usd` and what the row knows the larger one counts.
    """

    def __init__(self, address: Address, spec: JobSpec) -> None:
        self._spec = spec
        self._address = address
        self._connection = SharedConnection(address)
        self._life = -1

    async def exchange(self, request: LeaseRequest) -> Lease:
        """See `LimitSource`.

        Raises:
            PersistenceError: The database cannot be reached, or refuses.
        """
        work = partial(self._exchange, request)
        run = partial(self._connection.run, "sharing limits", work, repeatable=True)
        return await runtime().call_in_worker(run)

    def close(self) -> None:
        """Give the connection back; the next exchange makes a new one."""
        self._connection.close()

    def _exchange(self, request: LeaseRequest, on: psycopg.Connection) -> Lease:
        if self._life != self._connection.life:
            self._make_row(on)
            self._life = self._connection.life
        job, spec = self._spec.job, self._spec
        with on.transaction():
            row = on.execute(_LOCK, (job,)).fetchone()
            if row is None:  # somebody has deleted it
                self._life = -1
                return self._exchange(request, on)
            text, now = cast("tuple[str, float]", row)
            state = _decode_state(text)
            state.used_usd = max(state.used_usd, spec.used_usd)
            limits = SharedLimits(spec.rate, spec.budget_usd, clock=lambda: now, state=state)
            lease = limits.lease(request)
            on.execute(_SAVE, (msgspec.json.encode(state).decode(), job))
        return lease

    def _make_row(self, on: psycopg.Connection) -> None:
        with on.transaction():
            found = on.execute(
                "SELECT to_regclass(%s) IS NOT NULL",
                (sql.Identifier(self._address.schema, _TABLE).as_string(on),),
            ).fetchone()
            if found is None or not found[0]:
                # Two that make one table at the same time hinder each other.
                on.execute("SELECT pg_advisory_xact_lock(%s)", (self._address.lock_key(_TABLE),))
                on.execute(MAKE_TABLE)
            on.execute(_ADD, (self._spec.job, msgspec.json.encode(LimitState()).decode()))
