"""Law 9: nothing that rath makes shows a key, whatever the key looks like."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pprint import pformat
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from rich.pretty import pretty_repr

from rath._core.options import Sourced
from rath.backend import BackendSandboxSpec, BackendToolCommandRun
from rath.backend import get as get_backend
from rath.backend.host.process import HostCommand
from rath.backend.opensandbox.backend import OpenSandboxBackend
from rath.backend.opensandbox.connection import find_connection
from rath.backend.persistence import PersistentSandboxRegistry
from rath.cli.doctor_models import configured_targets
from rath.config import ConfigStore
from rath.config.layers import find_llm_provider
from rath.conformance.chat.subject import ChatSubject, ContractCall
from rath.errors import ProviderError
from rath.eval import ModelJudge
from rath.flow import Agent, Compressor, Selector, Sequential
from rath.flow.tool import MCPToolCall
from rath.llm import Provider, RathLLMChatRequest, open_draft
from rath.llm.anthropic import RathAnthropicChatClient
from rath.llm.credentials import OPENAI, Account, entry_for, find_account
from rath.llm.custom_client import RecordedClient
from rath.llm.embedding import EmbeddingProvider, RathOpenAIEmbeddingClient
from rath.llm.http_transport import HttpConnection
from rath.llm.litellm import RathLiteLLMChatClient
from rath.llm.litellm.client import LiteLLMChunkDecoder, LiteLLMTarget
from rath.llm.local.server import LocalEndpoint, RathLocalChatClient
from rath.llm.openai import RathOpenAIChatClient
from rath.llm.openai.client import OpenAIEndpoint
from rath.llm.probe import ChatProbe, OneShotProbe, probe_providers
from rath.llm.stream import StreamReader, StreamRedactor
from rath.llm.vlm import RathOpenAIVLMClient, VLMProvider
from rath.mcp import Bearer, HttpServer, MCPClient, StdioServer
from rath.mcp.configured import configured_server
from rath.mcp.failures import Situation
from rath.mcp.http import HttpAccess
from rath.memory import MemoryStoreSpec
from rath.memory import get as get_memory
from rath.memory.adapters.openviking.backend import OpenVikingStore
from rath.memory.adapters.openviking.client import Addresses, VikingClient
from rath.memory.adapters.openviking.server import read_options
from rath.optim import GEPA
from rath.session import Session, SessionWriter, load_session, session_registry
from rath.session.chat_request_build import provider_into_chat_request
from rath.testing import ScriptedClient
from tests.support import chat_replies as replies
from tests.support.asking import HELLO, ask, send
from tests.support.canaries import any_keys, public_classes, reachable, seen, sendable_keys
from tests.support.chat_server import ChatServer
from tests.support.machine import own_project, trust, write_config
from tests.support.openviking_sdk import ScriptedSdk
from tests.support.sessions import run

KEY = "sk-cNry/0123456789+ab"
Show = Callable[[Any], str]
SHOWS: tuple[Show, ...] = (repr, str, format, pformat, pretty_repr)

HOLDERS = {"api_key", "base_url", "credential", "env", "extra_create_args", "headers", "options",
           "password", "secret", "secrets"}  # fmt: skip
"""Names of parameters and fields that may hold a key."""

KEYLESS = {
    "rath.llm.local.embedding:RathLocalEmbeddingClient",
    "rath.llm.credentials:Variables",
}
"""Classes that only bear such names: a model without a key, functions, names of variables."""

NEEDS_LITELLM = {"rath.llm.litellm.client:RathLiteLLMChatClient"}
HAS_LITELLM = find_spec("litellm") is not None


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return own_project(tmp_path, monkeypatch)


def account_of(key: str) -> dict[str, Any]:
    """The key as a key, and as the password of an endpoint."""
    return {"api_key": key, "base_url": f"http://user:{quote(key, safe='')}@127.0.0.1:1/v1"}


def provider_of(key: str) -> Provider:
    """A provider with the key wherever it can be."""
    extra = {"extra_headers": {"Authorization": f"Bearer {key}"}}
    account = account_of(key)
    fallback = Provider(model="n", **account)
    return Provider(model="m", fallbacks=[fallback], extra_create_args=extra, **account)


def configured(key: str, base: Path) -> Iterator[object]:
    """What is read from a config that holds the key in every section."""
    (base / ".openrath").mkdir(exist_ok=True)
    config = {
        "llm": {"default_provider": "a", "providers": {"a": {"model": "m", **account_of(key)}}},
        "mcp": {"servers": {"s": {"command": ["x", "--token", key], "env": {"HOST": key}}}},
        "memory": {"default_provider": "m", "providers": {"m": {"api_key": key}}},
        "backend": {"providers": {"b": {"api_key": key, "options": {"x": key}}}},
    }
    store = ConfigStore(trust(write_config(base, config)))
    yield from (store, store.config, find_llm_provider("a"), configured_targets())
    yield entry_for("a", default="vlm_provider", store=None)
    yield MemoryStoreSpec.from_config()
    yield account_found(Provider.from_config("a"))


def account_found(provider: Provider) -> Account:
    """What a provider for OpenAI's protocol calls with."""
    return find_account(provider, kind="openai", variables=OPENAI, default_base_url="")


