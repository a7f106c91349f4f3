"""Redaction of keys in texts, answers, causes and logs."""

from __future__ import annotations

import base64
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.config.redaction import Redactor, guard_logs, redact
from rath.llm.chat_response import RathLLMStreamDelta
from rath.llm.credentials import RequestTarget
from rath.llm.errors import preview, protocol_error, status_error
from rath.llm.stream import fold
from tests.support import chat_replies
from tests.support.canaries import all_logs, any_keys, forms_of, long_keys, seen, sendable_keys
from tests.support.chat_server import ChatServer
from tests.support.echoes import written_forms
from tests.support.targets import request_target

KEY = "sk-cNry-0123456789abcdef"
texts = st.text(st.characters(codec="utf-8"), max_size=20)
rooms = st.integers(180, 200) | st.integers(225, 250)
"""Characters before a key, so that the key stands where texts are cut."""

jsons = st.recursive(texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner))


def asked(key: str) -> RequestTarget:
    return request_target(secret=key)


# ---------------------------------------------------------------- errors


@given(key=any_keys, before=texts, after=texts, data=st.data())
def test_no_form_of_a_key_is_left_in_a_text(
    key: str, before: str, after: str, data: st.DataObject
) -> None:
    form = data.draw(st.sampled_from(sorted(forms_of(key))))
    text = f"{before} {form} {after}"
    assert seen(key, redact(text, key)) == []


@given(key=sendable_keys, user=texts, more=texts)
def test_a_key_is_hidden_inside_of_base64(key: str, user: str, more: str) -> None:
    login = base64.b64encode(f"{user}:{key}{more}".encode()).decode()
    hidden = redact(f"Basic {login}", key)
    assert "***" in hidden
    # At either end a character is left that also stands for its neighbour.
    assert len(hidden.replace("***", "")) <= len("Basic ") + 4 * (len(user + more) + 3)


@given(key=sendable_keys, room=rooms, form=st.sampled_from([*written_forms("")]))
def test_where_a_text_is_cut_no_part_of_a_key_is_left(key: str, room: int, form: str) -> None:
    text = "x" * room + written_forms(key)[form] + "y" * 300
    for error in (
        status_error(asked(key), 400, text, code=text),
        protocol_error(asked(key), text, text.encode()),
    ):
        assert seen(key, str(error), repr(vars(error))) == []
    assert "cNr" not in preview(asked(key), ("x" * room + key + "y" * 300).encode())


def test_a_word_is_no_key() -> None:
    assert redact("x marks", "x") == "x marks"
    assert redact("text", "") == "text"


def test_both_secrets_of_a_call_are_hidden() -> None:
    both = request_target(secret=KEY, password="hunter22")
    assert both.redactor.text(f"{KEY} hunter22") == "*** ***"
    assert "hunter22" not in repr(both)


@pytest.mark.parametrize(
    "hide_in", ["text", "cause", "context", "note", "group"], ids=lambda place: place
)
def test_a_cause_that_shows_a_key_is_none(hide_in: str) -> None:
    error: Exception = ValueError(f"bad {KEY}" if hide_in == "text" else "bad")
    if hide_in == "cause":
        error.__cause__ = KeyError(KEY)
    elif hide_in == "context":
        error.__context__ = KeyError(KEY)
    elif hide_in == "note":
        error.add_note(f"with {KEY}")
    elif hide_in == "group":
        error = ExceptionGroup("bad", [KeyError(KEY)])
    assert Redactor((KEY,)).cause(error) is None
    assert Redactor(("sk-other-key",)).cause(error) is error


# ---------------------------------------------------------------- answers


@given(key=long_keys, payload=jsons, escaped=st.booleans())
def test_an_answer_is_valid_and_without_the_key(key: str, payload: object, escaped: bool) -> None:
    nested = {"text": f"so {key}", "arguments": json.dumps({"x": key}), "more": payload}
    content = json.dumps(nested, ensure_ascii=escaped).encode()
    cleaned = Redactor((key,)).json_bytes(content)
    assert json.loads(cleaned)["text"] == "so ***"
    assert json.loads(json.loads(cleaned)["arguments"]) == {"x": "***"}
    assert json.loads(Redactor((key,)).json_text(content.decode())) == json.loads(cleaned)


@given(payload=jsons)
def test_an_answer_without_the_key_stays_as_it_is(payload: object) -> None:
    content = json.dumps(payload).encode()
    assert Redactor((KEY,)).json_bytes(content) is content


