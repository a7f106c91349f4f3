"""Names of tools as providers accept them."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from rath.mcp.tools import provider_names

ACCEPTED = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


@given(st.lists(st.text(max_size=90), unique=True), st.sampled_from(["", "git_", "a.b:"]))
def test_every_name_is_accepted_and_no_two_are_equal(names: list[str], prefix: str) -> None:
    found = provider_names(names, prefix=prefix)
    assert list(found) == names
    assert all(ACCEPTED.match(name) for name in found.values())
    assert len(set(found.values())) == len(names)


@given(st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True))
def test_a_name_that_is_accepted_stays(name: str) -> None:
    assert provider_names([name]) == {name: name}


def test_a_name_is_the_same_next_to_others() -> None:
    assert provider_names(["a.b", "c"])["a.b"] == provider_names(["x", "a.b"])["a.b"]


def test_a_name_that_another_was_made_like_stays_its_own() -> None:
    made = provider_names(["a.b"])["a.b"]
    found = provider_names(["a.b", made])
    assert found[made] == made
    assert found["a.b"] != made
