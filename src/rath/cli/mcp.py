"""`rath mcp`: the tool servers that the configs name, tried, called and trusted."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from difflib import ndiff
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from pydantic import ValidationError

from rath._core.dataclasses import dataclass
from rath._core.text import did_you_mean, visible
from rath.cli.lists import MOST_LISTED, Limit, Page, TextFilter, page_of, say_page
from rath.cli.render import (
    CheckFinding,
    Level,
    count_levels,
    count_of,
    line,
    one_line,
    say_findings,
    say_lines,
    say_table,
    span,
)
from rath.cli.settings import ForProject, change_config, target_path
from rath.cli.terminal import (
    AsJson,
    CommandError,
    IsAgreed,
    Misuse,
    ask_yes_no,
    complain,
    misuse_on,
    note,
    say,
    say_json,
    warn,
)
from rath.config.layers import config_layers
from rath.config.redaction import (
    HIDDEN,
    REFERENCE,
    is_url,
    looks_secret,
    redact_address,
    redact_argv,
    redact_setting,
)
from rath.config.schema import MCPServerConfig
from rath.config.store import ConfigStore
from rath.config.trust import belongs_to_project
from rath.errors import ConfigError, MCPRequestError, MCPServerError
from rath.llm.image import Image
from rath.mcp import MCPClient, pins
from rath.mcp import trust as trusts
from rath.mcp.configured import ConfiguredServer, configured_server
from rath.mcp.spec import server_name
from rath.mcp.tools import decode_result, error_text, input_schema

if TYPE_CHECKING:
    from mcp_types import CallToolResult, Tool

ServerName = Annotated[str, typer.Argument(metavar="SERVER", help="As `rath mcp ls` shows.")]

_HINTS = {
    "read_only_hint": "read-only",
    "idempotent_hint": "idempotent",
    "destructive_hint": "destructive",
}
_MAX_NAME = 40
"""Columns that all names of tools are made to fill; a longer one moves its own text alone."""

_MAX_LISTED = 50
_LITERALS = frozenset({"boolean", "integer", "number", "array", "object", "null"})
_NO_SUCH_METHOD = -32601
_DIGEST_CHARS = 12
"""Enough to tell two values apart, and too little to find one by it that was well chosen."""

_SCHEMES = frozenset({"Bearer", "Basic", "Token", "bearer", "token"})
"""What stands before a credential in a header, and is none."""


def add_server(
    name: Annotated[str, typer.Argument(metavar="NAME", help="How programs name it.")],
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND...|URL", help="What starts it, its options after --; or its address."
        ),
    ],
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="KEY=VALUE", help="Variable of a command. Repeatable."),
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="KEY=VALUE", help="Header for a URL. Repeatable."),
    ] = None,
    bearer_env: Annotated[
        str | None,
        typer.Option("--token-env", metavar="VARIABLE", help="Variable with the token for a URL."),
    ] = None,
    cwd: Annotated[
        str | None, typer.Option("--cwd", metavar="DIRECTORY", help="Where a command is started.")
    ] = None,
    for_project: ForProject = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a server of that name.")] = False,
) -> None:
    """Add a tool server to the config, by its command or URL.

    A value such as ${TOKEN} is that variable of the environment, read at each connect. What you add
    to the config of a project is trusted by you; others are asked before they use it.
    """
    is_url = len(target) == 1 and target[0].lower().startswith(("http://", "https://"))
    words = shlex.split(target[0]) if len(target) == 1 else target
    try:
        entry = MCPServerConfig(
            command=None if is_url else words,
            url=target[0] if is_url else None,
            env=_pairs("--env", env),
            headers=_pairs("--header", headers),
            bearer_env=bearer_env,
            cwd=cwd,
        )
    except ValidationError as exc:
        problems = "; ".join(each["msg"] for each in exc.errors(include_url=False))
        raise Misuse(f"the server {name!r} cannot be: {problems}") from None

    def add(config: ConfigStore) -> None:
        if name in config.config.mcp.servers and not force:
            raise Misuse(f"{config.path} has a server {name!r} already; --force replaces it")
        config.config.mcp.servers[name] = entry

    store = change_config(target_path(for_project), add)
    for key, value in (*entry.env.items(), *entry.headers.items()):
        if looks_secret(key) and not REFERENCE.search(value):
            warn(f"{key} is stored as it is; ${{{key.upper()}}} would read a variable instead")
    if not is_url and shutil.which(words[0]) is None:
        warn(f"there is no program {words[0]!r} on the PATH")
    say(f"Wrote {store.path}: tool server {name}: {_target(configured_server(name, store=store))}")
    say(f"To test it: rath mcp test {shlex.quote(name)}")


def _pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """Return the values of an option that is given as KEY=VALUE.

    Raises:
        Misuse: One of them has no key.
    """
    pairs = [text.partition("=") for text in texts or ()]
    for key, sign, _ in pairs:
        if not key or not sign:
            raise Misuse(f"{option} {key!r} is no pair; expected KEY=VALUE")
    return {key: value for key, _, value in pairs}


def list_servers(
    name: Annotated[
        str | None, typer.Argument(metavar="[SERVER]", help="Show the tools of this server alone.")
    ] = None,
    with_tools: Annotated[
        bool, typer.Option("--tools", help="Ask each server for its tools.")
    ] = False,
    text: TextFilter = None,
    limit: Limit = MOST_LISTED,
    as_json: AsJson = False,
) -> None:
    """List the tool servers: target, trust and config of each.

    With SERVER or --tools they are started or contacted, and their tools are listed, with what has
    changed since the first use. Nothing that is not trusted is started.
    """
    layers = config_layers()
    defaults = (store.config.mcp.default_enabled for store in layers)
    enabled = next((names for names in defaults if names), None) or ()
    names = dict.fromkeys(each for store in layers for each in store.config.mcp.servers)
    if name is not None:
        names = dict.fromkeys([_server_named(name).name])
    servers = [configured_server(each) for each in names]
    rows = [_ServerRow.of(each, is_default=each.name in enabled) for each in servers]
    page = page_of(rows, "server", text=text, limit=limit)
    if name is not None or with_tools:
        shown = {each.name for each in page.items}
        _list_tools([each for each in servers if each.name in shown], page, as_json=as_json)
        return
    say_page(
        page,
        "servers",
        _show_servers,
        as_json=as_json,
        empty="no tool server fits"
        if rows
        else "no tool server is configured; add one: rath mcp add NAME COMMAND... or a URL",
    )


def _show_servers(rows: Sequence[_ServerRow]) -> None:
    say_table(
        [
            [
                f"{each.name} *" if each.is_default else each.name,
                each.transport, each.trust, each.target, each.config,
            ]
            for each in rows
        ],
        ["bold", "", "", "", "dim"],
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _ServerRow:
    """A server as it is listed; secrets in it are hidden."""

    name: str
    transport: str
    target: str
    is_default: bool
    """Whether programs get it without naming it."""

    trust: Literal["own", "trusted", "not trusted"]
    """A server of one's own config needs no word; one of a project does."""

    config: str

    @classmethod
    def of(cls, server: ConfiguredServer, *, is_default: bool) -> _ServerRow:
        """Describe a server."""
        config = str(server.store.path)
        if not belongs_to_project(server.store):
            trust: Literal["own", "trusted", "not trusted"] = "own"
        else:
            trust = "trusted" if trusts.is_trusted(server.name, server.store) else "not trusted"
        return cls(server.name, _transport(server), _target(server), is_default, trust, config)


