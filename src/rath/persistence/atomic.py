"""Files that are never seen half written, under their documented names."""

from __future__ import annotations

from rath._core.files import atomic_write_json, atomic_write_text

__all__ = ["atomic_write_json", "atomic_write_text"]
