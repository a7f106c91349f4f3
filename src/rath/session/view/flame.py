"""The flame view of a profile: nested boxes over time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rath._core.dataclasses import dataclass
from rath._core.text import valid_unicode


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A stretch of time on the page."""

    id: str
    parent: str | None
    """The box below which it stands; one that is not on the page counts as none."""

    kind: str
    """`workflow`, `run`, `model` or `tool`."""

    name: str
    path: str
    start: float
    """Seconds since the epoch."""

    end: float
    facts: Mapping[str, Any]
    """What is told of it when it is chosen; JSON values."""


def flame_data(boxes: Sequence[Box], table: Sequence[Sequence[str]]) -> str:
    """Return the data of a flame view, as JSON: boxes over time, and a table below them.

    Args:
        boxes: In any order.
        table: Its rows, the first one the head.
    """
    rows = rows_of(boxes)
    began = min((box.start for box in boxes), default=0.0)
    shown = [
        {
            "name": valid_unicode(box.name),
            "kind": box.kind,
            "path": valid_unicode(box.path),
            "start": round((box.start - began) * 1000, 3),
            "ms": round((box.end - box.start) * 1000, 3),
            "row": rows[box.id],
            "facts": box.facts,
        }
        for box in sorted(boxes, key=lambda box: (rows[box.id], box.start))
    ]
    return json.dumps({"boxes": shown, "table": table})


def rows_of(boxes: Sequence[Box]) -> dict[str, int]:
    """Return the row of each box, by its id: below its parent, beside what overlaps with it."""
    known = {box.id for box in boxes}
    inner: dict[str | None, list[Box]] = {}
    for box in sorted(boxes, key=lambda each: (each.start, -each.end)):
        inner.setdefault(box.parent if box.parent in known else None, []).append(box)
    rows: dict[str, int] = {}

    def place(members: Sequence[Box], top: int) -> int:
        """Place boxes and all below them from row `top` on; return how many rows they take."""
        lanes: list[list[Box]] = []
        for box in members:
            lane = next((lane for lane in lanes if lane[-1].end <= box.start), None)
            if lane is None:
                lanes.append([box])
            else:
                lane.append(box)
        height = 0
        for lane in lanes:
            deepest = 0
            for box in lane:
                rows[box.id] = top + height
                deepest = max(deepest, place(inner.get(box.id, ()), top + height + 1))
            height += 1 + deepest
        return height

    place(inner.get(None, ()), 0)
    return rows
