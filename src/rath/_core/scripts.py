"""Scripts that put no spaces between words."""

from __future__ import annotations

import re

# Thai, Lao, Tibetan, Myanmar, Khmer, kana, Bopomofo, Han and Hangul. Hangul is spaced, but its
# particles stick to the words.
UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u312f\u31a0-\u31ff\u3400-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U0001b000-\U0001b16f\U00020000-\U0003ffff]+"
)
"""Finds runs of characters of such scripts."""
