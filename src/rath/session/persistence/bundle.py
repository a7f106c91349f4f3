"""Sessions with all that they came from in one portable file, under the documented path."""

from rath.session.log.bundle import (
    Bundle,
    BundleStore,
    Imported,
    import_bundle,
    pack,
    read_bundle,
    write_bundle,
)

__all__ = [
    "Bundle",
    "BundleStore",
    "Imported",
    "import_bundle",
    "pack",
    "read_bundle",
    "write_bundle",
]
