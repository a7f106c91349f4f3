"""Tokens of principals, and their limits."""

from __future__ import annotations

import sqlite3
from decimal import Decimal
from pathlib import Path

import pytest

from rath.serving.principals import LimitReached, Limits, Principal, TokenFile


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_token_finds_its_principal(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "serve" / "tokens.json")
    one = Principal(name="one", workflows=("a",), usd_per_day=Decimal("2.5"), may_approve=True)
    token = tokens.add(one)
    assert tokens.find(token) == one
    assert tokens.find(token + "x") is None
    assert tokens.find("") is None
    assert (one.may_run("a"), one.may_run("b")) == (True, False)
    assert [principal for principal, _ in TokenFile(tokens.path).principals()] == [one]


def test_another_process_sees_what_was_changed(tmp_path: Path) -> None:
    first, second = (TokenFile(tmp_path / "tokens.json") for _ in range(2))
    token = first.add(Principal(name="one"))
    assert second.find(token) is not None
    second.remove("one")
    assert first.find(token) is None
    with pytest.raises(KeyError):
        first.remove("one")


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", "x" * 65, "-a", "ä"])
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name"):
        TokenFile(tmp_path / "tokens.json").add(Principal(name=name))


def test_a_name_is_given_once(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    tokens.add(Principal(name="one"))
    with pytest.raises(ValueError, match="token for 'one' already"):
        tokens.add(Principal(name="one"))
    with pytest.raises(ValueError, match="above zero"):
        tokens.add(Principal(name="two", max_runs=0))


def test_a_broken_file_lets_nobody_in(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text('{"tokens": [1]}')
    with pytest.raises(ValueError, match="no table of tokens"):
        TokenFile(path).find("rath_x")


def test_a_rate_leaks_away_with_time(tmp_path: Path) -> None:
    clock = Clock()
    limits = Limits(tmp_path / "spending.db", clock=clock)
    one, other = Principal(name="one", requests_per_minute=2), Principal(name="other")
    limits.take_request(one)
    limits.take_request(one)
    with pytest.raises(LimitReached) as caught:
        limits.take_request(one)
    assert caught.value.retry_after == pytest.approx(30)
    limits.take_request(other)
    clock.now += 31
    limits.take_request(one)


def test_runs_in_flight_are_counted(tmp_path: Path) -> None:
    limits = Limits(tmp_path / "spending.db")
    one = Principal(name="one", max_runs=1)
    limits.begin_run(one)
    with pytest.raises(LimitReached, match="1 runs in flight"):
        limits.begin_run(one)
    limits.end_run("one")
    limits.begin_run(one)


def test_money_is_counted_over_all_servers(tmp_path: Path) -> None:
    path = tmp_path / "serve" / "spending.db"
    one, other = (Principal(name=name, usd_per_day=Decimal(1)) for name in ("one", "other"))
    limits = Limits(path)
    limits.note_usd(one, Decimal("0.6"))
    limits.write_spending(one)
    second = Limits(path)
    second.begin_run(one)
    second.note_usd(one, Decimal("0.4"))
    with pytest.raises(LimitReached, match=r"has spent 1\.0000 of 1 US dollars today"):
        second.begin_run(one)
    with pytest.raises(LimitReached):
        limits.begin_run(one)
    limits.begin_run(other)


def test_money_that_could_not_be_written_is_still_counted(tmp_path: Path) -> None:
    path = tmp_path / "spending.db"
    one = Principal(name="one", usd_per_day=Decimal(1))
    limits = Limits(path)
    limits.note_usd(one, Decimal("0.6"))
    limits.write_spending(one)
    limits.note_usd(one, Decimal("0.4"))
    whole = path.read_bytes()
    path.write_bytes(b"no database" * 100)
    with pytest.raises(sqlite3.DatabaseError):
        limits.write_spending(one)
    path.write_bytes(whole)
    assert limits.write_spending(one) == 10**9
