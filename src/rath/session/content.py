"""Typed content of rows: images, quotation, and the JSON and messages they become."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, assert_never, cast

from msgspec import Struct

from rath._core.blobs import Blob, is_digest
from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_modules
from rath._core.text import cut_middle, decode_output, valid_unicode
from rath._core.vector import Vector
from rath.backend import results
from rath.llm.image import MAX_IMAGE_BYTES, Image

if TYPE_CHECKING:
    import hashlib

    from rath.backend import fallbacks, file_tools
else:
    hashlib, fallbacks, file_tools = lazy_modules(
        __name__, "hashlib", "rath.backend.fallbacks", "rath.backend.file_tools"
    )


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asked for."""

    id: str
    name: str
    arguments: str
    """Arguments as the model wrote them: JSON text, perhaps invalid, perhaps empty."""

    type: str = "function"


@dataclass(frozen=True, slots=True)
class SystemText:
    """Instructions of the agent."""

    text: str


@dataclass(frozen=True, slots=True)
class UserText:
    """The text and images of a person, or of a program in their place."""

    text: str
    images: tuple[Image, ...] = ()

    @property
    def described(self) -> str:
        """The text, and before it a label for each image."""
        return " ".join([*(image.label for image in self.images), self.text])


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """The text of a model and its tool calls."""

    text: str | None
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolFeedback:
    """The result of a tool call, as the model reads it."""

    call_id: str
    name: str
    body: str
    images: tuple[Image, ...] = ()

    @property
    def described(self) -> str:
        """The text, and before it a label for each image."""
        return " ".join([*(image.label for image in self.images), self.body])


@dataclass(frozen=True, slots=True)
class Opaque:
    """A row of a kind that this version does not know: kept, and skipped in requests."""

    payload: Mapping[str, Any]


Content = SystemText | UserText | AssistantTurn | ToolFeedback | Opaque


MAX_RESULT_IMAGES = 16
"""Most images of one result that a model is shown; a guess at what still helps it."""

MAX_RESULT_IMAGE_BYTES = MAX_IMAGE_BYTES
"""Most bytes of all images of one result together: as many as one may have."""


class Album:
    """Takes images up to the limits and gives the label of each, the same one for the same image.

    The label of one that is not shown says so, and why.
    """

    __slots__ = ("_included", "_labels", "_n_bytes")

    def __init__(self) -> None:
        self._included: list[Image] = []
        self._labels: dict[tuple[str, str], str] = {}
        """By digest and media type."""
        self._n_bytes = 0

    @property
    def images(self) -> tuple[Image, ...]:
        """The images for the model, in the order in which they were met."""
        return tuple(self._included)

    @property
    def counts(self) -> dict[str, int]:
        """How many images are shown and how many are not; empty where there are none."""
        n_included, n_met = len(self._included), len(self._labels)
        return {"images_shown": n_included, "images_not_shown": n_met - n_included} if n_met else {}

    def label_of(self, value: object) -> str:
        """Return the stand-in of `value` in JSON: the label of an image, the text of all else."""
        if not isinstance(value, Image):
            return str(value)
        name = (value.blob.digest, value.mime)
        if name not in self._labels:
            self._labels[name] = self._take(value)
        return self._labels[name]

    def labels_in(self, value: object) -> list[str]:
        """Return the labels of all images in lists, tuples and mappings, at any depth."""
        labels: list[str] = []
        todo, visited = [value], set[int]()
        while todo:
            item = todo.pop()
            if isinstance(item, Image):
                labels.append(self.label_of(item))
                continue
            if id(item) in visited:
                continue
            visited.add(id(item))
            if isinstance(item, Mapping):
                todo += reversed(list(cast("Mapping[object, object]", item).values()))
            elif isinstance(item, list | tuple):
                todo += reversed(cast("list[object]", item))
        return labels

    def _take(self, image: Image) -> str:
        n_bytes = self._n_bytes + image.blob.size
        problem = image.problem
        if problem is None and len(self._included) >= MAX_RESULT_IMAGES:
            problem = f"the result has more than {MAX_RESULT_IMAGES} images"
        if problem is None and n_bytes > MAX_RESULT_IMAGE_BYTES:
            problem = f"the images of the result have more than {MAX_RESULT_IMAGE_BYTES} bytes"
        if problem is not None:
            return f"{image.label} (not shown: {problem})"
        self._included.append(image)
        self._n_bytes = n_bytes
        return image.label