@dataclass(slots=True)
class _ToolInfo:
    """A tool as it is listed."""

    name: str
    description: str | None
    input_schema: object
    hints: list[str]
    """What the server says of its effects."""

    pin: str
    """How it differs from what it was at the first use of its server."""

    @classmethod
    def of(cls, tool: Tool, found: pins.PinDifferences) -> _ToolInfo:
        """Describe a tool."""
        hints = [
            word for key, word in _HINTS.items() if getattr(tool.annotations, key, None) is True
        ]
        is_new = found.is_new or tool.name in found.added
        pin = "changed" if tool.name in found.changed else "new" if is_new else "same"
        return cls(tool.name, tool.description, tool.input_schema, hints, pin)


def _list_tools(
    servers: Sequence[ConfiguredServer], page: Page[_ServerRow], *, as_json: bool
) -> None:
    found: list[dict[str, Any]] = []
    for server, each in zip(servers, page.items, strict=True):
        tools: list[Tool] = []
        differences, problem = pins.PinDifferences(), None
        try:
            with server.client() as client:
                tools = client.list_tools()
            differences = _differences(server, tools)
        except (MCPServerError, ConfigError, ValueError) as exc:
            problem = str(exc)
        infos = [_ToolInfo.of(tool, differences) for tool in tools]
        fields = {name: getattr(each, name) for name in _ServerRow.__slots__}
        rest = {"tools": infos, "removed": differences.removed, "problem": problem}
        found.append({**fields, **rest})
        if not as_json:
            say_lines([line((each.name, "bold"), f"  {each.transport}  {each.target}")])
            width = max((min(len(tool.name), _MAX_NAME) for tool in tools), default=0)
            for tool, info in zip(tools, infos, strict=True):
                is_noted = info.pin == "changed" or (info.pin == "new" and not differences.is_new)
                mark = f"[{info.pin}] " if is_noted else ""
                hints = f"  ({', '.join(info.hints)})" if info.hints else ""
                about = one_line(tool.description or tool.title or "")
                name = visible(tool.name, but="")
                say_lines([line((f"  {name:<{width}}", "cyan"), f"  {mark}{about}{hints}")])
            _warn_of_changes(server.name, differences)
    say_page(
        Page(found, page.n_found, page.n_left_out, page.noun),
        "servers",
        lambda _: None,
        as_json=as_json,
        empty="",
    )
    problems = [each["problem"] for each in found if each["problem"]]
    for problem in problems:
        complain(problem)
    if problems:
        raise typer.Exit(1)


