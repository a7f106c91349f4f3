"""Values with an origin."""

from __future__ import annotations

import pytest

from rath._core.options import Sourced, first_set


def test_first_set_value_wins_with_its_origin() -> None:
    chosen = first_set(
        Sourced(None, "call"), Sourced("m-1", "env MODEL"), Sourced("m-2", "default")
    )
    assert chosen == Sourced("m-1", "env MODEL")


@pytest.mark.parametrize("unset", [None, "", " \t"], ids=["none", "empty", "blank"])
def test_unset_candidates_are_skipped(unset: str | None) -> None:
    assert first_set(Sourced(unset, "call"), Sourced("x", "default")) == Sourced("x", "default")


def test_strings_come_back_stripped() -> None:
    assert first_set(Sourced(" key \n", "call")) == Sourced("key", "call")


@pytest.mark.parametrize("value", [0, 0.0, False], ids=repr)
def test_falsy_values_other_than_blank_text_are_set(value: float) -> None:
    assert first_set(Sourced(value, "call"), Sourced(7, "default")) == Sourced(value, "call")


def test_nothing_set_gives_none() -> None:
    assert first_set(Sourced(None, "call"), Sourced("", "default")) is None
