"""Operations, results, capabilities and errors are plain values."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from rath import memory

OPS = [
    memory.MemoryOpWrite("memory://user/a", "x", metadata={"k": "v"}),
    memory.MemoryOpRead("memory://user/a"),
    memory.MemoryOpList("memory://user"),
    memory.MemoryOpTree("memory://user"),
    memory.MemoryOpFind("x"),
    memory.MemoryOpSearch("x", "s-1"),
    memory.MemoryOpResource("a.txt"),
    memory.MemoryOpCommit("s-1", ({"role": "user", "content": "hi"},)),
]


@pytest.mark.parametrize("op", OPS, ids=lambda op: type(op).__name__)
def test_operations_are_hashable_values(op: Any) -> None:
    copy = pickle.loads(pickle.dumps(op))
    assert copy == op
    assert hash(copy) == hash(op)
    with pytest.raises(FrozenInstanceError):
        setattr(op, fields(op)[0].name, "other")


def test_documented_defaults_of_operations() -> None:
    assert memory.MemoryOpWrite("u", "c") == memory.MemoryOpWrite(
        "u", "c", "replace", False, None, None
    )
    assert memory.MemoryOpRead("u") == memory.MemoryOpRead("u", "detail", "utf-8")
    assert memory.MemoryOpTree("u") == memory.MemoryOpTree("u", 2)
    assert memory.MemoryOpFind("q") == memory.MemoryOpFind("q", None, 8)
    assert memory.MemoryOpSearch("q") == memory.MemoryOpSearch("q", None, None, 8)
    assert memory.MemoryOpResource("s") == memory.MemoryOpResource("s", None, "", "", True, None)
    assert memory.MemoryOpCommit("s", ()) == memory.MemoryOpCommit("s", (), (), False, None)


def test_an_unknown_kind_of_failure_is_refused() -> None:
    with pytest.raises(ValueError, match="'bad_luck' is no kind of failure"):
        memory.MemoryExecutionFailure("bad_luck", "why")  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize(
    "error",
    [
        memory.UnsupportedMemoryOp(memory.MemoryOpFind, "local"),
        memory.MemoryStoreClosed("handle"),
        memory.MemoryBackendNotFound("x", ["local"]),
        memory.MemoryNotFound("memory://user/a"),
        memory.MemoryConflict("memory://user/a"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling_with_their_attributes(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