@pytest.mark.parametrize("key", ["ollama", "lm-studio", "not-needed", "x"])
def test_an_answer_may_be_about_a_short_word(key: str) -> None:
    content = json.dumps({"text": f"ask {key}"}).encode()
    assert Redactor((key,)).json_bytes(content) is content
    assert Redactor((key,)).json_text(content.decode()) == content.decode()
    assert Redactor((key,)).value([key]) == [key]


def test_a_response_is_without_the_key_at_every_depth() -> None:
    deltas = (
        RathLLMStreamDelta(content_delta=f"so {KEY}", reasoning_delta=KEY),
        RathLLMStreamDelta(tool_call_id=KEY, tool_call_args_delta=json.dumps({"x": [KEY]})),
    )
    response = fold(deltas, id=KEY, model=KEY)
    hidden = Redactor((KEY,)).value(response)
    assert seen(KEY, repr(hidden)) == []
    calls = hidden.primary_choice.message.tool_calls
    assert calls is not None
    assert calls[0].function.arguments_parsed == {"x": ["***"]}


LOGGED_KEY = "sk-cNry/0123456789abcdef"


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    with all_logs() as stream:
        yield stream


@pytest.fixture
def library() -> logging.Logger:
    found = logging.getLogger("some_library.http")
    guard_logs(["some_library"], LOGGED_KEY, "short")
    return found


@pytest.mark.parametrize(
    "args", [(LOGGED_KEY,), (f"https://h/?key={quote(LOGGED_KEY, safe='')}",), ([LOGGED_KEY],)]
)
def test_arguments_of_a_record_show_no_key(
    library: logging.Logger, logged: io.StringIO, args: tuple[object]
) -> None:
    library.debug("got %s", *args)
    assert logged.getvalue().startswith("got ")
    assert "***" in logged.getvalue()
    assert "cNry" not in logged.getvalue()


def test_a_traceback_in_a_log_shows_no_key(library: logging.Logger, logged: io.StringIO) -> None:
    try:
        raise ValueError(f"bad {LOGGED_KEY}")
    except ValueError:
        library.exception("failed")
    assert "ValueError: bad ***" in logged.getvalue()
    assert "ValueError: bad sk" not in logged.getvalue()


def test_other_records_stay_as_they_are(library: logging.Logger, logged: io.StringIO) -> None:
    library.debug("%d short words", 2)
    logging.getLogger("some_library_too").debug(LOGGED_KEY)
    assert logged.getvalue() == f"2 short words\n{LOGGED_KEY}\n"


def test_a_library_is_guarded_once(library: logging.Logger) -> None:
    before = len(library.filters)
    guard_logs(["some_library"], f"{LOGGED_KEY}-too")
    assert len(library.filters) == before


FIRST_CALLS = {
    "own": """
from rath.llm import Provider, RathLLMChatRequest, RathLLMMessage, RathOpenAIChatClient as Client
""",
    "litellm": """
from rath.llm import Provider, RathLLMChatRequest, RathLLMMessage, RathLiteLLMChatClient as Client
""",
    "mcp": """
from rath.mcp import MCPClient
call = MCPClient(url, auth=key).list_tools
""",
}
ASK_A_MODEL = """
provider = Provider(model="openai/m", api_key=key, base_url=url, retry_max_attempts=1)
ask = RathLLMChatRequest(messages=(RathLLMMessage("user", "hi"),))
call = lambda: Client(provider).complete(ask)
"""
LOG_ALL = """
import logging, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
url, key = sys.argv[1:]
"""
FAIL = """
try:
    call()
except Exception as exc:
    print("failed with", type(exc).__name__)
"""


@pytest.mark.parametrize("name", FIRST_CALLS)
def test_the_first_connection_of_a_process_logs_no_key(name: str) -> None:
    # Looked for and not imported: who imports it first sets it up, and elsewhere that is rath.
    if name == "litellm" and find_spec("litellm") is None:
        pytest.skip("the extra 'litellm' is not installed")
    refused = chat_replies.status_error(404, "no", headers={"x-repeated": LOGGED_KEY})
    ask = ASK_A_MODEL if name != "mcp" else ""
    code = LOG_ALL + FIRST_CALLS[name] + ask + FAIL
    with ChatServer(answer=lambda _: refused) as server:
        run = subprocess.run(
            [sys.executable, "-c", code, server.base_url, LOGGED_KEY],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    assert "failed with" in run.stdout, run.stderr
    # The HTTP clients of others log headers; ours logs none.
    assert ("x-repeated" in run.stdout) == (name != "own")
    assert "cNry" not in run.stdout + run.stderr
