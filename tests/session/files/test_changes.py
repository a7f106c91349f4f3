"""What a sequence of effects comes to."""

from __future__ import annotations

import pytest
from hypothesis import given

from rath._core.blobs import Blob
from rath.backend.effects import FileEffect
from rath.session.files.changes import net_changes, reversed_effect
from tests.support.session_files import (
    FILE,
    Change,
    applied,
    change_lists,
    changed,
    created,
    follow,
    moved,
    removed,
    trees,
)


@given(files=trees, todo=change_lists)
def test_net_changes_lead_from_the_files_before_to_those_after(
    files: dict[str, bytes], todo: list[Change]
) -> None:
    after = dict(files)
    assert applied(files, net_changes(follow(after, todo))) == after


@given(files=trees, todo=change_lists)
def test_reversed_changes_lead_back(files: dict[str, bytes], todo: list[Change]) -> None:
    after = dict(files)
    net = net_changes(follow(after, todo))
    assert applied(after, [reversed_effect(effect) for effect in net]) == files


@given(files=trees, todo=change_lists)
def test_each_path_is_told_once_and_in_order(files: dict[str, bytes], todo: list[Change]) -> None:
    paths = [effect.path for effect in net_changes(follow(dict(files), todo))]
    assert paths == sorted(set(paths))


@given(files=trees, todo=change_lists)
def test_net_changes_of_net_changes_are_the_same(
    files: dict[str, bytes], todo: list[Change]
) -> None:
    net = net_changes(follow(dict(files), todo))
    assert net_changes(net) == net


@pytest.mark.parametrize(
    ("effects", "expected"),
    [
        pytest.param([created("a", b"1"), removed({"a": b"1"}, "a")], [], id="come and gone"),
        pytest.param([changed("a", b"1", b"2"), changed("a", b"2", b"1")], [], id="there and back"),
        pytest.param(
            [removed({"a": b"1"}, "a"), created("a", b"2")], [changed("a", b"1", b"2")], id="anew"
        ),
        pytest.param(
            [moved({"a": b"1"}, "a", "b"), moved({"b": b"1"}, "b", "c")],
            [moved({"a": b"1"}, "a", "c")],
            id="renamed twice",
        ),
        pytest.param(
            [moved({"a": b"1"}, "a", "b"), moved({"b": b"1"}, "b", "a")], [], id="renamed back"
        ),
        pytest.param(
            [moved({"a": b"1"}, "a", "b"), created("a", b"2")],
            [changed("a", b"1", b"2"), created("b", b"1")],
            id="another one in its place",
        ),
        pytest.param(
            [removed({"b": b"2"}, "b"), moved({"a": b"1"}, "a", "b")],
            [removed({"a": b"1"}, "a"), changed("b", b"2", b"1")],
            id="over another one",
        ),
        pytest.param(
            [removed({"a": b"1"}, "a"), changed("a", b"2", b"3")],
            [changed("a", b"1", b"3")],
            id="back unseen",
        ),
        pytest.param(
            [created("a", b"1"), created("a", b"2")], [created("a", b"2")], id="created twice"
        ),
        pytest.param(
            [created("b", b"2"), moved({"a": b"1"}, "a", "b")],
            [moved({"a": b"1"}, "a", "b")],
            id="over a new one",
        ),
    ],
)
def test_what_effects_come_to(effects: list[FileEffect], expected: list[FileEffect]) -> None:
    assert list(net_changes(effects)) == expected


def test_a_change_is_as_sure_as_the_least_sure_effect_behind_it() -> None:
    effects = [
        changed("a", b"1", b"2", attribution="ambiguous"),
        changed("a", b"2", b"3"),
        removed({"b": b"1"}, "b"),
        created("b", b"2", attribution="window"),
    ]
    assert [effect.attribution for effect in net_changes(effects)] == ["ambiguous", "window"]


def test_another_mode_is_a_change_where_both_are_known() -> None:
    one = Blob.from_bytes(b"1")
    script = FileEffect("a", "changed", one, one, before_mode=FILE, after_mode=FILE | 0o111)
    unknown = FileEffect("b", "changed", one, one, after_mode=FILE | 0o111)
    assert net_changes([script, unknown]) == (script,)
