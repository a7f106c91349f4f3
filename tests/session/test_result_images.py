"""Images in results of tools, from what a tool returns to the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import rath
from rath.flow import Compressor
from rath.llm.image import Image
from rath.session import (
    ChunkTable,
    Session,
    chunk_table_to_messages,
    format_chunk_row_brief,
    tool_feedback_chunk,
)
from rath.session.provider_builtin import DefaultSessionLoopExecutor
from rath.session.tooling import Tool
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.api import preview, texts_of
from tests.support.cut_off import cut_off
from tests.support.result_images import (
    CAMERA,
    CAT,
    CHECKS,
    CLOCK,
    DOG,
    KINDS,
    asked,
    digests,
    never,
    program,
    scripted,
    shown_in,
)
from tests.support.sessions import AsyncFunctionTool, FunctionTool, run


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_names_the_images_and_holds_their_bytes(kind: str) -> None:
    out, _, _ = asked(kind)
    row = out.chunk_table[2]
    assert row.payload["content"] == json.dumps(["a cat", CAT.label, {"and": DOG.label}])
    assert [each["sha256"] for each in row.payload["images"]] == [
        CAT.blob.digest, DOG.blob.digest,
    ]  # fmt: skip
    assert row.images == (CAT, DOG)
    assert dict(out.chunk_table[3].payload) == {
        "tool_call_id": "c2", "name": "clock", "content": '"noon"',
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_endpoint_gets_breaks_no_rule_and_is_what_the_record_says(kind: str) -> None:
    out, _, bodies = asked(kind)
    for body in bodies:
        CHECKS[kind](body)
    assert digests(out) == [sha256(body).hexdigest() for body in bodies]


def test_openai_reads_the_results_and_then_sees_the_images() -> None:
    _, _, (_, body) = asked("openai")
    said = json.loads(body)["messages"]
    assert [each["role"] for each in said] == [
        "system", "user", "assistant", "tool", "tool", "user",
    ]  # fmt: skip
    captions = [part["text"] for part in said[-1]["content"][::2]]
    assert captions == [
        f"Image {number} of 2 in the result of call 'c1' of tool 'camera': {image.label}"
        for number, image in enumerate((CAT, DOG), start=1)
    ]
    assert [part["image_url"]["url"] for part in said[-1]["content"][1::2]] == [
        CAT.to_data_url(), DOG.to_data_url(),
    ]  # fmt: skip


def test_anthropic_sees_the_images_in_the_result() -> None:
    _, _, (_, body) = asked("anthropic")
    first, second = json.loads(body)["messages"][-1]["content"]
    assert [part["type"] for part in first["content"]] == ["text", "text", "image", "text", "image"]
    assert second["content"] == '"noon"'


def test_a_client_of_others_gets_them_from_the_user() -> None:
    client = ScriptedClient([tool_call("camera", {}, id="c1"), "a cat"])
    run([], CAMERA, agent_provider=client.provider).synchronize()
    *before, last = client.requests[1].messages
    assert (last.role, last.images) == ("user", (CAT, DOG))
    assert "call 'c1' of tool 'camera'" in (last.content or "")
    assert all(message.images is None for message in before)


@pytest.mark.parametrize("kind", KINDS)
def test_its_program_replays_without_server_and_tools_are_not_run(kind: str) -> None:
    out, provider, _ = asked(kind)
    with rath.replay(out):
        assert program(provider).chunk_table == out.chunk_table


def test_a_result_outlives_a_crash_with_its_images() -> None:
    calls = tool_call("camera", {}, tool_call("clock", {}, id="c2"), id="c1")
    whole = scripted(calls, "a cat")
    cut = cut_off(whole, 0, begun=[0, 1], known=[0, 1])
    out = run(["a cat"], FunctionTool("camera", never), FunctionTool("clock", never), user=cut)
    assert out.chunk_table == whole.chunk_table
    assert shown_in(out) == [CAT.blob.data, DOG.blob.data]


async def take_a_picture(*_: object) -> Image:
    return CAT


class Taking(DefaultSessionLoopExecutor):
    """An executor whose calls of tools all give a picture."""

    def dispatch_tool(self, session: Session, tool: Tool, arguments: Mapping[str, Any]) -> Any:
        return CAT


@pytest.mark.parametrize("how", ["async", "executor"])
def test_whoever_makes_the_call_may_give_an_image(how: str) -> None:
    turns: list[Turn] = [tool_call("f", {}), "ok"]
    if how == "async":
        out = run(turns, AsyncFunctionTool("f", take_a_picture))
    else:
        taking = Taking(ScriptedClient(turns))
        out = run([], FunctionTool("f", never), executor=taking)
    assert shown_in(out) == [CAT.blob.data]


def test_a_fork_a_merge_and_a_branch_show_the_same(tmp_path: Path) -> None:
    out = scripted()
    for made in (out.fork(), out.detach(), out.merge(Session.from_user_message("more"))):
        assert shown_in(made) == [CAT.blob.data, DOG.blob.data]


def test_a_result_that_is_given_to_a_replay_may_be_an_image() -> None:
    out = scripted(tool_call("camera", {}, tool_call("camera", {}, id="c2"), id="c1"), "two")
    client = ScriptedClient(["a dog"])
    branch = out.replay(tool_results={"c1": DOG}, provider=client.provider, tools=[CAMERA, CLOCK])
    assert branch.text() == "a dog"
    assert shown_in(branch) == [each.blob.data for each in (DOG, CAT, DOG)]


def test_a_compression_sees_the_images() -> None:
    client = ScriptedClient(["short"])
    out = Compressor("Make it short.", client.provider)(scripted()).synchronize()
    assert [each.images for each in client.requests[0].messages if each.images] == [(CAT, DOG)]
    assert shown_in(out) == []


def test_where_a_row_is_shown_an_image_is_its_label() -> None:
    row = tool_feedback_chunk("c1", "camera", "look", images=[CAT])
    assert f"{CAT.label} name='camera'" in format_chunk_row_brief(0, row)
    assert f"{CAT.label} name='camera'" in repr(Session(ChunkTable([row])))
    assert preview(row, 80) == f"camera: {CAT.label} look"
    assert list(texts_of(row)) == ["look", f"{CAT.label} look"]
    (message,) = chunk_table_to_messages(ChunkTable([row]))
    assert (message.role, message.images) == ("tool", (CAT,))


def test_a_row_without_images_says_what_it_always_said() -> None:
    row = tool_feedback_chunk("c1", "f", "1", images=None)
    assert row == tool_feedback_chunk("c1", "f", "1")
    assert dict(row.payload) == {"tool_call_id": "c1", "name": "f", "content": "1"}
    said = b'["tool_result", {"content": "1", "name": "f", "tool_call_id": "c1"}]'
    assert row.digest == sha256(said).digest()
