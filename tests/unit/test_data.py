"""The items of a dataset as sessions, in an order that can be gone on with."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest

from rath.data import SessionLoader
from rath.session import Session

TEXTS = [f"question {n}" for n in range(7)]


def texts(loader: SessionLoader[Session]) -> list[str]:
    return [str(each.chunk_table[0].payload["content"]) for each in loader]


def test_items_become_sessions_in_their_order() -> None:
    items = ["a", {"input": "b"}, Session.from_user_message("c")]
    assert texts(SessionLoader(items)) == ["a", "b", "c"]


def test_an_order_of_chance_is_one_of_seed_and_epoch() -> None:
    loader: SessionLoader[Session] = SessionLoader(TEXTS, shuffle=True, seed=3)
    first, second = texts(loader), texts(loader)
    assert sorted(first) == sorted(second) == TEXTS
    assert first != second
    assert texts(SessionLoader(TEXTS, shuffle=True, seed=3)) == first
    assert texts(SessionLoader(TEXTS, shuffle=True, seed=4)) != first


def test_a_sampler_gives_the_positions() -> None:
    loader: SessionLoader[Session] = SessionLoader(TEXTS, sampler=[5, 0, 5])
    assert texts(loader) == [TEXTS[5], TEXTS[0], TEXTS[5]]
    assert (len(loader), texts(loader)) == (3, [TEXTS[5], TEXTS[0], TEXTS[5]])


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("n_before", [0, 3, 7])
def test_another_loader_goes_on_behind_what_was_yielded(prefetch: int, n_before: int) -> None:
    def loader() -> SessionLoader[str]:
        return SessionLoader(TEXTS, shuffle=True, seed=1, collate=str, prefetch=prefetch)

    whole, started = list(loader()), loader()
    reading = iter(started)
    before = [next(reading) for _ in range(n_before)]
    later = loader()
    later.load_state_dict(json.loads(json.dumps(started.state_dict())))
    assert before + list(later) == whole


def test_batches_are_lists_of_items() -> None:
    loader: SessionLoader[list[str]] = SessionLoader(TEXTS, batch_size=3, collate=list)
    assert [len(batch) for batch in loader] == [3, 3, 1]
    assert len(loader) == 3
    (first, *_) = SessionLoader[list[Session]](TEXTS, batch_size=2)
    assert [each.chunk_table[0].payload["content"] for each in first] == TEXTS[:2]


def test_items_are_made_ahead_side_by_side() -> None:
    barrier = threading.Barrier(3, timeout=30)

    def meet(item: str) -> str:
        barrier.wait()
        return item

    assert list(SessionLoader(TEXTS[:6], collate=meet, prefetch=2)) == TEXTS[:6]


def test_an_iterable_is_read_in_its_own_order() -> None:
    def stream() -> Iterator[str]:
        yield from TEXTS

    loader: SessionLoader[Session] = SessionLoader(stream())
    assert texts(loader) == TEXTS
    with pytest.raises(TypeError, match="has no length"):
        len(loader)
    with pytest.raises(TypeError, match="need a dataset with len"):
        SessionLoader(stream(), shuffle=True)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="not both"):
        SessionLoader(TEXTS, sampler=[0], shuffle=True)
    with pytest.raises(ValueError, match="prefetch"):
        SessionLoader(TEXTS, prefetch=-1)
    with pytest.raises(ValueError, match="batch_size"):
        SessionLoader(TEXTS, batch_size=0)
    with pytest.raises(TypeError, match="no session can be made of 3"):
        list(SessionLoader[Session]([3]))
    with pytest.raises(ValueError, match="its seed is 0, and here it is 1"):
        SessionLoader(TEXTS, seed=1).load_state_dict(SessionLoader(TEXTS).state_dict())
    shuffled: SessionLoader[Session] = SessionLoader(TEXTS, shuffle=True)
    with pytest.raises(ValueError, match="its n_shuffled is"):
        SessionLoader(TEXTS[1:], shuffle=True).load_state_dict(shuffled.state_dict())
    with pytest.raises(ValueError, match="no state of a loader"):
        SessionLoader(TEXTS).load_state_dict(SessionLoader(TEXTS).state_dict() | {"epoch": "x"})
