"""Hooks around `forward`: in which order, how they are taken out, and what is told of them."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rath
from rath import flow
from rath.flow.hooks import HookHandle, hooks_of
from rath.session import Session
from rath.session.hooks import ModelTurn
from rath.session.record import Change
from rath.testing import ScriptedClient
from tests.support.api import PassedOn, note_output
from tests.support.hooks import noting
from tests.support.waiting import PATIENCE

PLACES = st.sampled_from(["pre", "post"])


class Bare(flow.Workflow):
    """Has no `super().__init__()`, as in the README."""

    def __init__(self, seen: list[str] | None = None) -> None:
        self.seen = [] if seen is None else seen

    def forward(self, session: Session) -> Session:
        self.seen.append(str(said(session)))
        return session


@dataclass(frozen=True)
class Frozen(flow.Workflow):
    """A module whose attributes cannot be assigned."""

    name: str = "f"

    def forward(self, session: Session) -> Session:
        return session


def said(session: Session) -> Any:
    return session.chunk_table[-1].payload["content"]


def saying(text: str) -> Session:
    return Session.from_user_message(text)


def marking(mark: str) -> Callable[..., Session]:
    """Return a hook, before or after, that adds to the text of the last session it is given."""

    def hook(_: flow.Workflow, *sessions: Session) -> Session:
        return saying(f"{said(sessions[-1])}{mark}")

    return hook


def keep(_: flow.Workflow, *sessions: Session) -> None:
    """Leave a session as it is; a hook that pickles."""


def pickled(module: flow.Workflow) -> Any:
    return pickle.loads(pickle.dumps(module))


def changes(session: Session) -> list[tuple[str, str]]:
    return [(one.what, one.hook) for one in session.record if isinstance(one, Change)]


def agent(*answers: str) -> flow.Agent:
    return flow.Agent("p", ScriptedClient(answers).provider, system_tools=False)


@given(
    st.lists(st.tuples(PLACES, st.sampled_from("abc"), st.booleans(), st.booleans()), max_size=8)
)
def test_hooks_are_asked_in_order_each_with_what_the_one_before_gave(
    steps: list[tuple[str, str, bool, bool]],
) -> None:
    module, before, after = Bare(), "x", ""
    for place, mark, is_removed, is_quiet in steps:
        hook = keep if is_quiet else marking(mark)
        is_pre = place == "pre"
        handle = (
            module.register_forward_pre_hook(hook) if is_pre else module.register_forward_hook(hook)
        )
        if is_removed:
            handle.remove()
        elif not is_quiet and is_pre:
            before += mark
        elif not is_quiet:
            after += mark
    assert said(module(saying("x"))) == before + after
    assert module.seen == [before]


def test_a_forward_hook_sees_module_input_and_output() -> None:
    module, seen = Bare(), list[Sequence[object]]()
    module.register_forward_pre_hook(marking("!"))
    module.register_forward_hook(noting(seen))
    out = module(saying("x"))
    assert [(one[0], said(one[1]), one[2]) for one in seen] == [(module, "x!", out)]  # type: ignore[arg-type]  # a session


def test_the_same_function_registered_twice_is_asked_twice_and_taken_out_once() -> None:
    module, hook = Bare(), marking("1")
    handle = module.register_forward_pre_hook(hook)
    module.register_forward_pre_hook(hook)
    handle.remove()
    handle.remove()
    assert said(module(saying("x"))) == "x1"


def test_a_handle_takes_its_hook_out_at_the_end_of_a_block() -> None:
    module = Bare()
    with module.register_forward_hook(marking("1")) as handle:
        assert isinstance(handle, HookHandle)
        assert said(module(saying("x"))) == "x1"
    assert said(module(saying("x"))) == "x"


def test_a_handle_outlives_its_module() -> None:
    handle = Bare().register_forward_hook(keep)
    handle.remove()


def test_a_hook_may_take_itself_out_while_it_is_asked() -> None:
    module, seen = Bare(), list[str]()

    def once(_: object, session: Session) -> None:
        seen.append(str(said(session)))
        handle.remove()

    handle = module.register_forward_pre_hook(once)
    module.register_forward_pre_hook(marking("2"))
    assert said(module(module(saying("x")))) == "x22"
    assert seen == ["x"]


def test_hooks_are_no_parts_and_change_nothing_that_is_displayed() -> None:
    module, plain = Bare(), Bare()
    module.register_forward_pre_hook(keep)
    assert module.named_children() == plain.named_children() == ()
    assert module.modules() == [module]
    assert repr(module) == repr(plain)


def test_a_frozen_module_takes_hooks() -> None:
    module = Frozen()
    module.register_forward_pre_hook(marking("1"))
    assert said(module(saying("x"))) == "x1"
    assert module == Frozen()


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, pickled],
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_copy_has_the_hooks_and_goes_its_own_way(
    duplicate: Callable[[flow.Workflow], flow.Workflow],
) -> None:
    module = Bare()
    handle = module.register_forward_pre_hook(keep)
    other = duplicate(module)
    assert [hook.call for hook in hooks_of(other).forward_pre] == [keep]
    handle.remove()
    other.register_forward_hook(keep)
    assert (len(hooks_of(other).forward_pre), len(hooks_of(other).forward)) == (1, 1)
    assert hooks_of(module).forward_pre == hooks_of(module).forward == ()


def test_a_deep_copy_of_an_agent_has_its_hooks_and_goes_its_own_way() -> None:
    agent = flow.Agent("x", ScriptedClient(["y"]).provider)
    handle = agent.register_forward_hook(marking("1"))
    other = copy.deepcopy(agent)
    handle.remove()
    other.to(model="another")
    assert (len(hooks_of(agent).forward), len(hooks_of(other).forward)) == (0, 1)
    assert agent.agent.provider.model != other.agent.provider.model == "another"


def test_a_module_without_hooks_has_no_attribute_for_them() -> None:
    assert vars(Bare()) == {"seen": []}
    assert pickle.loads(pickle.dumps(Bare())).seen == []


async def coroutine(*_: object) -> None: ...


class Callee:
    async def __call__(self, *_: object) -> None: ...


@pytest.mark.parametrize("hook", [coroutine, Callee(), partial(coroutine, 1)])
def test_a_hook_that_would_have_to_be_awaited_is_refused(hook: Any) -> None:
    with pytest.raises(TypeError, match=r"`async def`: a call returns at once"):
        Bare().register_forward_pre_hook(hook)
    with pytest.raises(TypeError, match=r"`async def`: a call returns at once"):
        Bare().register_forward_hook(hook)


def test_a_function_that_gives_a_coroutine_is_refused_when_it_does() -> None:
    module = Bare()
    module.register_forward_pre_hook(lambda *_: coroutine())  # type: ignore[arg-type]  # what is tested
    with pytest.raises(TypeError, match="gave a coroutine"):
        module(saying("x"))


@pytest.mark.parametrize("hook", [None, "print", 3])
def test_what_cannot_be_called_is_refused(hook: Any) -> None:
    with pytest.raises(TypeError, match="register_forward_hook takes functions, not"):
        Bare().register_forward_hook(hook)


def test_a_hook_that_gives_no_session_is_named() -> None:
    module = Bare()
    module.register_forward_hook(lambda *_: "text")  # type: ignore[arg-type]  # what is tested
    with pytest.raises(TypeError, match=r"test_hooks:.*<lambda> returned str, expected a Session"):
        module(saying("x"))


def test_what_a_hook_raises_ends_the_call_and_names_the_hook() -> None:
    def bad(*_: object) -> None:
        raise LookupError("no")

    module = Bare()
    module.register_forward_pre_hook(bad)
    with pytest.raises(LookupError, match="no") as caught:
        module(saying("x"))
    assert caught.value.__notes__ == [f"in the hook {__name__}:{bad.__qualname__}"]
    assert module.seen == []


def test_hooks_of_modules_inside_are_asked_too() -> None:
    inner = Bare()
    inner.register_forward_hook(marking("i"))
    outer = flow.Sequential(inner, Bare())
    outer.register_forward_pre_hook(marking("o"))
    assert said(outer(saying("x"))) == "xoi"


def test_a_forward_hook_does_not_wait_for_a_run() -> None:
    go = threading.Event()

    def answer(_: object) -> str:
        go.wait(PATIENCE)
        return "done"

    module, pending = flow.Agent("p", ScriptedClient([answer]).provider), list[bool]()
    module.register_forward_hook(lambda _, __, out: pending.append(out.is_pending))
    out = module(saying("x"))
    go.set()
    assert (pending, out.text()) == ([True], "done")


def test_the_run_says_by_which_hooks_it_got_its_session() -> None:
    module = agent("hello")
    first, second = marking("1"), marking("2")
    module.register_forward_pre_hook(first)
    module.register_forward_pre_hook(keep)
    module.register_forward_pre_hook(second)
    given_one = saying("x")
    out = module(given_one)
    found = [one for one in out.synchronize().record if isinstance(one, Change)]
    assert [one.what for one in found] == ["input", "input"]
    assert found[0].before.data == str(given_one.id).encode()
    assert found[0].after.data == found[1].before.data
    assert found[1].after.data == str(out.parent_session_ids[0]).encode()


def test_runs_inside_a_workflow_say_by_which_hook_it_got_its_session() -> None:
    outer = flow.Sequential(agent("hello"), agent("bye"))
    outer.register_forward_pre_hook(marking("!"))
    out = outer(saying("x"))
    assert [what for what, _ in changes(out)] == ["input"]
    assert said(out) == "bye"


def test_a_compression_says_by_which_hook_it_got_its_session() -> None:
    module = flow.Compressor("Be short.", ScriptedClient(["short"]).provider)
    module.register_forward_pre_hook(marking("!"))
    out = module(saying("x"))
    assert [what for what, _ in changes(out)] == ["input"]
    assert changes(out.replay()) == changes(out)


def test_a_session_that_is_pending_is_displayed_as_it_is() -> None:
    first, second, seen = agent("hello"), agent("bye"), list[Any]()
    second.register_forward_pre_hook(noting(seen))
    assert second(first(saying("x"))).text() == "bye"
    assert len(seen) == 1


def test_a_session_that_failed_is_displayed_too() -> None:
    failed, seen, asked = agent()(saying("x")), list[Session](), agent("hello")
    with pytest.raises(Exception, match="script"):
        failed.synchronize()
    asked.register_forward_pre_hook(lambda _, session: seen.append(session))
    with pytest.raises(Exception, match="script"):
        asked(failed).synchronize()
    assert seen == [failed]


def test_a_run_of_another_session_says_nothing_of_the_hook() -> None:
    class Other(flow.Workflow):
        def __init__(self) -> None:
            self.agent = agent("hello")

        def forward(self, session: Session) -> Session:
            return self.agent(saying("mine"))

    module = Other()
    module.register_forward_pre_hook(marking("!"))
    assert changes(module(saying("x"))) == []


def test_a_session_that_stands_for_another_one_says_so() -> None:
    module = agent("hello")
    module.register_forward_hook(lambda _, __, out: saying(f"not {out.text()}"))
    out = module(saying("x"))
    assert said(out) == "not hello"
    assert [what for what, _ in changes(out)] == ["output"]


def test_a_session_that_is_derived_names_its_hook_and_its_parent() -> None:
    module = agent("hello")
    module.register_forward_hook(lambda _, __, out: out.synchronize().fork())
    out = module(saying("x"))
    out.save()
    loaded = Session.load(out.id)
    assert changes(loaded) == changes(out) != []
    assert loaded.lineage_operator == "Session.fork"


def agent_held_up(until: threading.Event) -> flow.Agent:
    """Return an agent whose answer counts only when somebody lets it."""

    def hold(_: flow.Agent, __: ModelTurn) -> None:
        assert until.wait(PATIENCE)

    held = agent("polished")
    held.register_model_hook(hold)
    return held


@pytest.mark.parametrize("is_made", [False, True])
def test_a_session_that_is_still_made_names_its_hook_as_one_that_is_made(is_made: bool) -> None:
    go_on, module = threading.Event(), agent("hello")
    second = agent_held_up(go_on)

    def hook(_: flow.Workflow, __: Session, out: Session) -> Session:
        return second(out).synchronize() if is_made else second(out)

    if is_made:
        go_on.set()
    module.register_forward_hook(hook)
    out = module(saying("x"))
    assert out.is_pending is not is_made
    branch = out.fork()
    go_on.set()
    assert (out.text(), [what for what, _ in changes(out)]) == ("polished", ["output"])
    assert changes(branch) == changes(out)


def test_what_a_hook_gave_is_stored_with_a_session_that_was_still_made() -> None:
    go_on, module = threading.Event(), agent("hello")
    second = agent_held_up(go_on)
    module.register_forward_hook(lambda _, __, out: second(out))
    with rath.autosave():
        out = module(saying("x"))
        assert out.is_pending
        go_on.set()
        out.synchronize()
    out.save()
    assert changes(Session.load(out.id)) == changes(out) != []


def test_each_hook_in_a_chain_is_named() -> None:
    module = agent("hello")
    module.register_forward_hook(marking("!"))
    module.register_forward_hook(marking("?"))
    out = module(saying("x"))
    assert (said(out), len(changes(out))) == ("hello!?", 2)


@pytest.mark.parametrize("is_made", [False, True])
def test_a_hook_that_gives_the_same_session_again_is_named_once(is_made: bool) -> None:
    go_on, first = threading.Event(), saying("x")
    out = agent_held_up(go_on)(first)
    if is_made:
        go_on.set()
        out.synchronize()
    for _ in range(2):
        note_output(out, [PassedOn("m:hook", first.id, out.id)])
    go_on.set()
    assert changes(out) == [("output", "m:hook")]


def test_a_session_that_failed_gets_no_entry() -> None:
    failed = agent()(saying("x"))
    with pytest.raises(Exception, match="script"):
        failed.synchronize()
    note_output(failed, [PassedOn("h", uuid4(), failed.id)])
    assert not any(isinstance(one, Change) for one in failed.partial_record)


def test_hooks_are_registered_and_taken_out_from_many_threads() -> None:
    module = Bare()

    def work() -> None:
        for _ in range(50):
            with module.register_forward_hook(keep):
                module.modules()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hooks_of(module).forward == ()
