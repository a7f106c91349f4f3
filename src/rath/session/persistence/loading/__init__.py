"""Stored sessions as sessions again: what logs say, put together with what they came from."""

from __future__ import annotations

from rath.session.persistence.loading.load import Loaded, load, load_file
from rath.session.persistence.loading.unfinished import Unfinished

__all__ = ["Loaded", "Unfinished", "load", "load_file"]
