"""Write the page of error messages anew."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.support.error_cases import PAGE, page

with tempfile.TemporaryDirectory() as scratch:
    PAGE.write_text(page(Path(scratch)), "utf-8")
