"""The data of the page as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, assert_never, cast
from uuid import UUID

from rath._core.blobs import Blob
from rath._core.text import decode_output, valid_unicode
from rath.backend.abc import SandboxIdentity
from rath.backend.effects import FileEffect
from rath.llm.chat_request import RathLLMFunctionTool
from rath.llm.exchange import CallEvidence
from rath.llm.image import Image
from rath.session.chunk import ChunkRow
from rath.session.content import AssistantTurn, Opaque, SystemText, ToolFeedback, UserText
from rath.session.files.changes import inner_operations
from rath.session.files.diff import unified_diff
from rath.session.record import (
    Change,
    Decision,
    Entry,
    Interrupt,
    ModelCall,
    Operation,
    Seen,
    Summary,
    ToolRun,
    Verdict,
)
from rath.session.view.nodes import (
    Catalogue,
    Numbered,
    PageLimits,
    PageNode,
    Shown,
    Totals,
    cut_text,
    own_entries,
    totals,
)


class EvidenceEncoder:
    """Encodes entries whose rows are numbered already.

    Args:
        limits: How much of a text is shown.
        catalogue: Numbers rows and entries.
        share: Gives the number under which the page has what many entries name.
        number: Gives the number of a session's id.
    """

    def __init__(
        self,
        limits: PageLimits,
        catalogue: Catalogue,
        share: Callable[[Any], int],
        number: Callable[[UUID], int],
    ) -> None:
        self._limits = limits
        self._catalogue = catalogue
        self._share = share
        self._number = number
        self._operations: dict[UUID, int] = {}

    def encode(self, entry: Entry) -> dict[str, Any]:
        """Return an entry as the page reads it; what is empty is left out."""
        if isinstance(entry, Operation):
            number = self._catalogue.entry(entry.id)
            assert number is not None
            self._operations[entry.operation] = number
        rows = [self._catalogue.rows.find(row) for row in entry.rows]
        return without_empty(
            op=self._operations.get(entry.operation),
            at=int(entry.at.timestamp() * 1000),
            rows=[row for row in rows if row is not None],
            **self._fields(entry),
        )

    def _fields(self, entry: Entry) -> dict[str, Any]:
        match entry:
            case Operation():
                return self._operation(entry)
            case ModelCall():
                return self._model_call(entry)
            case ToolRun():
                return self._tool_run(entry)
            case Summary():
                known = (self._catalogue.rows.find(row) for row in entry.replaced)
                return {
                    "k": "summary",
                    "replaced": [row for row in known if row is not None],
                    "n": len(entry.replaced),
                    "digest": entry.replaced_digest,
                }
            case Verdict():
                return self._verdict(entry)
            case Interrupt():
                return {
                    "k": "interrupt",
                    "reason": entry.reason,
                    "calls": list(entry.calls),
                    "question": self._text(entry.question),
                    "child": None if entry.child is None else str(entry.child),
                }
            case Decision():
                return self._decision(entry)
            case Change():
                return {
                    "k": "change",
                    "what": entry.what,
                    "hook": entry.hook,
                    "call": entry.call_id,
                    "before": self._full(entry.before),
                    "after": self._full(entry.after),
                }
            case _:
                assert_never(entry)

    def _text(self, text: str | None) -> Shown | None:
        return None if text is None else cut_text(text, self._limits.max_chars)

    def _json(self, value: object) -> Shown | None:
        """Return any data as JSON text, which the page shows as it is."""
        return None if value is None else self._text(encode_plain(value))

    def _operation(self, entry: Operation) -> dict[str, Any]:
        return {
            "k": "operation",
            "kind": entry.kind,
            "path": entry.place.path,
            "ordinal": entry.place.ordinal,
            "session": self._number(entry.session),
            "head": self._shared([self._head_row(row) for row in entry.head]),
            "tools": self._shared([self._tool(each) for each in entry.tools]),
            "output": None if entry.output is None else self._json(asdict(entry.output)),
            "workspace": entry.workspace,
            "undone": self._catalogue.entry(entry.undone),
            "origin": entry.origin,
        }

    def _shared(self, listed: list[Any]) -> int | None:
        return self._share(listed) if listed else None

    def _head_row(self, row: ChunkRow) -> list[Any]:
        content = row.content
        if isinstance(content, SystemText | UserText):
            return [row.kind_name, self._text(content.text)]
        return [row.kind_name, self._text(encode_plain(dict(row.payload)))]

    def _tool(self, tool: RathLLMFunctionTool) -> list[Any]:
        return [
            tool.name,
            self._text(tool.description),
            self._json(tool.parameters),
        ]

    def _model_call(self, entry: ModelCall) -> dict[str, Any]:
        call = entry.evidence
        usage, cost = call.usage, call.cost
        return {
            "k": "model",
            "purpose": entry.purpose,
            "status": entry.status,
            "who": self._share(self._asked(call)),
            "seen": None if entry.seen is None else self._seen(entry.seen),
            "answer": self._text(entry.answer),
            "partial": self._text(call.partial_text or None) if entry.status != "done" else None,
            "error": self._text(call.error),
            "id": call.response_id,
            "began": int(call.started.timestamp() * 1000),
            "ttft": _number(call.first_token_ms),
            "ms": _number(call.duration_ms),
            "queued": _number(call.queued_ms) or None,
            "unsent": None if call.was_sent else 1,
            "finish": call.finish_reason,
            "raw": call.finish_reason_raw,
            "usage": usage and [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens],
            "cached": call.cached_tokens,
            "written": call.cache_write_tokens,
            "thought": call.reasoning_tokens,
            "usd": None if cost is None else f"{cost.usd:f}",
            "price": None if cost is None else f"{cost.price_id}, {cost.source}",
            "reasoning": self._text(call.reasoning),
            "blocks": len(call.reasoning_blocks) or None,
            "attempts": [
                [each.number, each.error, each.status, _number(each.elapsed_ms), each.wait]
                for each in call.attempts
                if each.error is not None or len(call.attempts) > 1
            ],
            "fallback": call.fallback_from,
        }

    def _asked(self, call: CallEvidence) -> dict[str, Any]:
        """Return what calls of one run have in common: whom they asked, and how."""
        sdk = " ".join(part for part in (call.sdk, call.sdk_version) if part)
        return without_empty(
            kind=call.provider_kind,
            adapter=f"{call.adapter} {call.adapter_version}",
            sdk=sdk,
            endpoint=call.endpoint,
            asked=call.requested_model,
            served=call.served_model,
            tier=call.service_tier,
            fingerprint=call.fingerprint,
            parameters=self._json(call.parameters) if call.parameters else None,
            origins=[[name, where] for name, where in call.origins],
            credential=call.credential,
        )

    def _seen(self, seen: Seen) -> dict[str, Any]:
        return without_empty(
            n=seen.n_rows,
            contextAt=seen.context_at,
            context=self._text(seen.context),
            notes=[
                [
                    each.uri,
                    self._text(each.text),
                    _number(each.score),
                    each.n_left_out,
                ]
                for each in seen.recalled
            ],
            question=self._text(seen.question),
            head=seen.head_digest,
            tools=seen.tools_digest,
            renderer=seen.renderer,
            digest=seen.request_digest,
        )

    def _tool_run(self, entry: ToolRun) -> dict[str, Any]:
        return {
            "k": "tool",
            "call": entry.call_id,
            "tool": entry.tool,
            "origin": entry.origin,
            "schema": entry.schema_digest,
            "effects": entry.effects_declared,
            "args": self._json(entry.arguments),
            "where": None if entry.sandbox is None else self._share(_place(entry.sandbox)),
            "status": entry.status,
            "error": entry.error_kind,
            "exit": entry.exit_code,
            "signal": entry.signal,
            "ms": _number(entry.duration_ms),
            "shown": entry.shown.size,
            "full": None if entry.full is None else self._full(entry.full),
            "files": [self._change(effect) for effect in entry.file_effects],
            "gaps": list(entry.effect_gaps),
            "decision": self._catalogue.entry(entry.decision),
        }

    def _full(self, blob: Blob) -> dict[str, Any]:
        text = None if blob.data is None else self._text(decode_output(blob.data))
        return without_empty(n=blob.size, digest=blob.digest, text=text)

    def _change(self, effect: FileEffect) -> dict[str, Any]:
        diff = unified_diff([effect])
        modes = (effect.before_mode, effect.after_mode)
        return without_empty(
            path=effect.path,
            kind=effect.kind,
            old=effect.renamed_from,
            by=effect.attribution if effect.attribution != "exact" else None,
            before=None if effect.before is None else effect.before.size,
            after=None if effect.after is None else effect.after.size,
            digest=None if effect.after is None else effect.after.digest,
            modes=[_octal(mode) for mode in modes] if modes[0] != modes[1] else None,
            diff=cut_text(diff, self._limits.max_diff_chars) if diff else None,
        )

    def _verdict(self, entry: Verdict) -> dict[str, Any]:
        return {
            "k": "verdict",
            "name": entry.name,
            "judge": self._text(entry.judge),
            "passed": int(entry.passed),
            "score": _number(entry.score),
            "report": self._text(entry.report),
            "workspace": entry.workspace_digest,
        }

    def _decision(self, entry: Decision) -> dict[str, Any]:
        return {
            "k": "decision",
            "interrupt": self._catalogue.entry(entry.interrupt),
            "choice": self._text(entry.choice),
            "by": entry.by,
            "call": entry.call_id,
            "tool": entry.tool,
            "args": self._json(entry.arguments),
            "text": self._text(entry.text),
            "edited": None if entry.edited is None else self._json(entry.edited),
        }


def without_empty(**fields: Any) -> dict[str, Any]:
    """Return the fields that say something; 0 does."""
    return {name: value for name, value in fields.items() if value not in (None, "", [])}


def encode_plain(value: object) -> str:
    """Return any data as text for a person: a string as it is, all else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, indent=1, default=_plain_data)
    except (TypeError, ValueError, RecursionError):
        return f"{value!r:.2000}"