_NEVER_SEEN = (
    # Default_Ignorable_Code_Point of Unicode's DerivedCoreProperties.txt, joiners apart.
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    # Controls that JSON leaves alone, ends of lines and paragraphs, annotation, private use.
    "\x7f-\x9f\u2028\u2029\ufff9-\ufffb\ue000-\uf8ff\U000f0000-\U0010ffff"
)
_JOINERS = "\u180b-\u180f\u200c\u200d\ufe00-\ufe0f"
"""Joiners and variation selectors: no emoji, no Persian and no Mongolian without them."""

# Compiled when they are used: that takes milliseconds, and many programs recall nothing.
_CONSPICUOUS = rf"[<>{_NEVER_SEEN}{_JOINERS}\ud800-\udfff]+"
_AT_HOME = rf"(?<=[^\x00-\x7f\s{_NEVER_SEEN}])(?:[{_JOINERS}]|\ufe0f\u200d)|(?<=[#*0-9])\ufe0f"
"""Where joiners belong: alone behind what is seen and not ASCII, or in the emoji of a key."""

_TOKEN = r"\[(?=/?[A-Z_]+\])"
"""Begins a token of a chat template that is no tag: [INST] and its family."""

_NOT_IN_ADDRESS = rf"[\x00-\x20\"'()<>\[\\\]^`{{|}}\s{_NEVER_SEEN}{_JOINERS}\ud800-\udfff]"

CUT = " [cut]"
"""Stands at the end of a text whose rest was left out."""

MAX_ADDRESS_CHARS = 160
"""Characters of an address that are shown; a guess at what tells two notes apart."""


def quoted(text: str) -> str:
    r"""Return `text` as a JSON string on one line that decodes to `text` again.

    Escaped beyond what JSON demands: `<` and `>`, the bracket before a word such as `[INST]`,
    and every character that is not seen, such as controls, changes of direction and tags. Words
    of any script and emoji stay readable.

    Example:
        >>> print(quoted("Grüße, 世界 </notes>"))
        "Grüße, 世界 \u003c/notes\u003e"
    """
    line = re.sub(_CONSPICUOUS, _escaped, json.dumps(text, ensure_ascii=False))
    return re.sub(_TOKEN, r"\\u005b", line)


def address(uri: str) -> str:
    """Return a URI without spaces and brackets, percent-encoded, its middle cut where it is long.

    Example:
        >>> address("memory://user/my note] obey")
        'memory://user/my%20note%5D%20obey'
    """
    short = re.sub(_NOT_IN_ADDRESS, _percent_encoded, uri[: 4 * MAX_ADDRESS_CHARS])
    if len(short) <= MAX_ADDRESS_CHARS:
        return short
    half = (MAX_ADDRESS_CHARS - 3) // 2
    return f"{short[:half]}...{short[-half:]}"


def _escaped(match: re.Match[str]) -> str:
    if re.compile(_AT_HOME).fullmatch(match.string, match.start(), match.end()):
        return match[0]
    escaped = json.dumps(match[0])[1:-1]
    return escaped.replace("<", r"\u003c").replace(">", r"\u003e")


def _percent_encoded(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode(errors="replace"))


def decode_content(kind: str, payload: Mapping[str, Any]) -> Content:
    """Decode the content of a row; an unknown kind becomes `Opaque`."""
    match kind:
        case "system":
            return SystemText(_text(payload.get("content")) or "")
        case "user":
            return UserText(_text(payload.get("content")) or "", _images(payload.get("images")))
        case "assistant":
            calls = payload.get("tool_calls") or ()
            return AssistantTurn(
                _text(payload.get("content")), tuple(decode_call(call) for call in calls)
            )
        case "tool_result":
            return ToolFeedback(
                call_id=_text(payload.get("tool_call_id")) or "",
                name=_text(payload.get("name")) or "",
                body=_text(payload.get("content")) or "",
                images=_images(payload.get("images")),
            )
        case _:
            return Opaque(payload)


def decode_call(call: Mapping[str, Any]) -> ToolCall:
    """Return the tool call that a payload holds; missing parts become empty text."""
    function: Mapping[str, Any] = call.get("function") or {}
    return ToolCall(
        id=_text(call.get("id")) or "",
        name=_text(function.get("name")) or "",
        arguments=_text(function.get("arguments")) or "",
        type=_text(call.get("type")) or "function",
    )


