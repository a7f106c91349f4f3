"""`rath mcp serve`: a workflow as a tool of other programs."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated

import typer

from rath.cli.program import load_workflow
from rath.cli.sessions import StoreUrl, opened_store
from rath.cli.terminal import Misuse
from rath.flow.serving import ServeOptions, serve_mcp

__all__ = ["serve"]


def serve(
    workflow: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:WORKFLOW", help="What to serve; agents:team, or path/agents.py:team."
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="Of the tool; by default that of the class.")
    ] = None,
    over_http: Annotated[
        bool, typer.Option("--http", help="Listen for streamable HTTP, in place of stdio.")
    ] = False,
    host: Annotated[str, typer.Option("--host", help="To listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="To listen on; 0 for a free one.")] = 8000,
    path: Annotated[str, typer.Option("--path", help="Of the address.")] = "/mcp",
    token_env: Annotated[
        str | None,
        typer.Option("--token-env", metavar="NAME", help="Variable with the token to ask for."),
    ] = None,
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME:PORT", help="Also called so. Repeatable."),
    ] = None,
    any_session: Annotated[
        bool,
        typer.Option("--any-session", help="Let clients go on with any session of the store."),
    ] = False,
    store: StoreUrl = None,
) -> None:
    """Serve a workflow as a tool, over stdio or HTTP, until it is ended.

    Clients give a message, and get the answer and the id of a session that is stored here. What
    the program prints goes to standard error.
    """
    with opened_store(store) as opened:
        options = ServeOptions(
            path=path,
            token=None if token_env is None else _token(token_env),
            allowed_hosts=tuple(allowed_hosts or ()),
            sessions="any" if any_session else "own",
            store=opened,
        )
        try:
            serve_mcp(
                partial(load_workflow, workflow),
                name=name or _attribute(workflow),
                transport="http" if over_http else "stdio",
                host=host,
                port=port,
                options=options,
            )
        except (ValueError, TypeError) as exc:
            raise Misuse(str(exc)) from exc


def _token(variable: str) -> str:
    token = os.environ.get(variable, "")
    if not token:
        raise Misuse(f"the variable {variable!r} of --token-env is not set; put the token there")
    return token


def _attribute(workflow: str) -> str | None:
    """Return the name under which the program has the workflow, where it can be that of a tool."""
    name = workflow.rpartition(":")[2].rpartition(".")[2]
    return name or None
