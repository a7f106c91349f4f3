"""Draw the pictures of the pages as SVG; a page shows one by the directive `drawing`.

They take the colours of the page around them, light or dark; alone, as files that
`python docs/drawings.py FOLDER` writes, those of the system.
"""

import sys
from html import escape
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

STYLE = """
.drawing {
  --ink: var(--color-foreground-primary, #1f2430); --soft: var(--color-foreground-muted, #6b7280);
  --fill: var(--color-background-secondary, #f5f6f8);
  --line: var(--color-foreground-border, #9aa1ad); --mark: var(--color-brand-primary, #2447c9);
  font-family: system-ui, sans-serif; max-width: 100%; height: auto; }
@media (prefers-color-scheme: dark) { .drawing:root {
  --ink: #e6e8ee; --soft: #a3aab8; --fill: #22262f; --line: #6b7280; --mark: #8fb0ff; } }
.drawing text { fill: var(--ink); font-size: 14px; text-anchor: middle; }
.drawing .sub { fill: var(--soft); font-size: 12px; }
.drawing .left { text-anchor: start; }
.drawing .box { fill: var(--fill); stroke: var(--line); stroke-width: 1.2; }
.drawing .main { stroke: var(--mark); stroke-width: 2; }
.drawing .arrow { fill: none; stroke: var(--line); stroke-width: 1.6; }
.drawing .head { fill: var(--line); }
.drawing .name { font-weight: 600; }
"""
ROW = 34


def box(x: int, y: int, title: str, *lines: str, width: int = 150, main: bool = False) -> str:
    """A box around a title and smaller lines; `x` and `y` are its upper left corner."""
    middle, height = x + width // 2, ROW + 8 + 18 * len(lines)
    parts = [
        frame(x, y, width, height, main=main),
        f'<text class="name" x="{middle}" y="{y + 26}">{escape(title)}</text>',
    ]
    for at, line in enumerate(lines):
        parts.append(f'<text class="sub" x="{middle}" y="{y + 46 + 18 * at}">{escape(line)}</text>')
    return "\n".join(parts)


def frame(x: int, y: int, width: int, height: int, *, main: bool = False) -> str:
    style = "box main" if main else "box"
    return f'<rect class="{style}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'


def arrow(*points: tuple[int, int]) -> str:
    """A line through the points, with a head at the last one."""
    path = " L".join(f"{x} {y}" for x, y in points)
    (x0, y0), (x, y) = points[-2:]
    across, down = (x > x0) - (x < x0), (y > y0) - (y < y0)
    base = (x - 8 * across, y - 8 * down)
    corners = [
        (x, y),
        (base[0] + 5 * down, base[1] + 5 * across),
        (base[0] - 5 * down, base[1] - 5 * across),
    ]
    head = " ".join(f"{a},{b}" for a, b in corners)
    return f'<path class="arrow" d="M{path}"/><polygon class="head" points="{head}"/>'


def words(x: int, y: int, text: str, style: str = "sub") -> str:
    return f'<text class="{style}" x="{x}" y="{y}">{escape(text)}</text>'


def session_flow() -> str:
    """From a question through agents to an answer; all of it in one record."""
    return "\n".join(
        [
            box(10, 80, "Session", "rows so far", width=120, main=True),
            arrow((130, 110), (180, 110)),
            box(180, 66, "Agent", "prompt, provider,", "tools, memory"),
            arrow((330, 110), (380, 110)),
            box(380, 80, "Session", "more rows", width=120, main=True),
            arrow((500, 110), (530, 110), (530, 56), (560, 56)),
            arrow((530, 110), (530, 164), (560, 164)),
            words(530, 206, "fork"),
            box(560, 26, "Agent", "one way", width=110),
            box(560, 134, "Agent", "another way", width=110),
            arrow((670, 56), (700, 56), (700, 110), (730, 110)),
            arrow((670, 164), (700, 164), (700, 110), (730, 110)),
            words(700, 206, "merge"),
            box(730, 80, "Session", "the answer", width=120, main=True),
            arrow((255, 142), (255, 250)),
            words(262, 172, "sandbox: where tools run", "sub left"),
            words(262, 192, "memory: what outlives a run", "sub left"),
            arrow((790, 140), (790, 250)),
            frame(10, 250, 840, 62),
            words(430, 276, "The record: model calls, tool runs, changed files, decisions", "name"),
            words(430, 298, "explain · diff · replay · resume · cost · view, at any time later"),
        ]
    )  # fmt: skip


