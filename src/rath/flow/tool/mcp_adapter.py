"""Tools of MCP servers as tools of a run."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rath._async.runtime import Runtime, runtime
from rath._core.references import Reduction, not_portable
from rath._core.text import cut_middle, one_line_preview, valid_unicode
from rath.backend.results import ToolExecutionFailure
from rath.errors import (
    MCPAuthenticationError,
    MCPConnectionError,
    MCPProtocolError,
    MCPServerError,
    MCPTimeout,
)
from rath.flow.tool.base import FlowToolCall
from rath.mcp.client import MCPClient
from rath.mcp.pins import pin_tools, tool_digest
from rath.mcp.schema import SchemaCheck
from rath.mcp.spec import Auth, HttpTransport, ServerSpec
from rath.mcp.tools import decode_result, error_text, input_schema, provider_names
from rath.session import Session
from rath.session.tooling import MAX_RAW_CHARS, BadArguments, ToolEffects

if TYPE_CHECKING:
    from rath.config import ConfigStore

__all__ = [
    "MCPClient",
    "MCPToolCall",
    "mcp_tools_from_config",
    "mcp_tools_from_server",
    "shared_mcp_loop",
    "tools_of",
]

_calls = itertools.count()

MAX_DESCRIPTION_CHARS = 20_000
"""How much of a description a model is shown, in each request. A guess."""

_YIELDING = frozenset({"edit_workspace_file"})
"""Built-in tools that make way for one of the user of that name: a server shall not be that."""

_MAX_SERVER_CHARS = 80

_MARGIN_SECONDS = 10.0
"""How much longer than the client a run waits for a call, so that the client tells why."""


def shared_mcp_loop() -> Runtime:
    """Return the runtime on which all connections to servers live."""
    return runtime()


def require_fit(check: SchemaCheck, tool: str, arguments: Mapping[str, Any]) -> None:
    """Check arguments by a schema of somebody else.

    Args:
        check: Of the schema.
        tool: The name of the tool, for the message.
        arguments: Of a call.

    Raises:
        BadArguments: They do not fit.
    """
    problems = check.problems(arguments)
    if problems:
        raise BadArguments(
            f"the arguments for tool {tool!r} do not fit its schema: {'; '.join(problems)}",
            json.dumps(dict(arguments), ensure_ascii=False, default=str)[:MAX_RAW_CHARS],
        )


class MCPToolCall(FlowToolCall):
    """A tool of an MCP server.

    Calls go over the one connection of its client. In a run no thread waits for an answer. What
    goes wrong is a failure that the model reads: `mcp_tool_error` where the tool itself says so,
    `mcp_connection_lost`, `mcp_unauthorized`, `mcp_timeout`, `mcp_error`.

    Args:
        client: The connection to the server, shared by its tools.
        name: What the server calls the tool.
        description: What the server says of it.
        parameters: JSON Schema of its arguments.
        alias: The name under which a model calls it; by default `name` in a form that every
            provider takes.
        effects: What repeating a call would do. A read-only tool may run beside others.
        origin: Where it comes from, for the record; by default its server's program or address.
    """

    def _pickle_reference(self) -> Reduction:
        raise not_portable(
            f"the tool {self.name!r} works over an open connection to an MCP server",
            "connect to the server where the tool is used, as in a factory of the workflow",
        )

    def __init__(
        self,
        *,
        client: MCPClient,
        name: str,
        description: str | None,
        parameters: Mapping[str, Any],
        alias: str | None = None,
        effects: ToolEffects = "non_idempotent",
        origin: str | None = None,
    ) -> None:
        self.client = client
        self.server_tool = name
        """What the server calls the tool."""
        self._name = provider_names([name])[name] if alias is None else alias
        self._description = description and cut_middle(description, MAX_DESCRIPTION_CHARS)[0]
        self._parameters = dict(parameters)
        self._check = SchemaCheck(self._parameters)
        self._origin = origin or f"mcp:{getattr(client, 'name', type(client).__qualname__)}"
        self.effects: ToolEffects = effects
        self.parallel_safe: bool = effects == "read_only"
        seconds = getattr(client, "timeout", None)
        if isinstance(seconds, int | float):
            self.timeout: float | None = (
                seconds + getattr(client, "connect_timeout", 0.0) + _MARGIN_SECONDS
            )

    @property
    def name(self) -> str:
        """The name under which a model calls it."""
        return self._name

    @property
    def description(self) -> str | None:
        """Description by the server: data for the model, never instructions of yours."""
        return self._description

    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON Schema of its arguments."""
        return self._parameters

    @property
    def origin(self) -> str:
        """The server's name, version, transport and place, and the digest of what is pinned."""
        return self._origin

    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """Return what a call works on: nothing, for a tool that may run beside others.

        Of any other it is not known what it works on, so `("global",)`.
        """
        return ("mcp", self._name, str(next(_calls))) if self.parallel_safe else ("global",)

    def check_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Check arguments by the schema, as far as that is sure to end soon.

        The rest is left to the server, as `SchemaCheck` says.

        Raises:
            BadArguments: They do not fit.
        """
        require_fit(self._check, self._name, arguments)

    def __repr__(self) -> str:
        return f"MCPToolCall({self._name!r}, {self.client!r})"

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        """Call the tool and wait for what it answers; the session is not sent."""
        try:
            return self._returned(self.client.call_tool(self.server_tool, arguments))
        except MCPServerError as exc:
            return _failure(exc)

    async def acall(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        """Call the tool in any event loop; this is what a run does."""
        try:
            return self._returned(await self.client.acall_tool(self.server_tool, arguments))
        except MCPServerError as exc:
            return _failure(exc)

    def _returned(self, result: object) -> Any:
        text = error_text(result)
        if text is not None:
            return ToolExecutionFailure("mcp_tool_error", _without_tokens(self.client, text))
        return _without_tokens(self.client, decode_result(result))


def mcp_tools_from_server(
    command: str | Sequence[str] | ServerSpec,
    *,
    args: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    auth: str | Auth | None = None,
    transport: HttpTransport = "auto",
    prefix: str = "",
) -> tuple[MCPToolCall, ...]:
    """Return the tools of a server, which share one connection; it is closed with the last one.

    Args:
        command: A program, a whole command line as a list, an address, or a `ServerSpec`.
        args: Arguments of a program.
        env: Environment of a program.
        headers: Headers for an address.
        auth: A token, or how to get one, for an address.
        transport: How an address is spoken to.
        prefix: Goes before the name of every tool, to tell servers apart.

    Raises:
        MCPServerError: The server cannot be started, reached or understood.
    """
    client = MCPClient(command, args=args, env=env, headers=headers, auth=auth, transport=transport)
    return tools_of(client, prefix=prefix)


def tools_of(
    client: MCPClient,
    *,
    prefix: str = "",
    trust_annotations: bool = True,
    project: str | None = None,
) -> tuple[MCPToolCall, ...]:
    """Return the tools of a client's server; what they say of themselves is pinned.

    Args:
        client: The connection, shared by the tools.
        prefix: Goes before every name.
        trust_annotations: Whether what the server says of a tool's effects is believed.
        project: Directory of the project's config that names the server; None for any other.

    Raises:
        MCPServerError: The server cannot be started, reached or understood.
    """
    listed = {tool.name: tool for tool in reversed(client.list_tools())}
    tools = [listed[name] for name in reversed(listed)]
    pin_tools(client.spec, tools, project=project)
    names = provider_names([tool.name for tool in tools], prefix=prefix, reserved=_YIELDING)
    where = _where(client)
    return tuple(
        MCPToolCall(
            client=client,
            name=tool.name,
            description=tool.description,
            parameters=input_schema(tool),
            alias=names[tool.name],
            effects=effects_of(tool) if trust_annotations else "non_idempotent",
            origin=f"{where} {tool_digest(tool)[:16]}",
        )
        for tool in tools
    )


def effects_of(tool: object) -> ToolEffects:
    """Return what the server says that repeating a call would do."""
    hints = getattr(tool, "annotations", None)
    if getattr(hints, "read_only_hint", None) is True:
        return "read_only"
    return "idempotent" if getattr(hints, "idempotent_hint", None) is True else "non_idempotent"


def mcp_tools_from_config(
    name: str | None = None, *, store: ConfigStore | None = None, prefix: str = ""
) -> tuple[MCPToolCall, ...]:
    """Return the tools of a server of the config.

    Args:
        name: Name of the server; by default the only one of `mcp.default_enabled`.
        store: The one config to look at; by default the project's, then the user's.
        prefix: Goes before the name of every tool, to tell servers apart.

    Raises:
        KeyError: There is no such server, or none or more than one by default.
        UntrustedServer: A project names the server, and the user has not trusted it.
        MCPServerError: The server cannot be started, reached or understood.
    """
    # The config brings pydantic.
    from rath.mcp.configured import configured_server  # noqa: PLC0415

    server = configured_server(name, store=store)
    return tools_of(
        server.client(),
        prefix=prefix,
        trust_annotations=server.believes_annotations,
        project=server.project,
    )


def _where(client: MCPClient) -> str:
    """Return what the record says of the server of a tool: name, version and transport."""
    info = client.server_info
    named = _without_tokens(client, f"{info.name}@{info.version}")
    text = one_line_preview(named, _MAX_SERVER_CHARS)
    return f"mcp:{valid_unicode(text)} {client.transport} {client.name}"


def _without_tokens(client: object, value: object) -> Any:
    """Return what a server sent without the credentials of its connection."""
    hide = getattr(client, "without_tokens", None)  # a client may be of the user's own
    return value if hide is None else hide(value)


def _failure(error: MCPServerError) -> ToolExecutionFailure:
    kind = "mcp_error"
    if isinstance(error, MCPAuthenticationError):
        kind = "mcp_unauthorized"
    elif isinstance(error, MCPConnectionError) and not isinstance(error, MCPProtocolError):
        kind = "mcp_connection_lost"
    elif isinstance(error, MCPTimeout):
        kind = "mcp_timeout"
    return ToolExecutionFailure(kind, str(error))