def placed(key: str) -> Iterator[object]:
    """Sessions, agents, workflows and stores that were given the key."""
    provider, spec = provider_of(key), BackendSandboxSpec(env={"TOKEN": key})
    sandbox = get_backend("local").lazy(spec)
    yield from (spec, sandbox, sandbox.stream(), BackendToolCommandRun("x", env={"TOKEN": key}))
    yield HostCommand(["x"], "/", {"TOKEN": key})
    yield from (OpenSandboxBackend(domain="x", api_key=key), find_connection("x", key))
    registry = PersistentSandboxRegistry()
    yield registry.load_remote(registry.record_remote("opensandbox", "1", spec))
    memory = get_memory("local").lazy(MemoryStoreSpec(options={"token": key}))
    yield memory
    session = Session.from_user_message("x").to("local", spec=spec, provider=provider)
    yield from (session, session.fork(), session.detach(), session.merge(session.fork()))
    agent = Agent("be brief", provider=provider, memory=memory)
    yield agent.as_tool("helper")
    flow = Sequential(agent, Compressor("sum up", provider), Selector(provider))
    yield from (agent, flow, flow.compile(), flow.compile().manifest)


def remembering(key: str) -> Iterator[object]:
    """What asks a memory server."""
    url, account = "http://127.0.0.1:1", {"api_key": key, "config": {"vlm": {"api_key": key}}}
    yield read_options(MemoryStoreSpec(options={"url": url, **account}))
    client = VikingClient(ScriptedSdk(), Addresses("x"), secret=key)
    yield from (client, OpenVikingStore(client, 1.0))


def _score(item: object, session: Session) -> float:
    return 0.0


def asked(key: str) -> Iterator[object]:
    """What a client of the user's own is asked with."""
    provider = provider_of(key)
    request = provider_into_chat_request(HELLO, (), provider, default_tool_choice=None)
    scripted = ScriptedClient(["x"], provider=provider)
    yield from (request, scripted, open_draft(scripted, request))
    yield RathLLMChatRequest(messages=HELLO, extra_create_args={"api_key": key})
    yield Sourced(key, "call")
    yield ModelJudge("good", provider)
    tuned = Agent("p", provider).requires_grad_().parameters()
    yield GEPA(tuned, _score, reflection=provider, max_metric_calls=1)
    yield ChatSubject(scripted, 16, key, None, 1.0)
    yield LiteLLMTarget(None, "call", key)
    yield LocalEndpoint("http://127.0.0.1:1/v1", key, "m", Path("m.gguf"), "1")


def tool_servers(key: str, base: Path) -> Iterator[object]:
    """Servers of tools that are given the key wherever it can be."""
    started = StdioServer("x", ("--token", key), {"TOKEN": key})
    reached = HttpServer(f"https://me:{quote(key, safe='')}@h/mcp?key={quote(key, safe='')}",
                         {"X-Key": key}, Bearer(token=key))  # fmt: skip
    yield from (started, reached, MCPClient(started), MCPClient(reached))
    yield MCPToolCall(client=MCPClient(started), name="t", description=None, parameters={})
    yield Situation("x", started, secrets=(key,))
    store = ConfigStore(base / ".openrath" / "config.json")
    found = configured_server("s", store=store)
    yield found