def _warn_of_changes(name: str, found: pins.PinDifferences) -> None:
    if found.changed or found.removed:
        removed = ", ".join(visible(each, but="") for each in found.removed)
        warn(
            f"{name}: {count_of(len(found.changed), 'tool')} changed since the first use"
            f"{f', and these are gone: {removed}' if removed else ''}. Look at them, then accept "
            f"them with: rath mcp trust {name}"
        )


def _server_named(name: str) -> ConfiguredServer:
    """Return a server of the config.

    Raises:
        Misuse: There is none of that name; the text says which there are.
        CommandError: Its entry names no program.
    """
    with misuse_on(KeyError):
        found = configured_server(name)
        try:
            _ = found.spec
        except ValueError as exc:
            raise CommandError(str(exc)) from None
    return found


def _transport(server: ConfiguredServer) -> str:
    """Return how a server is spoken to: stdio, http, sse, or auto."""
    return "stdio" if server.entry.url is None else server.entry.transport or "auto"


def _target(server: ConfiguredServer) -> str:
    """Return the command line or the address of a server, its secrets hidden."""
    if server.entry.url is not None:
        return server_name(server.spec)
    return shlex.join(redact_argv(server.entry.command or []))


def _differences(server: ConfiguredServer, tools: Sequence[Tool]) -> pins.PinDifferences:
    return pins.pin_differences(server.spec, tools, project=server.project)


def try_server(
    name: ServerName,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.001, help="Seconds for each step.")
    ] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Test a server: connection, handshake, and what it offers.

    No tool is called. The exit status is 1 where something does not work.
    """
    server = _server_named(name)
    steps = _Steps(server.name)
    try:
        trusts.check_trusted(server.name, server.store)
        with MCPClient(server.spec, timeout=timeout, connect_timeout=timeout) as client:
            _try(server, client, steps)
    except (MCPServerError, ConfigError) as exc:
        steps.add("connection", "problem", str(exc))
    found = [finding.cleaned(lambda text: visible(text, but="")) for finding in steps.found]
    say_findings(found, {"server": server.name}, as_json=as_json)
    if count_levels(found)["problem"]:
        raise typer.Exit(1)


@dataclass(slots=True)
class _Steps:
    """Findings of what was tried, in order, with the time that each step took."""

    group: str
    found: list[CheckFinding] = field(default_factory=list[CheckFinding])
    begin: float = field(default_factory=time.perf_counter)

    def add(self, subject: str, level: Level, text: str, *, is_timed: bool = False) -> None:
        ms = (time.perf_counter() - self.begin) * 1000
        took, details = f" ({span(ms)})" if is_timed else "", {"ms": round(ms, 1)}
        text = f"{one_line(text)}{took}"
        self.found.append(
            CheckFinding(self.group, subject, level, text, details=details if is_timed else {})
        )
        self.begin = time.perf_counter()


def _try(server: ConfiguredServer, client: MCPClient, steps: _Steps) -> None:
    steps.add("server", "ok", f"{_transport(server)}: {_target(server)}")
    info = client.server_info
    about = f"{info.name} {info.version}, over {client.transport}"
    steps.add("handshake", "ok", about, is_timed=True)
    lists: dict[str, Callable[[], Sequence[Any]]] = {
        "tool": client.list_tools,
        "prompt": client.list_prompts,
        "resource": client.list_resources,
    }
    for noun, ask in lists.items():
        try:
            items = ask()
        except MCPRequestError as exc:  # a server may lack any of them
            if exc.code == _NO_SUCH_METHOD:
                text = "it has none: the server does not know the request"
                steps.add(f"{noun}s", "note", text)
            else:
                steps.add(f"{noun}s", "problem", str(exc))
            continue
        steps.add(f"{noun}s", "ok", count_of(len(items), noun), is_timed=True)
        if noun == "tool" and items:
            _compare(_differences(server, items), steps)


def _compare(found: pins.PinDifferences, steps: _Steps) -> None:
    if found.is_new:
        steps.add("descriptions", "note", "the tools were not used yet, so nothing is pinned")
    elif found.changed:
        text = f"changed since the first use: {', '.join(found.changed)}; see rath mcp ls"
        steps.add("descriptions", "warning", text)
    else:
        steps.add("descriptions", "ok", "as at the first use")


def call_tool(
    name: ServerName,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="As `rath mcp ls NAME` shows.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JSON | KEY=VALUE...]",
            help="The arguments: one JSON object, or values by name.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0.001, help="Seconds that the call may take.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Call a tool of a server, and show its result.

    A value is text where the schema of the tool wants text, else JSON. The exit status is 1 where
    the tool reports an error.
    """
    server = _server_named(name)
    # A word that cannot be understood is a misuse, whatever the server says.
    words = _arguments(arguments or [])
    with server.client() as client:
        known = {each.name: each for each in client.list_tools()}
        if tool not in known:
            more = f" and {len(known) - _MAX_LISTED} more" if len(known) > _MAX_LISTED else ""
            raise Misuse(
                f"MCP server {name!r} has no tool {tool!r}.{did_you_mean(tool, known)} "
                f"Known: {', '.join([*known][:_MAX_LISTED]) or 'none'}{more}"
            )
        values = words if isinstance(words, dict) else _typed(words, known[tool])
        result = client.call_tool(tool, values, timeout=timeout)
    failure = error_text(result)
    if as_json:
        say_json(result.model_dump(mode="json", exclude_none=True))
    elif failure is not None:
        complain(failure)
    else:
        _show_result(result)
    if failure is not None:
        raise typer.Exit(1)


