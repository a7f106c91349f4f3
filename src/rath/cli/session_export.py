"""`rath export`: a session, and all that it came from, in one portable file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rath.cli.layout import number, size
from rath.cli.progress import progress
from rath.cli.sessions import (
    EvidenceMissing,
    SessionText,
    StoreUrl,
    find_session,
    opened_store,
    store_of,
)
from rath.cli.terminal import Misuse, note
from rath.session.log.bundle import pack, write_bundle

__all__ = ["app"]

app = typer.Typer(add_completion=False)


@app.command("export")
def export_session(
    session: SessionText,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")],
    is_forced: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    store_url: StoreUrl = None,
) -> None:
    """Write a session to one file, with all that it came from and what its logs name.

    `rath import` puts it into another store. The file holds what was said and done, but no key.
    Where the store lacks some of that, the file is written without it, and the exit status is 3.
    """
    if file.exists() and not is_forced:
        raise Misuse(f"{str(file)!r} is there already; --force replaces it")
    with opened_store(store_url) as store, progress("packing sessions") as report:
        ident, place = store_of(find_session(session, store), store)
        bundle = pack(place, [ident], note="export", report=report)
        n_bytes = write_bundle(bundle, file)
    n_sessions = number(len(bundle.logs), "session")
    note(f"{file}: session {ident}, {n_sessions} in all, {size(n_bytes)}")
    if bundle.lacks:
        lacking = ", ".join(map(str, bundle.lacks))
        raise EvidenceMissing(
            f"what it came from is not all in {place.where}: {lacking}; bring that back from the "
            "trash or import it, and export again"
        )