def session() -> str:
    """What a session holds."""
    rows = ("user: Fix the test.", "assistant: calls run_shell_command", "result: 1 failed",
            "assistant: The test is fixed.")  # fmt: skip
    entries = ("", "model call: who answered, tokens, cost", "tool run: where, which files",
               "model call: what it saw, byte for byte")  # fmt: skip
    parts = [
        words(160, 24, "rows: what was said", "name"),
        words(560, 24, "record: what happened", "name"),
    ]
    for at, (row, entry) in enumerate(zip(rows, entries, strict=True)):
        y = 40 + 46 * at
        parts.append(frame(10, y, 300, 34, main=True))
        parts.append(words(24, y + 22, row, "left"))
        if entry:
            parts.append(frame(400, y, 320, 34))
            parts.append(words(414, y + 22, entry, "left"))
            parts.append(arrow((400, y + 17), (310, y + 17)))
    return "\n".join(parts)


def agent() -> str:
    """An agent as a layer between two sessions."""
    return "\n".join(
        [
            box(10, 90, "Session", "in", width=110, main=True),
            arrow((120, 120), (170, 120)),
            box(
                170,
                76,
                "Agent",
                "asks the model, runs tools,",
                "until there is an answer",
                width=220,
            ),
            arrow((390, 120), (440, 120)),
            box(440, 90, "Session", "out, at once; lazy", width=150, main=True),
            box(30, 200, "Provider", "which model, where", width=160),
            box(210, 200, "Tools", "operators", width=140),
            box(370, 200, "Memory", "recalled before a run", width=180),
            arrow((110, 200), (110, 172), (200, 172), (200, 154)),
            arrow((280, 200), (280, 154)),
            arrow((460, 200), (460, 172), (360, 172), (360, 154)),
            box(210, 300, "Sandbox", "the device", width=140),
            arrow((280, 300), (280, 260)),
        ]
    )


def fork() -> str:
    """Branches that share their rows, and a merge."""
    return "\n".join(
        [
            box(10, 80, "Session", "100 rows", width=120, main=True),
            arrow((130, 110), (170, 110), (170, 46), (220, 46)),
            arrow((170, 110), (170, 176), (220, 176)),
            box(220, 16, "Branch", "the same 100 rows + 4", width=180),
            box(220, 146, "Branch", "the same 100 rows + 6", width=180),
            arrow((400, 46), (450, 46), (450, 110), (490, 110)),
            arrow((400, 176), (450, 176), (450, 110), (490, 110)),
            box(490, 80, "Session", "100 + 4 + 6 rows", width=160, main=True),
            words(170, 226, "fork: O(1), nothing is copied"),
            words(470, 226, "merge: what is common stands once"),
        ]
    )


def record() -> str:
    """What a stored session is good for."""
    return "\n".join(
        [
            box(10, 80, "A run", "here or elsewhere", width=140),
            arrow((150, 110), (200, 110)),
            box(
                200,
                62,
                "The log",
                "a line for each event,",
                "checksums, on disk",
                width=180,
                main=True,
            ),
            arrow((380, 110), (440, 110)),
            box(440, 10, "explain, cost, view", "what happened, from it alone", width=240),
            box(440, 80, "replay", "the same run without a model", width=240),
            box(440, 150, "resume", "goes on; nothing is done twice", width=240),
            arrow((410, 110), (410, 40), (440, 40)),
            arrow((410, 110), (410, 180), (440, 180)),
        ]
    )


DRAWINGS = {
    "session-flow": (session_flow, 860, 16, 322),
    "session": (session, 730, 0, 226),
    "agent": (agent, 600, 66, 370),
    "fork": (fork, 660, 6, 240),
    "record": (record, 690, 0, 222),
}
"""Each with its width, and where it begins and ends from above."""


def drawings() -> dict[str, str]:
    """Each drawing by its name; its docstring is the text for who does not see it."""
    return {
        name: f'<svg class="drawing" xmlns="http://www.w3.org/2000/svg" width="{width}"'
        f' viewBox="0 {top} {width} {bottom - top}" role="img"'
        f' aria-label="{escape(draw.__doc__ or "")}">\n'
        f"<style>{STYLE}</style>\n{draw()}\n</svg>\n"
        for name, (draw, width, top, bottom) in DRAWINGS.items()
    }


class Drawing(Directive):
    """Shows a drawing by its name."""

    required_arguments: ClassVar[int] = 1

    def run(self) -> list[nodes.Node]:
        frame = f'<div class="drawing-frame">{drawings()[self.arguments[0]]}</div>'
        return [nodes.raw("", frame, format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("drawing", Drawing)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    for name, text in drawings().items():
        Path(sys.argv[1], f"{name}.svg").write_text(text, "utf-8")
