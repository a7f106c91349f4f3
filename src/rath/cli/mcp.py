"""`rath mcp`: tool servers that are configured here, and workflows served as one."""

from __future__ import annotations

import typer

from rath.cli.mcp_call import call_tool
from rath.cli.mcp_ls import list_servers
from rath.cli.mcp_serve import serve
from rath.cli.mcp_test import try_server
from rath.cli.mcp_trust import trust
from rath.cli.terminal import show_help

__all__ = ["app"]

app = typer.Typer(add_completion=False)
app.callback(
    invoke_without_command=True, help="See, try and trust the tool servers of the config."
)(show_help)
app.command("ls")(list_servers)
app.command("test")(try_server)
app.command("call")(call_tool)
app.command("trust")(trust)
app.command("serve")(serve)