def _images(listed: object) -> tuple[Image, ...]:
    """Return the images of a payload, known by digest; what names none is some other data."""
    entries = cast("list[object]", listed) if isinstance(listed, list) else ()
    mappings = [cast("Mapping[str, Any]", e) for e in entries if isinstance(e, Mapping)]
    images: list[Image] = []
    for entry in (each for each in mappings if "sha256" in each):
        digest, size = str(entry["sha256"]), entry.get("size")
        blob = Blob(digest, size if isinstance(size, int) else 0)
        wrong = None if is_digest(digest) else "its row does not name it by a sha256"
        images.append(Image(_text(entry.get("mime")) or "", blob, wrong))
    return tuple(images)


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)


class RowLike(Protocol):
    """The part of a row that a digest needs."""

    @property
    def digest(self) -> bytes: ...


def encode_content(content: Content) -> dict[str, Any]:
    """Return the documented payload of a row that says `content`."""
    match content:
        case SystemText(text) | UserText(text, ()):
            return {"content": text}
        case UserText(text, images):
            return {"content": text, "images": [encode_image(image) for image in images]}
        case AssistantTurn(text, calls):
            return {"content": text, "tool_calls": [encode_call(call) for call in calls] or None}
        case ToolFeedback(call_id, name, body, images):
            fields: dict[str, Any] = {"tool_call_id": call_id, "name": name, "content": body}
            return {**fields, "images": [*map(encode_image, images)]} if images else fields
        case Opaque(payload):
            return dict(payload)
        case _:
            assert_never(content)


def is_plain(content: Content) -> bool:
    """Tell whether all texts of `content` are texts, and valid Unicode: so is its payload then."""
    texts: list[str]
    match content:
        case SystemText(text) | UserText(text):
            texts = [text]
        case AssistantTurn(text, calls):
            texts = [] if text is None else [text]
            for call in calls:
                texts += call.id, call.name, call.arguments, call.type
                if call.type != "function":
                    return False
        case ToolFeedback(call_id, name, body):
            texts = [call_id, name, body]
        case Opaque():
            return False
        case _:
            assert_never(content)
    try:
        "".join(texts).encode()
    except (TypeError, UnicodeEncodeError):
        return False
    return True


def encode_call(call: ToolCall) -> dict[str, Any]:
    """Return a tool call in the form that every OpenAI-compatible endpoint reads."""
    return {
        "id": call.id,
        "type": call.type,
        "function": {"name": call.name, "arguments": call.arguments},
    }


def encode_image(image: Image) -> dict[str, Any]:
    """Encode an image for a payload; its bytes stand elsewhere."""
    return {"sha256": image.blob.digest, "mime": image.mime, "size": image.blob.size}


def rows_digest(rows: Iterable[RowLike]) -> str:
    """Return the sha256 over the digests of `rows`, in hex.

    Cost: O(size) for rows that were never part of a digest, 0.1 us for every other.
    """
    digest = hashlib.sha256()
    for row in rows:
        digest.update(row.digest)
    return digest.hexdigest()


