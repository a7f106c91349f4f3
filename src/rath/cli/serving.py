"""`rath serve`: a workflow as a server, and the tokens of its clients."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from errno import EADDRNOTAVAIL
from pathlib import Path
from typing import Annotated

import typer

from rath.cli.lists import MOST_LISTED, Limit, TextFilter, page_of, say_page
from rath.cli.render import item
from rath.cli.runs import load_workflow
from rath.cli.stores import StoreUrl, use_store
from rath.cli.terminal import AsJson, CommandError, Misuse, misuse_on
from rath.flow.serving.serve import LOOPBACK
from rath.llm.embedding import EmbeddingProvider
from rath.serving.principals import Principal, TokenFile


def serve_workflow(
    ctx: typer.Context,
    openai: Annotated[bool, typer.Option("--openai", help="Serve the OpenAI API.")] = False,
    a2a: Annotated[bool, typer.Option("--a2a", help="Serve A2A.")] = False,
    mcp: Annotated[bool, typer.Option("--mcp", help="Serve MCP.")] = False,
    agui: Annotated[bool, typer.Option("--agui", help="Serve AG-UI.")] = False,
    name: Annotated[
        str | None, typer.Option("--name", help="Of the model; by default the attribute's.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="To listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="To listen on; 0 for a free one.")] = 8000,
    allowed_hosts: Annotated[
        list[str] | None, typer.Option("--allow-host", metavar="NAME", help="Also called so.")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Address that clients of A2A are given.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep-runs", help="Let runs go on when their client goes away.")
    ] = False,
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="URL", help="Where runs in the background are made."),
    ] = None,
    embeddings: Annotated[
        str | None,
        typer.Option("--embeddings", metavar="MODEL", help="Model of /v1/embeddings."),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="File of the certificate, for TLS.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", help="File of its private key.")] = None,
    store: StoreUrl = None,
) -> None:
    """Serve a workflow over HTTP to clients of OpenAI, A2A, MCP and AG-UI.

    Without --openai, --a2a, --mcp or --agui all four are served. MODULE:WORKFLOW is the program,
    such as agents:team, or path/agents.py:team.
    """
    from rath.serving.app import (  # noqa: PLC0415  # needs an extra
        DISCONNECT_SECONDS,
        ServerOptions,
        asgi,
        build_server,
        require_token,
    )

    reference = ctx.info_name or ""
    workflow = load_workflow(reference)
    is_all = not (openai or a2a or mcp or agui)
    scheme = "http" if certificate is None else "https"
    if (certificate is None) != (key is None):
        raise Misuse("TLS needs --certificate and --key together")
    # A free port is known before the card that names it is made.
    listening = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"{scheme}://{shown}:{listening.getsockname()[1]}"
    with listening, use_store(store) as opened, misuse_on(ValueError, TypeError):
        options = ServerOptions(
            openai=openai or is_all,
            a2a=a2a or is_all,
            mcp=mcp or is_all,
            agui=agui or is_all,
            store=opened,
            engine=engine,
            embeddings=None if embeddings is None else EmbeddingProvider(model=embeddings),
            allowed_hosts=(*(() if host in LOOPBACK else (host,)), *(allowed_hosts or ())),
            url=url or address,
            disconnect_grace=None if keep else DISCONNECT_SECONDS,
        )
        require_token(str(listening.getsockname()[0]), options)
        served = name or reference.rpartition(":")[2].rpartition(".")[2]
        app = asgi({served: workflow}, options)
        server = build_server(
            app,
            options,
            certificate=None if certificate is None else str(certificate),
            key=None if key is None else str(key),
        )
        typer.echo(f"serving {served!r} at {address}", err=True)
        server.run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    from rath.flow.serving.http import listen  # noqa: PLC0415  # loads the server

    try:
        return listen(host, port)
    except (OSError, OverflowError) as exc:
        is_unknown = isinstance(exc, socket.gaierror) or getattr(exc, "errno", 0) == EADDRNOTAVAIL
        other = "--host, such as 127.0.0.1" if is_unknown else "--port"
        text = f"cannot listen on {host}:{port}: {exc}; choose another {other}"
        raise CommandError(text) from exc


def add_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the client.")],
    workflows: Annotated[
        list[str] | None,
        typer.Option("--workflow", metavar="NAME", help="It may run this one alone. Repeatable."),
    ] = None,
    rate: Annotated[
        int | None, typer.Option("--rate", metavar="N", help="Requests a minute.")
    ] = None,
    usd: Annotated[
        str | None, typer.Option("--usd-per-day", metavar="USD", help="Money a day (UTC).")
    ] = None,
    runs: Annotated[int | None, typer.Option("--runs", metavar="N", help="Runs in flight.")] = None,
    approve: Annotated[
        bool, typer.Option("--approve", help="It may allow tool calls of its own sessions.")
    ] = False,
) -> None:
    """Make a token for a client, with its limits, and show it once.

    The token is on standard output; only its digest is stored.
    """
    try:
        money = None if usd is None else Decimal(usd)
    except InvalidOperation:
        raise Misuse(f"--usd-per-day takes a number of US dollars, not {usd!r}") from None
    principal = Principal(
        name=name,
        workflows=tuple(workflows) if workflows else None,
        requests_per_minute=rate,
        usd_per_day=money,
        max_runs=runs,
        may_approve=approve,
    )
    with misuse_on(ValueError):
        typer.echo(TokenFile().add(principal))


def list_tokens(
    text: TextFilter = None, limit: Limit = MOST_LISTED, as_json: AsJson = False
) -> None:
    """List the clients that have a token, and limits."""
    tokens = [
        {**_as_json(principal), "created": created}
        for principal, created in TokenFile().principals()
    ]

    def show(shown: Sequence[dict[str, object]]) -> None:
        for each in shown:
            limits = ", ".join(f"{key} {value}" for key, value in each.items() if key != "created")
            item(f"{limits}, since {each['created']:%Y-%m-%d %H:%M} UTC", depth=0)

    say_page(
        page_of(tokens, "token", text=text, limit=limit),
        "tokens",
        show,
        as_json=as_json,
        empty="no token fits" if tokens else "no tokens; make one with: rath serve token add NAME",
    )


def _as_json(principal: Principal) -> dict[str, object]:
    limits: dict[str, object] = {
        "workflows": principal.workflows and list(principal.workflows),
        "requests_per_minute": principal.requests_per_minute,
        "usd_per_day": principal.usd_per_day and str(principal.usd_per_day),
        "max_runs": principal.max_runs,
        "may_approve": principal.may_approve or None,
    }
    return {"name": principal.name, **{key: each for key, each in limits.items() if each}}


def remove_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the client.")],
) -> None:
    """Revoke the token of a client, from its next request on."""
    try:
        TokenFile().remove(name)
    except KeyError:
        raise CommandError(f"there is no token of {name!r}; see: rath serve token ls") from None
