"""`rath export`, `import`, `fork`, `rm`, `prune`, `gc` and `verify`: what is stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer
from rich.text import Text

from rath._core.dataclasses import dataclass
from rath._core.text import short_id
from rath.cli.render import busy, count_of, line, moment, one_line, progress, say_lines, size
from rath.cli.stores import (
    SessionText,
    StoreUrl,
    load_sessions,
    locate,
    session_id_of,
    use_index,
    use_store,
)
from rath.cli.terminal import (
    AsJson,
    CommandError,
    EvidenceMissing,
    Exit,
    IsAgreed,
    Misuse,
    ask_yes_no,
    duration,
    misuse_on,
    note,
    say,
    say_json,
)
from rath.errors import PersistenceError
from rath.session.log import verify as checks
from rath.session.log.bundle import import_bundle, pack, read_bundle, write_bundle
from rath.session.log.index import SessionSummary, StoreIndex
from rath.session.log.store import SessionStore
from rath.session.log.verify import delete_session, prunable_sessions, prune_sessions

_STYLES = {"damaged": "bold red", "missing": "yellow", "note": "dim"}


def export_session(
    session: SessionText,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")],
    is_forced: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    store_url: StoreUrl = None,
) -> None:
    """Export a session with its ancestors to one file.

    `rath import` puts it into another store. The file holds what was said and done, but no key.
    Where the store lacks some of that, the file is written without it, and the exit status is 3.
    """
    if file.exists() and not is_forced:
        raise Misuse(f"{str(file)!r} is there already; --force replaces it")
    with use_store(store_url) as store, progress("packing sessions") as report:
        ident, place = locate(session, store)
        bundle = pack(place, [ident], note="export", report=report)
        n_bytes = write_bundle(bundle, file)
    n_sessions = count_of(len(bundle.logs), "session")
    note(f"{file}: session {ident}, {n_sessions} in all, {size(n_bytes)}")
    if bundle.lacks:
        lacking = ", ".join(map(str, bundle.lacks))
        raise EvidenceMissing(
            f"what it came from is not all in {place.where}: {lacking}; bring that back from the "
            "trash or import it, and export again"
        )


def import_sessions(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of `rath export`.")],
    store_url: StoreUrl = None,
) -> None:
    """Import the sessions of an exported file into a store.

    What the store holds already is kept. One that holds something else under the same id is never
    overwritten: nothing is imported then. A damaged file is refused, with status 4.
    """
    bundle = read_bundle(file)
    with use_store(store_url) as store, progress("importing sessions") as report:
        done = import_bundle(bundle, store, report=report)
    for session in bundle.sessions:
        say(str(session))
    n_added, n_grown, n_kept = len(done.added), len(done.grown), len(done.kept)
    note(f"{count_of(n_added, 'session')} added, {n_grown} grown, {n_kept} there already")


def fork_session(
    session: SessionText,
    at: Annotated[
        int | None,
        typer.Option("--at", metavar="ROW", help="The first row that the child leaves out."),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Fork a session: store a child with all or the first of its rows."""
    with load_sessions(session, store=store) as (parent,):
        with misuse_on(ValueError):
            # A branch with which nobody goes on yet.
            child = parent.fork() if at is None else parent.replay(at=at, agent=lambda it: it)
        with use_store(store) as opened:
            child.save(store=opened)
        n_rows = len(child.chunk_table)
    if as_json:
        say_json({"session": child.id, "parent": parent.id, "n_rows": n_rows})
    else:
        say(str(child.id))
        note(f"a child of session {parent.id} with {count_of(n_rows, 'row')}")


def rm(
    sessions: Annotated[
        list[str], typer.Argument(metavar="SESSION...", help="Ids, or the beginnings of ids.")
    ],
    is_restored: Annotated[
        bool, typer.Option("--restore", help="Bring them back; takes whole ids.")
    ] = False,
    store_url: StoreUrl = None,
) -> None:
    """Move sessions to the trash; their descendants load as before.

    They lie there until `rath prune` or `rath gc` empties it.
    """
    with use_store(store_url) as store:
        if is_restored:
            for session in [_full_id(text) for text in sessions]:
                if not store.restore(session):
                    raise CommandError(f"session {session} is not in the trash of {store.where}")
                say(f"brought back: {session}")
            return
        # All of them are looked for before the first one goes.
        found = dict.fromkeys(session_id_of(text, store) for text in sessions)
        for session in found:
            if not delete_session(session, store=store):
                raise CommandError(
                    f"session {session} is not in {store.where}; `rath ls` lists what is"
                )
            say(f"moved to the trash: {session}")
    named = " ".join(map(str, found))
    place = "" if store_url is None else f" --store {store_url}"
    note(f"`rath rm --restore {named}{place}` brings {'it' if len(found) == 1 else 'them'} back")


def _full_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Misuse(
            f"{text!r} is no whole id; what is in the trash is named by all of its digits"
        ) from None


