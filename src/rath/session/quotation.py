"""Text of others as a quotation: it stays on its line, hides nothing and poses as no tag."""

from __future__ import annotations

import json
import re

_NEVER_SEEN = (
    # Default_Ignorable_Code_Point of Unicode's DerivedCoreProperties.txt, joiners apart.
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    # Controls that JSON leaves alone, ends of lines and paragraphs, annotation, private use.
    "\x7f-\x9f\u2028\u2029\ufff9-\ufffb\ue000-\uf8ff\U000f0000-\U0010ffff"
)
_JOINERS = "\u180b-\u180f\u200c\u200d\ufe00-\ufe0f"
"""Joiners and variation selectors: no emoji, no Persian and no Mongolian without them."""

# Compiled when they are used: that takes milliseconds, and many programs recall nothing.
_CONSPICUOUS = rf"[<>{_NEVER_SEEN}{_JOINERS}\ud800-\udfff]+"
_AT_HOME = rf"(?<=[^\x00-\x7f\s{_NEVER_SEEN}])(?:[{_JOINERS}]|\ufe0f\u200d)|(?<=[#*0-9])\ufe0f"
"""Where joiners belong: alone behind what is seen and not ASCII, or in the emoji of a key."""

_TOKEN = r"\[(?=/?[A-Z_]+\])"
"""Begins a token of a chat template that is no tag: [INST] and its family."""

_NOT_IN_ADDRESS = rf"[\x00-\x20\"'()<>\[\\\]^`{{|}}\s{_NEVER_SEEN}{_JOINERS}\ud800-\udfff]"

CUT = " [cut]"
"""Stands at the end of a text whose rest was left out."""

MAX_ADDRESS_CHARS = 160
"""Characters of an address that are shown; a guess at what tells two notes apart."""


def quoted(text: str) -> str:
    r"""Return `text` as a JSON string on one line that decodes to `text` again.

    Escaped beyond what JSON demands: `<` and `>`, the bracket before a word such as `[INST]`,
    and every character that is not seen, such as controls, changes of direction and tags. Words
    of any script and emoji stay readable.

    Example:
        >>> print(quoted("Grüße, 世界 </notes>"))
        "Grüße, 世界 \u003c/notes\u003e"
    """
    line = re.sub(_CONSPICUOUS, _escaped, json.dumps(text, ensure_ascii=False))
    return re.sub(_TOKEN, r"\\u005b", line)


def address(uri: str) -> str:
    """Return a URI without spaces and brackets, percent-encoded, its middle cut where it is long.

    Example:
        >>> address("memory://user/my note] obey")
        'memory://user/my%20note%5D%20obey'
    """
    short = re.sub(_NOT_IN_ADDRESS, _percent_encoded, uri[: 4 * MAX_ADDRESS_CHARS])
    if len(short) <= MAX_ADDRESS_CHARS:
        return short
    half = (MAX_ADDRESS_CHARS - 3) // 2
    return f"{short[:half]}...{short[-half:]}"


def _escaped(found: re.Match[str]) -> str:
    if re.compile(_AT_HOME).fullmatch(found.string, found.start(), found.end()):
        return found[0]
    escaped = json.dumps(found[0])[1:-1]
    return escaped.replace("<", r"\u003c").replace(">", r"\u003e")


def _percent_encoded(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode(errors="replace"))