def clients(key: str) -> Iterator[object]:
    """Clients of every kind, on their way to a call."""
    account = account_of(key)
    provider = Provider(model="m", **account)
    for make in (RathOpenAIChatClient, RathAnthropicChatClient):
        client = make(provider)
        yield from (client, open_draft(client, ask()), client.target(None))
        yield from (client.target(None).redactor, client.chunk_decoder(client.target(None)))
        yield from (client.write_body(ask(), model="m"), ChatProbe(client, provider, timeout=1.0))
    yield RathOpenAIChatClient(Provider(model="m", api_key=key, base_url="https://x.azure.com"))
    embedding = RathOpenAIEmbeddingClient(EmbeddingProvider(model="m", **account))
    yield from (embedding, embedding.route(), OneShotProbe(embedding, timeout=1.0))
    picture = RathOpenAIVLMClient(VLMProvider(model="m", **account))
    yield from (picture, OneShotProbe(picture, timeout=1.0))
    yield StreamRedactor(key)
    yield StreamReader(client.chunk_decoder(client.target(None)))
    yield LiteLLMChunkDecoder(client.target(None))
    yield RathLocalChatClient(
        Provider(), serve=lambda name: LocalEndpoint("http://127.0.0.1:1", key, name, Path(), "1")
    )
    yield HttpAccess.of(HttpServer("https://h/mcp", {"X-Key": key}, Bearer(token=key)))
    if HAS_LITELLM:
        yield RathLiteLLMChatClient(Provider(model="m", api_key=key))
        connection = import_module("rath.llm.litellm.connection")  # imports the library
        yield connection.LiteLLMConnection(LiteLLMTarget(None, "call", key))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(key=any_keys)
@example(key="-cNry0")
@example(key="0cNry\x00")
def test_no_object_shows_a_key(project: Path, key: str) -> None:
    made = [*configured(key, project), *placed(key), *remembering(key), *asked(key)]
    made += tool_servers(key, project)
    for each in reachable(made):
        assert seen(key, *(show(each) for show in SHOWS)) == []


@pytest.mark.usefixtures("project")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(sendable_keys)
def test_no_client_shows_a_key(key: str) -> None:
    for each in reachable(clients(key)):
        assert seen(key, *(show(each) for show in SHOWS)) == []


# ---------------------------------------------------------------- nothing is left out


def called(key: str) -> Iterator[object]:
    """What calls over real HTTP leave behind: answers, errors, sessions and their files."""
    with ChatServer() as server:
        provider = Provider(model="m", api_key=key, base_url=server.base_url)
        server.queue(*[replies.completion("x")] * 2, replies.status_error(401, "no"))
        client, now = RathOpenAIChatClient(provider), datetime.now(UTC)
        draft = open_draft(client, ask())
        answered = send(draft)
        yield answered
        response, evidence = answered.response, answered.evidence
        yield ContractCall(draft, draft.body(), None, response, evidence, now, now)
        yield RecordedClient(answered.evidence)
        yield HttpConnection(OpenAIEndpoint.of(account_found(provider), "/x").api)
        out = run([], agent_provider=provider).synchronize()
        with SessionWriter(out) as writer:
            yield writer
        yield from (out, load_session(out.id), session_registry())
        with pytest.raises(ProviderError) as caught:
            run([], user=out, agent_provider=provider).text()
        yield from (caught.value, probe_providers([provider]))


def holders() -> dict[str, type]:
    """Public classes that hold a key, or what leads to one, by the words of their signatures."""
    classes = public_classes()
    left_out = KEYLESS if HAS_LITELLM else KEYLESS | NEEDS_LITELLM
    words = {name: _words(each) for name, each in classes.items()}
    found = {name for name, (names, _) in words.items() if names & HOLDERS}
    while True:
        known = {classes[name].__name__ for name in found}
        more = {name for name, (_, types) in words.items() if types & known} - found
        if not more:
            return {name: classes[name] for name in found if name not in left_out}
        found |= more


def _words(each: type) -> tuple[set[str], set[str]]:
    """Return the names of parameters and fields, and the names of types in their annotations."""
    names, types = set[str](), ""
    with contextlib.suppress(TypeError, ValueError):
        for parameter in inspect.signature(each).parameters.values():
            names.add(parameter.name)
            types += f" {parameter.annotation}"
    for owner in each.__mro__:
        for name, annotation in vars(owner).get("__annotations__", {}).items():
            names.add(name)
            types += f" {annotation}"
    return names, set(re.findall(r"\w+", types))


def test_every_public_class_that_leads_to_a_key_was_looked_at(
    project: Path,
) -> None:
    kinds = (placed, remembering, asked, clients, called)
    roots = [*configured(KEY, project), *(each for make in kinds for each in make(KEY))]
    roots += tool_servers(KEY, project)
    made = {owner for each in reachable(roots) for owner in type(each).__mro__}
    left_out = {name for name, each in holders().items() if each not in made}
    assert left_out == set()
