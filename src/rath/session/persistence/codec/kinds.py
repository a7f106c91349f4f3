"""What the kinds of entries are called in files, and which parts have a form of their own."""

from __future__ import annotations

from typing import Any

from rath.session.persistence.codec.shapes import Shape, shape_of_class
from rath.session.record import (
    Change,
    Decision,
    Interrupt,
    ModelCall,
    Operation,
    Summary,
    ToolRun,
    Verdict,
)

ENTRY_KINDS: dict[type[Any], str] = {
    Operation: "operation",
    ModelCall: "model_call",
    ToolRun: "tool_run",
    Summary: "summary",
    Verdict: "verdict",
    Interrupt: "interrupt",
    Decision: "decision",
    Change: "change",
}

_APART: dict[type[Any], tuple[str, ...]] = {Operation: ("head", "tools", "theirs")}
"""The agent's rows and the tools are named by their digest, the record of a second parent by its
length."""


_shapes: dict[type[Any], Shape] = {}


def shape_for(cls: type[Any]) -> Shape:
    """Return the shape of a class, without the parts that have a form of their own."""
    shape = _shapes.get(cls)
    if shape is None:
        shape = _shapes[cls] = shape_of_class(cls, without=_APART.get(cls, ()))
    return shape
