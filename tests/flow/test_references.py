"""Pickling of agents, tools, providers, stores and sessions: references travel, not state."""

from __future__ import annotations

import copy
import json
import pickle
import pickletools
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import cloudpickle
import openai
import pytest

import rath
import rath.backend
from rath import flow
from rath._async.plane import HandleLease
from rath.backend import BackendSandboxSpec
from rath.errors import BackendError
from rath.flow.hooks import hooks_of
from rath.flow.tool import FlowToolCall
from rath.llm import Provider
from rath.memory import MemoryOpWrite, MemoryStoreSpec
from rath.session import Session
from rath.session.persistence.store import open_store
from rath.session.record import Verdict
from rath.testing import FakeMemory, FakeSessionStore, ScriptedClient
from tests.support import canaries, portable
from tests.support.chat_replies import completion
from tests.support.chat_server import CapturedRequest, ChatServer
from tests.support.portable import Desk, Holder, Scale, Shout, Team, in_another_process
from tests.support.postgres_server import PASSWORD, PostgresServer

Dumps = Callable[[object], bytes]
by_value: Dumps = cast("Any", cloudpickle).dumps
both = pytest.mark.parametrize("dumps", [pickle.dumps, by_value], ids=["pickle", "cloudpickle"])
CANARY = f"sk-{canaries.MARK}-a1b2c3d4e5f6g7h8"


