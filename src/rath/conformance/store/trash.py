"""Logs that are deleted, brought back, and removed for good, with the content that they named."""

from __future__ import annotations

from uuid import UUID, uuid4

from rath._core.blobs import Blob
from rath.conformance.report import expect
from rath.conformance.store.subject import (
    FIRST,
    SECOND,
    Check,
    Subject,
    cut_off,
    expect_log,
    expect_refused,
    finished,
    stored,
    writing,
)

__all__ = ["CHECKS"]


def a_deleted_log_is_gone_and_can_be_brought_back(subject: Subject) -> None:
    for write, is_finished in ((finished, True), (cut_off, False)):
        session = write(subject.store, FIRST, SECOND)
        expect(subject.other.delete(session), "True for a log that is deleted")
        expect(subject.store.read(session) is None, "no log after it was deleted")
        expect(session not in subject.store.stamps(), "no stamp after it was deleted")
        expect(not subject.store.delete(session), "False where there is no log")
        expect(subject.store.restore(session), "True for a log that is brought back")
        expect_log(subject.other, session, FIRST + SECOND, is_finished=is_finished)
        expect(not subject.store.restore(session), "False where nothing is in the trash")


def a_log_that_is_written_is_not_deleted(subject: Subject) -> None:
    with writing(subject.store) as log:
        log.append(FIRST)
        for store in (subject.store, subject.other):
            expect_refused("delete of a log that is written", store.delete, log.session)
        log.append(SECOND)
        log.finish()
    expect_log(subject.store, log.session, FIRST + SECOND, is_finished=True)


def what_was_deleted_last_comes_back_first(subject: Subject) -> None:
    session = finished(subject.store, FIRST)
    subject.store.delete(session)
    finished(subject.store, SECOND, session=session)
    expect_refused("restore over a log that is there", subject.store.restore, session)
    expect_log(subject.store, session, SECOND, is_finished=True)
    subject.store.delete(session)
    expect(subject.store.restore(session), "True for what was deleted last")
    expect_log(subject.store, session, SECOND, is_finished=True)


def an_emptied_trash_gives_nothing_back(subject: Subject) -> None:
    deleted, kept = finished(subject.store), finished(subject.store)
    subject.store.empty_trash()
    subject.store.delete(deleted)
    n_removed = subject.other.empty_trash()
    expect(n_removed == 1, f"1 log to be removed, got {n_removed}")
    expect(not subject.store.restore(deleted), "False where the trash was emptied")
    expect(subject.store.read(kept) is not None, "other logs to stay")
    finished(subject.store, session=deleted)


def content_is_kept_by_its_digest(subject: Subject) -> None:
    blob, lost = Blob.from_bytes(uuid4().bytes * 5000), Blob("0" * 64, 3)
    with writing(subject.store) as log:
        log.append(_naming(blob, lost), blobs=(blob, lost))
        expect(subject.other.blob(blob.digest) == blob.data, "content as soon as it is named")
        log.append(_naming(blob), blobs=(blob,), durable=True)
        log.finish()
    expect(subject.store.blob(blob.digest) == blob.data, "the content by its digest")
    for unknown in (lost.digest, "1" * 64, "", "../x", blob.digest.upper()):
        expect(subject.store.blob(unknown) is None, f"None for {unknown!r}")


def content_of_late_lines_is_kept(subject: Subject) -> None:
    blob, session = Blob.from_bytes(uuid4().bytes), finished(subject.store)
    size = len(stored(subject.store, session).data)
    subject.store.append_to_finished(session, size, _naming(blob), blobs=(blob,))
    subject.other.empty_trash()
    expect(subject.other.blob(blob.digest) == blob.data, "the content that a late line names")


def content_stays_as_long_as_a_log_names_it(subject: Subject) -> None:
    shared, own = Blob.from_bytes(uuid4().bytes), Blob.from_bytes(uuid4().bytes)
    sessions: list[UUID] = []
    for blobs in ((shared, own), (shared,)):
        with writing(subject.store) as log:
            log.append(_naming(*blobs), blobs=blobs)
            sessions.append(log.session)
    subject.store.delete(sessions[0])
    expect(subject.store.blob(own.digest) == own.data, "content of a log in the trash")
    subject.store.restore(sessions[0])
    subject.store.empty_trash()
    expect(subject.store.blob(own.digest) == own.data, "content of a log that was brought back")
    subject.store.delete(sessions[0])
    subject.store.empty_trash()
    expect(subject.store.blob(own.digest) is None, "no content that no log names")
    expect(subject.store.blob(shared.digest) == shared.data, "content that another log names")


def _naming(*blobs: Blob) -> bytes:
    named = ", ".join(f'"sha256:{blob.digest}"' for blob in blobs)
    return f'{{"text": "é", "blobs": [{named}]}}\n'.encode()


_TRASH, _BLOBS = "Deleting and bringing back", "Content by digest"

CHECKS = (
    Check(_TRASH, a_deleted_log_is_gone_and_can_be_brought_back),
    Check(_TRASH, a_log_that_is_written_is_not_deleted),
    Check(_TRASH, what_was_deleted_last_comes_back_first),
    Check(_TRASH, an_emptied_trash_gives_nothing_back),
    Check(_BLOBS, content_is_kept_by_its_digest),
    Check(_BLOBS, content_of_late_lines_is_kept),
    Check(_BLOBS, content_stays_as_long_as_a_log_names_it),
)
