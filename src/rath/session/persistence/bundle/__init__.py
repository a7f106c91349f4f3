"""Sessions with all that they came from in one portable file."""

from __future__ import annotations

from rath.session.persistence.bundle.decode import Bundle, read_bundle
from rath.session.persistence.bundle.encode import write_bundle
from rath.session.persistence.bundle.importing import Imported, import_bundle
from rath.session.persistence.bundle.packing import pack
from rath.session.persistence.bundle.store import BundleStore

__all__ = [
    "Bundle",
    "BundleStore",
    "Imported",
    "import_bundle",
    "pack",
    "read_bundle",
    "write_bundle",
]
