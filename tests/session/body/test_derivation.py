"""Content that is made of the content of other sessions."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from rath._async.lazy import Deferred
from rath.session import ChunkTable
from rath.session.body import derived
from tests.support.api import Body

BODY = Body(ChunkTable())


def same(body: Body) -> Body:
    return body


def test_content_that_is_there_is_derived_at_once() -> None:
    cell = derived((Deferred.of(BODY),), same, uuid4(), "fork", after=(Deferred.of(1),))
    assert cell.done()
    assert cell.result() is BODY


def test_it_is_not_there_before_what_it_comes_after() -> None:
    may_end = asyncio.Event()

    async def wait(_: Deferred[int]) -> int:
        await asyncio.wait_for(may_end.wait(), 10)
        return 1

    first = Deferred.start(wait, owner=uuid4(), label="first", on_cancel=lambda _: 0)
    order: list[str] = []

    def derive(body: Body) -> Body:
        order.append("derived" if first.done() else "too early")
        return body

    async def end(_: Deferred[int]) -> int:
        may_end.set()
        return 2

    cell = derived((Deferred.of(BODY),), derive, uuid4(), "fork", after=(first,))
    assert not cell.done()
    Deferred.start(end, owner=uuid4(), label="end", on_cancel=lambda _: 0).result()
    assert cell.result() is BODY
    assert order == ["derived"]


def test_a_failure_of_what_it_comes_after_is_its_own() -> None:
    async def fail(_: Deferred[int]) -> int:
        raise OSError("no room")

    first = Deferred.start(fail, owner=uuid4(), label="first", on_cancel=lambda _: 0)
    cell = derived((Deferred.of(BODY),), same, uuid4(), "fork", after=(first,))
    with pytest.raises(OSError, match="no room"):
        cell.result()
