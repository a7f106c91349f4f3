"""`rath view`: a session as a page, in one file or served while its run goes on."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from rath._core.text import short_id
from rath.cli.stores import SessionText, StoreUrl, load_sessions, session_id_of, use_store
from rath.cli.terminal import CommandError, Misuse, note, say
from rath.profiler import profile_sessions
from rath.session.view import PageLimits, write_page
from rath.session.view.page import Feed, LiveServer


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
    with_profile: Annotated[
        bool,
        typer.Option("--profile", help="Write its profile with a flame view as well, and link it."),
    ] = False,
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
        if with_profile:
            raise Misuse("--live has no profile; leave --profile out, or write a file")
        with use_store(store) as opened:
            ident = session_id_of(session, opened)
            other = None if compare is None else session_id_of(compare, opened)
            title = f"Session {short_id(ident)}"
            feed = Feed(opened, ident, compare=other)
            _serve(LiveServer(feed, title=title, limits=limits, port=port), is_opened=is_opened)
        return
    texts = (session,) if compare is None else (session, compare)
    with load_sessions(*texts, store=store) as (page, *others):
        target = output or Path(f"session-{short_id(page.id)}.html")
        flame = target.with_suffix(".profile.html")
        try:
            if with_profile:
                title = f"Profile of session {short_id(page.id)}"
                profile_sessions([page]).export_html(flame, title=title)
            write_page(
                page,
                target,
                compare=others[0] if others else None,
                limits=limits,
                profile=quote(flame.name) if with_profile else "",
            )
        except OSError as exc:
            raise CommandError(f"{target} cannot be written: {exc.strerror}") from exc
    say(str(target))
    note(f"{target.stat().st_size // 1000} kB, in one file that needs no other")
    if is_opened:
        webbrowser.open(target.absolute().as_uri())


def _serve(server: LiveServer, *, is_opened: bool) -> None:
    def tell_address(address: str) -> None:
        say(address)
        note("the address holds a secret and works on this machine; Ctrl-C ends")
        if is_opened:
            webbrowser.open(address)

    try:
        server.serve(
            on_ready=tell_address,
            on_end=lambda state: note(f"the run has ended: {state.replace('_', ' ')}"),
        )
    except KeyboardInterrupt:
        note("no longer served")
