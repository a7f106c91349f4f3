"""The log of a run takes what happens in it, and nothing that comes after its end."""

from __future__ import annotations

import asyncio

from rath._async.deferred import Deferred
from rath.session import ChunkTable
from rath.session.outcome import Completed
from rath.session.record import ModelCall
from rath.session.run.run_log import RunLog
from tests.support.api import Body
from tests.support.sessions import run


def test_what_an_abandoned_call_notes_after_the_end_is_no_part_of_the_run() -> None:
    inner = run(["hello"]).synchronize()
    (call,) = (entry for entry in inner.record if isinstance(entry, ModelCall))
    log = RunLog(inner.id, Deferred(inner.id, ()), None)
    log.start(Body(ChunkTable()))

    async def finish() -> None:
        async with log:
            log.take(call, None)
            log.end(Completed())

    asyncio.run(finish())
    log.take(inner.record[0], None)
    assert list(log.body.record) == [call]
