"""The module of rath: a callable from session to session that contains agents and workflows."""

from __future__ import annotations

import contextvars
import inspect
import logging
import reprlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from textwrap import indent
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeGuard, cast
from uuid import UUID

from rath._core import html
from rath._core.lazy_imports import lazy_function
from rath._core.references import Reduction
from rath._core.text import one_line_preview
from rath.flow.agent_param import AgentParam
from rath.flow.compile import CompiledWorkflow
from rath.flow.hooks import HookHandle, ask_hooks, hooks_of, register
from rath.flow.tool.agent_tool import TaskTaking
from rath.flow.tool.base import refuse_secrets
from rath.llm import Provider
from rath.session import Session
from rath.session.bindings import WorkspaceMode
from rath.session.derive import keep_derivation
from rath.session.hooks import PassedOn, note_output, passing_on, waits
from rath.session.log.store import SessionStore
from rath.session.operation import is_inside_call, operation_scope
from rath.session.scope import CancelledRuns, ResumeSource, recorded_call, resuming_from

if TYPE_CHECKING:
    from rath.flow.parameters import IncompatibleKeys, Parameter

__all__ = ["Workflow"]

# They look at agents and tools, which a workflow comes before.
_parameters_of = lazy_function("rath.flow.parameters", "parameters_of")
_state_dict_of = lazy_function("rath.flow.parameters", "state_dict_of")
_load_state_dict = lazy_function("rath.flow.parameters", "load_state_dict")
_recorded_digest = lazy_function("rath.flow.parameters", "recorded_digest")

_log = logging.getLogger(__name__)

_running: contextvars.ContextVar[Workflow | None] = contextvars.ContextVar(
    "rath_running_workflow", default=None
)
"""The workflow whose `forward` runs; names of workflows called inside are relative to it."""


