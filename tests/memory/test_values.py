"""Operations, results, capabilities and errors are plain values."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from rath.memory import (
    MemoryBackendNotFound,
    MemoryConflict,
    MemoryExecutionFailure,
    MemoryNotFound,
    MemoryOpCommit,
    MemoryOpFind,
    MemoryOpList,
    MemoryOpRead,
    MemoryOpResource,
    MemoryOpSearch,
    MemoryOpTree,
    MemoryOpWrite,
    MemoryStoreClosed,
    UnsupportedMemoryOp,
)

OPS = [
    MemoryOpWrite("memory://user/a", "x", metadata={"k": "v"}),
    MemoryOpRead("memory://user/a"),
    MemoryOpList("memory://user"),
    MemoryOpTree("memory://user"),
    MemoryOpFind("x"),
    MemoryOpSearch("x", "s-1"),
    MemoryOpResource("a.txt"),
    MemoryOpCommit("s-1", ({"role": "user", "content": "hi"},)),
]


@pytest.mark.parametrize("op", OPS, ids=lambda op: type(op).__name__)
def test_operations_are_hashable_values(op: Any) -> None:
    copy = pickle.loads(pickle.dumps(op))
    assert copy == op
    assert hash(copy) == hash(op)
    with pytest.raises(FrozenInstanceError):
        setattr(op, fields(op)[0].name, "other")


def test_documented_defaults_of_operations() -> None:
    assert MemoryOpWrite("u", "c") == MemoryOpWrite("u", "c", "replace", False, None, None)
    assert MemoryOpRead("u") == MemoryOpRead("u", "detail", "utf-8")
    assert MemoryOpTree("u") == MemoryOpTree("u", 2)
    assert MemoryOpFind("q") == MemoryOpFind("q", None, 8)
    assert MemoryOpSearch("q") == MemoryOpSearch("q", None, None, 8)
    assert MemoryOpResource("s") == MemoryOpResource("s", None, "", "", True, None)
    assert MemoryOpCommit("s", ()) == MemoryOpCommit("s", (), (), False, None)


def test_an_unknown_kind_of_failure_is_refused() -> None:
    with pytest.raises(ValueError, match="'bad_luck' is no kind of failure"):
        MemoryExecutionFailure("bad_luck", "why")  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize(
    "error",
    [
        UnsupportedMemoryOp(MemoryOpFind, "local"),
        MemoryStoreClosed("handle"),
        MemoryBackendNotFound("x", ["local"]),
        MemoryNotFound("memory://user/a"),
        MemoryConflict("memory://user/a"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling_with_their_attributes(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
