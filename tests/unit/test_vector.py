"""The persistent vector equals a list, and no operation touches what it was made from."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, rule

from rath._core.vector import GrowingVector, Vector

items = st.lists(st.integers(), max_size=60)


class VectorAgainstList(RuleBasedStateMachine):
    """Any tree of versions: each one still equals the list it stood for when it was made."""

    versions: Bundle[tuple[Vector[int], list[int]]] = Bundle("versions")

    @rule(target=versions, start=items)
    def make(self, start: list[int]) -> tuple[Vector[int], list[int]]:
        return Vector(start), list(start)

    @rule(target=versions, version=versions, item=st.integers())
    def append(
        self, version: tuple[Vector[int], list[int]], item: int
    ) -> tuple[Vector[int], list[int]]:
        vector, model = version
        return vector.append(item), [*model, item]

    @rule(target=versions, version=versions, more=items)
    def extend(
        self, version: tuple[Vector[int], list[int]], more: list[int]
    ) -> tuple[Vector[int], list[int]]:
        vector, model = version
        return vector.extend(more), [*model, *more]

    @rule(target=versions, version=versions, data=st.data())
    def prefix(
        self, version: tuple[Vector[int], list[int]], data: st.DataObject
    ) -> tuple[Vector[int], list[int]]:
        vector, model = version
        size = data.draw(st.integers(0, len(model)))
        return vector.prefix(size), model[:size]

    @rule(target=versions, version=versions, more=items, data=st.data())
    def grow(
        self, version: tuple[Vector[int], list[int]], more: list[int], data: st.DataObject
    ) -> tuple[Vector[int], list[int]]:
        vector, model = version
        growing = GrowingVector(vector)
        n_early = data.draw(st.integers(0, len(more)))
        for item in more[:n_early]:
            growing.append(item)
        early = growing.vector
        for item in more[n_early:]:
            growing.append(item)
        assert list(growing.vector) == [*model, *more]
        return early, [*model, *more[:n_early]]

    @rule(version=versions, start=st.integers(-3, 70))
    def reads_agree(self, version: tuple[Vector[int], list[int]], start: int) -> None:
        vector, model = version
        assert len(vector) == len(model)
        assert list(vector) == model
        assert list(reversed(vector)) == model[::-1]
        assert vector.since(start) == tuple(model[max(0, start) :])
        assert [vector[index] for index in range(-len(model), len(model))] == model + model

    @rule(one=versions, other=versions)
    def equality_is_by_value(
        self, one: tuple[Vector[int], list[int]], other: tuple[Vector[int], list[int]]
    ) -> None:
        assert (one[0] == other[0]) == (one[1] == other[1])


TestVectorAgainstList = VectorAgainstList.TestCase


@given(shared=items, left=items, right=items)
def test_common_prefix_is_the_shared_history(
    shared: list[int], left: list[int], right: list[int]
) -> None:
    root = Vector(shared)
    assert root.extend(left).common_prefix(root.extend(right)) == len(shared)


@given(shared=items, left=items, right=items)
def test_common_prefix_of_what_two_writers_added_is_their_start(
    shared: list[int], left: list[int], right: list[int]
) -> None:
    root = Vector(shared)
    writers = GrowingVector(root), GrowingVector(root)
    for writer, added in zip(writers, (left, right), strict=True):
        for item in added:
            writer.append(item)
    assert writers[0].vector.common_prefix(writers[1].vector) == len(shared)


def test_what_a_writer_added_goes_with_it() -> None:
    class Item:
        pass

    start, item = Vector[Item]([Item()]), Item()
    growing = GrowingVector(start)
    growing.append(item)
    added = weakref.ref(item)
    del growing, item
    gc.collect()
    assert added() is None
    assert len(start) == 1


def test_iteration_backwards_leaves_out_what_is_added_meanwhile() -> None:
    growing = GrowingVector(Vector([1]))
    growing.append(2)
    backwards = reversed(growing.vector)
    growing.append(3)
    assert list(backwards) == [2, 1]


@given(values=items)
def test_common_prefix_does_not_count_equal_values(values: list[int]) -> None:
    assert Vector(values).common_prefix(Vector(values)) == 0


@pytest.mark.parametrize("index", [3, -4, 100])
def test_index_outside_names_size(index: int) -> None:
    with pytest.raises(IndexError, match="3 items"):
        Vector([1, 2, 3])[index]


def test_prefix_longer_than_the_vector_is_refused() -> None:
    with pytest.raises(IndexError, match="prefix of 4"):
        Vector([1, 2, 3]).prefix(4)


def test_a_long_vector_can_be_dropped_without_deep_recursion() -> None:
    vector = Vector(range(200_000))
    assert len(vector) == 200_000
    del vector


def test_equal_vectors_hash_alike() -> None:
    assert hash(Vector([1, 2])) == hash(Vector([1]).append(2))


def test_vector_equals_no_list() -> None:
    assert Vector([1]) != [1]


def test_repr_shows_the_items() -> None:
    assert repr(Vector([1, 2])) == "Vector([1, 2])"
