"""Having a model read a transcript, and keeping what it found worth remembering."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from rath._async.runtime import Running, runtime
from rath.errors import AuthenticationError, ModelNotFoundError, ProviderError, RathError
from rath.llm.errors import may_fall_back
from rath.memory.adapters.local import notes
from rath.memory.adapters.local.extraction.archive import Archive, pending_archives
from rath.memory.adapters.local.extraction.claim import Claim
from rath.memory.adapters.local.extraction.decode import Memo, unite
from rath.memory.adapters.local.extraction.jobs import Extraction
from rath.memory.adapters.local.extraction.prompt import chunks_of
from rath.memory.adapters.local.extraction.records import ExtractionRecord, Phase
from rath.memory.adapters.local.layout import logger
from rath.memory.adapters.local.store import LocalStore, run
from rath.memory.notes import KEEP_BOTH, MODEL, ROWS, SESSION_ID
from rath.memory.op_types import MemoryOpWrite
from rath.memory.results import MemoryExecutionFailure, MemoryWriteResult
from rath.memory.uri import content_digest

MAX_ATTEMPTS = 3
"""How often a model is asked about one transcript before that is given up."""

_NAME_DIGITS = 8


def start(
    store: LocalStore, extraction: Extraction, archive: Archive, *, patience: float
) -> Running:
    """Have the transcript of a new commit read in the background; returns at once.

    Args:
        store: Where it lies.
        extraction: Who reads it.
        archive: The transcript.
        patience: Seconds to wait for somebody else who reads it already.
    """
    return extraction.jobs.start(
        partial(learn, store, extraction, archive, patience=patience),
        label=f"learning from session {archive.session_id}; the next opening of its memory goes on",
        at_exit="finish",
    )


def resume(store: LocalStore, extraction: Extraction) -> None:
    """Have the transcripts read that earlier processes left, in the background, one by one.

    That ends early when the model cannot be reached: the next opening tries again.
    """
    running = extraction.jobs.start(
        partial(_resume, store, extraction), label="learning from earlier sessions", at_exit="end"
    )
    # What exit cuts off stands in its file as pending, and is no news.
    running.is_given_up = True


async def learn(
    store: LocalStore, extraction: Extraction, archive: Archive, *, patience: float = 0.0
) -> ExtractionRecord | None:
    """Have a pending transcript read, and return how far that came; None when it is gone."""
    in_worker = runtime().call_in_worker
    try:
        claim = await in_worker(partial(Claim.take, store.root, archive, patience=patience))
        if claim is None:
            # What stands there is how far somebody else has come, or had before.
            record = await in_worker(partial(archive.record, store.root))
            is_open = record is not None and record.phase == "pending"
            return ExtractionRecord() if is_open else record
        try:
            return await _learn(store, extraction, archive)
        finally:
            claim.end()
    except (OSError, sqlite3.Error) as exc:
        # Where nothing can be noted, the transcript stays pending; others may fare better.
        return ExtractionRecord("failed", error=_words(exc))


def tell(archive: Archive, record: ExtractionRecord | None) -> None:
    """Log what went wrong, where nobody waits to be told."""
    if record is not None and record.error is not None:
        logger.warning("%s", failure_text(archive, record))


def failure_text(archive: Archive, record: ExtractionRecord) -> str:
    """Return what went wrong, where the transcript is, and what comes next."""
    after = f"it was tried {record.attempts} times"
    if record.phase == "pending":
        after = "the next opening of the store with a model tries again"
    return (
        f"no notes were made of the transcript that is archived at {archive.uri}: "
        f"{record.error}; {after}"
    )


async def _resume(store: LocalStore, extraction: Extraction) -> None:
    pending = await runtime().call_in_worker(lambda: list(pending_archives(store.root)))
    for archive, before in pending:
        if extraction.jobs.is_closing:
            return
        record = await learn(store, extraction, archive)
        tell(archive, record)
        if record is not None and _is_put_off(record, before):
            return


async def _learn(
    store: LocalStore, extraction: Extraction, archive: Archive
) -> ExtractionRecord | None:
    before = await runtime().call_in_worker(partial(archive.record, store.root))
    if before is None or before.phase != "pending":
        return before
    return await _Reading(store, extraction, archive, before).go_on()


def _is_put_off(record: ExtractionRecord, before: ExtractionRecord) -> bool:
    """Tell whether an attempt failed and does not count, as the model was out of reach."""
    is_pending = record.phase == "pending" and record.error is not None
    return is_pending and record.attempts <= before.attempts


@dataclass(frozen=True, slots=True)
class _Reading:
    """One attempt at a transcript, by whoever has the claim on it."""

    store: LocalStore
    extraction: Extraction
    archive: Archive
    before: ExtractionRecord

    async def go_on(self) -> ExtractionRecord | None:
        """Ask the model and keep its memos, unless that was tried too often."""
        n_attempts = self.before.attempts + 1
        if n_attempts > MAX_ATTEMPTS:
            error = self.before.error or "the program ended each time while the model was asked"
            return await self._noted(replace(self.before, phase="failed", error=error))
        # Written ahead: a transcript at which the process dies each time is not tried for ever.
        begun = await self._noted(replace(self.before, attempts=n_attempts, error=None))
        if begun is None:
            return None
        clock = asyncio.timeout(self.extraction.max_seconds)
        try:
            async with clock:
                done = await self._read(begun)
        except asyncio.CancelledError:
            await self._noted(self.before)
            raise
        except (RathError, ValueError, OSError, sqlite3.Error) as exc:
            too_long = f"the model took longer than {self.extraction.max_seconds:g} s"
            error = too_long if clock.expired() else _words(exc)
            return await self._noted(self._failed(begun, exc, error))
        if done is not None and self.store.vectors is not None:
            self.store.vectors.fill_soon()
        return None if done is None else await self._noted(done)

    async def _read(self, begun: ExtractionRecord) -> ExtractionRecord | None:
        """Return the record of a success; None when the transcript is gone meanwhile."""
        in_worker = runtime().call_in_worker
        transcript = await in_worker(partial(self.archive.transcript, self.store.root))
        chunks = chunks_of(transcript.messages)
        answers = [await self.extraction.model.amemos(chunk) for chunk in chunks]
        model = answers[-1].model if answers else ""
        writes = [
            self._write_op(memo, rows=transcript.rows_of(memo.messages), model=model)
            for memo in unite(memo for answer in answers for memo in answer.memos)
        ]
        uris = await in_worker(partial(self._keep, writes))
        return (
            None if uris is None else replace(begun, phase="done", uris=uris, model=model or None)
        )

    def _write_op(self, memo: Memo, *, rows: tuple[int, ...], model: str) -> MemoryOpWrite:
        name = content_digest(memo.content)[:_NAME_DIGITS]
        metadata = {
            **KEEP_BOTH,
            SESSION_ID: self.archive.session_id,
            ROWS: ",".join(map(str, rows)),
            MODEL: model,
        }
        uri = f"{self.extraction.uri}/{memo.category}/{name}"
        return MemoryOpWrite(uri, memo.content, wait=True, metadata=MappingProxyType(metadata))

    def _keep(self, writes: list[MemoryOpWrite]) -> tuple[str, ...] | None:
        """Write the memos and return where they stand; None when the transcript is gone.

        Raises:
            OSError: One could not be written.
        """
        write = partial(notes.write, only_if=partial(self.archive.is_there, self.store.root))
        uris: list[str] = []
        for op in writes:
            match run(write, self.store, op):
                case MemoryWriteResult(uri):
                    uris.append(uri)
                case MemoryExecutionFailure("not_found"):
                    return None
                case failure:
                    raise OSError(f"a note could not be written: {failure}")
        return tuple(dict.fromkeys(uris))

    async def _noted(self, record: ExtractionRecord) -> ExtractionRecord | None:
        """Write a record and return it; None when the transcript is gone."""
        keep = partial(self.archive.keep_record, self.store, record)
        return record if await runtime().call_in_worker(keep) else None

    def _failed(self, begun: ExtractionRecord, cause: Exception, error: str) -> ExtractionRecord:
        # What the model never got, or was never allowed to answer, is no attempt of its.
        tried = self.before if _is_out_of_reach(cause) else begun
        phase: Phase = "failed" if tried.attempts >= MAX_ATTEMPTS else "pending"
        return replace(tried, phase=phase, error=error)


def _is_out_of_reach(error: Exception) -> bool:
    """Tell whether a call failed for a reason that has nothing to do with the transcript."""
    if isinstance(error, AuthenticationError | ModelNotFoundError):
        return True
    return isinstance(error, ProviderError) and may_fall_back(error)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
