"""A home for the files of an example, apart from the user's own."""

from __future__ import annotations

import os
from pathlib import Path

_OWN = Path(__file__).resolve().parents[1] / ".openrath"


def own_home() -> Path:
    """Keep the files of rath in `example/.openrath` and work in an empty directory in there.

    OPENRATH_HOME names another place. The working directory is changed because a model may use
    the built-in tools as it likes, and what it writes should not land in your clone.
    """
    home = Path(os.environ.setdefault("OPENRATH_HOME", str(_OWN))).resolve()
    workspace = home / "workspace"
    workspace.mkdir(parents=True, exist_ok=True)
    os.chdir(workspace)
    print(f"files of this program: {home}")
    return home
