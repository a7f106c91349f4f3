"""Effects that calls inside one another tell of: the same objects, also in a record that was read.

What counts an effect once, for the innermost call that tells of it, knows it by identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rath.backend.effects import FileEffect
from rath.session.record import Entry, ModelCall, ToolRun


def sharing_effects(entries: Sequence[Entry]) -> list[Entry]:
    """Return entries in which a call tells of the very effects that calls inside it tell of.

    O(entries), and for each round once more what happened inside its calls.
    """
    made: list[Entry] = []
    for entry in entries:
        if isinstance(entry, ToolRun) and entry.file_effects:
            inside = _effects_inside(made, entry)
            if inside:
                effects = tuple(_known(effect, inside) for effect in entry.file_effects)
                entry = replace(entry, file_effects=effects)
        made.append(entry)
    return made


def _effects_inside(before: Sequence[Entry], call: ToolRun) -> list[FileEffect]:
    """Return the effects of other runs since the model asked for a call, each once."""
    found: dict[int, FileEffect] = {}
    for entry in reversed(before):
        if isinstance(entry, ModelCall) and entry.operation == call.operation:
            break
        if isinstance(entry, ToolRun) and entry.operation != call.operation:
            found |= {id(effect): effect for effect in reversed(entry.file_effects)}
    return list(found.values())[::-1]


def _known(effect: FileEffect, inside: list[FileEffect]) -> FileEffect:
    """Return the effect that is known already, and let it be known no more; else `effect`."""
    for at, known in enumerate(inside):
        if known == effect and known.sandbox == effect.sandbox:
            return inside.pop(at)
    return effect
