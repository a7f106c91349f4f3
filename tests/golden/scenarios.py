"""Programs that write the sessions of the golden corpus, each as steps in processes of their own.

`python -m tests.golden.scenarios GROUP NAME STEP` runs one step in the working directory; where
its sessions are stored is named by the environment. A step that ends its process stands for a
crash, and the next one goes on with what is in the store.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, field_validator

import rath
from rath import errors, flow
from rath.llm import (
    Provider,
    RathLLMAssistantMessage,
    RathLLMChatChoice,
    RathLLMChatResponse,
    RathLLMStreamDelta,
    RathLLMTokenUsage,
)
from rath.session import (
    Session,
    fork_session,
    run_session_compress,
    run_session_loop,
    select_session,
)
from rath.session.persistence.store import open_store
from rath.session.record import RecalledNote, Verdict
from rath.session.run.stored_programs import pass_on, waiting_sessions
from rath.session.tooling import CallRequest
from rath.testing import FakeMemory, ScriptedClient, tool_call
from rath.testing.chat import Turn
from tests.support import chat_replies as openai
from tests.support.branches import family
from tests.support.chat_server import ChatServer
from tests.support.crash_program import CrashProgram
from tests.support.history import long_session
from tests.support.history_program import main as run_told_program
from tests.support.history_program import replies as told_replies
from tests.support.images import picture
from tests.support.result_images import ANSWERS, CAMERA, CLOCK, provider_of
from tests.support.sessions import AsyncFunctionTool, FunctionTool

Step = Callable[[], object]
Steps = tuple[Step, ...]

PROMPT = Session.from_agent_prompt("You are a test.")
N_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


def agent(*turns: Turn, tools: Sequence[Any] = (), **options: Any) -> flow.Agent:
    """Return an agent on a script, without the built-in tools unless asked for."""
    provider = ScriptedClient(turns, provider=options.pop("provider", None)).provider
    options.setdefault("system_tools", False)
    return flow.Agent(options.pop("prompt", "You are a test."), provider, list(tools), **options)


def user(text: str = "go", **more: Any) -> Session:
    return Session.from_user_message(text, **more)


def say(*turns: Turn, text: str = "go", **options: Any) -> Session:
    """Run an agent on a text, and wait for its end whatever that is."""
    return settled(agent(*turns, **options)(user(text)))


def settled(session: Session) -> Session:
    """Wait for a session, also for one that fails."""
    try:
        return session.synchronize()
    except Exception:  # noqa: BLE001  # whatever a run ends with is what is wanted
        return session


def calls(*ids: str, tool: str = "f", **arguments: Any) -> RathLLMAssistantMessage:
    """Return a turn with a call for each id."""
    first, *more = (tool_call(tool, {"n": at, **arguments}, id=id) for at, id in enumerate(ids))
    parts = [part for turn in (first, *more) for part in turn.tool_calls or ()]
    return RathLLMAssistantMessage(tool_calls=tuple(parts))


def echo(name: str = "f", **options: Any) -> FunctionTool:
    """Return a tool that answers with its arguments."""

    def answer(_: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return dict(arguments)

    made = FunctionTool(name, answer, schema=N_SCHEMA, **options)
    made.resource_key = lambda arguments: (name, str(arguments.get("n")))  # type: ignore[method-assign]  # calls of one turn run beside each other
    return made


def guarded(name: str = "f", approval: Any = "always") -> FunctionTool:
    made = echo(name, parallel_safe=True)
    made.approval = approval
    return made


def remember(session: Session) -> Session:
    """Note the id of a session for the next step."""
    Path("session").write_text(str(session.id))
    return session


def recalled() -> Session:
    """Load the session that a step before has noted."""
    return Session.load(Path("session").read_text())


def end_process(*_: Any) -> Any:
    """End the process as a crash does, when all that was written is on its way to the disk."""
    os._exit(0)


# How runs end.


def _plain() -> None:
    say("hello")
    say("", text="an empty answer")
    say("\ud800 lone, Ärger, 请修复", text="odd \ud800 text")
    say(calls("a"), "done", tools=[echo()])


def _limits() -> None:
    say(calls("a"), calls("b"), tools=[echo()], max_tool_rounds=2)
    say(calls("a"), tools=[echo()], provider=Provider(budget_total_tokens=1))
    say(calls("a"), calls("b"), "no", tools=[echo()], provider=Provider(budget_total_tokens=12))
    out = say("paid", provider=_priced(budget_usd=Decimal("0.000001")))
    settled(agent("never", provider=_priced(budget_usd=Decimal("0.000001")))(out))

    def refuse(session: Session, usage: object) -> None:
        raise errors.BudgetExceededError("no more")

    limits = Provider(budget_total_tokens=1, on_budget_exceeded=refuse)
    say(calls("a"), "never", tools=[echo()], provider=limits)


def _priced(**limits: Any) -> Provider:
    return Provider(model="gpt-5-mini", base_url="https://api.openai.com/v1", **limits)


def _deadline() -> None:
    async def wait(_: Session, __: object) -> None:
        await asyncio.Event().wait()

    say(calls("a"), "never", tools=[AsyncFunctionTool("f", wait, schema=N_SCHEMA)], timeout=0.3)
    slow = AsyncFunctionTool("f", wait, schema=N_SCHEMA, timeout=0.1)
    say(calls("a"), "it took too long", tools=[slow])


def _cancelled() -> None:
    started = threading.Event()

    async def wait(_: Session, __: object) -> None:
        started.set()
        await asyncio.Event().wait()

    out = agent(calls("a"), "never", tools=[AsyncFunctionTool("f", wait, schema=N_SCHEMA)])(user())
    started.wait()
    out.cancel()
    settled(out)
    settled(agent("passed on")(out))
    out.fork().synchronize()


FAILURES: tuple[BaseException, ...] = (
    errors.AuthenticationError("the key is refused", status=401),
    errors.InvalidRequestError("no such field", status=400, code="bad_field"),
    errors.ModelNotFoundError("no such model", status=404),
    errors.RateLimitError("slow down", status=429, retry_after=2.0),
    errors.QuotaExceededError("nothing left", status=429),
    errors.ProviderServerError("it is down", status=503),
    errors.ProviderTimeout("too late"),
    errors.ProviderConnectionError("nobody is there"),
    errors.ProviderProtocolError("no JSON"),
    errors.StreamInterrupted("it broke off", partial_text="half an ans"),
    RuntimeError("something else"),
    KeyError("a key"),
    ValueError("two\nlines"),
)


def _failed() -> None:
    question = user()
    for error in FAILURES:
        model = ScriptedClient([error]).provider
        settled(run_session_loop(question, PROMPT, agent_provider=model, system_tools=False))
    settled(agent("never")(say(calls("a"), RuntimeError("after a call"), tools=[echo()])))


def _finishes() -> None:
    for reason, text in (
        ("refusal", None),
        ("refusal", "I would rather not"),
        ("length", "cut at the lim"),
        ("content_filter", ""),
    ):
        say(_finished(reason, content=text))
    say(_finished("pause_turn", content="half"), "the rest")
    say(_finished("stop", content=None, refusal="no"))
    say(RathLLMAssistantMessage(content="42", reasoning_content="six times seven"), text="think")
    thinking = replace(calls("a"), reasoning_content="first a call")
    say(thinking, RathLLMAssistantMessage(content="ok", reasoning_content="then"), tools=[echo()])


def _finished(reason: Any, **message: Any) -> RathLLMChatResponse:
    choice = RathLLMChatChoice(0, reason, RathLLMAssistantMessage(**message))
    usage = RathLLMTokenUsage(7, 3, 10, {"reasoning_tokens": 1}, {"cached_tokens": 2})
    return RathLLMChatResponse("answer-1", (choice,), 1700000000, "served", usage=usage)


# Crashes, each in a process of its own.


def _crash_in_model() -> None:
    remember(agent(calls("a"), end_process, tools=[echo()], durability="row")(user())).text()


def _crash_in_tool() -> None:
    fatal = FunctionTool("fatal", end_process, schema=N_SCHEMA)
    fatal.resource_key = lambda arguments: ("fatal",)  # type: ignore[method-assign]  # beside others
    first = tool_call("f", {"n": 1}, tool_call("fatal", {}, id="b"), id="a")
    out = agent(calls("z"), first, tools=[echo(), fatal], durability="row")(user())
    remember(out).text()


def _go_on(*turns: Turn, tools: Sequence[Any] = ()) -> Step:
    def step() -> None:
        waiting = recalled()
        for call in waiting.open_calls:
            if call.waits:
                waiting.decide(call, "done", result='{"ok": true}')
        settled(agent(*turns, tools=[echo(), *tools], durability="row").resume(waiting))

    return step


def _decide(choice: Any) -> Step:
    def step() -> None:
        waiting = recalled()
        for call in waiting.open_calls:
            if call.waits:
                waiting.decide(call, choice)

    return step


def _fatal() -> FunctionTool:
    return FunctionTool("fatal", lambda *_: "went well", schema=N_SCHEMA)


# Approvals and questions.


def _approvals() -> None:
    asking: list[Turn] = [calls("a", "b"), "done"]
    say(*asking, tools=[guarded()])
    partly = say(*asking, tools=[guarded()])
    partly.approve("a", by="ann").deny("b", "not now").edit("b", {"n": 9})
    for verbs in (("approve", "approve"), ("deny", "approve"), ("edit", "deny")):
        again = agent(*asking, tools=[guarded()])
        out = settled(again(user("work")))
        for call, verb in zip("ab", verbs, strict=True):
            if verb == "edit":
                out.edit(call, {"n": 5})
            else:
                (out.approve if verb == "approve" else out.deny)(call)
        settled(again(out))


def _rules() -> None:
    def odd(call: CallRequest) -> bool:
        return bool(call.arguments["n"] % 2)

    def broken(call: CallRequest) -> bool:
        raise ValueError("no rule")

    say(calls("a"), "free", tools=[guarded(approval=odd)])
    say(calls("a", "b"), "never", tools=[guarded(approval=odd)])
    say(calls("a"), "never", tools=[guarded(approval=broken)])
    say(calls("a"), "never", tools=[echo()], approval="always")


def _approve_later() -> None:
    remember(say(calls("a", "b"), tools=[guarded()]))


def _painter(*turns: Turn) -> flow.Agent:
    @rath.tool(effects="idempotent", parallel_safe=True)
    def paint(n: int) -> str:
        """Paint something."""
        color = rath.ask(f"Which color for {n}?", {"enum": ["red", "blue"]})
        return f"painted {n} {color}"

    return agent(*turns, tools=[paint, echo("g")])


def _questions() -> None:
    settled(_painter(calls("a", tool="paint"))(user("one")))
    two = tool_call("paint", {"n": 1}, calls("b", tool="g"), calls("c", tool="paint"), id="a")
    settled(_painter(two)(user("two"))).answer("blue", "a")
    answering = _painter(calls("a", tool="paint"), "done")
    out = settled(answering(user("answered")))
    settled(answering(out.answer("red", by="bob")))


def _waiting_inside() -> None:
    inner = agent(calls("i"), "it is gone", tools=[guarded()], prompt="You help.")
    ask = inner.as_tool("helper", "Helps.")
    boss = agent(tool_call("helper", {"task": "do it"}, id="o"), "all done", tools=[ask])
    out = settled(boss(user("delegate and wait")))
    again = agent(calls("i"), "it is gone", tools=[guarded()], prompt="You help too.")

    @rath.tool(effects="idempotent")
    def delegate(task: str) -> str:
        """Let somebody else do it."""
        return pass_on(again(user(task))).text() or ""

    other = agent(tool_call("delegate", {"task": "x"}, id="o"), "so", tools=[delegate])
    left = settled(other(user("pass on")))
    waiting_sessions(left)[0].approve("i")
    settled(other(left))
    assert type(out.outcome).__name__ == "NeedsApproval"


# Agents as tools.


def _helpers() -> None:
    deep = agent("deepest", prompt="deep").as_tool("deep", "Goes deep.")
    middle = agent(calls("m", tool="deep", task="dig"), "found", tools=[deep], prompt="middle")
    asking = middle.as_tool("middle", "Stands between.", parallel_safe=True)
    two: list[Turn] = [tool_call("middle", {"task": "one"}, id="a"), "so it is"]
    say(*two, tools=[asking], text="nested")
    lost = agent(RuntimeError("no network"), prompt="lost").as_tool("lost", "Fails.")
    say(tool_call("lost", {"task": "x"}, id="a"), "it failed", tools=[lost], text="failing")
    busy = agent(calls("x"), tools=[echo()], max_tool_rounds=1, prompt="busy").as_tool("busy", "B.")
    say(tool_call("busy", {"task": "x"}, id="a"), "too long", tools=[busy], text="round limit")
    mute = agent("", prompt="mute").as_tool("mute", "Says nothing.")
    say(tool_call("mute", {"task": "x"}, id="a"), "nothing", tools=[mute], text="no answer")
    typed = agent('{"stars": 4, "verdict": "good"}', output=Review).as_tool("review", "Reviews.")
    say(tool_call("review", {"task": "x"}, id="a"), "four", tools=[typed], text="typed")


def _helpers_side_by_side() -> None:
    provider = ScriptedClient(["left", "right"]).provider
    ask = flow.Agent("side", provider, system_tools=False).as_tool(
        "side", "Works.", parallel_safe=True
    )
    both = tool_call("side", {"task": "1"}, tool_call("side", {"task": "2"}, id="b"), id="a")
    say(both, "both came", tools=[ask])
    child = user("parent").delegate("a task", images=[picture(b"task")])
    settled(agent("seen")(child))


# Hooks.


def _hooks() -> None:
    model = agent(tool_call("f", {"n": 1}, id="a"), "it was bob", tools=[echo()])
    model.register_forward_pre_hook(lambda _, session: user("tell me"))
    model.register_tool_hook(_quiet, when="before")
    model.register_tool_hook(_hidden, when="after")
    model.register_model_hook(_anonymous)
    model.register_forward_hook(lambda _, session, out: out.synchronize().fork())
    settled(model(user("tell bob")))


def _quiet(_: flow.Agent, call: flow.CallRequest) -> flow.CallRequest:
    return replace(call, arguments={"n": 7})


def _hidden(
    _: flow.Agent, call: flow.CallRequest, result: flow.ToolResultText
) -> flow.ToolResultText:
    return replace(result, text=result.text.replace("7", "[number]"))


def _anonymous(_: flow.Agent, turn: flow.ModelTurn) -> flow.ModelTurn:
    return replace(turn, text=turn.text and turn.text.replace("bob", "someone"))


def _broken_hooks() -> None:
    def fail(*_: object) -> Any:
        raise ValueError("a secret of the hook")

    denied = agent(calls("a"), "I may not", tools=[echo()])
    denied.register_tool_hook(lambda _, call: flow.Deny("no f today"), when="before")
    settled(denied(user("denied")))
    for when in ("before", "after"):
        broken = agent(calls("a"), "so", tools=[echo()])
        broken.register_tool_hook(fail, when=when)
        settled(broken(user(f"broken {when}")))
    lost = agent("never")
    lost.register_model_hook(fail)
    settled(lost(user("broken model hook")))


# Typed output.


class Review(BaseModel):
    """What a typed answer is made of."""

    verdict: str
    stars: int = Field(ge=1, le=5)

    @field_validator("verdict")
    @classmethod
    def _is_calm(cls, verdict: str) -> str:
        if verdict.isupper():
            raise ValueError("do not shout")
        return verdict


def _typed_tool() -> None:
    good = {"verdict": "good", "stars": 5}
    say(tool_call("final_answer", good, id="a"), output=Review, text="at once")
    bad = tool_call("final_answer", {**good, "stars": 11}, id="a")
    say(bad, tool_call("final_answer", good, id="b"), output=Review, text="repaired")
    loud = json.dumps({**good, "verdict": "LOUD"})
    say(loud, "Five stars!", output=Review, output_retries=1, text="failed")
    say('{"value": ["red", "blue"]}', output=list[str], text="a list")
    also = tool_call("f", {"n": 1}, tool_call("final_answer", good, id="b"), id="a")
    say(also, output=Review, tools=[echo()], text="beside another call")
    say(_finished("refusal", content="no"), output=Review, text="refused")
    say(_finished("length", content='{"ver'), json.dumps(good), output=Review, text="cut")
    merged = say(json.dumps(good), output=Review).merge(say("plain"))
    merged.synchronize()


def _typed_schema() -> None:
    with ChatServer() as server:
        good = json.dumps({"verdict": "good", "stars": 5})
        server.queue(
            openai.completion(good, usage=openai.usage(40, 5)),
            openai.completion('{"verdict": "bad"}'),
            openai.completion(good),
            openai.status_error(400, "no response_format here"),
        )
        for text in ("at once", "repaired", "refused by the endpoint"):
            typed = flow.Agent("Review.", _wire(server), output=Review, system_tools=False)
            settled(typed(user(text)))


def _wire(server: ChatServer, **more: Any) -> Provider:
    return Provider(base_url=server.base_url, api_key="sk-none", model="m", **more)


# What is made of sessions.


def _compressed() -> None:
    long = say(calls("a"), "a long way", tools=[echo()])
    for turn in ("short", "", calls("x"), RuntimeError("no summary")):
        model = ScriptedClient([turn]).provider
        settled(run_session_compress(long, PROMPT, agent_provider=model, lazy=True))
    spent = Provider(budget_total_tokens=1)
    model = ScriptedClient(["crosses"], provider=spent).provider
    over = settled(run_session_compress(long, PROMPT, agent_provider=model, lazy=True))
    settled(agent("never", provider=spent)(over))
    short = run_session_compress(long, PROMPT, agent_provider=ScriptedClient(["brief"]).provider)
    settled(agent("and on")(short))


def _selected() -> None:
    done = say("ready")
    for turns in (["1"], ["none of them", "0"], ["what?", "eh?"], ["-1"]):
        model = ScriptedClient(turns).provider
        select_session(done, PROMPT, "write code", "drink tea", agent_provider=model)
    settled(agent("after the choice")(done))


def _recalled() -> None:
    notes = [RecalledNote("memory://user/a", "tea, not coffee", 0.75), RecalledNote("", "bare")]
    model = ScriptedClient([calls("a"), "tea then"]).provider
    run_session_loop(
        user("drink?"),
        PROMPT,
        agent_provider=model,
        tools=[echo()],
        system_tools=False,
        recall=lambda _: notes,
    ).synchronize()
    memory = FakeMemory({"memory://user/memories/tea": "the user drinks tea"})
    say("tea", text="what does the user drink? tea?", memory=memory.open(), commit_on_forward=True)
    broken = FakeMemory(answer=_no_memory)
    say("alone", text="what?", memory=broken.open())


def _no_memory(_: object) -> Any:
    raise RuntimeError("the memory is gone")


def _branches() -> None:
    root = say("a plan")
    left, right = root.fork(), fork_session(root)
    one = settled(agent("left")(left.merge(user("go left"))))
    other = settled(agent(calls("a"), "right", tools=[echo()])(right.merge(user("go right"))))
    both = one.merge(other)
    settled(agent("both")(both))
    both.merge(other).merge(one).synchronize()
    both.detach().fork().detach().synchronize()
    Session.create("user", "a leaf").merge(Session.create("system", "a rule")).synchronize()
    Session.create("empty").fork().synchronize()
    chain = root
    for _ in range(6):
        chain = chain.fork()
    chain.synchronize()
    given = Session(root.chunk_table, cumulative_usage=RathLLMTokenUsage(5, 6, 11))
    settled(agent("on top")(given))


def _late() -> None:
    done = say("ready")
    done.add_entry(
        Verdict(
            operation=done.record[0].operation,
            name="style",
            judge="a reader",
            passed=False,
            score=0.25,
            report="too long",
            workspace_digest=None,
        )
    )
    remember(done)


def _late_again() -> None:
    loaded = recalled()
    model = ScriptedClient(["0"]).provider
    select_session(loaded, PROMPT, "write code", "drink tea", agent_provider=model)


# Files.


def _local(name: str = "project", **files: str) -> Session:
    folder = Path(name)
    folder.mkdir()
    for path, text in files.items():
        (folder / path).write_text(text)
    return user("work").to("local", spec=str(folder.absolute()))


def write(path: str, content: str, id: str) -> RathLLMAssistantMessage:
    return tool_call("write_workspace_file", {"path": path, "content": content}, id=id)


def shell(command: str, id: str) -> RathLLMAssistantMessage:
    return tool_call("run_shell_command", {"cmd": command}, id=id)


def work(session: Session, *turns: Turn) -> Session:
    return settled(agent(*turns, "done", system_tools=True)(session))


def _file_tools() -> None:
    start = _local(note="one\ntwo\n", gone="x\n")
    edit = tool_call("edit_workspace_file", {"path": "note", "old": "one", "new": "1"}, id="b")
    missing = tool_call("read_workspace_file", {"path": "absent"}, id="e")
    outside = tool_call("read_workspace_file", {"path": "../../outside"}, id="h")
    script = (
        "mv note renamed; rm gone; printf '\\377\\0' > binary; ln -s renamed link; chmod 755 new"
    )
    out = work(
        start,
        write("new", "fresh\n", "a"),
        edit,
        shell(script, "c"),
        tool_call("list_workspace_files", {"path": "."}, id="d"),
        missing,
        shell("echo out; echo err >&2; exit 3", "f"),
        tool_call("run_code", {"language": "python", "code": "print(6 * 7)"}, id="g"),
        outside,
    )
    out.check("there", "test -f new")
    out.check("not there", "test -f note")
    out.undo("c").synchronize()
    settled(agent("after it", system_tools=False)(out))
    out.close_sandbox()


def _merged_files() -> None:
    start = _local(note="one\ntwo\nthree\nfour\n")
    first = work(start.fork(workspace="copy"), write("note", "ONE\ntwo\nthree\nfour\n", "a"))
    second = work(start.fork(workspace="copy"), write("note", "one\ntwo\nthree\nFOUR\n", "b"))
    third = work(start.fork(workspace="copy"), write("note", "uno\n", "c"), write("n", "n", "d"))
    both = first.merge(second, files="three-way")
    work(both, shell("cat note", "e"))
    both.check("all", "grep -q FOUR note")
    clash = first.merge(third, files="three-way")
    work(clash, write("after", "merge\n", "f"))
    for how in ("ours", "theirs"):
        work(first.merge(third, files=how), shell("cat note", f"g-{how}"))
    first.undo("a").synchronize()
    for session in (start, first, second, third, both, clash):
        session.close_sandbox()


def _family() -> None:
    family(Path.cwd()).close()


# Contents.


def _images() -> None:
    say("a cat", text="look")
    settled(agent("two pictures")(user("see", images=[picture(b"one"), picture(mime="image/gif")])))
    say(tool_call("camera", {}, id="c1"), "a cat and a dog", tools=[CAMERA, CLOCK])


def _images_on(kind: str) -> Step:
    def step() -> None:
        with ChatServer() as server:
            server.queue(*ANSWERS[kind])
            run_session_loop(
                user("look"),
                PROMPT,
                agent_provider=provider_of(kind, server),
                tools=[CAMERA, CLOCK],
                system_tools=False,
            ).synchronize()

    return step


def _big() -> None:
    long = "".join(f"line {number} of a long result\n" for number in range(6_000))
    say(calls("a"), "it was long", tools=[FunctionTool("f", lambda *_: long, schema=N_SCHEMA)])
    say("yes", text="word " * 8_000)
    say(calls("a", text="argument " * 2_000), "ok", tools=[echo()])
    say("answer " * 8_000)


def _odd_tools() -> None:
    def fail(*_: object) -> Any:
        raise ValueError("as asked")

    say(calls("a"), "it failed", tools=[FunctionTool("f", fail, schema=N_SCHEMA)])
    say(calls("a", tool="unknown"), "no such tool", tools=[echo()])
    say(tool_call("f", "{broken", id="a"), tool_call("f", '{"n": "x"}', id="b"), "so",
        tools=[echo()])  # fmt: skip
    say(calls("same", "same", ""), "all of them", tools=[echo(parallel_safe=True)])
    say(calls("a", "b", "c"), "ordered", tools=[echo()])
    say(calls("a"), "odd", tools=[FunctionTool("f", lambda *_: {"x": "\ud800", "n": float("nan")},
                                               schema=N_SCHEMA)])  # fmt: skip
    say(calls("a"), "none", tools=[FunctionTool("f", lambda *_: None, schema=N_SCHEMA)])


def _server_tools() -> None:
    schema = {
        "type": "object",
        "properties": {"query": {"type": "string"}, "page": {"$ref": "#/$defs/page"}},
        "required": ["query"],
        "$defs": {"page": {"type": "integer", "minimum": 1, "default": 1}},
        "additionalProperties": False,
    }

    def find(_: Session, arguments: Mapping[str, Any]) -> Any:
        return {"content": [{"type": "text", "text": f"found {arguments['query']}"}]}

    def fail(*_: object) -> Any:
        raise errors.MCPRequestError("the server says no", server="library")

    tools = [
        FunctionTool("library__find", find, schema=schema),
        FunctionTool("library__fail", fail, schema=schema),
    ]
    turns: list[Turn] = [
        tool_call("library__find", {"query": "moby"}, id="a"),
        tool_call("library__find", {"page": 0}, id="b"),
        tool_call("library__fail", {"query": "dick"}, id="c"),
        "found and failed",
    ]
    say(*turns, tools=tools)


# Models on the wire, streams and fallbacks.


def _ignore(_: RathLLMStreamDelta) -> None:
    return


def _streams() -> None:
    say("word by word", on_event=_ignore)
    say(calls("a"), "streamed " * 1_500, tools=[echo()], on_event=_ignore)
    with ChatServer() as server:
        parts = ["beginning " * 500, "middle " * 500]
        cut = openai.event_stream(*map(openai.text_chunk, parts), openai.Cut())
        server.queue(openai.text_stream(*parts, "end", counts=(9, 4)), cut)
        for text in ("whole", "broken off"):
            model = _wire(server, retry_max_attempts=1)
            settled(flow.Agent("Go.", model, on_event=_ignore, system_tools=False)(user(text)))


def _crash_in_stream() -> None:
    seen = [0]

    def hear(delta: RathLLMStreamDelta) -> None:
        seen[0] += len(delta.content_delta or "")
        if seen[0] > 12_000:
            os._exit(0)

    remember(agent(calls("a"), "streamed " * 3_000, tools=[echo()], on_event=hear)(user())).text()


def _wires() -> None:
    with ChatServer() as server:
        server.queue(
            openai.status_error(500, "try again"),
            openai.completion("after a retry", usage=openai.usage(30, 4)),
            openai.status_error(401, "bad key"),
            openai.status_error(429, "slow down", retry_after=0),
            openai.status_error(404, "no model"),
            openai.html(),
            openai.dropped(),
            openai.invalid_json(),
        )
        for text in ("retried", "key", "limit", "model", "html", "dropped", "no json"):
            tries = 2 if text == "retried" else 1
            model = _wire(server, retry_max_attempts=tries, retry_base_seconds=0)
            settled(flow.Agent("Go.", model, system_tools=False)(user(text)))


def _fallbacks() -> None:
    down = errors.ProviderServerError("it is down", status=503)

    def chain(*scripts: list[Turn]) -> Provider:
        first, *more = (ScriptedClient(script).provider for script in scripts)
        return replace(first, fallbacks=more)

    def ask(provider: Provider, text: str, **more: Any) -> Session:
        made = flow.Agent("Go.", provider, [echo()], system_tools=False, **more)
        return settled(made(user(text)))

    ask(chain([down], ["second"]), "the second answers")
    ask(chain([down], [down], ["third"]), "the third answers")
    ask(chain([down], [errors.ProviderTimeout("late")]), "nobody answers")
    ask(chain([calls("a"), down], [calls("b"), "still here"]), "in the middle")
    ask(chain([down], ["streamed"]), "streamed", on_event=_ignore)
    ask(chain([errors.AuthenticationError("no", status=401)], ["never"]), "no fallback")


def _priced_calls() -> None:
    out = say(calls("a"), "cheap", tools=[echo()], provider=_priced())
    out = settled(agent("free", provider=Provider(model="home-grown"))(out))
    settled(agent("again", provider=_priced())(out))


# Programs of many operations.


class Team(flow.Workflow):
    """Plans, writes twice on branches, and puts both together."""

    def __init__(self, plan: Sequence[Turn], left: Sequence[Turn], right: Sequence[Turn]) -> None:
        super().__init__()
        self.planner = agent(*plan, tools=[echo()], prompt="Plan.", durability="row")
        self.left = agent(*left, tools=[echo()], prompt="Write.", durability="row")
        self.right = agent(*right, tools=[echo()], prompt="Write more.", durability="row")

    def forward(self, session: Session) -> Session:
        planned = self.planner(session)
        # One after the other, so that the order in the store does not depend on the machine.
        left = settled(self.left(planned.fork()))
        return left.merge(self.right(planned.fork()))


def _team() -> None:
    settled(Team([calls("p"), "a plan"], ["left"], [calls("r"), "right"])(user("a letter")))
    settled(flow.Sequential(agent("one"), agent("two"))(user("in a row")))


def _noting_team(*scripts: Sequence[Turn]) -> Team:
    """Return a team that notes the plan, from which its call can be gone on with."""
    team = Team(*scripts)

    def note(_: flow.Agent, __: Session, out: Session) -> None:
        remember(out)

    team.planner.register_forward_hook(note)
    return team


def _team_fails() -> None:
    settled(_noting_team(["a plan"], ["left"], [RuntimeError("no network")])(user("a letter")))


def _team_crashes() -> None:
    team = _noting_team([calls("p"), "a plan"], ["left"], [calls("r"), end_process])
    team(user("a letter")).text()


def _team_resumes() -> None:
    settled(_noting_team([], [], ["right"]).resume(recalled()))


def _crash_program() -> None:
    out = CrashProgram(Path("calls"))(user("go")).synchronize()
    remember(out)


def _told() -> None:
    long_session()


def _told_program() -> None:
    Path("project").mkdir()
    os.environ["OPENAI_API_KEY"] = "sk-none"
    with ChatServer() as server:
        server.queue(*told_replies())
        run_told_program(server.base_url, str(Path("project").absolute()))


# Files of one session, and bundles.


def _paths() -> None:
    out = say(calls("a"), "done", tools=[echo()])
    store = Path(os.environ["OPENRATH_HOME"]) / "sessions"
    out.save(path=store / "alone.jsonl")
    model = ScriptedClient([calls("a"), "in a file"]).provider
    run_session_loop(
        out,
        PROMPT,
        agent_provider=model,
        tools=[echo()],
        system_tools=False,
        persist_path=store / "run.jsonl",
    ).synchronize()


SCENARIOS: dict[str, dict[str, Steps]] = {
    "outcomes": {
        "plain": (_plain,),
        "limits": (_limits,),
        "deadline": (_deadline,),
        "cancelled": (_cancelled,),
        "failed": (_failed,),
        "finishes": (_finishes,),
    },
    "approvals": {
        "approvals": (_approvals,),
        "rules": (_rules,),
        "later": (
            _approve_later,
            lambda: recalled().approve("a", by="another process"),
            lambda: recalled().deny("b", "no"),
            lambda: settled(agent("one of two", tools=[guarded()]).resume(recalled())),
        ),
        "left": (_approve_later, lambda: recalled().edit("b", {"n": 4})),
        "questions": (_questions,),
        "inside": (_waiting_inside,),
    },
    "helpers": {"nested": (_helpers,), "side-by-side": (_helpers_side_by_side,)},
    "hooks": {"changes": (_hooks,), "broken": (_broken_hooks,)},
    "typed": {"tool": (_typed_tool,), "schema": (_typed_schema,)},
    "derived": {
        "compress": (_compressed,),
        "select": (_selected,),
        "recall": (_recalled,),
        "branches": (_branches,),
        "late": (_late, _late_again, lambda: recalled().fork().synchronize()),
    },
    "files": {"tools": (_file_tools,), "merged": (_merged_files,), "family": (_family,)},
    "contents": {
        "images": (_images,),
        "images-openai": (_images_on("openai"),),
        "images-anthropic": (_images_on("anthropic"),),
        "big": (_big,),
        "odd-tools": (_odd_tools,),
        "server-tools": (_server_tools,),
    },
    "providers": {
        "streams": (_streams,),
        "wires": (_wires,),
        "fallbacks": (_fallbacks,),
        "prices": (_priced_calls,),
    },
    "programs": {
        "team": (_team,),
        "team-failed": (_team_fails,),
        "team-resumed": (_team_fails, _team_resumes),
        "team-crashed": (_team_crashes,),
        "team-crashed-resumed": (_team_crashes, _team_resumes),
    },
    "programs-large": {
        "crash-program": (_crash_program,),
        "told": (_told,),
        "told-program": (_told_program,),
    },
    "resumed": {
        "in-model": (_crash_in_model, _go_on("here again")),
        "in-model-open": (_crash_in_model,),
        "in-tool": (_crash_in_tool, _go_on("decided", tools=[_fatal()])),
        "in-tool-open": (_crash_in_tool,),
        "in-tool-retry": (_crash_in_tool, _decide("retry"), _go_on("again", tools=[_fatal()])),
        "in-tool-skip": (_crash_in_tool, _decide("skip")),
        "in-stream": (_crash_in_stream,),
        "in-stream-resumed": (_crash_in_stream, _go_on("short now")),
        "three-times": (
            _crash_in_model,
            _go_on(RuntimeError("gone")),
            _go_on(calls("b"), end_process),
            _go_on(calls("c"), RuntimeError("gone again")),
            _go_on("at last"),
        ),
        "crashed-again": (_crash_in_tool, _go_on(calls("y"), end_process, tools=[_fatal()])),
    },
    "paths": {"paths": (_paths,)},
    "postgres": {
        "plain": (_plain,),
        "limits": (_limits,),
        "approvals": (_approvals,),
        "questions": (_questions,),
        "branches": (_branches,),
        "files": (_merged_files,),
        "big": (_big,),
        "crash": (_crash_in_tool,),
        "resumed": (_crash_in_model, _go_on("here again")),
        "team": (_team,),
    },
}
"""By group and name: the steps of a program that fills a store."""


def main(group: str, name: str, number: str) -> None:
    """Run one step of a scenario."""
    open_store()  # A store that cannot be named fails here, before a run is begun.
    SCENARIOS[group][name][int(number)]()


if __name__ == "__main__":
    main(*sys.argv[1:])