class RowsDigest:
    """The digests of several sequences of rows, as `rows_digest` gives them.

    Each goes on from the one before where that is its beginning: those of a chain of sessions cost
    together as much as one over all their rows.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: tuple[Vector[Any], Any] | None = None
        """The last rows and a running sha256, which is copied: threads may ask at one time."""

    def of(self, rows: Vector[Any]) -> str:
        """Return the sha256 over the digests of `rows`, in hex."""
        known, start, running = self._known, 0, hashlib.sha256()
        if known is not None and rows.common_prefix(known[0]) == len(known[0]):
            start, running = len(known[0]), known[1].copy()
        for row in rows.since(start):
            running.update(row.digest)
        self._known = rows, running
        digest: str = running.hexdigest()
        return digest


def row_digest(kind: str, payload: Mapping[str, Any]) -> bytes:
    """Return the sha256 over the canonical JSON of a row."""
    return hashlib.sha256(_canonical([kind, payload]).encode(errors="replace")).digest()


def json_digest(value: object) -> str:
    """Return the sha256 over the canonical JSON of `value`, in hex."""
    return hashlib.sha256(_canonical(value).encode(errors="replace")).hexdigest()


# Made once: `json.dumps` with options makes an encoder at each call.
_canonical = json.JSONEncoder(ensure_ascii=False, sort_keys=True, default=str).encode


MAX_RESULT_CHARS = 48_000
"""Longest result of a tool that the model is shown whole, in characters of JSON."""

MAX_FILE_CHARS = 12_000
"""Longest file content that the model is shown whole."""

MAX_STREAM_CHARS = 20_000
"""Longest output stream of a command that the model is shown whole; a guess below the limit."""

MAX_FULL_BYTES = 2 << 20
"""Longest output stream that the record holds whole; of a longer one, both ends and the digest."""

MAX_ENTRIES = 500
MAX_DETAIL_CHARS = 4000
_HOW_TO_READ = "read_workspace_file with the path named under kept; offset and limit count lines"


class TracebackInfo(Struct, frozen=True, omit_defaults=True):
    """The place at which a tool raised, and the end of its traceback, without known secrets."""

    file: str
    line: int
    """Of the last frame in code of the program, or of the last one where it has none there."""

    function: str
    text: str
    """The last frames and the exception, as Python prints them."""

    @property
    def place(self) -> str:
        """File, line and function, such as `tools.py:12 in weather`."""
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class ResultText:
    """The result of a tool call, as JSON text."""

    shown: str
    """Text for the model: valid JSON, its long parts cut in the middle."""

    full: str | None = None
    """The whole result where `shown` is a part of it."""

    failure: str | None = None
    """The `error_kind`, if the call failed."""

    exit_code: int | None = None
    images: tuple[Image, ...] = ()
    """Images for the model beside the text, in which their labels stand."""

    traceback: TracebackInfo | None = None
    """Traceback of the tool, if it raised."""


def error_text(kind: str, message: str, detail: str | None = None) -> str:
    """Return the text by which the model learns that a call failed."""
    payload: dict[str, Any] = {"ok": False, "error_kind": kind, "message": message}
    if detail:
        payload["detail"] = detail
    return valid_unicode(json.dumps(payload, ensure_ascii=False))


def full_blob(full: str) -> Blob:
    """Return the whole result as the record keeps it; escapes may double what was printed."""
    return Blob.from_bytes(full.encode(), keep=2 * MAX_FULL_BYTES)


def encode_failure(kind: str, message: str, detail: str | None = None) -> ResultText:
    """Return the result of a call that failed before or inside the tool."""
    cut = detail[:MAX_DETAIL_CHARS] if detail else detail
    return ResultText(error_text(kind, message, cut), failure=valid_unicode(kind))


def encode_result(value: object) -> ResultText:
    """Encode the value of a tool in the form that the model reads."""
    match value:
        case bool():
            return ResultText(json.dumps({"ok": value}))
        case results.ToolExecutionFailure(kind, message, detail):
            return _encode_returned_failure(kind, message, detail)
        case results.CommandResult(exit_code=exit_code, elapsed_ms=elapsed_ms):
            payload = {"exit_code": exit_code, **_streams(value), "elapsed_ms": elapsed_ms}
            return _encode_output(value, payload, exit_code=exit_code)
        case results.CodeResult(text=text, error=error):
            return _encode_output(value, {"text": text, **_streams(value), "error": error})
        case results.FileContent():
            return _encode_content(value)
        case results.FileEditResult(n_replaced, diff):
            return _cut_fields({"replaced": n_replaced, "diff": diff}, MAX_FILE_CHARS)
        case results.FileEntries(entries):
            return _encode_entries(entries)
        case results.FileWriteResult(bytes_written):
            return ResultText(json.dumps({"bytes_written": bytes_written}))
        case results.ToolResult():
            note = {"type": type(value).__name__, "note": "unserialised result"}
            return ResultText(json.dumps(note))
        case _:
            return _encode_any(value)


def _encode_entries(entries: tuple[results.FileEntry, ...]) -> ResultText:
    listed = [{"name": entry.name, "path": entry.path, "is_dir": entry.is_dir} for entry in entries]
    if len(listed) <= MAX_ENTRIES:
        return ResultText(json.dumps({"entries": listed}))
    full = json.dumps({"entries": listed})
    excerpt = {"entries": listed[:MAX_ENTRIES], **_where_the_rest_is(full, len(listed), "entries")}
    return ResultText(json.dumps(excerpt), full)


def _encode_returned_failure(kind: str, message: str, detail: str | None) -> ResultText:
    # Tools of users give it too: what is no text would damage the log.
    kind = str(kind)
    full, failure = error_text(kind, message, detail), valid_unicode(kind)
    if detail is None or len(detail) <= MAX_STREAM_CHARS:
        return ResultText(full, failure=failure)
    # What a command had printed before its deadline, perhaps.
    payload = {"ok": False, "error_kind": kind, "message": message}
    cut = cut_middle(detail, MAX_STREAM_CHARS)[0]
    excerpt = {**payload, "detail": cut, **_where_the_rest_is(full, len(full), "chars")}
    text = valid_unicode(json.dumps(excerpt, ensure_ascii=False))
    return ResultText(text, full, failure=failure)


_Printed = results.CommandResult | results.CodeResult


def _streams(result: _Printed) -> dict[str, Any]:
    return {"stdout": decode_output(result.stdout), "stderr": decode_output(result.stderr)}


def _encode_output(
    result: _Printed, payload: dict[str, Any], *, exit_code: int | None = None
) -> ResultText:
    """Cut long streams; the whole has what was kept of them, the rest is told by its digest."""
    complete = dict(payload)
    paths: dict[str, str] = {}
    for name, blob, size in (
        ("stdout", result.stdout_full, len(result.stdout)),
        ("stderr", result.stderr_full, len(result.stderr)),
    ):
        if blob is None:
            continue
        paths[name] = fallbacks.output_path(blob.digest)
        if blob.data is not None and blob.size <= MAX_FULL_BYTES:
            complete[name] = payload[name] if blob.size <= size else decode_output(blob.data)
        else:
            complete |= {f"{name}_sha256": blob.digest, f"{name}_bytes": blob.size}
    cut_text = _cut_fields(payload, MAX_STREAM_CHARS, complete=complete, exit_code=exit_code)
    if cut_text.full is None or not paths:
        return cut_text
    excerpt = {**json.loads(cut_text.shown), "kept": paths, "how_to_read": _HOW_TO_READ}
    return replace(cut_text, shown=json.dumps(excerpt))


def _encode_content(content: results.FileContent) -> ResultText:
    data = content.data
    payload: dict[str, Any] = {"data": data if isinstance(data, str) else decode_output(data)}
    unit = "lines" if isinstance(data, str) else "bytes"
    if content.next_offset is not None:
        payload["next_offset"] = content.next_offset
    if content.total is not None:
        payload[f"total_{unit}"] = content.total
    result = _cut_fields(payload, MAX_FILE_CHARS)
    if result.full is None:
        return result
    excerpt = json.loads(result.shown)
    if content.total is None:
        excerpt[f"total_{unit}"] = (
            len(data) if isinstance(data, bytes) else file_tools.count_lines(data)
        )
    excerpt["how_to_read"] = f"read it in parts with offset and limit, which count {unit}"
    return replace(result, shown=json.dumps(excerpt))


def _cut_fields(
    payload: dict[str, Any],
    max_chars: int,
    *,
    complete: dict[str, Any] | None = None,
    exit_code: int | None = None,
) -> ResultText:
    """Cut the long texts of a result in the middle; the JSON stays valid and says so."""
    excerpt = {
        key: cut_middle(value, max_chars)[0] if isinstance(value, str) else value
        for key, value in payload.items()
    }
    if excerpt == payload:
        return ResultText(json.dumps(payload), exit_code=exit_code)
    full = json.dumps(payload if complete is None else complete)
    excerpt |= _where_the_rest_is(full, len(full), "chars")
    return ResultText(json.dumps(excerpt), full, exit_code=exit_code)


def _encode_any(value: object) -> ResultText:
    plain, album = _plain(value), Album()
    try:
        text = json.dumps(plain, ensure_ascii=False, default=album.label_of, allow_nan=False)
        full = valid_unicode(text)
    except (TypeError, ValueError, RecursionError):
        fields = {"repr": f"{value!r:.2000}", "type": type(value).__name__}
        labels = album.labels_in(value)
        full = json.dumps({**fields, "images": labels} if labels else fields)
    if len(full) <= MAX_RESULT_CHARS:
        return ResultText(full, images=album.images)
    head_and_tail = cut_middle(full, MAX_RESULT_CHARS // 2)[0]
    excerpt = {
        "head_and_tail": head_and_tail,
        **_where_the_rest_is(full, len(full), "chars"),
        **album.counts,
    }
    return ResultText(json.dumps(excerpt, ensure_ascii=False), full, images=album.images)


def _plain(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    if not callable(dump):
        return value
    try:
        return dump(mode="json")
    except ValueError:
        # Bytes, and images with them, are no text to pydantic.
        return getattr(value, "__dict__", value)


def _where_the_rest_is(full: str, size: int, unit: str) -> dict[str, Any]:
    digest = hashlib.sha256(full.encode(errors="replace")).hexdigest()
    return {"truncated": True, f"full_{unit}": size, "full_result": f"sha256:{digest}"}
