"""What belongs to a workflow, how it is shown, and what a call accepts."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath import flow
from rath.session import Session
from rath.session.record import Operation

PARTS: dict[str, Any] = {
    "agent": flow.AgentParam(Session.from_agent_prompt("p"), flow.Provider(model="m")),
    "child": flow.EmptyWorkflow(),
    "other": 3,
}

names = st.sampled_from(["a", "b", "c"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), names, st.sampled_from(list(PARTS))),
        st.tuples(st.just("delete"), names, st.just("")),
    )
)


class Bare(flow.Workflow):
    """Has no `super().__init__()`, as in the README."""

    def __init__(self, **parts: object) -> None:
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, session: Session) -> Session:
        return session


def user() -> Session:
    return Session.from_user_message("hi")


@given(steps)
def test_the_parts_are_what_the_attributes_hold_now(steps: list[tuple[str, str, str]]) -> None:
    workflow, model = Bare(), dict[str, str]()
    for step, name, part in steps:
        if step == "set":
            setattr(workflow, name, PARTS[part])
            model[name] = part
        elif name in model:
            delattr(workflow, name)
            del model[name]
    expected = sorted(model.items())
    assert workflow.named_agents() == tuple(
        (name, PARTS[part]) for name, part in expected if part == "agent"
    )
    assert workflow.named_children() == tuple(
        (name, PARTS[part]) for name, part in expected if part == "child"
    )


def test_modules_come_in_pre_order_sorted_by_name() -> None:
    inner = Bare(z=flow.EmptyWorkflow(), y=flow.EmptyWorkflow())
    last = flow.EmptyWorkflow()
    outer = Bare(b=last, a=inner)
    assert outer.modules() == [outer, inner, inner.y, inner.z, last]  # type: ignore[attr-defined]  # set by name


def test_a_shared_child_is_one_module() -> None:
    shared = flow.EmptyWorkflow()
    workflow = Bare(a=shared, b=shared, c=Bare(d=shared))
    assert workflow.modules().count(shared) == 1


def test_a_circle_ends() -> None:
    workflow = Bare()
    workflow.itself = Bare(back=workflow)  # type: ignore[attr-defined]  # set by name
    assert len(workflow.modules()) == 2
    assert "..." in repr(workflow)


def test_items_of_containers_have_dotted_paths() -> None:
    workflow = Bare(steps=flow.WorkflowList([Bare(x=flow.EmptyWorkflow())]))
    assert [path for path, _ in workflow.named_modules()] == ["", "steps", "steps.0", "steps.0.x"]


@pytest.mark.parametrize(
    ("held", "instead"),
    [
        pytest.param([flow.EmptyWorkflow()], "WorkflowList", id="list"),
        pytest.param((flow.EmptyWorkflow(),), "WorkflowList", id="tuple"),
        pytest.param({"a": flow.EmptyWorkflow()}, "WorkflowDict", id="dict"),
    ],
)
def test_a_plain_collection_of_workflows_is_named_in_a_hint(
    held: object, instead: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="rath.flow.workflow"):
        Bare(steps=held).to(model="m")
    assert "Bare.steps" in caplog.text
    assert instead in caplog.text


def test_a_plain_list_of_known_children_needs_no_hint(caplog: pytest.LogCaptureFixture) -> None:
    child = flow.EmptyWorkflow()
    Bare(child=child, order=[child], words=["x"], steps=flow.WorkflowList([child])).modules()
    assert [each for each in caplog.records if each.name == "rath.flow.workflow"] == []


def test_to_reaches_every_descendant() -> None:
    def agent() -> flow.Agent:
        return flow.Agent("p", model="old")

    deep, listed, kept = agent(), agent(), agent()
    workflow = Bare(
        a=Bare(b=Bare(c=deep)),
        steps=flow.WorkflowList([listed]),
        table=flow.WorkflowDict({"k": kept}),
    )
    assert workflow.to(model="new") is workflow
    assert [each.agent.provider.model for each in (deep, listed, kept)] == ["new"] * 3


def test_to_without_agents_does_nothing() -> None:
    workflow = Bare()
    assert workflow.to() is workflow


def test_to_reports_what_is_wrong_with_its_arguments() -> None:
    workflow = Bare(a=flow.Agent("p", model="m"))
    provider = flow.Provider(model="m")
    with pytest.raises(TypeError, match="expected a Provider"):
        workflow.to("openai")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ValueError, match="not both"):
        workflow.to(provider, provider="name")
    with pytest.raises(ValueError, match="no provider given"):
        workflow.to()


def test_repr_is_a_tree() -> None:
    class Outer(flow.Workflow):
        def __init__(self) -> None:
            self.one = flow.EmptyWorkflow()
            self.agent = flow.Agent("x", model="m")

    outer = Outer()
    short = str(outer.agent.agent.agent_session.id).partition("-")[0]
    assert (
        repr(outer)
        == f"""Outer(
  (agent): Agent(
    (agent): AgentParam(
      (agent_session): Session(id={short},
        chunks=[
          [0] system: 'x'
        ],
        operator='implicit',
      )
      (provider): m
    )
  )
  (one): EmptyWorkflow()
)"""
    )


def test_extra_repr_is_shown() -> None:
    class Layer(Bare):
        def extra_repr(self) -> str:
            return "width=3"

    assert repr(Layer()) == "Layer(width=3)"
    assert repr(Layer(a=flow.EmptyWorkflow())) == "Layer(\n  width=3\n  (a): EmptyWorkflow()\n)"


def test_a_description_may_be_a_class_attribute() -> None:
    class Triage(flow.Workflow):
        description = "sorts requests"

    assert Triage().description == "sorts requests"
    assert Triage("other").description == "other"
    assert Bare().description == ""


def test_a_call_takes_a_session() -> None:
    with pytest.raises(TypeError, match=r"Bare takes a Session, got str; .*from_user_message"):
        Bare()("hi")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(TypeError):
        Bare()(user(), user())  # type: ignore[call-arg]  # wrong on purpose


def test_a_base_workflow_has_no_forward() -> None:
    with pytest.raises(NotImplementedError, match="Workflow has no forward"):
        flow.Workflow()(user())


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        pytest.param(None, "is a return missing", id="none"),
        pytest.param(flow.EmptyWorkflow(), r"\.forward\(session, \*workflows\)", id="workflow"),
    ],
)
def test_forward_must_return_a_session(returned: Any, message: str) -> None:
    class Wrong(flow.Workflow):
        def forward(self, session: Session) -> Session:
            return returned  # type: ignore[no-any-return]  # wrong on purpose

    with pytest.raises(TypeError, match=message):
        Wrong()(user())


def test_an_async_forward_is_refused() -> None:
    class Wrong(flow.Workflow):
        async def forward(self, session: Session) -> Session:  # type: ignore[override]  # wrong on purpose
            return session

    with pytest.raises(TypeError, match="async def"):
        Wrong()(user())


def test_the_record_names_the_path_of_an_operation() -> None:
    class Step(flow.Workflow):
        def forward(self, session: Session) -> Session:
            return session.fork()

    class Team(flow.Workflow):
        def __init__(self) -> None:
            self.first = Step()
            self.steps = flow.WorkflowList([Step()])

        def forward(self, session: Session) -> Session:
            session = self.first(session)
            session = self.steps[0](self.first(session))
            return Step()(session).fork()

    out = Team()(user())
    places = [entry.place for entry in out.record if isinstance(entry, Operation)]
    assert [(place.path, place.ordinal) for place in places] == [
        ("Team.first", 0),
        ("Team.first", 1),
        ("Team.steps.0", 0),
        ("Team.Step", 0),
        ("Team", 0),
    ]
