"""Sessions of a page as JSON: each once, rows and entries by number, what is long cut."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Generic, TypeAlias, TypeVar, assert_never, cast
from uuid import UUID

from rath._async.deferred import Deferred
from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath._core.text import decode_output, one_line_preview, valid_unicode
from rath.backend.abc import SandboxIdentity
from rath.backend.effects import FileEffect
from rath.llm.evidence import CallEvidence
from rath.llm.image import Image
from rath.session.base import with_late
from rath.session.body import Body, model_of, sum_costs
from rath.session.chunk import ChunkRow, ChunkTable, RowId
from rath.session.content import (
    AssistantTurn,
    Opaque,
    SystemText,
    ToolFeedback,
    TracebackInfo,
    UserText,
)
from rath.session.files.changes import inner_operations
from rath.session.files.diff import unified_diff
from rath.session.graph.kind import LineageKind
from rath.session.graph.recording import Edge, Provenance, ancestry
from rath.session.log.index.database import OUTCOME_STATES
from rath.session.outcome import (
    BudgetExceeded,
    Cancelled,
    Completed,
    DeadlineExceeded,
    NeedsApproval,
    NeedsDecision,
    NeedsInput,
    Outcome,
    RoundLimit,
)
from rath.session.record import (
    Change,
    Decision,
    Entry,
    Interrupt,
    ItemRun,
    JobStart,
    ModelCall,
    Operation,
    Seen,
    Summary,
    ToolRun,
    Verdict,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLimits:
    """Sizes above which the page shows a part; all are guesses that keep a page below 20 MB."""

    max_chars: int = 20_000
    """Of one text: a message, arguments, a result. Both ends of a longer one are shown."""

    max_diff_chars: int = 40_000
    """Of the diff of one file."""

    max_image_bytes: int = 300_000
    """Of one image; of a larger one the page says type, size and digest."""

    max_all_images_bytes: int = 8_000_000
    """Of all images of a page together."""

    def __post_init__(self) -> None:
        for name in ("max_chars", "max_diff_chars"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("max_image_bytes", "max_all_images_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")


CutText: TypeAlias = "str | list[str | int]"
"""A text; or head, number of characters left out, and tail of one that was too long."""

_HARMLESS = str.maketrans(
    {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
)  # In JSON these stand inside of strings only.


def cut_text(text: str, max_chars: int) -> CutText:
    """Return a text of at most `max_chars` characters, with what is left out said."""
    if len(text) <= max_chars:
        return text
    head = max_chars - max_chars // 3
    tail = len(text) - max_chars // 3
    return [text[:head], tail - head, text[tail:]]


def harmless(json_text: str) -> str:
    """Return the same JSON so that no HTML parser finds the end of a script in it."""
    return json_text.translate(_HARMLESS)


MAX_TITLE = 120
"""Characters of a session's title."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageNode:
    """A session of the page."""

    id: UUID
    operator: str
    kind: LineageKind
    parents: tuple[UUID, ...]
    extras: tuple[tuple[str, Any], ...]
    body: Body | None
    """Its content, as far as it is there; None for a session that is known by its id alone."""

    state: str
    """As `SessionSummary.state`, or "absent"."""

    problem: str = ""
    """Why it failed, or what it waits for."""


def nodes_of(heads: Iterable[Edge]) -> tuple[PageNode, ...]:
    """Return the sessions behind `heads`, each once and after all that it came from."""
    return tuple(map(_node, ancestry(heads)))


def own_entries(node: PageNode) -> Sequence[Entry]:
    """Return the entries of the session itself: from its own operation on; O(entries)."""
    if node.body is None:
        return ()
    record = node.body.record
    for at, entry in enumerate(record):
        if isinstance(entry, Operation) and entry.session == node.id:
            return record.since(at)
    return () if node.parents else record.since(0)


