"""The bytes of a log to the facts of an index, without what no index needs.

The codec makes every line an object, and checks each part of it. An index reads thousands of logs
one after another, so this takes from a line only what it keeps: a quarter of the time. Which log
can be believed both say alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

from rath._core.text import valid_unicode
from rath.errors import PersistenceError
from rath.session.persistence.chain import checked_sum
from rath.session.persistence.codec.decode import decode_record
from rath.session.persistence.codec.reader import LOST_END
from rath.session.persistence.codec.shapes import utc
from rath.session.persistence.index.database import (
    CallFacts,
    CallPrice,
    LogFacts,
    RowRange,
    SaidRow,
)
from rath.session.persistence.index.query import OUTCOME_STATES
from rath.session.persistence.lines import SCHEMA_VERSION
from rath.session.persistence.migrations import upgrade_chunk, upgrade_header
from rath.session.persistence.records import decode_header

__all__ = ["facts_of"]

Json = dict[str, Any]

_MAX_CHARS = 100_000
"""Of a row that can be searched; a longer one is kept by its beginning."""

_UNREAD = tuple(b'{"record_type": "%s"' % kind for kind in (b"head", b"tools", b"partial"))
_HAS_MORE = b', "more": 1, "sum": "'
_KINDS = {
    *("chunk", "entry", "intent", "result", "round"),
    *("failure", "reopened", "outcome", "placement", "trailer", "unread"),
}
_AFTER_THE_END = ("entry", "outcome", "placement", "reopened")


def facts_of(session: UUID, data: bytes, *, is_finished: bool = False) -> LogFacts:
    """Return what a log says; of one that cannot be believed, what stands before the bad line.

    Args:
        session: Whose log.
        data: All of it.
        is_finished: Whether its writer has finished it: then its run has an end.
    """
    reading = _Reading(session, len(data))
    number = 0
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            reading.take(line)
        except PersistenceError as exc:
            return reading.damaged(f"line {number}: {exc}")
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as exc:
            return reading.damaged(f"line {number} is malformed: {type(exc).__name__}: {exc}")
    if not number:
        return reading.damaged("line 1: missing header: the file has no complete line")
    if is_finished and not reading.has_end:
        return reading.damaged(f"line {number}: {LOST_END}")
    return reading.finished()


class _Reading:
    """Takes lines in order, and counts what a whole group of them says."""

    def __init__(self, session: UUID, size: int) -> None:
        self._facts = LogFacts(session=session, size=size)
        self._version = 0
        self._sum = ""
        self._group: list[Json] = []
        self._is_over = False
        self._standing = _Standing()

    @property
    def has_end(self) -> bool:
        """Whether its run has ended; of version 1 that is not asked."""
        return self._is_over or self._version < SCHEMA_VERSION

    def take(self, line: bytes) -> None:
        """Read one line, without its line feed.

        Raises:
            PersistenceError: It cannot be believed.
            KeyError, ValueError, TypeError, AttributeError, OverflowError: It is malformed.
        """
        if not self._version:
            self._take_header(line)
        elif self._version < SCHEMA_VERSION:
            self._take_old(decode_record(line))
        else:
            self._take_new(line)

    def finished(self) -> LogFacts:
        """Return what all whole groups say."""
        self._facts.state, self._facts.problem = self._standing.told()
        self._facts.is_open = self._standing.is_open
        return self._facts

    def damaged(self, problem: str) -> LogFacts:
        """Return what is known of a log that cannot be believed."""
        self._facts.state, self._facts.problem = "damaged", valid_unicode(problem)
        self._facts.is_open = not self._version
        return self._facts

    def _take_header(self, line: bytes) -> None:
        record = decode_record(line)
        version: object = record.get("schema_version")
        if record.get("record_type") != "header":
            raise PersistenceError(f"missing header: {record.get('record_type')!r} before header")
        if not isinstance(version, int) or isinstance(version, bool):
            raise PersistenceError(f"schema_version is {version!r}, expected a number")
        if version > SCHEMA_VERSION:
            raise PersistenceError(
                f"schema version {version} is newer than {SCHEMA_VERSION}; upgrade openrath to "
                "read this file"
            )
        if version == SCHEMA_VERSION:
            self._sum = checked_sum(line, "")
        elif "sum" in record:
            raise PersistenceError(f"schema version {version} has no checksums, and this line has")
        self._keep_header(record if version == SCHEMA_VERSION else upgrade_header(record))
        self._version = version
        self._facts.n_lines = 1

    def _keep_header(self, record: Json) -> None:
        header, facts = decode_header(record), self._facts
        if header.id != facts.session:
            raise PersistenceError(f"this is the log of session {header.id}")
        facts.created_at = facts.updated_at = header.created_at
        facts.operator = valid_unicode(header.lineage_operator)
        facts.kind = header.lineage_kind
        facts.parents = header.parent_session_ids
        facts.backend = _text(header.sandbox_backend)
        facts.begins_with = tuple(
            RowRange(UUID(name), start, stop) for name, start, stop, _ in record.get("rows") or ()
        )
        facts.n_rows = sum(rows.stop - rows.start for rows in facts.begins_with)
        for given in record.get("given") or ():
            facts.given[UUID(given["session"])] = int(given["usage"]["total_tokens"])

    def _take_old(self, record: Json) -> None:
        """Read a line of version 1, which knows only header, rows and trailer."""
        kind = record.get("record_type")
        if self._is_over:
            raise PersistenceError("a record stands after the trailer, which ends a file")
        self._facts.n_lines += 1
        if kind == "chunk":
            # The index of a line of version 1 was never looked at.
            chunk = upgrade_chunk(record, header_version=self._version)
            self._keep_row(chunk.get("kind"), chunk.get("payload"))
        elif kind == "trailer":
            self._is_over = True
            self._standing.end("completed")
            usage: object = record.get("cumulative_usage")
            if isinstance(usage, dict):
                tokens = cast("Json", usage).get("total_tokens")
                self._facts.given[self._facts.session] = tokens if isinstance(tokens, int) else 0
            self._facts.updated_at = utc(record["closed_at"])
        else:
            raise PersistenceError(f"unknown record_type {kind!r}; expected chunk or trailer")

    def _take_new(self, line: bytes) -> None:
        self._sum = checked_sum(line, self._sum)
        if line.startswith(_UNREAD):
            if self._is_over:
                raise PersistenceError("a line after the trailer, which ends a run")
            record: Json = {"record_type": "unread"}
            has_more = line.rfind(_HAS_MORE, -60) >= 0
        else:
            record = decode_record(line)
            has_more = record.get("more") == 1
        kind = record.get("record_type")
        if kind not in _KINDS:
            raise PersistenceError(f"unknown record_type {kind!r}")
        if self._is_over and kind not in _AFTER_THE_END and kind != "unread":
            raise PersistenceError(f"{kind} after the trailer, which ends a run")
        if kind in ("trailer", "reopened"):
            self._is_over = kind == "trailer"
        self._group.append(record)
        if not has_more:
            group, self._group = self._group, []
            for each in group:
                self._count(each)
            self._facts.n_lines += len(group)

    def _count(self, record: Json) -> None:
        match record["record_type"]:
            case "chunk":
                self._chunk(record)
            case "entry":
                self._entry(record)
            case "intent":
                self._facts.updated_at = utc(record["at"])
                self._standing.intend(record)
            case "result":
                self._standing.keep(record)
            case "round":
                self._round(record)
            case "failure":
                self._facts.updated_at = utc(record["at"])
                self._standing.fail(record["how"], valid_unicode(record["error"]))
            case "reopened":
                self._facts.updated_at = utc(record["at"])
                self._standing.reopen()
            case "outcome":
                self._standing.end(OUTCOME_STATES[record["outcome"]["is"]])
            case "placement":
                self._facts.backend = _text(record["sandbox_backend"])
            case "trailer":
                self._facts.updated_at = utc(record["closed_at"])
                self._standing.end(OUTCOME_STATES[record["outcome"]["is"]])
            case _:
                pass  # Nothing is kept of it.

    def _chunk(self, record: Json) -> None:
        index, expected = record["index"], self._facts.n_rows
        if index != expected:
            raise PersistenceError(f"row {index!r} stands where row {expected} is expected")
        self._keep_row(record["kind"], record["payload"])

    def _keep_row(self, kind: object, payload: object) -> None:
        if not isinstance(kind, str) or not kind or not isinstance(payload, dict):
            raise TypeError(f"expected kind and payload of a row, found {kind!r:.60}")
        text = "\n".join(filter(None, _said(kind, cast("Json", payload))))
        if text.strip():
            shown = valid_unicode(text[:_MAX_CHARS])
            self._facts.said.append(SaidRow(self._facts.n_rows, valid_unicode(kind), shown))
        self._facts.n_rows += 1

    def _entry(self, record: Json) -> None:
        self._facts.updated_at = utc(record["at"])
        match record["entry"]:
            case "operation":
                if UUID(record["session"]) == self._facts.session and not self._facts.path:
                    self._keep_place(record["place"])
            case "model_call":
                call = _call(record)
                self._facts.calls[call.id] = call
            case "tool_run":
                self._facts.n_tool_runs += 1
                self._standing.end_call(record["operation"], record["call_id"])
            case "decision":
                self._standing.decide(record.get("call_id"))
            case _:
                pass

    def _keep_place(self, place: Json) -> None:
        self._facts.path = valid_unicode(place["path"])
        self._facts.ordinal = int(place["ordinal"])
        self._facts.run = UUID(place["run"]) if place.get("run") else None

    def _round(self, record: Json) -> None:
        for result in self._standing.end_round(record["row"], record["results"]):
            self._facts.updated_at = utc(result["run"]["at"])
            self._facts.n_tool_runs += 1
            if result["shown"] is not None:
                self._keep_row(result["shown"]["kind"], result["shown"]["payload"])


class _Standing:
    """How the run stands: whether it has ended, and which calls have an unknown end."""

    def __init__(self) -> None:
        self._outcome: str | None = None
        self._failure: tuple[str, str] | None = None
        self._intents: dict[tuple[int, int], Json] = {}
        self._results: dict[tuple[int, int], Json] = {}
        self._decided: set[str] = set()

    @property
    def is_open(self) -> bool:
        return self._outcome is None

    def told(self) -> tuple[str, str]:
        """Return the state, and why it is so where that is an error."""
        if self._outcome is not None:
            return self._outcome, ""
        if self._failure is not None:
            how, error = self._failure
            return how, "" if how == "cancelled" else error
        unknown = (
            intent["effects"] == "non_idempotent" and intent["call_id"] not in self._decided
            for intent in self._intents.values()
        )
        return ("needs_decision" if any(unknown) else "cut_off"), ""

    def end(self, outcome: str) -> None:
        self._outcome = outcome

    def fail(self, how: str, error: str) -> None:
        self._failure = how, error

    def reopen(self) -> None:
        self._outcome = self._failure = None

    def intend(self, record: Json) -> None:
        self._intents[record["row"], record["call"]] = record
        self._decided.discard(record["call_id"])

    def decide(self, call_id: str | None) -> None:
        if call_id is not None:
            self._decided.add(call_id)

    def keep(self, record: Json) -> None:
        self._intents.pop((record["row"], record["call"]), None)
        self._results[record["row"], record["call"]] = record

    def end_call(self, operation: str, call_id: str) -> None:
        for key in sorted(self._intents):
            intent = self._intents[key]
            if (intent["operation"], intent["call_id"]) == (operation, call_id):
                del self._intents[key]
                return

    def end_round(self, row: int, results: list[str]) -> list[Json]:
        known = {record["run"]["id"]: record for record in self._results.values()}
        done = [known[entry] for entry in results]
        for calls in (self._intents, self._results):
            for key in [key for key in calls if key[0] == row]:
                del calls[key]
        return done


def _said(kind: str, payload: Json) -> Iterator[str | None]:
    """Yield what a row says, as texts."""
    if kind not in ("system", "user", "assistant", "tool_result"):
        return
    yield _text(payload.get("content"))
    for call in payload.get("tool_calls") or ():
        function: Json = call.get("function") or {}
        yield f"{_text(function.get('name')) or ''} {_text(function.get('arguments')) or ''}"


def _call(record: Json) -> CallFacts:
    evidence: Json = record["evidence"]
    usage: Json = evidence.get("usage") or {}
    cost: Json | None = evidence.get("cost")
    model = evidence.get("served_model") or evidence.get("requested_model")
    return CallFacts(
        id=UUID(record["id"]),
        at=utc(record["at"]),
        model=valid_unicode(model or evidence["provider_kind"]),
        purpose=record["purpose"],
        status=record["status"],
        prompt_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=evidence.get("cached_tokens") or 0,
        completion_tokens=usage.get("completion_tokens", 0),
        total_tokens=usage.get("total_tokens", 0),
        usd=None if cost is None else Decimal(cost["usd"]),
        price=_price(evidence),
    )


def _price(evidence: Json) -> CallPrice:
    """Return what is known of the cost of a call, as `rath.session.body` tells it."""
    if evidence.get("cost") is not None:
        return "known"
    if evidence.get("usage") is not None:
        return "unpriced"
    tries = evidence.get("attempts") or ()
    was_refused = bool(tries) and all(each.get("status") is not None for each in tries)
    return "uncounted" if evidence.get("was_sent", True) and not was_refused else "nothing"


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)
