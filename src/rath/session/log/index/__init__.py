"""An index of the sessions of a store: derived from their logs, and made again when it is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rath.session.log.index.database import IndexedCall, SessionSummary
    from rath.session.log.index.database import to_micros as to_micros
    from rath.session.log.index.store_index import IndexMemory as IndexMemory
    from rath.session.log.index.store_index import ListedLog as ListedLog
    from rath.session.log.index.store_index import (
        SearchHit,
        SessionFilter,
        StoreIndex,
        index_file,
    )
    from rath.session.log.index.store_index import index_memory as index_memory
    from rath.session.log.index.store_index import lines_are_missing as lines_are_missing
else:
    from rath._core.lazy_imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "database": ("IndexedCall", "SessionSummary", "to_micros"),
            "store_index": (
                "IndexMemory",
                "ListedLog",
                "SearchHit",
                "SessionFilter",
                "StoreIndex",
                "index_file",
                "index_memory",
                "lines_are_missing",
            ),
        },
    )

__all__ = [
    "IndexedCall",
    "SearchHit",
    "SessionFilter",
    "SessionSummary",
    "StoreIndex",
    "index_file",
]
