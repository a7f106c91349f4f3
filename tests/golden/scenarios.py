"""Programs that write new groups of the golden corpus, each as steps in processes of their own.

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
from rath.testing import FakeMemory, ScriptedClient, tool_call
from rath.testing.chat import Turn
from tests.support import chat_replies as openai
from tests.support.chat_server import ChatServer
from tests.support.images import picture
from tests.support.result_images import CAMERA, CLOCK
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


def _failed() -> None:
    question = user()
    for error in (
        errors.RateLimitError("slow down", status=429, retry_after=2.0),
        errors.StreamInterrupted("it broke off", partial_text="half an ans"),
        ValueError("two\nlines"),
    ):
        model = ScriptedClient([error]).provider
        settled(run_session_loop(question, PROMPT, agent_provider=model, system_tools=False))
    settled(agent("never")(say(calls("a"), RuntimeError("after a call"), tools=[echo()])))


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


def _typed() -> None:
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


# Contents.


def _images() -> None:
    say("a cat", text="look")
    settled(agent("two pictures")(user("see", images=[picture(b"one"), picture(mime="image/gif")])))
    say(tool_call("camera", {}, id="c1"), "a cat and a dog", tools=[CAMERA, CLOCK])


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


# Programs of many operations.


# Files of one session, and bundles.


# Jobs.


def _job(*turns: Turn, **options: Any) -> Step:
    def run() -> None:
        flow.map(agent(*turns), ["a", "b", "c"], job="nightly", concurrency=1, **options)

    return run


SCENARIOS: dict[str, dict[str, Steps]] = {
    "version-3": {
        "plain": (_plain,),
        "limits": (_limits,),
        "deadline": (_deadline,),
        "cancelled": (_cancelled,),
        "failed": (_failed,),
        "approvals": (_approvals,),
        "later": (
            _approve_later,
            lambda: recalled().approve("a", by="another process"),
            lambda: recalled().deny("b", "no"),
            lambda: settled(agent("one of two", tools=[guarded()]).resume(recalled())),
        ),
        "left": (_approve_later, lambda: recalled().edit("b", {"n": 4})),
        "questions": (_questions,),
        "inside": (_waiting_inside,),
        "hooks": (_hooks,),
        "typed": (_typed,),
        "compress": (_compressed,),
        "select": (_selected,),
        "recall": (_recalled,),
        "branches": (_branches,),
        "late": (_late, _late_again, lambda: recalled().fork().synchronize()),
        "file-tools": (_file_tools,),
        "merged": (_merged_files,),
        "images": (_images,),
        "odd-tools": (_odd_tools,),
        "streams": (_streams,),
        "in-model-open": (_crash_in_model,),
        "in-tool-open": (_crash_in_tool,),
        "in-tool-retry": (_crash_in_tool, _decide("retry"), _go_on("again", tools=[_fatal()])),
        "in-stream-resumed": (_crash_in_stream, _go_on("short now")),
        "three-times": (
            _crash_in_model,
            _go_on(RuntimeError("gone")),
            _go_on(calls("b"), end_process),
            _go_on("at last"),
        ),
    },
    "jobs-version-3": {
        "nightly": (
            _job("one", ValueError("no answer"), "two", retries=0),
            lambda: flow.map(agent("three"), ["a", "b", "c"], job="nightly").retry().synchronize(),
        ),
        "given-up": (_job("one", ValueError("no answer"), retries=0, on_error="raise"),),
    },
}
"""By group and name: the steps of a program that fills a store."""

CUT = ("left", "inside", "hooks", "late", "merged", "in-tool-retry", "in-stream-resumed")
"""The stores of which a log is cut off as well."""


def main(group: str, name: str, number: str) -> None:
    """Run one step of a scenario."""
    open_store()  # A store that cannot be named fails here, before a run is begun.
    SCENARIOS[group][name][int(number)]()


if __name__ == "__main__":
    main(*sys.argv[1:])