class Workflow(TaskTaking):
    """A composition of agents, other workflows and plain Python, from one session to another.

    Subclass it, assign agents and workflows as attributes, and implement `forward`. Whatever an
    attribute holds now is part of the workflow: replacing or deleting it takes the old part out,
    and `super().__init__()` is not needed.

    Args:
        description: What it is good for, read by a `Selector`; a class attribute does as well.
    """

    description: str = ""

    dynamic_reason: ClassVar[str | None] = None
    """Reason for which the next step is known at run time only; None for ordinary workflows."""

    def __init__(self, description: str = "") -> None:
        if description:
            self.description = description

    def forward(self, session: Session) -> Session:
        """Map one session to the next; subclasses implement it.

        The session may still be pending: agents accept it as it is, and reading it waits.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no forward(session); define one that returns a Session"
        )

    def __call__(self, session: Session, text: str | None = None) -> Session:
        """Run `forward` on a session and return its session, which may be pending.

        The hooks of the module are called around it, in the order in which they were registered.

        Args:
            session: With what it begins.
            text: What the user says next: it begins with `session.say(text)` then.

        Raises:
            TypeError: The argument, or what `forward` returned, is not a Session.
        """
        if not _is_session(session):
            raise TypeError(
                f"{type(self).__name__} takes a Session, got {type(session).__name__}; make one "
                "with Session.from_user_message(...)"
            )
        if text is not None:
            session = session.say(text)
        session, changes = self._passed_in(session)
        with passing_on(changes):
            return self._run(session)

    def run(
        self,
        session: Session,
        /,
        *,
        run: UUID | str,
        store: SessionStore | str | None = None,
        cancelled: CancelledRuns = "keep",
        workspace: WorkspaceMode = "require",
    ) -> Session:
        """Run the work of a key once, whoever asks for it and how often; return its session.

        The first call begins a run that is recorded in `store`. Each other call with this key, in
        any process that has the store, serves what is recorded, goes on with what was cut off,
        waits or failed, and makes what is missing: see `resume`. So whoever hands out work only
        has to hand it out at least once.

        Args:
            session: With what the run begins. A run that has begun takes the same rows only.
            run: The key. A text stands for the id that is a function of it.
            store: Where the run is stored, or the URL of that; by default the store of the home.
            cancelled: What becomes of runs in it that were cancelled, as in `resume`.
            workspace: What becomes of workspaces that are not there, as in `resume`.

        Raises:
            TypeError: The argument, or what `forward` returned, is not a Session.
            RuntimeError: It is called inside another call, which has a run of its own.
            ResumeMismatch: The run began with other rows, or `forward` does something else than
                what is recorded at the same place.
            SessionBusy: Somebody else does the work now; raised here, or when the session is read.
        """
        if not _is_session(session):
            raise TypeError(f"run takes a Session, got {type(session).__name__}")
        if is_inside_call():
            raise RuntimeError(
                f"{type(self).__name__}.run(...) was called inside of another call, whose run has "
                "what is made here; call the workflow itself there"
            )
        # Loaded here, since most programs never do so.
        from rath.session.run.stored_programs import keyed_program  # noqa: PLC0415

        session, changes = self._passed_in(session)
        program, root, run = keyed_program(
            session, run, store, cancelled=cancelled, workspace=workspace
        )
        with passing_on(changes):
            return self._run(root, run=run, program=program)

    def resume(
        self,
        session: Session,
        /,
        *,
        store: SessionStore | str | None = None,
        cancelled: CancelledRuns = "keep",
        workspace: WorkspaceMode = "require",
    ) -> Session:
        """Go on with the call of this workflow that `session` was made in, and return its session.

        `forward` runs again from the session with which that call began. What it had made is not
        made again: each operation is looked for by its place, in what `session` came from and in
        its store. One that was done is served as it is recorded, one that waits, failed or was cut
        off goes on under the same id, and one that is not there is made. So `forward` must do the
        same as before, given the same answers.

        A call whose result is recorded is never repeated. One of which it is not known whether it
        took effect is made again if its tool is idempotent or only reads; else the session waits
        until `session.decide(...)` says what to do.

        Args:
            session: Any session of the call; it may wait, have failed, or be loaded.
            store: Where the others of the call are; by default where `session` is stored.
            cancelled: What becomes of runs that were cancelled: `keep` leaves them as they are,
                `go_on` goes on with them as with one that was cut off.
            workspace: What becomes of a workspace that is not there, or whose files are not as the
                record says. `require`: the run that needs it fails. `rebuild`: a new one on the
                same backend gets the files from the record; the old one is left as it is. `none`:
                what goes on has no files, and its tools that need them are refused.

        Raises:
            TypeError: The argument, or what `forward` returned, is not a Session.
            ValueError: The session was made by no workflow, or by another one.
            ResumeMismatch: `forward` does something else than what is recorded at the same place.
            PersistenceError: The session with which the call began is not there.
        """
        if not _is_session(session):
            raise TypeError(f"resume takes a Session, got {type(session).__name__}")
        # Loaded here, since most programs never resume one.
        from rath.session.run.stored_programs import program_of  # noqa: PLC0415

        program = program_of(session, store, cancelled=cancelled, workspace=workspace)
        place = program.place()
        segment = _segment(None, self)
        if place.path.partition(".")[0] != segment:
            raise ValueError(
                f"session {session.id} was made at {place.path!r}, in a call of another workflow "
                f"than this {segment}; resume it with that one"
            )
        root = program.root(place)
        return self._run(root, run=place.run, program=program)

    def register_forward_pre_hook(
        self, hook: Callable[[Any, Session], Session | None]
    ) -> HookHandle:
        """Have `hook(module, session)` called by each call of this module, before `forward`.

        Hooks are called in the caller's thread, each with what the one before gave. What one
        raises ends the call. A session that waits is passed on as it is: its hooks have seen it.

        Args:
            hook: Returns the session to go on with, or None to leave it; a plain `def`.

        Returns:
            A handle whose `remove()` takes the hook out; it works in `with`, too.

        Raises:
            TypeError: It is no function, or `async def`.
        """
        return register(self, "forward_pre", hook)

    def register_forward_hook(
        self, hook: Callable[[Any, Session, Session], Session | None]
    ) -> HookHandle:
        """Have `hook(module, session, output)` called by each call of this module, at its end.

        The output may still be pending; reading it waits for the run. What a hook raises ends the
        call, and not the run.

        Args:
            hook: Returns the session that the call returns, or None to leave it; a plain `def`.

        Returns:
            A handle whose `remove()` takes the hook out; it works in `with`, too.

        Raises:
            TypeError: It is no function, or `async def`.
        """
        return register(self, "forward", hook)

    def named_agents(self) -> tuple[tuple[str, AgentParam], ...]:
        """Return the agent parameters of this workflow itself, sorted by name."""
        return _sorted_parts(vars(self), AgentParam)

    def named_children(self) -> tuple[tuple[str, Workflow], ...]:
        """Return the workflows that this one holds directly, sorted by name."""
        return _sorted_parts(vars(self), Workflow)

    def named_modules(self) -> Iterator[tuple[str, Workflow]]:
        """Yield this workflow under "", then its descendants under their dotted paths.

        Pre-order, in the order of `named_children`; a workflow that is held twice comes once.
        """
        seen: set[int] = set()
        todo: list[tuple[str, Workflow]] = [("", self)]
        while todo:
            path, module = todo.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield path, module
            children = module.named_children()
            todo.extend((_joined(path, name), child) for name, child in reversed(children))

    def modules(self) -> list[Workflow]:
        """Return this workflow and its descendants, each once, in pre-order."""
        found = [module for _, module in self.named_modules()]
        for module in found:
            _warn_of_unseen(module)
        return found

    def to(
        self,
        target: Provider | None = None,
        *,
        provider: str | None = None,
        model: str | None = None,
    ) -> Self:
        """Change the provider of every agent in it, at any depth, and return this workflow.

        Args:
            target: The provider to use.
            provider: Name of a configured provider, instead of `target`.
            model: Model to use: on top of what is given, or of what each agent has.

        Raises:
            TypeError: `target` is not a Provider.
            ValueError: Nothing was given, or both `target` and `provider`.
        """
        parts = (part for module in self.modules() for _, part in module.named_agents())
        for part in {id(part): part for part in parts}.values():
            part.to(target, provider=provider, model=model)
        return self

    def compile(self) -> CompiledWorkflow:
        """Return the workflow with a manifest of what it needs and an offline check of it."""
        return CompiledWorkflow(self)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield the texts that its models are told, by name: prompts and descriptions.

        A name is the path of the attribute, such as `writer.agent.system_prompt`.
        """
        found: Iterator[tuple[str, Parameter]] = _parameters_of(self)
        return found

    def parameters(self) -> Iterator[Parameter]:
        """Yield the texts that its models are told; an optimizer takes them."""
        return (parameter for _, parameter in self.named_parameters())

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Say of all texts that its models are told whether an optimizer may change them."""
        for parameter in self.parameters():
            parameter.set(parameter.value, requires_grad=requires_grad)
        return self

    def state_dict(self) -> dict[str, Any]:
        """Return prompts, few-shot rows, descriptions, models and sampling by name, as plain JSON.

        Keys, endpoints, `extra_create_args`, `metadata` and `user` of a provider are no part of it.
        Schemas of tools stand in it as digests, memories and sandboxes as names.
        """
        state: dict[str, Any] = _state_dict_of(self)
        return state

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> IncompatibleKeys:
        """Write a state into this workflow, in place; all of it, or nothing where it is refused.

        What stands in a state as a digest or a name must agree and is not loaded.

        Args:
            state: As `state_dict` gives it, or `rath.load`.
            strict: Refuse a state that does not fit; else what fits is written.

        Returns:
            What did not fit: missing and unexpected names, and values of a wrong type.

        Raises:
            StateMismatch: It does not fit; the message lists every name.
        """
        found: IncompatibleKeys = _load_state_dict(self, state, strict=strict)
        return found

    def extra_repr(self) -> str:
        """Return what `repr` shows before the parts, as `width=3`; subclasses override it."""
        return ""

    def _listed_parts(self) -> list[tuple[str, object]]:
        """Return the parts in the order in which they were defined, those of a container last."""
        parts: dict[str, object] = {**dict(self.named_agents()), **dict(self.named_children())}
        own = [name for name in vars(self) if name in parts]
        return [(name, parts[name]) for name in dict.fromkeys([*own, *parts])]

    def _pickle_reference(self) -> Reduction | None:
        """Return None: its class and its attributes, each by its own rule.

        Raises:
            TypeError: An attribute holds what must not travel.
        """
        refuse_secrets(self)
        return None

    def _run(
        self, session: Session, *, run: UUID | None = None, program: ResumeSource | None = None
    ) -> Session:
        """Run `forward` on a session, perhaps as a call that has begun before."""
        with ExitStack() as stack:
            if program is not None:
                stack.enter_context(resuming_from(program))
            stack.enter_context(running(self, session, run=run))
            result = self.forward(session)
        if not _is_session(result):
            raise TypeError(_not_a_session(self, result))
        return self._passed_out(session, result)

    def _passed_in(self, session: Session) -> tuple[Session, list[PassedOn]]:
        hooks = hooks_of(self)
        # One that waits goes on with what its hooks had given it.
        if not hooks.forward_pre or waits(session):
            return session, []
        return ask_hooks(hooks.forward_pre, self, session)

    def _passed_out(self, session: Session, output: Session) -> Session:
        hooks = hooks_of(self)
        if not hooks.forward:
            return output
        output, changes = ask_hooks(hooks.forward, self, session, output)
        note_output(output, changes)
        return output

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        extra = self.extra_repr()
        parts = self._listed_parts()
        name = type(self).__name__
        if not parts and "\n" not in extra:
            return f"{name}({extra})"
        lines = [extra] if extra else []
        lines += [f"({part}): {value!r}" for part, value in parts]
        body = indent("\n".join(lines), "  ")
        return f"{name}(\n{body}\n)"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the tree of what the workflow is made of."""
        return self._tree(type(self).__name__, frozenset())

    def _tree(self, label: str, above: frozenset[int]) -> str:
        """Return the workflow and what it is made of as HTML; a cycle ends where it closes."""
        if id(self) in above:
            return html.tree(label, "…", ())
        branches: list[str] = []
        for name, part in self._listed_parts():
            if isinstance(part, Workflow):
                name = f"{name}: {type(part).__name__}"
                inner = part._tree(name, above | {id(self)})  # noqa: SLF001  # of this class
                branches.append(inner)
            elif isinstance(part, AgentParam):
                prompt = one_line_preview(part.system_prompt or "", _MAX_PROMPT)
                detail = f"prompt={prompt!r}, provider={part.provider!r}"
                branches.append(html.tree(name, detail, ()))
        return html.tree(label, self.extra_repr(), branches)


