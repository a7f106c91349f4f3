"""Errors around configuration, and of the planes that it names: memory and MCP."""

from __future__ import annotations

from typing import Any

from rath import flow, memory
from rath.config import ConfigStore
from rath.flow.tool import mcp_tools_from_config
from rath.mcp import HttpServer, MCPClient
from rath.memory import (
    MemoryExecutionFailure,
    MemoryOpForget,
    MemoryOpRead,
    MemoryOpWrite,
    MemoryStoreSpec,
)
from tests.support.error_cases import ErrorCase, Machine, odd


def _loaded(machine: Machine, content: object) -> object:
    return ConfigStore(machine.config(odd(content))).config


def _of_memory(machine: Machine, op: Any) -> str:
    """Return the failure that the memory of a machine answers an operation with."""
    store = memory.get("local").open(MemoryStoreSpec())
    result = store.dispatch(op)
    assert isinstance(result, MemoryExecutionFailure)
    return result.message


def _opened(machine: Machine, **options: object) -> object:
    spec = MemoryStoreSpec(options=odd(options))
    return memory.get("local").open(spec).dispatch(MemoryOpRead("viking://user/a.md"))


def _tools(server: object) -> object:
    with MCPClient(odd(server)) as client:
        return client.list_tools()


CASES = [
    ErrorCase(
        cause="A comma is missing in the config.",
        cure="Correct the line that the text names, or write it anew: `rath config init`.",
        meet=lambda m: _loaded(m, '{"llm": {}\n "memory": {}}'),
    ),
    ErrorCase(
        cause="The config is a list.",
        cure="Write an object, `{...}`.",
        meet=lambda m: _loaded(m, "[]"),
    ),
    ErrorCase(
        cause="A value of the config has a wrong type.",
        cure="Correct it: `rath config set`.",
        meet=lambda m: _loaded(m, {"llm": {"providers": {"a": {"model": 7}}}}),
    ),
    ErrorCase(
        cause="An MCP server of the config has neither a command nor an address.",
        cure="Give one of them.",
        meet=lambda m: _loaded(m, {"mcp": {"servers": {"files": {}}}}),
    ),
    ErrorCase(
        cause="An address of an MCP server without http.",
        cure="Write the whole address.",
        meet=lambda m: _loaded(m, {"mcp": {"servers": {"files": {"url": "files.example"}}}}),
    ),
    ErrorCase(
        cause="The config is not text.",
        cure="Write it anew: `rath config init`.",
        meet=lambda m: ConfigStore(m.file(".openrath/config.json", b"\xff\xfe")).config,
    ),
    ErrorCase(
        cause="A number in the config that JSON does not have.",
        cure="Correct it.",
        meet=lambda m: _loaded(m, '{"llm": {"x": NaN}}'),
    ),
    ErrorCase(
        cause="No provider was named, and the config has no default.",
        cure="Name one, or set one: `rath config set llm.default_provider NAME`.",
        meet=lambda m: flow.Provider.from_config(),
    ),
    ErrorCase(
        cause="The name of a provider was mistyped.",
        cure="Correct it.",
        meet=lambda m: (
            m.config({"llm": {"providers": {"main": {"provider_kind": "openai", "model": "m"}}}}),
            flow.Provider.from_config("mian"),
        ),
    ),
    ErrorCase(
        cause="A memory backend that does not exist.",
        cure="Correct the name.",
        meet=lambda m: m.scripted("x", memory="lokal"),
    ),
    ErrorCase(
        cause="A note that is not there.",
        cure="`rath memory ls` lists what is.",
        meet=lambda m: _of_memory(m, MemoryOpRead("viking://user/none.md")),
    ),
    ErrorCase(
        cause="An address that is none of a memory.",
        cure="Write `viking://user/...` or another scope that the text lists.",
        meet=lambda m: _of_memory(m, MemoryOpRead("notes/none.md")),
    ),
    ErrorCase(
        cause="An address with `..` in it.",
        cure="Leave it out.",
        meet=lambda m: _of_memory(m, MemoryOpRead("viking://user/../secret.md")),
    ),
    ErrorCase(
        cause="A mode of writing that does not exist.",
        cure="Take one of those that the text lists.",
        meet=lambda m: _of_memory(m, MemoryOpWrite("viking://user/a.md", "x", mode=odd("add"))),
    ),
    ErrorCase(
        cause="The place of a memory is a file.",
        cure="Name a directory.",
        meet=lambda m: memory.get("local").open(
            MemoryStoreSpec(options={"path": str(m.file("a.txt"))})
        ),
    ),
    ErrorCase(
        cause="A way of ranking that does not exist.",
        cure="Take one of those that the text lists.",
        meet=lambda m: _opened(m, ranking="best"),
    ),
    ErrorCase(
        cause="Ranking by vectors without a model for them.",
        cure="Name an embedding model.",
        meet=lambda m: _opened(m, ranking="vectors"),
    ),
    ErrorCase(
        cause="A note that is forgotten at a time that has passed.",
        cure="Give seconds above zero.",
        meet=lambda m: m.scripted("x", memory="local").remember_memory("a fact", ttl=0),
    ),
    ErrorCase(
        cause="Neither a note nor a session was named to forget.",
        cure="Name one of them.",
        meet=lambda m: MemoryOpForget(),
    ),
    ErrorCase(
        cause="The program of an MCP server is not there.",
        cure="Install it, or correct the command.",
        meet=lambda m: _tools(["no-such-program"]),
    ),
    ErrorCase(
        cause="The command of an MCP server is empty.",
        cure="Name a program, or an address.",
        meet=lambda m: _tools([]),
    ),
    ErrorCase(
        cause="The program of an MCP server ended at once.",
        cure="Run it in a terminal: it says there what it lacks.",
        meet=lambda m: _tools(["false"]),
    ),
    ErrorCase(
        cause="Nothing listens at the address of an MCP server.",
        cure="Start it, or correct the address.",
        meet=lambda m: _tools(HttpServer("http://127.0.0.1:9/mcp")),
    ),
    ErrorCase(
        cause="The variable that holds the token of an MCP server is not set.",
        cure="Set it, or correct its name.",
        meet=lambda m: _tools(HttpServer("http://127.0.0.1:9/${TOOLS_TOKEN}/mcp")),
    ),
    ErrorCase(
        cause="Something that names no MCP server.",
        cure="Give a command as a list, or an address.",
        meet=lambda m: _tools(7),
    ),
    ErrorCase(
        cause="An MCP server that the config does not have.",
        cure="Correct the name; `rath mcp ls` lists them.",
        meet=lambda m: mcp_tools_from_config("files"),
    ),
    ErrorCase(
        cause="An MCP server of a project's config that you did not trust.",
        cure="Read its entry; if you agree: `rath mcp trust NAME`.",
        meet=lambda m: (
            m.config({"mcp": {"servers": {"files": {"command": ["false"]}}}}, of="project"),
            mcp_tools_from_config("files"),
        ),
    ),
]
