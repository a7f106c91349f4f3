"""What a written request says beside its messages."""

from __future__ import annotations

import json
from typing import Any

_NO_PARAMETERS = frozenset({"messages", "system", "tools"})


def body_parameters(body: bytes) -> dict[str, Any] | None:
    """Return the parameters in the body of a request, None for one that is no JSON object."""
    try:
        said: dict[str, Any] = dict(json.loads(body))
    except (TypeError, ValueError):
        return None
    return {name: value for name, value in said.items() if name not in _NO_PARAMETERS}
