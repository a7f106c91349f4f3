"""`rath view`: a session as a page, in one file or served while its run goes on."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from rath._core.text import short_id
from rath.cli.loaded import loaded
from rath.cli.sessions import Damaged, SessionText, StoreUrl, opened_store, session_id_of
from rath.cli.terminal import Misuse, Problem, note, say
from rath.errors import SessionDamaged
from rath.session.view import PageLimits, write_page
from rath.session.view.page import Feed, LiveServer

__all__ = ["app"]

app = typer.Typer(add_completion=False)


@app.command()
def view(
    session: SessionText,
    compare: Annotated[
        str | None,
        typer.Option("--compare", "-c", metavar="SESSION", help="Show this one beside it."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The file; session-ID.html here."),
    ] = None,
    is_opened: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Serve the page here, and follow the run; Ctrl-C ends.")
    ] = False,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="With --live; 0 for any that is free.")
    ] = 0,
    max_chars: Annotated[
        int, typer.Option("--max-chars", min=1, help="Show so much of one text.")
    ] = PageLimits().max_chars,
    store: StoreUrl = None,
) -> None:
    """Show a session, and all that it came from, on one page that needs no network."""
    limits = PageLimits(max_chars=max_chars)
    if live:
        if output is not None:
            raise Misuse("--live writes no file; leave --output out")
        _serve(session, compare, limits, port=port, store=store, is_opened=is_opened)
        return
    texts = (session,) if compare is None else (session, compare)
    with loaded(*texts, store=store) as (shown, *beside):
        target = output or Path(f"session-{short_id(shown.id)}.html")
        try:
            write_page(shown, target, compare=beside[0] if beside else None, limits=limits)
        except OSError as exc:
            raise Problem(f"{target} cannot be written: {exc.strerror}") from exc
    say(str(target))
    note(f"{target.stat().st_size // 1000} kB, in one file that needs no other")
    if is_opened:
        webbrowser.open(target.absolute().as_uri())


def _serve(
    session: str,
    compare: str | None,
    limits: PageLimits,
    *,
    port: int,
    store: str | None,
    is_opened: bool,
) -> None:
    with opened_store(store) as opened:
        shown = session_id_of(session, opened)
        beside = None if compare is None else session_id_of(compare, opened)

        def tell_address(address: str) -> None:
            say(address)
            note("the address holds a secret and works on this machine; Ctrl-C ends")
            if is_opened:
                webbrowser.open(address)

        try:
            server = LiveServer(
                Feed(opened, shown, compare=beside),
                title=f"Session {short_id(shown)}",
                limits=limits,
                port=port,
            )
            server.serve(
                on_ready=tell_address,
                on_end=lambda state: note(f"the run has ended: {state.replace('_', ' ')}"),
            )
        except SessionDamaged as exc:
            raise Damaged(str(exc)) from exc
        except KeyboardInterrupt:
            note("no longer served")