@pytest.fixture(autouse=True)
def key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process, and those that it starts, a key; it is no part of what is sent."""
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)


def echo(request: CapturedRequest) -> Any:
    """Answer with the system text and what was said last, so that a reply tells who was asked."""
    first, *said = request.json()["messages"]
    contents = [each.get("content") or "" for each in said]
    texts = [text for text in contents if "another agent" not in text]
    return completion(f"{first['content']}: {texts[-1]}")


def provider_at(server: ChatServer, **fields: Any) -> Provider:
    return Provider(model="m", base_url=server.base_url, **fields)


def refusal(thing: object, dumps: Dumps = pickle.dumps) -> str:
    with pytest.raises(TypeError) as caught:
        dumps(thing)
    assert canaries.MARK not in str(caught.value)
    return str(caught.value)


# ---------------------------------------------------------------- tools


@both
@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        (portable.add, "{'a': 2, 'b': 3}", (("plus", "read_only", 7, False), 5)),
        (portable.times, "{'a': 2, 'b': 3}", (("times", "non_idempotent", None, True), 6)),
        (Desk("Ulm").lookup, "{'street': 'x'}",
         (("lookup", "non_idempotent", None, False), "x, Ulm")),
        (Desk.named, "{'title': 'x'}", (("named", "non_idempotent", None, False), "x of Desk")),
        (Scale(3), "{'number': 4}", (("Scale", "non_idempotent", None, False), 12)),
        (Shout("hey"), "{}", (("shout", "non_idempotent", None, False), "HEY")),
    ],
    ids=["decorated", "made of a function", "of an object", "of a class", "class", "own class"],
)  # fmt: skip
def test_a_tool_works_in_another_process(
    dumps: Dumps, tool: FlowToolCall, arguments: str, expected: object
) -> None:
    assert in_another_process(dumps(tool), arguments) == expected


def test_a_decorated_tool_is_its_name() -> None:
    assert pickle.loads(pickle.dumps(portable.add)) is portable.add
    texts = [arg for _, arg, _ in pickletools.genops(pickle.dumps(portable.add, 4))]
    assert {"tests.support.portable", "add"} <= {text for text in texts if isinstance(text, str)}


def local_tool() -> FlowToolCall:
    factor = 3

    @rath.tool(name="triple", effects="idempotent")
    def local(number: int, session: Session) -> int:
        return factor * number

    return local


def _nothing() -> Callable[[], str]:
    return lambda: "nothing at all"


nameless: FlowToolCall = rath.tool(name="nothing")(_nothing())


@pytest.mark.parametrize("make", [local_tool, lambda: nameless], ids=["local", "lambda"])
def test_pickle_refuses_a_tool_that_nobody_can_import(make: Callable[[], FlowToolCall]) -> None:
    told = refusal(make())
    assert "cannot be found by that name" in told
    assert "cloudpickle" in told


def test_cloudpickle_sends_the_code_of_a_local_tool_with_its_options() -> None:
    told = in_another_process(by_value(local_tool()), "{'number': 4}")
    assert told == (("triple", "idempotent", None, False), 12)


def test_cloudpickle_sends_the_code_of_a_lambda() -> None:
    assert in_another_process(by_value(nameless), "{}")[1] == "nothing at all"


# ---------------------------------------------------------------- agents and workflows


@both
def test_an_agent_answers_in_another_process_and_calls_its_tool(dumps: Dumps) -> None:
    call = {"id": "c", "type": "function",
            "function": {"name": "plus", "arguments": '{"a": 20, "b": 22}'}}  # fmt: skip
    with ChatServer(echo) as server:
        server.queue(completion(tool_calls=(call,)))
        agent = flow.Agent("you add", provider_at(server), [portable.add], system_tools=False)
        assert in_another_process(dumps(agent), "go") == "you add: 42"


@both
def test_a_workflow_with_its_hooks_runs_in_another_process(dumps: Dumps) -> None:
    with ChatServer(echo) as server:
        team = Team(provider_at(server), portable.add, Shout("x"))
        team.register_forward_pre_hook(portable.shout)
        told = in_another_process(dumps(team), "go")
    assert told == "second prompt: first prompt: go loudly"


@both
def test_a_module_that_holds_the_handle_of_its_hook_takes_it_out_elsewhere(dumps: Dumps) -> None:
    team = Team(Provider(model="m"))
    team.handle = team.register_forward_pre_hook(portable.shout)
    again = pickle.loads(dumps(team))
    assert len(hooks_of(again).forward_pre) == 1
    again.handle.remove()
    assert (len(hooks_of(again).forward_pre), len(hooks_of(team).forward_pre)) == (0, 1)


@both
def test_containers_and_a_compiled_workflow_run_in_another_process(dumps: Dumps) -> None:
    with ChatServer(echo) as server:
        one = flow.Agent("one", provider_at(server), system_tools=False)
        two = flow.Agent("two", provider_at(server), system_tools=False)
        chain = flow.Sequential(flow.EmptyWorkflow(), one, two)
        assert in_another_process(dumps(chain), "go") == "two: one: go"
        assert in_another_process(dumps(chain.compile()), "go") == "two: one: go"
        branches = pickle.loads(dumps(flow.WorkflowDict({"a": one, "b": two})))
        assert branches["b"](Session.from_user_message("x")).text() == "two: x"


@both
def test_selector_compressor_parameters_and_an_agent_as_a_tool(dumps: Dumps) -> None:
    with ChatServer(echo) as server:
        provider = provider_at(server)
        server.queue(completion("1"))
        assert in_another_process(dumps(flow.Selector(provider)), "which") == "two"
        server.queue(completion("a summary"))
        assert in_another_process(dumps(flow.Compressor("shorten", provider)), "x") == "a summary"
        agent = flow.Agent("you help", provider, system_tools=False)
        assert in_another_process(dumps(agent.agent)) == ("you help", "m")
        tool = agent.as_tool("helper", "helps", effects="idempotent", timeout=3)
        assert pickle.loads(dumps(tool)).timeout == 3
        boss = flow.Agent("boss", provider, [tool], system_tools=False)
        call = {"id": "c", "type": "function",
                "function": {"name": "helper", "arguments": '{"task": "this"}'}}  # fmt: skip
        server.queue(completion(tool_calls=(call,)))
        assert in_another_process(dumps(boss), "go") == 'boss: "you help: this"'


@both
def test_a_typed_agent_reads_its_type_in_another_process(dumps: Dumps) -> None:
    with ChatServer(lambda _: completion('{"value": 7}')) as server:
        agent = flow.Agent("count", provider_at(server), output=int, system_tools=False)
        assert pickle.loads(dumps(agent))(Session.from_user_message("x")).output == 7


def test_the_prompt_of_an_agent_keeps_its_id() -> None:
    agent = flow.Agent("p", Provider(model="m"))
    again = pickle.loads(pickle.dumps(agent))
    assert again.agent.agent_session.id == agent.agent.agent_session.id
    assert again.agent.agent_session.provenance == agent.agent.agent_session.provenance


def test_a_local_workflow_is_refused_by_pickle_and_sent_by_cloudpickle() -> None:
    class Local(flow.Workflow):
        def forward(self, session: Session) -> Session:
            return Session.from_agent_prompt("local").merge(session)

    told = refusal(flow.Sequential(Local()))
    assert "Local" in told
    assert "cloudpickle" in told
    again = pickle.loads(by_value(Local()))
    assert again(Session.from_user_message("x")).chunk_table.rows[0].payload["content"] == "local"


MAIN = """
import pickle, cloudpickle, sys, rath
from rath import flow
from rath.session import Session

