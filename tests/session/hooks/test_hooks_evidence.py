"""What hooks changed, told from memory, from a store and from a bundle, by every question."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from rath._core.blobs import Blob
from rath.cli.app import app
from rath.cli.evidence import brief
from rath.flow import Agent, CallRequest, ModelTurn, ToolResultText
from rath.session import Session
from rath.session.log.verify import verify
from rath.session.persistence.bundle import import_bundle, pack, read_bundle, write_bundle
from rath.session.persistence.store import default_store, open_store
from rath.session.questions import blame, where_from
from rath.session.questions.encode import encode_answer
from rath.session.record import Change, ModelCall
from rath.session.view import write_page
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.api import sessions_of
from tests.support.hooked import always
from tests.support.sessions import FunctionTool


def before(_: Agent, call: CallRequest) -> CallRequest:
    return replace(call, arguments={"x": "quiet"})


def after(_: Agent, call: CallRequest, result: ToolResultText) -> ToolResultText:
    return replace(result, text=result.text.replace("secret", "hidden"))


def answer(_: Agent, turn: ModelTurn) -> ModelTurn:
    return replace(turn, text=turn.text and turn.text.replace("bob", "someone"))


def inward(_: Agent, session: Session) -> Session:
    return Session.from_user_message("tell me")


def outward(_: Agent, session: Session, output: Session) -> Session:
    return output.synchronize().fork()


NAMES = {one: f"{__name__}:{one.__name__}" for one in (before, after, answer, inward, outward)}


def guarded(*, persist: bool = False) -> Session:
    """A session in which each kind of hook has changed something."""
    script: list[Turn] = [tool_call("look", {"x": "loud"}, id="c"), "it was bob"]
    tool = FunctionTool("look", lambda *_: "a secret")
    agent = Agent("p", ScriptedClient(script).provider, [tool], system_tools=False, persist=persist)
    agent.register_forward_pre_hook(inward)
    agent.register_tool_hook(before, when="before")
    agent.register_tool_hook(after, when="after")
    agent.register_model_hook(answer)
    agent.register_forward_hook(outward)
    return agent(Session.from_user_message("tell bob"))


def changes(session: Session) -> list[Change]:
    return [one for one in session.record if isinstance(one, Change)]


def contents(session: Session) -> list[tuple[str, str, bytes | None, bytes | None]]:
    return [(one.what, one.hook, one.before.data, one.after.data) for one in changes(session)]


def test_each_change_is_in_the_record_with_both_contents() -> None:
    found = contents(guarded())
    assert [one[:2] for one in found] == [
        ("input", NAMES[inward]),
        ("arguments", NAMES[before]),
        ("result", NAMES[after]),
        ("answer", NAMES[answer]),
        ("output", NAMES[outward]),
    ]
    assert found[1][2:] == (b'{"x": "loud"}', b'{"x": "quiet"}')
    assert found[2][2:] == (b'"a secret"', b'"a hidden"')


@pytest.mark.parametrize("persist", [False, True], ids=["saved", "recorded"])
def test_a_stored_session_holds_them_too(persist: bool) -> None:
    out = guarded(persist=persist)
    out.save()
    loaded = Session.load(out.id)
    assert changes(loaded) == changes(out)
    assert contents(loaded) == contents(out)
    assert verify(default_store(), out.id).problems == ()
    assert loaded.replay().chunk_table == out.chunk_table


def test_a_change_stands_in_the_log_before_the_result_that_it_led_to() -> None:
    script: list[Turn] = [tool_call("look", {}, tool_call("look", {}, id="d"), id="c"), "end"]
    tool = FunctionTool("look", lambda *_: "a secret")
    agent = Agent("p", ScriptedClient(script).provider, [tool], system_tools=False, persist=True)
    agent.register_tool_hook(after, when="after")
    out = agent(Session.from_user_message("go")).synchronize()
    lines = [json.loads(line) for line in Path(out.save()).read_bytes().splitlines()]
    told = [line.get("event") for line in lines]
    since = told[told.index("intent") :]
    assert since[2:6] == ["change", "result", "change", "result"]


def test_a_bundle_holds_them_too(tmp_path: Path) -> None:
    out = guarded()
    out.save()
    write_bundle(pack(default_store(), [out.id]), tmp_path / "s.rath")
    other = open_store(str(tmp_path / "other"))
    import_bundle(read_bundle(tmp_path / "s.rath"), other)
    loaded = Session.load(out.id, store=other)
    assert contents(loaded) == contents(out)


def test_the_origin_of_a_row_names_the_hooks() -> None:
    out = guarded()
    answered = where_from(out)
    told = [[(one.what, one.hook) for one in row.changes] for row in answered.rows]
    assert told == [
        [],
        [],
        [("arguments", NAMES[before]), ("result", NAMES[after])],
        [("answer", NAMES[answer])],
    ]
    by_session = {each.operator: [one.what for one in each.changes] for each in answered.ancestors}
    assert by_session["run_session_loop"] == ["input"]
    assert by_session["Session.fork"] == ["output"]
    encoded = encode_answer(answered)
    assert encoded["rows"][3]["changes"][0]["hook"] == NAMES[answer]
    assert encoded["rows"][3]["changes"][0]["kind"] == "change"


def test_an_output_without_a_run_names_its_hook() -> None:
    agent = Agent("p", ScriptedClient(["x"]).provider, system_tools=False)
    agent.register_forward_hook(always(Session.from_user_message("instead")))
    answered = where_from(agent(Session.from_user_message("go")))
    assert [one.what for one in answered.ancestors[-1].changes] == ["output"]


def test_a_change_whose_contents_are_lost_is_told_as_far_as_it_goes() -> None:
    session = Session.from_user_message("x")
    lost = Blob.from_bytes(b"gone", keep=0)
    change = Change(operation=uuid4(), hook="m:h", what="output", before=lost, after=lost)
    session.add_entries(change)
    assert where_from(session).ancestors[-1].changes == ()
    assert sessions_of(change) == ("", "")


def test_blame_tells_which_hook_put_a_text_there_and_which_took_one_away() -> None:
    out = guarded()
    (hidden,) = blame(out, "hidden").appearances
    assert (hidden.place, hidden.by, hidden.hook) == ("row", "tool", NAMES[after])
    (secret,) = blame(out, "secret").appearances
    assert (secret.place, secret.hook) == ("replaced", NAMES[after])
    bob = [one.hook for one in blame(out, "bob").appearances]
    assert bob == [NAMES[answer]]
    (own,) = blame(out, "a hidden").appearances
    assert own.hook == NAMES[after]


def test_blame_of_a_text_that_the_model_wrote_names_no_hook() -> None:
    (found,) = blame(guarded(), "it was").appearances
    assert (found.by, found.hook) == ("model", "")
    assert isinstance(found.entry, ModelCall)


def command(*args: str) -> str:
    made = CliRunner().invoke(app, args, env={"COLUMNS": "200"})
    assert made.exit_code == 0, made.output
    return " ".join(made.output.split())


def test_the_commands_name_the_hooks() -> None:
    out = guarded()
    out.save()
    shown = command("show", str(out.id))
    for hook, what in ((before, "arguments of c"), (after, "result of c"), (answer, "answer")):
        assert f"hook {NAMES[hook]} changed the {what}" in shown
    origin = command("explain", str(out.id), "--origin")
    assert f"the hook {NAMES[after]} changed the result" in origin
    assert f"input: the hook {NAMES[inward]} gave" in origin
    assert f"output: the hook {NAMES[outward]} gave" in origin
    assert f"put there by the hook {NAMES[after]}" in command("blame", str(out.id), "hidden")
    taken = command("blame", str(out.id), "secret")
    assert f"taken out of the result of c by the hook {NAMES[after]}" in taken
    assert "taken out of the answer by the hook" in command("blame", str(out.id), "bob")


def test_a_change_is_told_on_one_line() -> None:
    told = [brief(one) for one in changes(guarded())]
    assert told[3] == f"hook {NAMES[answer]} changed the answer"


def test_the_explorer_has_the_changes(tmp_path: Path) -> None:
    out = guarded().synchronize()
    text = write_page(out, tmp_path / "page.html").read_text()
    assert text.count('"k":"change"') == 5
    assert NAMES[answer] in text