def _arguments(words: Sequence[str]) -> dict[str, Any] | list[tuple[str, str]]:
    """Return a JSON object as it is, and words as pairs."""
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            payload: object = json.loads(words[0])
        except ValueError as exc:
            raise Misuse(f"the arguments are no JSON object: {exc}") from None
        return cast("dict[str, Any]", payload)
    for word in words:
        if word.find("=") < 1:
            raise Misuse(f"{word!r} is no argument; expected KEY=VALUE, or one JSON object")
    return [(word.partition("=")[0], word.partition("=")[2]) for word in words]


def _typed(pairs: Sequence[tuple[str, str]], tool: Tool) -> dict[str, Any]:
    """Return values as the schema of a tool wants them: JSON, but text where text will do."""

    def table(found: object) -> Mapping[str, object]:
        # A server may give anything as a schema.
        return cast("Mapping[str, object]", found) if isinstance(found, Mapping) else {}

    schemas = table(input_schema(tool).get("properties"))
    values: dict[str, Any] = {}
    for key, text in pairs:
        wanted = table(schemas.get(key)).get("type")
        try:
            values[key] = text if wanted == "string" else json.loads(text)
        except ValueError:
            if wanted in _LITERALS:
                raise Misuse(
                    f"{key}={text!r} is no JSON; the tool wants {wanted} there, such as {key}=1 or "
                    f"{key}='[\"a\"]'"
                ) from None
            values[key] = text
    return values


def _show_result(result: CallToolResult) -> None:
    found = decode_result(result)
    table = cast("dict[str, Any]", found) if isinstance(found, dict) else {"structured": found}
    text = table.pop("text", None)
    if isinstance(text, str):
        say(text)
    for part in table.pop("content", ()):
        say(part.label if isinstance(part, Image) else json.dumps(part, ensure_ascii=False))
    rest = table.pop("structured_content", table)
    if rest:
        say(json.dumps(rest, indent=2, ensure_ascii=False, default=str))


def trust(
    name: ServerName,
    is_agreed: IsAgreed = False,
    is_revoked: Annotated[
        bool, typer.Option("--revoke", help="Trust it no longer; nothing is started.")
    ] = False,
) -> None:
    """Trust a server that a project names, after showing its entry.

    Where its tools have changed since their first use, what they say now is shown too, and
    accepted with your word. A changed entry in the config asks anew.
    """
    server = _server_named(name)
    is_own = not belongs_to_project(server.store)
    place = f"{name} stands in your own config {server.store.path}"
    if is_revoked:
        if is_agreed:
            raise Misuse("--revoke asks nothing, so it goes without --yes")
        if is_own:
            raise Misuse(f"{place}; take it out with: rath config unset mcp.servers.{name}")
        was_trusted = trusts.revoke_trust(server.name, server.store)
        say(f"{server.name} is {'trusted no longer' if was_trusted else 'not trusted'}")
        return
    if is_own:
        note(f"{place}, so it needs no trust")
    else:
        _trust_entry(server, is_agreed=is_agreed)
    if not _differences(server, ()).is_new:  # else there is nothing that could have changed
        _accept_changes(server, is_agreed=is_agreed)