@rath.tool(effects="read_only")
def add(a: int, b: int) -> int:
    "Add."
    return a + b

@rath.tool
class Scale:
    "Scales."
    def __init__(self, factor: int): self.factor = factor
    def __call__(self, number: int) -> int: return self.factor * number

class Team(flow.Workflow):
    def forward(self, session: Session) -> Session:
        return session

for thing in (add, Team()):
    try:
        pickle.dumps(thing)
    except TypeError as exc:
        assert "__main__" in str(exc), exc
    else:
        raise SystemExit(f"{thing} was pickled")
sys.stdout.buffer.write(pickle.dumps([cloudpickle.dumps(each) for each in (add, Scale(3), Team())]))
"""


def test_what_the_program_itself_declares_is_refused_by_pickle_and_sent_by_cloudpickle(
    tmp_path: Path,
) -> None:
    script = tmp_path / "shop.py"
    script.write_text(f"from __future__ import annotations\n{MAIN}")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    add, scale, team = pickle.loads(done.stdout)
    assert in_another_process(add, "{'a': 1, 'b': 2}") == (("add", "read_only", None, False), 3)
    assert in_another_process(scale, "{'number': 2}")[1] == 6
    assert in_another_process(team, "x") == ""


SPAWN = """
import multiprocessing
from rath import flow
from rath.session import Session

class Team(flow.Workflow):
    def forward(self, session):
        return Session.from_agent_prompt("done elsewhere")

def work(team, answers):
    answers.send(team(Session.from_user_message("x")).chunk_table.rows[0].payload["content"])

if __name__ == "__main__":
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=work, args=(Team(), theirs))
    child.start()
    theirs.close()
    print(ours.recv())
    child.join()
