"""Recalled notes, read back from a request as strictly as they are written."""

from __future__ import annotations

import json
import unicodedata

from tests.support.api import CONTEXT_OPENING

_UNSEEN = frozenset({"Cc", "Co", "Cs", "Zl", "Zp"})
_TURNS = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})
_SMUGGLERS = frozenset(map(chr, [0xAD, 0x200B, 0x2060, 0xFEFF, *range(0xE0000, 0xE0200)]))


def quoted_notes(context: str) -> list[str]:
    """The texts between the fences of a context message.

    Raises:
        AssertionError: Something else stands there, or outside of the fences.
    """
    head, tail = f"{CONTEXT_OPENING}\n<notes>\n", "\n</notes>"
    assert context.startswith(head)
    assert context.endswith(tail)
    listed = context.removeprefix(head).removesuffix(tail)
    # Whatever a reader takes for the end of a line: `splitlines` knows more of them than JSON.
    lines = listed.splitlines()
    assert lines == listed.split("\n")
    assert all(line.startswith('- "') and line.endswith('"') for line in lines)
    assert not {"<", ">"} & set(listed)
    assert not {character for line in lines for character in line if _is_hidden(character)}
    texts = [json.loads(line.removeprefix("- ")) for line in lines]
    assert all(isinstance(text, str) for text in texts)
    return texts


def _is_hidden(character: str) -> bool:
    turns = unicodedata.bidirectional(character) in _TURNS
    return turns or unicodedata.category(character) in _UNSEEN or character in _SMUGGLERS