def totals(node: PageNode) -> dict[str, Any]:
    """Return the totals of a session itself, without its ancestors; O(rows + entries)."""
    entries = own_entries(node)
    calls = [entry for entry in entries if isinstance(entry, ModelCall)]
    runs = [entry for entry in entries if isinstance(entry, ToolRun)]
    usages = [call.evidence.usage for call in calls if call.evidence.usage is not None]
    places = (entry.place.path for entry in entries if isinstance(entry, Operation))
    cost = sum_costs(calls)
    started = _ms(entries[0].at) if entries else None
    return {
        "title": _title(node),
        "path": next(places, ""),
        "calls": len(calls),
        "tools": len(runs),
        "tokens": sum(usage.total_tokens for usage in usages),
        "usd": f"{cost.usd:f}" if cost.n_priced else None,
        "unpriced": sum(n for _, n in (*cost.unpriced, *cost.uncounted)),
        "models": list(dict.fromkeys(model_of(call.evidence) for call in calls)),
        "backends": list(dict.fromkeys(run.sandbox.backend for run in runs if run.sandbox)),
        "at": started,
        "ms": None if started is None else max(map(_end_ms, entries)) - started,
    }


def _node(edge: Edge) -> PageNode:
    provenance = edge.provenance or Provenance()
    cell: Deferred[Body] | None = edge.body
    if cell is None:
        body, state, problem = None, "absent", "it is known by its id alone"
    else:
        body = with_late(edge.late, cell.latest or Body(ChunkTable()))
        state, problem = _state(cell, body)
    return PageNode(
        id=edge.id,
        operator=provenance.operator,
        kind=provenance.kind,
        parents=provenance.parent_ids,
        extras=provenance.extras,
        body=body,
        state=state,
        problem=problem,
    )


def _state(cell: Deferred[Body], body: Body) -> tuple[str, str]:
    if not cell.done():
        return "running", ""
    error = cell.error()
    if error is not None:
        return "failed", f"{type(error).__name__}: {error}"
    unfinished = body.unfinished
    if (
        unfinished is not None
        and unfinished.failure is not None
        and unfinished.failure.how == "failed"
    ):
        return "failed", unfinished.failure.error
    return outcome_state(body.outcome)


_REASONS: Mapping[type[Outcome], Callable[[Any], str]] = {
    Completed: lambda _: "",
    RoundLimit: lambda it: f"it used its {it.max_tool_rounds} rounds and still wanted tools",
    BudgetExceeded: str,
    DeadlineExceeded: lambda it: f"it took longer than {it.timeout:g} s",
    Cancelled: lambda it: f"the run of session {it.session} was ended from outside",
    NeedsApproval: lambda it: f"calls to approve: {', '.join(it.calls)}",
    NeedsInput: lambda it: it.question,
    NeedsDecision: lambda it: f"it is not known what came of {', '.join(it.calls)}",
}
"""What there is to say about an outcome."""


def outcome_state(outcome: Outcome) -> tuple[str, str]:
    """Return an outcome as `SessionSummary.state` names it, and what there is to say about it."""
    if isinstance(outcome, NeedsDecision) and not outcome.calls:
        return "cut_off", "its run has no end: it still goes on, or was cut off and can be resumed"
    return OUTCOME_STATES[type(outcome).__name__], _REASONS[type(outcome)](outcome)


def _title(node: PageNode) -> str:
    if node.body is None:
        return ""
    texts = (
        row.content.text
        for row in node.body.table
        if row.id is not None and row.id.session == node.id and isinstance(row.content, UserText)
    )
    return one_line_preview(next(texts, ""), MAX_TITLE)


def _end_ms(entry: Entry) -> int:
    if isinstance(entry, ModelCall):
        return max(_ms(entry.at), _ms(entry.evidence.started) + int(entry.evidence.duration_ms))
    return _ms(entry.at)


def _ms(at: datetime) -> int:
    """Return milliseconds since 1970."""
    return int(at.timestamp() * 1000)


T = TypeVar("T")
Range = tuple[int, int]
"""First index, and how many."""