"""


def test_what_the_program_itself_declares_goes_to_processes_of_multiprocessing(
    tmp_path: Path,
) -> None:
    script = tmp_path / "shop.py"
    script.write_text(SPAWN)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, check=False)
    assert done.stdout.decode().strip() == "done elsewhere", done.stderr.decode()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_copies_are_what_they_were(duplicate: Callable[[Any], Any]) -> None:
    class Local(flow.Workflow):
        def forward(self, session: Session) -> Session:
            return session

    keyed = flow.Agent("p", Provider(model="m", api_key=CANARY), [nameless])
    again = duplicate(flow.Sequential(Local(), keyed))[1]
    assert again.agent.provider.api_key == CANARY
    assert duplicate(keyed.agent.agent_session).text() == ""
    assert duplicate(nameless).name == "nothing"


# ---------------------------------------------------------------- providers


@both
def test_a_provider_travels_without_what_environment_and_config_give(
    dumps: Dumps,
) -> None:
    provider = Provider(
        model="m", temperature=0.5, stop=["a"], extra_create_args={"top_k": 3},
        fallbacks=[Provider(model="other")], response_format={"type": "json_object"},
    )  # fmt: skip
    data = dumps(provider)
    assert pickle.loads(data) == provider
    assert canaries.seen(CANARY, repr(data)) == []


@both
def test_the_key_of_a_config_is_read_where_the_provider_is_used(
    dumps: Dumps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(home: Path, key: str) -> None:
        config = home / "config.json"
        home.mkdir(exist_ok=True, parents=True)
        url = f"https://user:{key}@127.0.0.1/v1"
        entry = {"api_key": key, "model": "m", "base_url": url}
        config.write_text(json.dumps({"llm": {"providers": {"main": entry}}}))

    here, there = tmp_path / "here", tmp_path / "there"
    monkeypatch.setenv("OPENRATH_HOME", str(here))
    write(here, CANARY)
    provider = Provider.from_config("main", temperature=0.25)
    data = dumps(provider)
    assert canaries.seen(CANARY, repr(data)) == []
    assert pickle.loads(data) == provider
    write(there, "theirs-1234")
    monkeypatch.setenv("OPENRATH_HOME", str(there))
    again = pickle.loads(data)
    assert (again.api_key, again.temperature) == ("theirs-1234", 0.25)


@both
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"api_key": CANARY}, "Provider(api_key=...)"),
        ({"base_url": f"https://u:{CANARY}@host/v1"}, "Provider(base_url=...)"),
        ({"base_url": f"https://host/v1?key={CANARY}"}, "Provider(base_url=...)"),
        ({"extra_create_args": {"extra_headers": {"X-Any": CANARY}}}, "['X-Any']"),
        ({"extra_create_args": {"extra_body": {"api_token": CANARY}}}, "['api_token']"),
        ({"metadata": {"note": f"see {CANARY}"}}, "['note']"),
        ({"fallbacks": [Provider(api_key=CANARY)]}, "Provider(api_key=...)"),
    ],
)
def test_a_provider_with_a_literal_secret_is_refused_by_the_name_of_the_field(
    dumps: Dumps, fields: dict[str, Any], expected: str
) -> None:
    assert expected in refusal(flow.Agent("p", Provider(model="m", **fields)), dumps)


ELSEWHERE = f"sk-{canaries.MARK}-z9y8x7w6v5u4t3s2"
"""A key that the environment does not have."""


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Provider(model="m", metadata={"note": f"see {ELSEWHERE}"}), "['note']"),
        (lambda: Provider(model="m", extra_create_args={"extra_query": {"sig": ELSEWHERE}}), "sig"),
        (lambda: BackendSandboxSpec(entrypoint=["run", "--api-key", ELSEWHERE]), "entrypoint"),
        (lambda: BackendSandboxSpec(entrypoint=["sh", "-c", f"K={ELSEWHERE} x"]), "entrypoint"),
        (lambda: BackendSandboxSpec(image="https://u:swordfish@host/image"), "image"),
        (lambda: Holder(api_key="swordfish"), "Holder.api_key"),
        (lambda: Holder(settings={"headers": {"X-Any": "swordfish"}}), "['X-Any']"),
        (lambda: Holder(note=f"see {ELSEWHERE}"), "Holder.note"),
        (lambda: Holder(database="postgres://u:swordfish@host/x"), "Holder.database"),
    ],
)
def test_a_literal_secret_anywhere_is_refused_by_its_place(
    make: Callable[[], object], expected: str
) -> None:
    text = refusal(make())
    assert expected in text
    assert "swordfish" not in text


def test_the_object_of_a_tool_with_a_secret_is_refused() -> None:
    desk = Desk("first")
    vars(desk)["api_key"] = ELSEWHERE
    assert "Desk.api_key" in refusal(desk.lookup)


def test_words_like_those_of_secrets_travel() -> None:
    words = {"tokenizer": "cl100k_base", "sort_key": "created_at", "author": "me", "eos_token": "."}
    loop: list[object] = []
    loop.append(loop)
    holder = Holder(**words, loop=loop)
    again = pickle.loads(pickle.dumps(holder))
    assert {name: getattr(again, name) for name in words} == words


def test_a_store_travels_by_its_url_without_the_password(postgres: PostgresServer) -> None:
    store = open_store(postgres.url(user="guarded", password=PASSWORD))
    data = pickle.dumps(flow.Agent("p", Provider(model="m"), store=store))
    assert canaries.seen(PASSWORD, repr(data)) == []
    assert pickle.loads(data).store is store
    store.close()
    assert "has no URL" in refusal(FakeSessionStore())


def test_a_provider_with_a_client_is_refused() -> None:
    client = openai.AsyncOpenAI(api_key=CANARY)
    assert "Provider(client=...)" in refusal(Provider(model="m", client=client))


# ---------------------------------------------------------------- sessions


def run_stored(server: ChatServer, text: str = "go") -> Session:
    agent = flow.Agent("p", provider_at(server), system_tools=False, persist=True)
    return agent(Session.from_user_message(text)).synchronize()


@both
def test_a_stored_session_is_loaded_in_another_process(dumps: Dumps) -> None:
    with ChatServer(echo) as server:
        out = run_stored(server, "a long text of its own")
        data = dumps(out)
    assert b"a long text" not in data
    told = (["user", "assistant"], "p: a long text of its own", str(out.id))
    assert in_another_process(data) == told


def test_a_session_that_is_stored_nowhere_is_refused() -> None:
    session = Session.from_user_message("x")
    assert "session.save()" in refusal(session)
    session.save()
    fork = session.fork()
    assert pickle.loads(pickle.dumps(session)).id == session.id
    assert "session.save()" in refusal(fork)


def test_a_pending_session_is_refused() -> None:
    go_on = threading.Event()

    def wait(_: Any) -> str:
        assert go_on.wait(50)
        return "done"

    agent = flow.Agent("p", ScriptedClient([wait]).provider, persist=True, system_tools=False)
    out = agent(Session.from_user_message("x"))
    assert "pending" in refusal(out)
    go_on.set()
    out.synchronize()
    assert pickle.loads(pickle.dumps(out)).text() == "done"


def test_late_entries_travel_with_the_session() -> None:
    with ChatServer(echo) as server:
        out = run_stored(server)
    out.add_entry(Verdict(operation=out.record[0].operation, name="style", judge="a reader",
                          passed=True, score=1.0, report="", workspace_digest=None))  # fmt: skip
    assert pickle.loads(pickle.dumps(out)).record == out.record


def test_a_session_in_a_store_of_this_process_alone_is_refused() -> None:
    session = Session.from_user_message("x")
    session.save(store=FakeSessionStore())
    assert "which no URL leads to" in refusal(session)


def test_a_session_saved_to_a_file_of_its_own_is_refused(tmp_path: Path) -> None:
    session = Session.from_user_message("x")
    session.save(path=tmp_path / "one.jsonl")
    assert "stored nowhere" in refusal(session)


@both
def test_the_password_of_a_store_stays_here(dumps: Dumps, postgres: PostgresServer) -> None:
    url = postgres.url(user="guarded", password=PASSWORD)
    session = Session.from_user_message("in postgres")
    session.save(store=url)
    data = dumps(session)
    assert canaries.seen(PASSWORD, repr(data)) == []
    told = in_another_process(data, env={"OPENRATH_STORE": url})
    assert told == (["user"], "", str(session.id))
    assert in_another_process(data, env={"PGPASSWORD": PASSWORD})[2] == str(session.id)


# ---------------------------------------------------------------- memories and sandboxes


@both
def test_the_memory_of_an_agent_is_opened_again_by_its_spec(dumps: Dumps, tmp_path: Path) -> None:
    spec = MemoryStoreSpec(options={"path": str(tmp_path / "notes")})
    with flow.Agent("p", Provider(model="m"), memory=spec) as agent:
        assert agent.memory is not None
        agent.memory.dispatch(MemoryOpWrite("viking://user/a.md", "the note"))
        assert "the note" in in_another_process(dumps(agent.memory), "viking://user/a.md")
        again = pickle.loads(dumps(agent))
        assert again.memory.refcount == 1
        assert not again.memory.is_open
        again.close()
        assert again.memory is None


def test_the_memory_of_a_project_is_the_same_in_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with flow.Agent("p", Provider(model="m"), memory="local") as agent:
        assert agent.memory is not None
        data = pickle.dumps(agent)
        monkeypatch.chdir(tmp_path)
        with pickle.loads(data) as again:
            assert again.memory.ensure_open().handle == agent.memory.handle


def test_a_secret_option_of_a_memory_is_refused_and_a_configured_one_is_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "MemoryStoreSpec(options['api_key']=...)" in refusal(
        MemoryStoreSpec(options={"api_key": CANARY})
    )
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("OPENRATH_HOME", str(home))
    entry = {"backend_kind": "openviking", "api_key": CANARY, "url": "http://127.0.0.1:1"}
    (home / "config.json").write_text(json.dumps({"memory": {"providers": {"main": entry}}}))
    spec = MemoryStoreSpec.from_config("main", namespace="n")
    data = pickle.dumps(spec)
    assert canaries.seen(CANARY, repr(data)) == []
    assert pickle.loads(data) == spec


def test_a_memory_that_is_not_registered_is_refused() -> None:
    store = FakeMemory().open()
    assert "FakeMemory" in refusal(store)
    store.backend.close(store)


@both
def test_a_sandbox_is_opened_again_by_backend_and_spec(dumps: Dumps, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("in the workspace")
    sandbox = rath.backend.get("local").open(BackendSandboxSpec(working_dir=str(tmp_path)))
    assert "in the workspace" in in_another_process(dumps(sandbox), "cat a.txt")
    lease = HandleLease(sandbox)
    lease.drop()
    assert "is closed" in refusal(sandbox)


def test_an_open_sandbox_whose_files_nobody_else_finds_is_refused() -> None:
    sandbox = rath.backend.get("local").open(None)
    assert "working_dir" in refusal(sandbox)
    sandbox.release()


def test_variables_of_a_sandbox_travel_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOL_TOKEN", CANARY)
    spec = BackendSandboxSpec(env={"TOOL_TOKEN": CANARY})
    data = pickle.dumps(spec)
    assert canaries.seen(CANARY, repr(data)) == []
    assert pickle.loads(data) == spec
    monkeypatch.delenv("TOOL_TOKEN")
    with pytest.raises(BackendError, match="TOOL_TOKEN"):
        pickle.loads(data)
    assert "TOOL_TOKEN" in refusal(spec)
