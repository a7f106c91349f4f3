"""Where the program of the README keeps its files, and how to look at them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rath.session import Session

_CLONE = Path(__file__).resolve().parents[2]
_BEGINNING = Path.cwd()


def own_home() -> Path:
    """Keep sessions and notes in `.openrath` of the clone, where `rath` finds them from there.

    OPENRATH_HOME names another place.
    """
    home = Path(os.environ.setdefault("OPENRATH_HOME", str(_CLONE / ".openrath"))).resolve()
    print(f"files of this program: {home}")
    return home


def say_next(session: Session) -> None:
    """Print the commands that show what was recorded of a session."""
    command = Path(sys.executable).with_name("rath")
    if command.is_relative_to(_CLONE):
        command = command.relative_to(_CLONE)
    in_clone = _BEGINNING.resolve() == _CLONE
    print("\nnext, in this directory:" if in_clone else f"\nnext, in {_CLONE}:")
    for arguments in ("ls", f"explain {session.id}", f"view {session.id} --open", "chat"):
        print(f"  {command} {arguments}")
