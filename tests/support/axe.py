"""axe-core, which finds faults of pages that keep people out; `.ci/prepare.sh` installs it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

from playwright.sync_api import Page

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
_INSTALLED = Path(os.environ.get("RATH_AXE") or _CACHE / "openrath" / "axe-4.11.0")
AXE = _INSTALLED / "node_modules" / "axe-core" / "axe.min.js"
"""Its code, in the installation that `RATH_AXE` names or in the cache."""

NO_AXE = f"there is no axe-core in {_INSTALLED}; `bash .ci/test` installs it where npm is"

_SERIOUS = ("serious", "critical")


def faults(page: Page) -> list[str]:
    """The serious and critical faults that axe-core finds on a page, one line each."""
    page.evaluate(AXE.read_text("utf-8"))
    options = {"resultTypes": ["violations"]}
    found = cast("dict[str, Any]", page.evaluate("options => axe.run(document, options)", options))
    return [
        f"{each['id']}: {node['html'][:200]}"
        for each in found["violations"]
        if each["impact"] in _SERIOUS
        for node in each["nodes"]
    ]
