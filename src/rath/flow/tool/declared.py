"""What programs declare of their tools, checked where they do."""

from __future__ import annotations

import math
from typing import get_args

from rath.session.tooling import ToolEffects

__all__ = ["check_approval", "check_effects", "check_kind", "check_timeout"]


def check_kind(option: str, value: object, kind: type, words: str) -> None:
    """Refuse a value of another type; `words` say which one is expected.

    Raises:
        TypeError: It is of another type.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{option} must be {words}, not {value!r:.80}")


def check_effects(effects: object) -> None:
    """Refuse what says nothing of effects.

    Raises:
        ValueError: It is none of the known words.
    """
    known = get_args(ToolEffects)
    if effects not in known:
        raise ValueError(f"effects must be one of {', '.join(map(repr, known))}, not {effects!r}")


def check_timeout(timeout: object) -> None:
    """Refuse what is no time that a call may take.

    Raises:
        TypeError: It is neither a number nor None.
        ValueError: It is a number that is not above 0, or infinite.
    """
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout must be seconds or None, not {timeout!r:.80}")
    if not (math.isfinite(timeout) and timeout > 0):
        raise ValueError(f"timeout must be a number of seconds above 0, not {timeout!r}")


def check_approval(approval: object) -> None:
    """Refuse what is no rule of approval.

    Raises:
        ValueError: It is none.
    """
    if callable(approval) or approval in ("never", "always"):
        return
    raise ValueError(
        "approval must be 'never', 'always' or a function that takes a CallRequest and returns a "
        f"bool, not {approval!r:.80}"
    )
