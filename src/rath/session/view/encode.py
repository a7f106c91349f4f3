"""Sessions to the JSON of a page; `src/rath/view/data.js` reads it.

    {"ids": [uuid],                          all that is named by number below
     "rows": [{"s": id, "i": index at birth, "k": kind, "t": text, ...}],
     "entries": [{"k": kind, "op": entry, "at": ms, "rows": [row], ...}],
     "shared": [...],                        named by many: instructions, tools, models, places
     "sessions": [{"id": id, "rows": [[first, n]], "entries": [[first, n]], ...}]}

Every row and entry stands once; a session is ranges of them. A text is a string, or
`[head, characters left out, tail]`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, assert_never
from uuid import UUID

from rath._core.text import valid_unicode
from rath.llm.image import Image
from rath.session.chunk import ChunkRow
from rath.session.content import AssistantTurn, Opaque, SystemText, ToolFeedback, UserText
from rath.session.file_changes.history import inner_operations
from rath.session.record import Entry
from rath.session.view.catalogue import Catalogue, Numbered
from rath.session.view.evidence.encode import EvidenceEncoder, encode_plain, without_empty
from rath.session.view.limits import PageLimits
from rath.session.view.nodes import Node, Totals, own_entries, totals
from rath.session.view.texts import shown

_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class PageEncoder:
    """Encodes the sessions of a page, and then what came since; each row and entry once."""

    def __init__(self, limits: PageLimits) -> None:
        self._limits = limits
        self._catalogue = Catalogue()
        self._ids: Numbered[str] = Numbered()
        self._shared: Numbered[Any] = Numbered()
        self._images_left = limits.max_all_images_bytes
        self._evidence = EvidenceEncoder(limits, self._catalogue, self._share, self._id)

    def encode(self, nodes: Sequence[Node]) -> str:
        """Return as JSON the sessions, and the rows and entries that were not told before."""
        sessions = [self._session(node) for node in nodes]
        inside = {each for node in nodes for each in inner_operations(own_entries(node))}
        rows = [self._row(row) for row in self._catalogue.rows.fresh()]
        entries = [self._entry(entry, inside) for entry in self._catalogue.entries.fresh()]
        made = {
            "ids": self._ids.fresh(),
            "shared": self._shared.fresh(),
            "rows": rows,
            "entries": entries,
            "sessions": sessions,
        }
        # Names and arguments come as models wrote them, perhaps with lone surrogates.
        return valid_unicode(_dumps(made))

    def _id(self, id: UUID) -> int:
        return self._ids.number(id, str(id))

    def _share(self, value: Any) -> int:
        return self._shared.number(_dumps(value), value)

    def _session(self, node: Node) -> dict[str, Any]:
        return without_empty(
            id=self._id(node.id),
            operator=node.operator,
            kind=node.kind.value,
            parents=[self._id(parent) for parent in node.parents],
            extras=[[name, encode_plain(value)] for name, value in node.extras],
            state=node.state,
            problem=shown(node.problem, self._limits.max_chars),
            rows=self._catalogue.row_ranges(node),
            entries=self._catalogue.entry_ranges(node),
            **_encode_totals(totals(node)),
        )

    def _entry(self, entry: Entry, inside: set[UUID]) -> dict[str, Any]:
        encoded = self._evidence.encode(entry)
        if entry.operation in inside:
            encoded["in"] = 1
        return encoded

    def _row(self, row: ChunkRow) -> dict[str, Any]:
        name = {} if row.id is None else {"s": self._id(row.id.session), "i": row.id.index}
        return {"k": row.kind_name, **name, **self._content(row)}

    def _content(self, row: ChunkRow) -> dict[str, Any]:
        limit = self._limits.max_chars
        match row.content:
            case SystemText(text):
                return {"t": shown(text, limit)}
            case UserText(text, images):
                return without_empty(
                    t=shown(text, limit), im=[self._image(each) for each in images]
                )
            case AssistantTurn(text, calls):
                listed = [[call.id, call.name, shown(call.arguments, limit)] for call in calls]
                return without_empty(t=None if text is None else shown(text, limit), c=listed)
            case ToolFeedback(call_id, name, body, images):
                said = {"t": shown(body, limit), "tool": name, "call": call_id}
                return {**said, **without_empty(im=[self._image(each) for each in images])}
            case Opaque(payload):
                return {"t": shown(encode_plain(dict(payload)), limit)}
            case _:
                assert_never(row.content)

    def _image(self, image: Image) -> dict[str, Any]:
        size = image.blob.size
        said = {"m": image.mime, "n": size, "d": image.blob.digest}
        if size > self._limits.max_image_bytes:
            return {**said, "why": f"larger than {self._limits.max_image_bytes} bytes"}
        if size > self._images_left:
            return {**said, "why": "the images of this page have reached their limit"}
        # Last, since the bytes may have to be fetched.
        if image.blob.data is None:
            return {**said, "why": image.absent or "its bytes are not here"}
        self._images_left -= size
        return {**said, "b": image.to_base64()}


def _encode_totals(made: Totals) -> dict[str, Any]:
    cost = made.cost
    return without_empty(
        title=made.title,
        path=made.path,
        calls=made.n_calls,
        tools=made.n_tool_runs,
        tokens=made.tokens,
        usd=f"{cost.usd:f}" if cost.n_priced else None,
        unpriced=sum(n for _, n in (*cost.unpriced, *cost.uncounted)),
        models=list(made.models),
        backends=list(made.backends),
        at=made.started_ms,
        ms=made.duration_ms,
    )