def _plain_data(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, object]", value))
    if isinstance(value, Sequence):
        return list(cast("Sequence[object]", value))
    return str(value)


def _number(value: float | None) -> float | None:
    """Return a number that JSON has a form for, to a tenth."""
    return None if value is None or not math.isfinite(value) else round(value, 3)


def _octal(mode: int | None) -> str | None:
    return None if mode is None else f"{mode:06o}"


def _place(where: SandboxIdentity) -> dict[str, Any]:
    return {name: str(value) for name, value in asdict(where).items() if value is not None}


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

    def encode(self, nodes: Sequence[PageNode]) -> str:
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

    def _session(self, node: PageNode) -> dict[str, Any]:
        return without_empty(
            id=self._id(node.id),
            operator=node.operator,
            kind=node.kind.value,
            parents=[self._id(parent) for parent in node.parents],
            extras=[[name, encode_plain(value)] for name, value in node.extras],
            state=node.state,
            problem=cut_text(node.problem, self._limits.max_chars),
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
                return {"t": cut_text(text, limit)}
            case UserText(text, images):
                return without_empty(
                    t=cut_text(text, limit), im=[self._image(each) for each in images]
                )
            case AssistantTurn(text, calls):
                listed = [[call.id, call.name, cut_text(call.arguments, limit)] for call in calls]
                return without_empty(t=None if text is None else cut_text(text, limit), c=listed)
            case ToolFeedback(call_id, name, body, images):
                said = {"t": cut_text(body, limit), "tool": name, "call": call_id}
                return {**said, **without_empty(im=[self._image(each) for each in images])}
            case Opaque(payload):
                return {"t": cut_text(encode_plain(dict(payload)), limit)}
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