class Numbered(Generic[T]):
    """Things by number, in the order in which they came; `fresh` gives those since it was asked."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._fresh: list[T] = []

    def number(self, key: Hashable, thing: T) -> int:
        """Return the number of `key`; under a new key `thing` gets the next one."""
        existing = self._numbers.get(key)
        if existing is not None:
            return existing
        self._fresh.append(thing)
        self._numbers[key] = number = len(self._numbers)
        return number

    def find(self, key: Hashable) -> int | None:
        """Return the number of `key`, None where there is none."""
        return self._numbers.get(key)

    def fresh(self) -> list[T]:
        """Return the events since the last request, in order."""
        fresh, self._fresh = self._fresh, []
        return fresh


class Catalogue:
    """Numbers the rows and entries of sessions; a session is then a few ranges of numbers."""

    def __init__(self) -> None:
        self.rows: Numbered[ChunkRow] = Numbered()
        self.entries: Numbered[Entry] = Numbered()
        self._contents: dict[Hashable, ChunkRow] = {}

    def row_ranges(self, node: PageNode) -> list[Range]:
        """Number the rows of a session; O(rows)."""
        return _ranges(map(self._row_number, () if node.body is None else node.body.table))

    def entry_ranges(self, node: PageNode) -> list[Range]:
        """Number the entries of a session's record; O(entries)."""
        record = () if node.body is None else node.body.record
        return _ranges(self.entries.number(entry.id, entry) for entry in record)

    def entry(self, entry: UUID | None) -> int | None:
        """Return the number of an entry by its id."""
        return None if entry is None else self.entries.find(entry)

    def _row_number(self, row: ChunkRow) -> int:
        key: Hashable = row.id
        existing = self._contents.setdefault(key, row)
        # A run that was made again from a copy of its past may use a name twice.
        if existing is not row and existing != row:
            key = (row.id, row.digest)
        return self.rows.number(key, row)


def _ranges(numbers: Iterable[int]) -> list[Range]:
    """Return consecutive numbers as ranges, in the same order."""
    ranges: list[Range] = []
    for number in numbers:
        if ranges and sum(ranges[-1]) == number:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
        else:
            ranges.append((number, 1))
    return ranges


