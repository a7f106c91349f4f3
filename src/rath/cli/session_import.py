"""`rath import`: the sessions of a portable file, put into a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rath.cli.layout import number
from rath.cli.progress import progress
from rath.cli.sessions import StoreUrl, opened_store
from rath.cli.terminal import note, say
from rath.session.log.bundle import import_bundle, read_bundle

__all__ = ["app"]

app = typer.Typer(add_completion=False)


@app.command("import")
def import_sessions(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of `rath export`.")],
    store_url: StoreUrl = None,
) -> None:
    """Put the sessions of a file into a store; prints the ids of those that were exported.

    What the store holds already is kept. One that holds something else under the same id is never
    overwritten: nothing is imported then. A damaged file is refused, with status 4.
    """
    bundle = read_bundle(file)
    with opened_store(store_url) as store, progress("importing sessions") as report:
        done = import_bundle(bundle, store, report=report)
    for session in bundle.sessions:
        say(str(session))
    n_added, n_grown, n_kept = len(done.added), len(done.grown), len(done.kept)
    note(f"{number(n_added, 'session')} added, {n_grown} grown, {n_kept} there already")