def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Last written before, as 30d.")
    ],
    is_dry: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would go; change nothing.")
    ] = False,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Move old sessions to the trash, and remove what was in it before.

    What a session that stays came from stays too, as does what cannot be believed.
    """
    age = duration("--older-than", older_than)
    with use_store(store_url) as store:
        with use_index(store) as index:
            known = {summary.id: summary for summary in index.summaries()}
        with busy("looking for old sessions" if is_dry else "moving old sessions"):
            gone = (prunable_sessions if is_dry else prune_sessions)(older_than=age, store=store)
    if as_json:
        say_json({"dry_run": is_dry, "sessions": gone})
    else:
        say_lines(_prune_line(ident, known.get(ident)) for ident in gone)
    note(f"{count_of(len(gone), 'session')} {'would go' if is_dry else 'moved'} to the trash")
    if gone and not is_dry:
        note("`rath rm --restore ID` brings one back, until the next prune")


def collect_garbage(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Not used for so long, as 30d.")
    ],
    is_dry: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would go; change nothing.")
    ] = False,
    is_agreed: IsAgreed = False,
    as_json: AsJson = False,
) -> None:
    """Remove what was not used for long: sandboxes, memories, sessions.

    Sessions of the default store go to its trash, and what was in the trash is removed. All else
    is removed at once; what is open, or still needed by what stays, is kept.
    """
    from rath.persistence.gc import gc  # noqa: PLC0415  # loads all planes

    age = duration("--older-than", older_than)
    with busy("looking for what was not used"):
        report = gc(older_than=age)
    kinds = [each.name for each in fields(report) if each.name != "dry_run"]
    n_found = sum(len(getattr(report, kind)) for kind in kinds)
    if not is_dry:
        question = f"Remove {count_of(n_found, 'item')} and empty the trash?"
        if not is_agreed and not ask_yes_no(question):
            raise CommandError("nothing is removed")
        with busy("removing"):
            report = gc(older_than=age, dry_run=False)
    if as_json:
        say_json(report)
        return
    for kind in kinds:
        for each in getattr(report, kind):
            say(f"{kind.replace('_', ' ').removesuffix('s')}  {each}")
    n_found = sum(len(getattr(report, kind)) for kind in kinds)
    note(f"{count_of(n_found, 'item')} {'would be removed' if is_dry else 'removed'}")


def _prune_line(ident: UUID, known: SessionSummary | None) -> Text:
    if known is None:
        return line((str(ident), "bold"), is_whole=True)
    about = one_line(known.title or known.operator)
    return line((f"{short_id(ident)}  ", "bold"), (f"{moment(known.updated_at)}  ", "dim"), about)


@dataclass(frozen=True, slots=True)
class _Checked:
    """Sessions that were verified, and the problems of these and of all they came from."""

    sessions: list[UUID]
    problems: list[checks.Problem]


def verify_sessions(
    session: Annotated[
        str | None,
        typer.Argument(metavar="[SESSION]", help="An id, the beginning of one, or a file."),
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Every session of the store.")] = False,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Verify a session and its ancestors: checksums, parents, contents.

    Exit status 4 where something is not what was written, 3 where something that was kept is not
    there any more.
    """
    if is_all == (session is not None):
        raise Misuse("expected one of SESSION and --all")
    with use_store(store_url) as store:
        if session is None:
            found = list(_verify_all(store))
        else:
            ident, place = locate(session, store)
            with busy("checking"):
                found = [checks.verify(place, ident)]
    problems = list(dict.fromkeys(problem for each in found for problem in each.problems))
    if as_json:
        say_json(_Checked([each.session for each in found], problems))
    else:
        say_lines(
            line(
                (f"{each.severity}  ", _STYLES[each.severity]),
                (f"{short_id(each.session)}  ", "bold"),
                f"{each.kind}: {each.text}",
                is_whole=True,
            )
            for each in problems
        )
    severities = {problem.severity for problem in problems}
    n_lines = count_of(sum(each.n_lines for each in found), "line")
    came = "all it came from" if len(found) == 1 else "all they came from"
    checked = f"{count_of(len(found), 'session')} with {came}, {n_lines}"
    if "damaged" in severities:
        note(f"damaged: {checked}")
        raise typer.Exit(Exit.DAMAGED)
    if "missing" in severities:
        note(f"something is missing, the rest is as it was written: {checked}")
        raise typer.Exit(Exit.MISSING)
    note(f"sound: {checked}")


def _verify_all(store: SessionStore) -> Iterator[checks.Verification]:
    """Yield what is found in the sessions of which nothing was made, and in all they came from."""
    with use_index(store) as index:
        ends = _ends(index)
    with progress("checking") as report:
        for n_done, session in enumerate(ends, start=1):
            try:
                yield checks.verify(store, session)
            except PersistenceError as exc:
                problem = checks.Problem("damaged", "line", session, str(exc))
                yield checks.Verification(session, 0, 0, 0, (problem,))
            report(n_done, len(ends))


def _ends(index: StoreIndex) -> list[UUID]:
    summaries = index.summaries()
    parents = {parent for each in summaries for parent in each.parents}
    # One that came from itself is an end too: nothing else would lead there.
    reached: set[UUID] = set()
    ends = [each.id for each in summaries if each.id not in parents]
    for end in ends:
        reached |= {end, *index.ancestors(end)}
    return ends + [each.id for each in summaries if each.id not in reached]
