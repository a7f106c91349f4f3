"""Sessions as a page that a person reads: lineage, rows, and what each row rests on."""

from __future__ import annotations

from rath.session.view.page import write_page
from rath.session.view.page_data import PageLimits

__all__ = ["PageLimits", "write_page"]