_MAX_PROMPT = 60
"""Characters of a prompt in the tree of a notebook."""


def is_called(workflow: Workflow) -> bool:
    """Tell whether a call of `workflow` is what runs here, and not its `forward` alone."""
    return _running.get() is workflow


@contextmanager
def running(workflow: Workflow, session: Session, *, run: UUID | None = None) -> Generator[None]:
    """Note that `workflow` runs on `session`: the record says where an operation was made.

    Args:
        workflow: What runs.
        session: What it is called with.
        run: Which call of it goes on; a new one by default.
    """
    outer = _running.get()
    if outer is None:
        # Whoever goes on with the call begins with it, whatever becomes of it inside.
        keep_derivation(session)
    token = _running.set(workflow)
    try:
        segment = _segment(outer, workflow)
        if outer is None and run is None:
            run = recorded_call(segment, session)
        with operation_scope(
            segment, root=session.id, run=run, state=partial(_recorded_digest, workflow)
        ):
            yield
    finally:
        _running.reset(token)


def _segment(outer: Workflow | None, workflow: Workflow) -> str:
    """Return the dotted name of `workflow` in the workflow that called it, else its class."""
    if outer is not None and outer is not workflow:
        for path, module in outer.named_modules():
            if module is workflow:
                return path
    return type(workflow).__name__


