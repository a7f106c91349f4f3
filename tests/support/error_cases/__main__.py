"""Write the page of error messages anew, or to the file that is named."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.support.error_cases import PAGE, page

target = Path(sys.argv[1]) if sys.argv[1:] else PAGE
with tempfile.TemporaryDirectory() as scratch:
    target.write_text(page(Path(scratch)), "utf-8")
