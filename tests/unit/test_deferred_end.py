"""What is done at the end of a run, before anybody can see that it has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from uuid import uuid4

import pytest

from rath._async.deferred import Deferred
from rath._async.runtime import runtime


def waiting(fail: type[Exception] | None = None) -> tuple[Deferred[int], Callable[[], None]]:
    """Return a run that waits, and what lets it end."""
    may_end = asyncio.Event()

    async def make(_: Deferred[int]) -> int:
        await asyncio.wait_for(may_end.wait(), 50)
        if fail is not None:
            raise fail("as told")
        return 1

    async def end() -> None:
        may_end.set()

    cell = Deferred.start(make, owner=uuid4(), label="a run", on_cancel=lambda _: -1)
    return cell, lambda: runtime().run(end, label="the end")


@pytest.mark.parametrize("fail", [None, OSError])
def test_what_waits_for_the_end_comes_before_every_reader(fail: type[Exception] | None) -> None:
    cell, end = waiting(fail)
    seen: list[tuple[bool, bool]] = []
    assert cell.at_end(lambda: seen.append((cell.done(), runtime().is_own_thread())))
    assert cell.at_end(lambda: seen.append((cell.done(), runtime().is_own_thread())))
    end()
    if fail is None:
        assert cell.result() == 1
    else:
        with pytest.raises(fail, match="as told"):
            cell.result()
    assert seen == [(False, True)] * 2


def test_a_run_that_is_cancelled_has_an_end_too() -> None:
    cell, _ = waiting()
    seen: list[int] = []
    assert cell.at_end(lambda: seen.append(1))
    cell.cancel()
    assert cell.result() == -1
    assert seen == [1]


@pytest.mark.parametrize("fault", [ValueError, SystemExit])
def test_what_fails_at_the_end_is_logged_and_keeps_nobody_waiting(
    fault: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    cell, end = waiting()
    seen: list[int] = []

    def fail() -> None:
        raise fault("as told")

    assert cell.at_end(fail)
    assert cell.at_end(lambda: seen.append(1))
    with caplog.at_level(logging.ERROR, "rath.session"):
        end()
        assert cell.result() == 1
    assert seen == [1]
    assert "what was to be done at the end of a run failed" in caplog.text
    assert f"{fault.__name__}: as told" in caplog.text


def test_after_the_end_nothing_is_done() -> None:
    cell, end = waiting()
    end()
    cell.result()
    seen: list[int] = []
    assert not cell.at_end(lambda: seen.append(1))
    assert not Deferred.of(1).at_end(lambda: seen.append(1))
    assert seen == []


def test_an_amendment_is_in_every_value_that_is_read() -> None:
    cell, end = waiting()
    seen: list[int | None] = []
    assert cell.amend(lambda value: value + 1)
    assert cell.amend(lambda value: value * 10)
    assert cell.at_end(lambda: seen.append(cell.latest))
    end()
    assert (cell.result(), cell.latest, seen) == (20, 20, [20])
    assert not cell.amend(lambda value: value + 1)
    assert not Deferred.of(1).amend(lambda value: value + 1)


def test_an_amendment_of_a_cancelled_run_is_made_too() -> None:
    cell, _ = waiting()
    assert cell.amend(lambda value: value * 10)
    cell.cancel()
    assert cell.result() == -10


def test_a_failed_run_is_not_amended() -> None:
    cell, end = waiting(OSError)
    seen: list[int] = []

    def change(value: int) -> int:
        seen.append(value)
        return value

    assert cell.amend(change)
    end()
    with pytest.raises(OSError, match="as told"):
        cell.result()
    assert seen == []


def test_an_amendment_that_fails_is_logged_and_leaves_the_value(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cell, end = waiting()
    assert cell.amend(lambda value: value // 0)
    assert cell.amend(lambda value: value + 1)
    with caplog.at_level(logging.ERROR, "rath.session"):
        end()
        assert cell.result() == 2
    assert "ZeroDivisionError" in caplog.text