def _trust_entry(server: ConfiguredServer, *, is_agreed: bool) -> None:
    for text in entry_lines(server):
        say(visible(text, but=""))
    if trusts.is_trusted(server.name, server.store):
        note("you have trusted this entry before")
        return
    if not is_agreed and not ask_yes_no(f"Trust {server.name}?"):
        raise CommandError(f"{server.name} is not trusted; nothing is changed")
    trusts.trust_server(server.name, server.store)
    say(f"{server.name} is trusted")


def entry_lines(server: ConfiguredServer) -> Iterator[str]:
    """Yield all that an entry does, as it stands there: what was hidden could not be judged."""
    entry = server.entry
    yield f"{server.name}, from the project's config {server.store.path}"
    if entry.url is None:
        # A single word may be many lines long, or end in blanks.
        yield f"  starts        {shlex.join(entry.command or [])}"
        yield f"  in            {entry.cwd or 'the working directory of the program'}"
    else:
        yield f"  contacts      {redact_address(entry.url, hide=mask)}"
    for label, table in (("variable", entry.env), ("header", entry.headers)):
        for key, value in table.items():
            yield f"  {label:<8}      {key}={_masked_value(key, value)}"
    if entry.bearer_env is not None:
        yield f"  is sent       the token in your variable {entry.bearer_env}"
    if entry.oauth is not None:
        yield (
            f"  is sent       a token from {entry.oauth.issuer}, got for {entry.oauth.client_id} "
            f"with the secret in your variable {entry.oauth.secret_env}"
        )
    if entry.trust_annotations:
        yield "  is believed   what it says of the effects of its tools"


def _masked_value(key: str, value: str) -> str:
    """Mask a secret; a reference to a variable of the user is none, and tells what is sent."""
    if is_url(value):
        return redact_address(value, hide=mask)
    if not looks_secret(key):
        return str(redact_setting(key, value))
    references = [*REFERENCE.finditer(value)]
    text, end = "", 0
    for start, stop in [*(each.span() for each in references), (len(value), len(value))]:
        literal = value[end:start]
        text += literal if not literal or literal.strip() in _SCHEMES else mask(literal)
        text, end = text + value[start:stop], stop
    return text


def mask(secret: str) -> str:
    """Return the length of a secret and the beginning of its digest, by which to compare it."""
    digest = sha256(secret.encode(errors="replace")).hexdigest()[:_DIGEST_CHARS]
    return f"{HIDDEN}({count_of(len(secret), 'character')}, sha256 {digest})"


def _accept_changes(server: ConfiguredServer, *, is_agreed: bool) -> None:
    note(f"asking {_target(server)} for its tools")
    with server.client() as client:
        tools = client.list_tools()
    found = _differences(server, tools)
    n_changes = len(found.changed) + len(found.added) + len(found.removed)
    if not n_changes:
        say("its tools are as they were at their first use")
        return
    for text in _change_lines(tools, found):
        say(visible(text, but=""))
    changes = count_of(n_changes, "change")
    if not is_agreed and not ask_yes_no(f"Accept {changes}?"):
        raise CommandError(f"the tools of {server.name} stay pinned as they were")
    pins.accept_pins(server.spec, tools, project=server.project)
    say(f"{changes} accepted")


def _change_lines(tools: Sequence[Tool], found: pins.PinDifferences) -> Iterator[str]:
    """Yield how the descriptions of tools have changed: data, not to be followed."""
    for tool in tools:
        is_changed = tool.name in found.changed
        if not is_changed and tool.name not in found.added:
            continue
        yield f"{'changed' if is_changed else 'new'}: {tool.name}"
        now, before = pins.said_of(tool).splitlines(), found.before.get(tool.name)
        if before is None:
            yield from (f"  | {text}" for text in now)
            continue
        compared = list(ndiff(before.splitlines(), now))
        yield from (f"  {text}" for text in compared if not text.startswith("?"))
        if not any(text.startswith(("+", "-")) for text in compared):
            yield f"  it differs after the first {pins.MAX_KEPT_CHARS} characters"
    for name in found.removed:
        yield f"gone: {name}"