def _sorted_parts(attributes: Mapping[str, Any], kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    parts = [(name, value) for name, value in tuple(attributes.items()) if isinstance(value, kind)]
    return tuple(sorted(parts, key=lambda part: part[0]))


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _warn_of_unseen(module: Workflow) -> None:
    """Say which workflows in plain lists and dicts are not part of `module`."""
    owner = type(module).__name__
    children = {id(child) for _, child in module.named_children()}
    for name, value in tuple(vars(module).items()):
        kind = type(value).__name__
        match value:
            case list() | tuple():
                held, instead = cast("Iterable[object]", value), "WorkflowList"
            case dict():
                held, instead = cast("dict[object, object]", value).values(), "WorkflowDict"
            case _:
                continue
        if any(isinstance(item, Workflow) and id(item) not in children for item in held):
            _log.warning(
                "%s.%s is a plain %s of workflows, which are no part of %s: to(), compile() and "
                "repr() do not see them; use flow.%s", owner, name, kind, owner, instead,
            )  # fmt: skip


def _is_session(value: object) -> TypeGuard[Session]:
    return isinstance(value, Session)


def _not_a_session(workflow: Workflow, result: object) -> str:
    name = type(workflow).__name__
    if inspect.iscoroutine(result):
        result.close()
        return (
            f"{name}.forward is `async def`; write it as `def`: agents return at once and their "
            "sessions are awaited where they are read"
        )
    if isinstance(result, Workflow):
        return (
            f"{name}.forward returned the workflow {type(result).__name__}, expected a Session; "
            f"a Selector is asked with .forward(session, *workflows), and its choice is called"
        )
    return (
        f"{name}.forward returned {type(result).__name__}, expected a Session; is a return missing?"
    )
