"""Containers of workflows, compressors and selectors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath import flow
from rath.llm import RathLLMStreamDelta
from rath.session import ChunkKind, LineageKind, Session
from rath.session.record import ModelCall
from rath.testing import ScriptedClient, Turn

POOL = tuple(flow.EmptyWorkflow() for _ in range(4))

items = st.sampled_from(POOL)
indices = st.integers(-5, 5)
keys = st.sampled_from(["a", "b", "c"])
list_steps = st.one_of(
    st.tuples(st.just("append"), st.tuples(items)),
    st.tuples(st.just("extend"), st.tuples(st.lists(items, max_size=3))),
    st.tuples(st.just("insert"), st.tuples(indices, items)),
    st.tuples(st.just("pop"), st.one_of(st.just(()), st.tuples(indices))),
    st.tuples(st.just("remove"), st.tuples(items)),
    st.tuples(st.just("index"), st.tuples(items)),
    st.tuples(st.just("reverse"), st.just(())),
    st.tuples(st.just("__setitem__"), st.tuples(indices, items)),
    st.tuples(st.just("__setitem__"), st.tuples(st.slices(5), st.lists(items, max_size=3))),
    st.tuples(st.just("__delitem__"), st.tuples(st.one_of(indices, st.slices(5)))),
    st.tuples(st.just("__getitem__"), st.tuples(indices)),
)
dict_steps = st.one_of(
    st.tuples(st.just("__setitem__"), st.tuples(keys, items)),
    st.tuples(st.just("__delitem__"), st.tuples(keys)),
    st.tuples(st.just("__getitem__"), st.tuples(keys)),
    st.tuples(st.just("pop"), st.tuples(keys)),
    st.tuples(st.just("popitem"), st.just(())),
    st.tuples(st.just("setdefault"), st.tuples(keys, items)),
    st.tuples(st.just("update"), st.tuples(st.dictionaries(keys, items))),
    st.tuples(st.just("clear"), st.just(())),
)


def outcome(target: object, method: str, arguments: tuple[Any, ...]) -> object:
    """What a call returned, or the type of what it raised."""
    try:
        return getattr(target, method)(*arguments)
    except (IndexError, KeyError, ValueError) as exc:
        return type(exc)


@given(st.lists(items, max_size=4), st.lists(list_steps, max_size=20))
def test_a_workflow_list_is_a_list(start: list[flow.Workflow], steps: list[Any]) -> None:
    model, held = list(start), flow.WorkflowList(start)
    for method, arguments in steps:
        assert outcome(held, method, arguments) == outcome(model, method, arguments)
        assert list(held) == model
    assert held.named_children() == tuple((str(i), each) for i, each in enumerate(model))


@given(st.lists(dict_steps, max_size=20))
def test_a_workflow_dict_is_a_dict(steps: list[Any]) -> None:
    model: dict[str, flow.Workflow] = {}
    held = flow.WorkflowDict()
    for method, arguments in steps:
        assert outcome(held, method, arguments) == outcome(model, method, arguments)
        assert list(held.items()) == list(model.items())
    assert held.named_children() == tuple(model.items())


@pytest.mark.parametrize(
    "container", [flow.WorkflowList(POOL), flow.Sequential(*POOL)], ids=["list", "sequential"]
)
def test_a_slice_is_a_container_of_the_same_kind(container: flow.WorkflowList) -> None:
    part = container[1:3]
    assert type(part) is type(container)
    assert list(part) == list(POOL[1:3])


@pytest.mark.parametrize(
    "put",
    [
        pytest.param(lambda: flow.WorkflowList(["x"]), id="list"),  # type: ignore[list-item]  # wrong on purpose
        pytest.param(lambda: flow.WorkflowDict({"a": 1}), id="dict"),  # type: ignore[arg-type]  # wrong on purpose
        pytest.param(lambda: flow.Sequential(POOL), id="sequential"),  # type: ignore[arg-type]  # wrong on purpose
        pytest.param(lambda: flow.WorkflowDict({1: POOL[0]}), id="key"),  # type: ignore[arg-type]  # wrong on purpose
    ],
)
def test_only_named_workflows_can_be_held(put: Any) -> None:
    with pytest.raises(TypeError, match=r"workflow"):
        put()


def test_a_slice_takes_no_single_workflow() -> None:
    held = flow.WorkflowList(POOL)
    with pytest.raises(TypeError, match="a slice takes workflows"):
        held[0:1] = POOL[0]  # type: ignore[call-overload]  # wrong on purpose


def test_a_key_has_no_dot() -> None:
    with pytest.raises(ValueError, match="dot"):
        flow.WorkflowDict({"a.b": POOL[0]})


def test_containers_compare_by_identity() -> None:
    assert flow.WorkflowDict() != flow.WorkflowDict()
    assert len({flow.WorkflowDict(), flow.WorkflowDict(), flow.WorkflowList()}) == 3


@pytest.mark.parametrize("kind", [flow.WorkflowList, flow.WorkflowDict])
def test_a_container_without_order_is_not_called(kind: type[flow.Workflow]) -> None:
    with pytest.raises(NotImplementedError, match=r"flow\.Sequential"):
        kind()(Session.from_user_message("hi"))


def test_an_empty_chain_returns_the_session_itself() -> None:
    session = Session.from_user_message("hi")
    assert flow.Sequential()(session) is session


def test_a_chain_runs_its_items_in_order() -> None:
    seen: list[str] = []

    class Step(flow.Workflow):
        def forward(self, session: Session) -> Session:
            seen.append(self.description)
            return session.fork()

    session = Session.from_user_message("hi")
    out = flow.Sequential(*(Step(str(number)) for number in range(12)))(session)
    assert seen == [str(number) for number in range(12)]
    assert out.chunk_table == session.chunk_table


def user() -> Session:
    return Session.from_user_message("a long story")


def test_a_session_becomes_one_summary() -> None:
    out = flow.Compressor("Be short.", ScriptedClient(["short"]).provider)(user())
    assert [(row.kind, row.payload["content"]) for row in out.chunk_table] == [
        (ChunkKind.USER, "short")
    ]
    assert out.text() == "short"
    assert out.lineage_kind is LineageKind.OP_SESSION_COMPRESS


def test_the_instruction_stands_before_the_session() -> None:
    client = ScriptedClient(["short"])
    flow.Compressor("Be short.", client.provider)(user()).synchronize()
    first, second, *_ = client.requests[0].messages
    assert (first.role, first.content) == ("system", "Be short.")
    assert (second.role, second.content) == ("user", "a long story")


def test_it_accepts_a_pending_session() -> None:
    agent = flow.Agent("p", ScriptedClient(["an answer"]).provider)
    compressor = flow.Compressor("Be short.", ScriptedClient(["short"]).provider)
    assert compressor(agent(user())).text() == "short"


def test_events_are_streamed() -> None:
    events: list[RathLLMStreamDelta] = []
    provider = ScriptedClient(["a b"]).provider
    flow.Compressor("p", provider, on_event=events.append)(user()).synchronize()
    assert "".join(event.content_delta or "" for event in events) == "a b"


def test_to_changes_its_provider() -> None:
    compressor = flow.Compressor("p", flow.Provider(model="old"))
    assert compressor.to(model="new").agent.provider.model == "new"


class Named(flow.Workflow):
    """A workflow with a description of its own."""

    def forward(self, session: Session) -> Session:
        return session


FIRST, SECOND = Named("repairs"), Named("sells")


def caller() -> Session:
    return Session.from_user_message("My printer burns.")


def selector(*turns: Turn) -> tuple[flow.Selector, ScriptedClient]:
    client = ScriptedClient(turns)
    return flow.Selector(client.provider), client


@pytest.mark.parametrize(("answer", "chosen"), [("0", FIRST), ("Number 1.", SECOND)])
def test_the_model_chooses(answer: str, chosen: flow.Workflow) -> None:
    router, _ = selector(answer)
    assert router.forward(caller(), FIRST, SECOND) is chosen


@pytest.mark.parametrize("turns", [["-1"], ["none of them"], ["7", "perhaps"]])
def test_anything_else_is_the_end(turns: list[Turn]) -> None:
    router, _ = selector(*turns)
    assert isinstance(router.forward(caller(), FIRST, SECOND), flow.EmptyWorkflow)


def test_the_model_may_answer_with_the_name_that_it_was_displayed() -> None:
    router, _ = selector("sells", "Named")
    assert router.forward(caller(), FIRST, SECOND) is SECOND
    bare = Named()
    assert router.forward(caller(), FIRST, bare) is bare


def test_without_candidates_no_model_is_asked() -> None:
    router, client = selector()
    assert isinstance(router.forward(caller()), flow.EmptyWorkflow)
    assert client.requests == []


def test_the_model_reads_descriptions_or_class_names() -> None:
    router, client = selector("0")
    router.forward(caller(), FIRST, Named())
    menu = client.requests[0].messages[-1].content or ""
    assert "0: repairs" in menu
    assert "1: Named" in menu


def test_the_call_is_preserved_in_the_record_of_the_session() -> None:
    router, _ = selector("0")
    session = caller()
    router.forward(session, FIRST)
    calls = [entry for entry in session.record if isinstance(entry, ModelCall)]
    assert [call.purpose for call in calls] == ["select"]


def test_an_empty_workflow_returns_the_session_itself() -> None:
    session = caller()
    assert flow.EmptyWorkflow()(session) is session


def test_a_loop_ends_when_nothing_shall_run() -> None:
    router, client = selector("1", "0", "-1")
    session = caller()
    ran: list[flow.Workflow] = []
    while not isinstance(nxt := router.forward(session, FIRST, SECOND), flow.EmptyWorkflow):
        ran.append(nxt)
        session = nxt(session)
    assert ran == [SECOND, FIRST]
    assert client.n_left == 0


def test_a_selector_is_not_called_like_a_layer() -> None:
    router, _ = selector()
    with pytest.raises(TypeError):
        router(caller(), FIRST)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(TypeError, match=r"\.forward\(session, \*workflows\)"):
        router(caller())