_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class PageEncoder:
    """Encodes the sessions of a page, and then what came since; each row and entry once."""

    def __init__(self, limits: PageLimits) -> None:
        self._limits = limits
        self._catalogue = Catalogue()
        self._ids: Numbered[str] = Numbered()
        self._shared: Numbered[Any] = Numbered()
        self._images_left = limits.max_all_images_bytes
        self._operations: dict[UUID, int] = {}

    def encode(self, nodes: Sequence[PageNode]) -> str:
        """Return as JSON the sessions, and the rows and entries that were not told before."""
        sessions = [self._session(node) for node in nodes]
        inside = {each for node in nodes for each in inner_operations(own_entries(node))}
        rows = [self._row(row) for row in self._catalogue.rows.fresh()]
        entries = [self._entry(entry, inside) for entry in self._catalogue.entries.fresh()]
        page = {
            "ids": self._ids.fresh(),
            "shared": self._shared.fresh(),
            "rows": rows,
            "entries": entries,
            "sessions": sessions,
        }
        # Names and arguments come as models wrote them, perhaps with lone surrogates.
        return valid_unicode(_dumps(page))

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
            **totals(node),
        )

    def _entry(self, entry: Entry, inside: set[UUID]) -> dict[str, Any]:
        """Return an entry as the page reads it; what is empty is left out."""
        if isinstance(entry, Operation):
            number = self._catalogue.entry(entry.id)
            assert number is not None
            self._operations[entry.operation] = number
        return without_empty(
            op=self._operations.get(entry.operation),
            at=_ms(entry.at),
            rows=self._row_numbers(entry.rows),
            **self._fields(entry),
            **({"in": 1} if entry.operation in inside else {}),
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
                return {
                    "k": "summary",
                    "replaced": self._row_numbers(entry.replaced),
                    "n": len(entry.replaced),
                    "digest": entry.replaced_digest,
                }
            case Verdict():
                return {
                    "k": "verdict",
                    "name": entry.name,
                    "judge": self._text(entry.judge),
                    "passed": int(entry.passed),
                    "score": _number(entry.score),
                    "report": self._text(entry.error or entry.report),
                    "workspace": entry.workspace_digest,
                }
            case Interrupt():
                return {
                    "k": "interrupt",
                    "reason": entry.reason,
                    "calls": list(entry.calls),
                    "question": self._text(entry.question),
                    "child": None if entry.child is None else str(entry.child),
                }
            case Decision():
                return {
                    "k": "decision",
                    "interrupt": self._catalogue.entry(entry.interrupt),
                    "choice": self._text(entry.choice),
                    **_short_fields(entry, by="by", call="call_id", tool="tool"),
                    "args": self._json(entry.arguments),
                    "text": self._text(entry.text),
                    "edited": self._json(entry.edited),
                }
            case JobStart():
                return {
                    "k": "job",
                    **_short_fields(entry, name="name", engine="engine", n="n_items"),
                    "workflow": self._text(entry.workflow),
                }
            case ItemRun():
                return {
                    "k": "item",
                    **_short_fields(entry, status="status", attempt="attempt", epoch="epoch"),
                    "key": self._text(entry.key),
                    "session": None if entry.session is None else str(entry.session),
                    "error": self._text(entry.error),
                }
            case Change():
                return {
                    "k": "change",
                    **_short_fields(entry, what="what", hook="hook", call="call_id"),
                    "before": self._full(entry.before),
                    "after": self._full(entry.after),
                }
            case _:
                assert_never(entry)

    def _row_numbers(self, rows: Iterable[RowId]) -> list[int]:
        numbers = (self._catalogue.rows.find(row) for row in rows)
        return [row for row in numbers if row is not None]

    def _text(self, text: str | None) -> CutText | None:
        return None if text is None else cut_text(text, self._limits.max_chars)

    def _json(self, value: object) -> CutText | None:
        """Return any data as JSON text, which the page shows as it is."""
        return None if value is None else self._text(encode_plain(value))

    def _operation(self, entry: Operation) -> dict[str, Any]:
        head = [self._head_row(row) for row in entry.head]
        tools = [
            [tool.name, self._text(tool.description), self._json(tool.parameters)]
            for tool in entry.tools
        ]
        return {
            "k": "operation",
            "kind": entry.kind,
            **_short_fields(entry.place, path="path", ordinal="ordinal"),
            **({} if entry.place.state is None else {"state": entry.place.state}),
            "session": self._id(entry.session),
            "head": self._share(head) if head else None,
            "tools": self._share(tools) if tools else None,
            "output": None if entry.output is None else self._json(asdict(entry.output)),
            "workspace": entry.workspace,
            "undone": self._catalogue.entry(entry.undone),
            "origin": entry.origin,
        }

    def _head_row(self, row: ChunkRow) -> list[Any]:
        content = row.content
        if isinstance(content, SystemText | UserText):
            return [row.kind_name, self._text(content.text)]
        return [row.kind_name, self._json(dict(row.payload))]

    def _model_call(self, entry: ModelCall) -> dict[str, Any]:
        call = entry.evidence
        usage, cost = call.usage, call.cost
        return {
            "k": "model",
            **_short_fields(entry, purpose="purpose", status="status"),
            "who": self._share(self._request_fields(call)),
            "seen": None if entry.seen is None else self._input_fields(entry.seen),
            "answer": self._text(entry.answer),
            "partial": self._text(call.partial_text or None) if entry.status != "done" else None,
            "error": self._text(call.error),
            "id": call.response_id,
            "began": _ms(call.started),
            "ttft": _number(call.first_token_ms),
            "ms": _number(call.duration_ms),
            "queued": _number(call.queued_ms) or None,
            "unsent": None if call.was_sent else 1,
            **_short_fields(call, finish="finish_reason", raw="finish_reason_raw"),
            "usage": usage and [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens],
            **_short_fields(call, cached="cached_tokens", written="cache_write_tokens"),
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

    def _request_fields(self, call: CallEvidence) -> dict[str, Any]:
        """Return the common fields of the calls of one run: whom they asked, and how."""
        return without_empty(
            kind=call.provider_kind,
            adapter=f"{call.adapter} {call.adapter_version}",
            sdk=" ".join(part for part in (call.sdk, call.sdk_version) if part),
            **_short_fields(
                call, endpoint="endpoint", asked="requested_model", served="served_model"
            ),
            **_short_fields(call, tier="service_tier", fingerprint="fingerprint"),
            parameters=self._json(call.parameters) if call.parameters else None,
            origins=[[name, where] for name, where in call.origins],
            credential=call.credential,
        )

    def _input_fields(self, seen: Seen) -> dict[str, Any]:
        notes = [
            [each.uri, self._text(each.text), _number(each.score), each.n_left_out]
            for each in seen.recalled
        ]
        return without_empty(
            **_short_fields(seen, n="n_rows", contextAt="context_at"),
            context=self._text(seen.context),
            notes=notes,
            question=self._text(seen.question),
            **_short_fields(seen, head="head_digest", tools="tools_digest"),
            **_short_fields(seen, renderer="renderer", digest="request_digest"),
        )

    def _tool_run(self, entry: ToolRun) -> dict[str, Any]:
        return {
            "k": "tool",
            **_short_fields(entry, call="call_id", tool="tool", origin="origin"),
            **_short_fields(entry, schema="schema_digest", effects="effects_declared"),
            "args": self._json(entry.arguments),
            "where": None if entry.sandbox is None else self._share(_place(entry.sandbox)),
            **_short_fields(
                entry, status="status", error="error_kind", exit="exit_code", signal="signal"
            ),
            "ms": _number(entry.duration_ms),
            "shown": entry.shown.size,
            "full": None if entry.full is None else self._full(entry.full),
            "files": [self._change(effect) for effect in entry.file_effects],
            "gaps": list(entry.effect_gaps),
            "decision": self._catalogue.entry(entry.decision),
            **self._traceback(entry.traceback),
        }

    def _traceback(self, info: TracebackInfo | None) -> dict[str, Any]:
        return {} if info is None else {"raised": info.place, "traceback": self._text(info.text)}

    def _full(self, blob: Blob) -> dict[str, Any]:
        text = None if blob.data is None else self._text(decode_output(blob.data))
        return without_empty(n=blob.size, digest=blob.digest, text=text)

    def _change(self, effect: FileEffect) -> dict[str, Any]:
        diff = unified_diff([effect])
        modes = (effect.before_mode, effect.after_mode)
        return without_empty(
            **_short_fields(effect, path="path", kind="kind", old="renamed_from"),
            by=effect.attribution if effect.attribution != "exact" else None,
            before=None if effect.before is None else effect.before.size,
            after=None if effect.after is None else effect.after.size,
            digest=None if effect.after is None else effect.after.digest,
            modes=[_octal(mode) for mode in modes] if modes[0] != modes[1] else None,
            diff=cut_text(diff, self._limits.max_diff_chars) if diff else None,
        )

    def _row(self, row: ChunkRow) -> dict[str, Any]:
        name = {} if row.id is None else {"s": self._id(row.id.session), "i": row.id.index}
        return {"k": row.kind_name, **name, **self._content(row)}

    def _content(self, row: ChunkRow) -> dict[str, Any]:
        match row.content:
            case SystemText(text):
                return {"t": self._text(text)}
            case UserText(text, images):
                listed = [self._image(each) for each in images]
                return without_empty(t=self._text(text), im=listed)
            case AssistantTurn(text, calls):
                call_fields = [[call.id, call.name, self._text(call.arguments)] for call in calls]
                return without_empty(t=self._text(text), c=call_fields)
            case ToolFeedback(call_id, name, body, images):
                fields = {"t": self._text(body), "tool": name, "call": call_id}
                return {**fields, **without_empty(im=[self._image(each) for each in images])}
            case Opaque(payload):
                return {"t": self._json(dict(payload))}
            case _:
                assert_never(row.content)

    def _image(self, image: Image) -> dict[str, Any]:
        size = image.blob.size
        fields = {"m": image.mime, "n": size, "d": image.blob.digest}
        if size > self._limits.max_image_bytes:
            return {**fields, "why": f"larger than {self._limits.max_image_bytes} bytes"}
        if size > self._images_left:
            return {**fields, "why": "the images of this page have reached their limit"}
        # Last, since the bytes may have to be fetched.
        if image.blob.data is None:
            return {**fields, "why": image.absent or "its bytes are not here"}
        self._images_left -= size
        return {**fields, "b": image.to_base64()}


def without_empty(**fields: Any) -> dict[str, Any]:
    """Return the fields that say something; 0 does."""
    return {name: value for name, value in fields.items() if value not in (None, "", [])}


def _short_fields(value: object, **names: str) -> dict[str, Any]:
    """Return attributes of a value by the names that the page has for them."""
    return {short: getattr(value, name) for short, name in names.items()}


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
