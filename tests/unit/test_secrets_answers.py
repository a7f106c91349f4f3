"""Keys stand in no answer, no command and no error."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from pprint import pformat
from traceback import TracebackException

import pytest
from typer.testing import CliRunner

from rath._async.runtime import runtime
from rath.cli.app import app
from rath.config.env import EnvKind, all_env_specs
from rath.errors import AuthenticationError, ProviderError, StreamInterrupted
from rath.llm import CallEvidence, Provider, RathLLMStreamDelta
from rath.llm.embedding import EmbeddingProvider, RathOpenAIEmbeddingClient
from rath.llm.vlm import RathOpenAIVLMClient, VLMProvider
from rath.session import Session, load_session
from rath.session.graph import export_jsonl, session_to_jsonl_row
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support import anthropic_replies, chat_replies
from tests.support.asking import KEY as ASKING_KEY
from tests.support.asking import NoSleep, ask, exchange
from tests.support.canaries import seen, shown_of
from tests.support.chat_replies import Reply
from tests.support.chat_server import ChatServer
from tests.support.dialects import ANTHROPIC, OPENAI, Dialect
from tests.support.echoes import answer, client_of, failing, failing_by_headers, provider_of
from tests.support.litellm import ANTHROPIC_MODEL, OPENAI_MODEL, litellm_client, needs_litellm
from tests.support.machine import own_project, write_config
from tests.support.sessions import FunctionTool, echo, run

ECHO = FunctionTool("f", echo, parallel_safe=True)
KEY = "sk-cNry-0123456789abcdef"


def ignore(_: RathLLMStreamDelta) -> None:
    pass


def left_of(session: Session, directory: Path) -> list[str]:
    """Everything that a run leaves, in memory and on disk."""
    export_jsonl([session], directory / "lineage.jsonl")
    loaded = load_session(session.id)
    rows = [dict(row.payload) for row in session.chunk_table.rows]
    return [
        *map(repr, (session, loaded, rows, list(session.record), session.lineage)),
        *(pformat(entry) for entry in session.record),
        repr(session_to_jsonl_row(session)),
        repr(pickle.dumps(session.chunk_table)),
        *(repr(file.read_bytes()) for file in directory.rglob("*") if file.is_file()),
    ]


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("key", [KEY, "ab+cd/cNry%ef=gh01=="], ids=["plain", "special"])
def test_no_answer_brings_a_key_into_a_session(
    server: ChatServer,
    dialect: Dialect,
    is_streamed: bool,
    key: str,
    tmp_path: Path,
    logged: io.StringIO,
) -> None:
    server.queue(answer(dialect, key, is_streamed=is_streamed))
    server.queue(dialect.stream(*dialect.begin, *dialect.rest) if is_streamed else dialect.answer)
    given: list[RathLLMStreamDelta] = []
    out = run(
        [],
        ECHO,
        agent_provider=provider_of(dialect, server, key),
        persist=True,
        on_event=given.append if is_streamed else None,
    ).synchronize()
    assert len(server.requests) == 2
    assert key in repr(server.requests[0].headers)
    assert "your key is ***" in repr(out.chunk_table.rows)
    assert seen(key, *left_of(out, tmp_path), logged.getvalue(), repr(given)) == []
    # What was sent back is what stands in the session.
    assert seen(key, server.requests[1].body.decode()) == []


def test_an_answer_that_comes_complete_where_a_stream_was_asked_for_brings_no_key(
    server: ChatServer, dialect: Dialect
) -> None:
    server.queue(answer(dialect, KEY))
    given: list[RathLLMStreamDelta] = []
    answered = exchange(client_of(dialect, server, KEY), on_delta=given.append)
    assert "your key is ***" in repr(answered)
    assert seen(KEY, repr(answered), repr(given)) == []


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("secret_part", ["thinking", "data"])
def test_a_signed_thought_that_held_a_key_is_not_sent_back(
    server: ChatServer, is_streamed: bool, secret_part: str
) -> None:
    thought = {
        "thinking": anthropic_replies.thinking(f"so {KEY}"),
        "data": anthropic_replies.redacted(KEY),
    }[secret_part]
    blocks = (thought, anthropic_replies.text("a"), anthropic_replies.tool_use("f", {"x": 1}))
    reply = anthropic_replies.streamed if is_streamed else anthropic_replies.message
    server.queue(reply(*blocks), reply(anthropic_replies.text("done")))
    on_event = ignore if is_streamed else None
    provider = provider_of(ANTHROPIC, server, KEY)
    run([], ECHO, agent_provider=provider, on_event=on_event).synchronize()
    said = server.requests[1].json()["messages"][1]
    assert [block["type"] for block in said["content"]] == ["text", "tool_use"]


def test_a_block_that_nobody_knows_keeps_no_key(server: ChatServer) -> None:
    first, *rest = anthropic_replies.events(anthropic_replies.envelope(anthropic_replies.text("x")))
    block = {"type": "hologram", "text": ""}
    pieces = [
        {"type": "content_block_delta", "index": 7, "delta": {"type": "text_delta", "text": piece}}
        for piece in (KEY[:9], KEY[9:])
    ]
    begun = {"type": "content_block_start", "index": 7, "content_block": block}
    server.queue(anthropic_replies.stream(first, begun, *pieces, *rest))
    answered = exchange(client_of(ANTHROPIC, server, KEY), on_delta=ignore)
    assert answered.evidence.reasoning_blocks == ()


@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_key_in_pieces_reaches_neither_callback_nor_session(
    server: ChatServer, dialect: Dialect, size: int
) -> None:
    said = f"your key is {KEY}, is it not"
    pieces = [said[start : start + size] for start in range(0, len(said), size)]
    if dialect is OPENAI:
        chunks = [chat_replies.text_chunk(piece) for piece in pieces]
        server.queue(chat_replies.event_stream(*chunks, chat_replies.finish_chunk()))
    else:
        first, *_, stop, delta, end = anthropic_replies.events(
            anthropic_replies.envelope(anthropic_replies.text("x"))
        )
        parts = [{"type": "content_block_delta", "index": 0,
                  "delta": {"type": "text_delta", "text": piece}} for piece in pieces]  # fmt: skip
        server.queue(anthropic_replies.stream(first, *parts, stop, delta, end))
    given: list[RathLLMStreamDelta] = []
    answered = exchange(client_of(dialect, server, KEY), on_delta=given.append)
    text = "".join(delta.content_delta or "" for delta in given)
    assert text == answered.response.primary_choice.message.content
    assert text.startswith("your key is ")
    assert text.endswith("***, is it not")
    assert seen(KEY, text, repr(answered)) == []


def test_a_stream_that_breaks_in_a_key_keeps_no_part_of_it(
    server: ChatServer, dialect: Dialect
) -> None:
    server.queue(chat_replies.event_stream(
        chat_replies.text_chunk(f"your key is {KEY[:-1]}"), chat_replies.Cut()
    ))  # fmt: skip
    given: list[RathLLMStreamDelta] = []
    with pytest.raises(StreamInterrupted) as caught:
        exchange(client_of(OPENAI, server, KEY), on_delta=given.append)
    assert caught.value.partial_text == "your key is "
    assert "cNry" not in repr((given, *shown_of(caught.value)))


def test_a_failed_run_leaves_no_key(
    server: ChatServer, dialect: Dialect, tmp_path: Path, logged: io.StringIO
) -> None:
    server.queue(answer(dialect, KEY), dialect.error(401, f"bad {KEY}"))
    out = run([], ECHO, agent_provider=provider_of(dialect, server, KEY), persist=True)
    with pytest.raises(ProviderError) as caught:
        out.text()
    left = [repr(file.read_bytes()) for file in tmp_path.rglob("*") if file.is_file()]
    assert left
    shown = [repr(out), repr(list(out.partial_record)), repr(out.partial_table.rows)]
    assert seen(KEY, *left, *shown, *shown_of(caught.value), logged.getvalue()) == []


def test_a_fallback_tells_no_key_of_the_one_that_failed(
    server: ChatServer, tmp_path: Path, logged: io.StringIO
) -> None:
    server.queue(OPENAI.error(402, f"no money for {KEY}"), ANTHROPIC.answer)
    fallback = provider_of(ANTHROPIC, server, f"{KEY}-2")
    provider = replace(provider_of(OPENAI, server, KEY), fallbacks=[fallback])
    out = run([], agent_provider=provider, persist=True).synchronize()
    assert len(server.requests) == 2
    assert seen(KEY, *left_of(out, tmp_path), logged.getvalue()) == []


# ---------------------------------------------------------------- other clients


def test_no_embedding_brings_a_key(server: ChatServer) -> None:
    provider = EmbeddingProvider(model="m", api_key=KEY, base_url=server.base_url)
    client = RathOpenAIEmbeddingClient(provider, sleep=NoSleep())
    server.queue(chat_replies.json_body({"data": [{"embedding": [1.0]}], "model": KEY}))
    calls: list[CallEvidence] = []
    runtime().run(lambda: client.aembed(["x"], on_call=calls.append), label="a test call")
    assert calls[0].served_model == "***"
    for reply in (OPENAI.error(401, KEY), chat_replies.json_body({"data": KEY})):
        server.queue(reply)
        with pytest.raises(ProviderError) as caught:
            client.embed(["x"])
        assert seen(KEY, *shown_of(caught.value)) == []


def test_no_description_of_a_picture_brings_a_key(server: ChatServer) -> None:
    provider = VLMProvider(model="m", api_key=KEY, base_url=server.base_url)
    client = RathOpenAIVLMClient(provider, sleep=NoSleep())
    server.queue(chat_replies.completion(f"it shows {KEY}"), OPENAI.error(401, KEY))
    assert client.describe(b"x", prompt="what?") == "it shows ***"
    with pytest.raises(ProviderError) as caught:
        client.describe(b"x", prompt="what?")
    assert seen(KEY, *shown_of(caught.value)) == []


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_a_client_of_the_users_own_brings_no_key(tmp_path: Path, is_streamed: bool) -> None:
    turns: list[Turn] = [tool_call("f", {"x": KEY}, content=f"your key is {KEY}"), "done"]
    headers = {"extra_headers": {"Authorization": KEY}}
    client = ScriptedClient(turns, provider=Provider(api_key=KEY, extra_create_args=headers))
    out = run(
        [], ECHO, agent_provider=client.provider, persist=True,
        on_event=ignore if is_streamed else None,
    ).synchronize()  # fmt: skip
    assert "your key is ***" in repr(out.chunk_table.rows)
    assert client.requests[0].extra_create_args == headers
    assert seen(KEY, *left_of(out, tmp_path)) == []


@pytest.mark.parametrize(
    "error", [ValueError(f"bad {KEY}"), AuthenticationError(f"bad {KEY}")], ids=["any", "ours"]
)
def test_a_client_of_the_users_own_fails_with_no_key(error: Exception) -> None:
    def fail(_: object) -> str:
        raise error from KeyError(KEY)

    client = ScriptedClient([fail], provider=Provider(api_key=KEY))
    with pytest.raises(ProviderError, match=r"bad \*\*\*") as caught:
        exchange(client)
    assert seen(KEY, *shown_of(caught.value)) == []


@needs_litellm
@pytest.mark.parametrize("model", [OPENAI_MODEL, ANTHROPIC_MODEL], ids=["openai", "anthropic"])
def test_nothing_that_litellm_brings_holds_a_key(
    server: ChatServer, model: str, tmp_path: Path, logged: io.StringIO
) -> None:
    dialect = OPENAI if model == OPENAI_MODEL else ANTHROPIC
    server.queue(answer(dialect, ASKING_KEY), dialect.error(401, f"bad {ASKING_KEY}"))
    client = litellm_client(server, model)
    answered = exchange(client, ask(model=None))
    with pytest.raises(ProviderError) as caught:
        exchange(client, ask(model=None))
    assert "your key is ***" in repr(answered)
    assert seen(ASKING_KEY, repr(answered), *shown_of(caught.value), logged.getvalue()) == []


CODED_KEY = "sk-cNry/0123456789abcdef%2B"
SECRET_VARIABLES = [spec.name for spec in all_env_specs() if spec.kind is EnvKind.SECRET]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NO_COLOR", "1")
    return own_project(tmp_path, monkeypatch)


def said(*args: str, input: str | None = None) -> str:
    """All that the command writes."""
    return CliRunner().invoke(app, args, input=input).output


def write_secrets(base: Path, address: str) -> None:
    """Write a config with a key in every section, and one for each entry beside it."""
    entry = {
        "model": "m",
        "base_url": address,
        "api_key": CODED_KEY,
        "proxy_password": CODED_KEY,
    }
    write_config(
        base,
        {
            "llm": {"default_provider": "a", "providers": {"a": entry, "b": {"model": "n"}}},
            "mcp": {
                "servers": {
                    "s": {
                        "command": ["x", "--token", CODED_KEY],
                        "env": {"HOST": CODED_KEY},
                    }
                }
            },
            "memory": {"providers": {"m": {"api_key": CODED_KEY}}},
            "backend": {
                "providers": {
                    "o": {
                        "api_key": CODED_KEY,
                        "options": {"secret": CODED_KEY},
                    }
                }
            },
        },
        {"a": CODED_KEY, "b": CODED_KEY},
    )


QUESTIONS = [
    ["config", "list"],
    ["config", "list", "--json", "--show-origin"],
    ["config", "get", "llm.providers.a", "--json"],
    ["config", "get", "llm.providers.a.api_key", "--show-origin"],
    ["config", "get", "llm.providers.b.api_key"],
    ["config", "get", "OPENAI_API_KEY"],
    ["config", "path", "--json"],
    ["config", "set", "llm.providers.a.api_key", CODED_KEY],
    ["config", "set", "llm.providers.a.temperature", CODED_KEY],
    ["config", "set", "llm.providers.a.base_url", f"user:{KEY}@h"],
    ["config", "set", "mcp.servers.s.env.HOST", CODED_KEY],
    ["config", "unset", "llm.providers.a.api_key"],
    ["config", "init", "--yes"],
    ["doctor"],
    ["doctor", "--json"],
]


@pytest.mark.parametrize("question", QUESTIONS, ids=" ".join)
def test_no_answer_shows_a_secret(
    project: Path, monkeypatch: pytest.MonkeyPatch, question: list[str], logged: io.StringIO
) -> None:
    for base in (project, project.with_name("home")):
        write_secrets(base, f"https://user:{KEY}@h.example/v1")
    for name in SECRET_VARIABLES:
        monkeypatch.setenv(name, CODED_KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", f"https://user:{KEY}@h.example/v1?key={KEY}")
    told = said(*question)
    assert told
    assert seen(CODED_KEY, told, logged.getvalue()) == []


OnDelta = Callable[[RathLLMStreamDelta], None] | None


@pytest.mark.parametrize(
    ("key", "on_delta"),
    [
        ("sk-cNry-0123456789abcdef", ignore),
        ("x%y&z?cNry#=:@/+ab==", None),
        ("q\"u'o\\t<cNry>{}$`w1", None),
        ('c%"cNry', ignore),
        ("cNry01", None),
    ],
    ids=["plain", "address", "quotes", "odd", "short"],
)
def test_no_error_repeats_a_key(
    server: ChatServer, dialect: Dialect, key: str, on_delta: OnDelta, logged: io.StringIO
) -> None:
    # A short word may well be the name of a model.
    server.models = [key, f"model-{key}"] if len(key) >= 16 else ["n"]
    client = client_of(dialect, server, key)
    for reply in failing(dialect, key):
        server.queue(reply)
        with pytest.raises(ProviderError) as caught:
            exchange(client, on_delta=on_delta)
        assert seen(key, *shown_of(caught.value)) == []
    assert seen(key, logged.getvalue()) == []


def test_no_error_and_no_log_repeats_what_stands_in_headers(
    server: ChatServer, dialect: Dialect, logged: io.StringIO
) -> None:
    client = client_of(dialect, server, KEY)
    for reply in failing_by_headers(KEY):
        server.queue(reply)
        with pytest.raises(ProviderError) as caught:
            exchange(client)
        assert seen(KEY, *shown_of(caught.value)) == []
    assert seen(KEY, logged.getvalue()) == []


def broken(dialect: Dialect) -> Iterator[Reply]:
    """Failures of every kind that say nothing of a key."""
    yield from (dialect.error(status) for status in (400, 401, 403, 404, 413, 429, 500, 529))
    yield from (chat_replies.dropped(), chat_replies.dropped("reset"), chat_replies.empty())
    yield from (chat_replies.html(), chat_replies.invalid_json(), chat_replies.json_body([]))
    yield dialect.stream(*dialect.begin, chat_replies.Cut())
    yield chat_replies.event_stream("{oops", done=False)
    yield chat_replies.raw(b"", status=307, headers={"location": "http://127.0.0.1:1/x"})
    yield chat_replies.held(dialect.answer, chat_replies.Gate())


@pytest.mark.parametrize("on_delta", [None, ignore], ids=["whole", "streamed"])
def test_no_local_variable_shows_a_key(
    server: ChatServer, dialect: Dialect, on_delta: OnDelta
) -> None:
    server.models = ["n"]
    provider = replace(provider_of(dialect, server, KEY), timeout=0.05)
    client = dialect.make(provider, sleep=NoSleep())
    for reply in broken(dialect):
        server.queue(reply)
        with pytest.raises(ProviderError) as caught:
            exchange(client, on_delta=on_delta)
        frames = TracebackException.from_exception(caught.value, capture_locals=True)
        assert seen(KEY, "".join(frames.format())) == []
