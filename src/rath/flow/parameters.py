"""Parameters of a workflow: what its models are told and how they are asked, by name.

    parameter        what is said to models: prompts, descriptions of tools, texts of your own
    few-shot rows    what stands behind a prompt in every request
    provider         config entry, kind and model, and the sampling; no key, no endpoint
    binding          digests of schemas, names of memories and sandboxes: compared, never loaded

The names are attribute paths, such as `writer.agent.system_prompt`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeGuard, cast
from weakref import ReferenceType, ref

from rath._core.dataclasses import dataclass
from rath._core.files import atomic_write_json
from rath.backend import BackendSandbox
from rath.errors import StateFileError, StateMismatch
from rath.flow.tool.agent_tool import AgentTool
from rath.flow.tool.base import FlowToolCall
from rath.llm import Provider
from rath.llm.chat_request import SAMPLING_FIELDS
from rath.llm.registry import registered_kinds
from rath.memory import MemoryStore
from rath.session import ChunkRow
from rath.session.chunk import ChunkKind
from rath.session.content import json_digest

if TYPE_CHECKING:
    from rath.flow.agent_param import AgentParam
    from rath.flow.workflow import Workflow

__all__ = [
    "IncompatibleKeys",
    "Parameter",
    "Prompt",
    "load",
    "load_state_dict",
    "parameters_of",
    "save",
    "state_dict_of",
    "state_digest",
]

StateDict: TypeAlias = dict[str, Any]
"""Values of plain JSON by name."""

_log = logging.getLogger(__name__)

FORMAT = "rath-state"
VERSION = 1
_MAX_BYTES = 64 * 1024 * 1024
"""A file of more than this is no state that was saved here; a guess far above what prompts take."""

_LEFT_OUT = frozenset({"model", "metadata", "user", "extra_create_args"})
"""Fields of the sampling that are no part of a state: the model stands beside its provider, and
the others may hold names of users and keys."""


@dataclass(frozen=True, slots=True)
class _KnownDigest:
    """The digest of a workflow, and what it was taken of."""

    workflow: ReferenceType[Workflow]
    contents: tuple[object, ...]
    digest: str


_digests: dict[int, _KnownDigest] = {}
"""By the id of the workflow, since one of a class with `__eq__` has no hash. Kept, since the digest
is asked for at each run."""


class Prompt(str):
    """A text for a model that may be improved; a str wherever one is taken.

    Args:
        text: What the model is told.
        requires_grad: Whether an optimizer may change it, as for a parameter of PyTorch.
    """

    __slots__ = ("requires_grad",)
    requires_grad: bool

    def __new__(cls, text: str = "", requires_grad: bool = True) -> Prompt:
        if not isinstance(text, str):
            raise TypeError(f"a Prompt is made of a str, not of {type(text).__name__}")
        prompt = super().__new__(cls, text)
        prompt.requires_grad = requires_grad
        return prompt

    def __getnewargs__(self) -> tuple[str, bool]:  # type: ignore[override]  # as __new__ takes
        return str(self), self.requires_grad

    def __repr__(self) -> str:
        return f"Prompt({str(self)!r}, requires_grad={self.requires_grad})"


class IncompatibleKeys(NamedTuple):
    """Differences between the keys of a state and of a workflow; empty where they agree."""

    missing_keys: list[str]
    """Names that the workflow has and the state has not."""

    unexpected_keys: list[str]
    """Names that the state has and the workflow has not."""

    errors: list[str]
    """Messages on values that cannot be loaded, or are bound to something else."""


@dataclass(frozen=True, slots=True)
class _Member:
    """One value of a state: how it is read, checked and written."""

    name: str
    read: Callable[[], Any]
    check: Callable[[Any], str | None]
    """Returns what is wrong with a value, None where it can be written."""

    write: Callable[[Any], None] | None = None
    """None for what is compared only."""

    requires_grad: Callable[[], bool] | None = None
    """Of a text for models; None for what is no parameter."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A text of a workflow that its models are told; assigning `value` changes it in place."""

    workflow: Workflow = field(repr=False)
    """The workflow whose parameters were asked for."""

    name: str
    """The path of it from that workflow."""

    _member: _Member = field(repr=False, compare=False)

    @property
    def value(self) -> str:
        """The text as it is now."""
        return str(self._member.read())

    @property
    def requires_grad(self) -> bool:
        """Whether an optimizer may change it."""
        assert self._member.requires_grad is not None
        return self._member.requires_grad()

    def set(self, value: str, *, requires_grad: bool | None = None) -> None:
        """Put a text in its place.

        Args:
            value: The text; a plain one leaves `requires_grad` as it is.
            requires_grad: Whether an optimizer may change it from now on.

        Raises:
            TypeError: It is no text, or the text cannot be changed.
        """
        problem = self._member.check(value)
        if problem is not None:
            raise TypeError(f"{self.name}: {problem}")
        assert self._member.write is not None
        if requires_grad is None:
            requires_grad = value.requires_grad if isinstance(value, Prompt) else self.requires_grad
        self._member.write(Prompt(value, requires_grad))

    def __str__(self) -> str:
        return self.value


def parameters_of(workflow: Workflow) -> Iterator[tuple[str, Parameter]]:
    """Yield the texts for models of a workflow by name, in the order of `named_modules`."""
    for member in _members(workflow):
        if member.requires_grad is not None:
            yield member.name, Parameter(workflow, member.name, member)


def state_dict_of(workflow: Workflow) -> StateDict:
    """Return the state of a workflow: plain JSON by name, without keys and endpoints."""
    return {member.name: member.read() for member in _members(workflow)}


def state_digest(workflow: Workflow) -> str:
    """Return the sha256 of the state of a workflow, in hex; equal states have equal ones."""
    contents = tuple(_contents(workflow))
    known = _digests.get(id(workflow))
    is_same = known is not None and known.workflow() is workflow
    if known is not None and is_same and _are_same(known.contents, contents):
        return known.digest
    digest = _digest(state_dict_of(workflow))
    key = id(workflow)
    _digests[key] = _KnownDigest(ref(workflow, lambda _: _digests.pop(key, None)), contents, digest)
    return digest


def recorded_digest(workflow: Workflow) -> str | None:
    """Return the digest for the record of a run, None where it is not known; never waits.

    It is not known where the rows of an agent are still to come, or something has no state to tell:
    the run says what is wrong, where anything is.
    """
    agents = (part for each in _parts_of(workflow) for _, part in each.module.named_agents())
    try:
        if any(part.agent_session.is_pending for part in agents):
            return None
        return state_digest(workflow)
    except Exception as exc:  # noqa: BLE001  # of programs of others, which the run itself tells
        _log.debug("the state of %s has no digest: %r", type(workflow).__name__, exc)
        return None


def load_state_dict(
    workflow: Workflow, state: Mapping[str, Any], *, strict: bool = True
) -> IncompatibleKeys:
    """Write a state into a workflow, in place; nothing is written where it is refused.

    Args:
        workflow: What takes it.
        state: As `state_dict` gives it.
        strict: Refuse a state that does not fit in every name; else what fits is written, and the
            rest is returned.

    Raises:
        TypeError: `state` is no mapping.
        StateMismatch: It does not fit; the message lists every name.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"a state is a mapping of names to values, not {type(state).__name__}")
    members = {member.name: member for member in _members(workflow)}
    missing = [name for name in members if name not in state]
    unexpected = [str(name) for name in state if name not in members]
    writes: list[tuple[_Member, Any]] = []
    errors: list[str] = []
    for name, member in members.items():
        if name not in state or state[name] == member.read():
            continue
        problem = member.check(state[name])
        if problem is None:
            writes.append((member, state[name]))
        else:
            errors.append(f"{name}: {problem}")
    found = IncompatibleKeys(missing, unexpected, errors)
    if strict and any(found):
        raise StateMismatch(_mismatch(type(workflow).__name__, found))
    for member, value in writes:
        assert member.write is not None, "what is compared only is refused above"
        member.write(value)
    return found


def save(state: Mapping[str, Any] | Workflow, path: str | os.PathLike[str]) -> Path:
    """Write the state of a workflow to a JSON file, whole or not at all; return its path.

    Args:
        state: A workflow, or what its `state_dict()` returned.
        path: The file; an earlier one is replaced.

    Raises:
        TypeError: It is neither, or holds what is no plain JSON.
    """
    if not isinstance(state, Mapping):
        make_state = getattr(state, "state_dict", None)
        if not callable(make_state):
            raise TypeError(
                f"save takes a workflow or its state_dict(), not {type(state).__name__}"
            )
        state = cast("StateDict", make_state())
    values = dict(state)
    try:
        digest = _digest(values)
    except (TypeError, ValueError) as exc:
        raise TypeError(f"a state holds plain JSON by name: {exc}") from None
    target = Path(path)
    atomic_write_json(
        target, {"format": FORMAT, "version": VERSION, "digest": digest, "state": values}
    )
    return target


def load(path: str | os.PathLike[str]) -> StateDict:
    """Return the state that `save` wrote; give it to `load_state_dict`.

    Raises:
        FileNotFoundError: There is no such file.
        StateFileError: The file is no saved state, is of a newer version, or was changed.
    """
    source = Path(path)
    if source.stat().st_size > _MAX_BYTES:
        raise StateFileError(f"{source} is larger than any saved state ({_MAX_BYTES} bytes)")
    try:
        payload: object = json.loads(source.read_bytes())
    except (ValueError, RecursionError) as exc:
        raise StateFileError(
            f"{source} is no JSON: {exc}; expected a file of rath.save(workflow, path)"
        ) from None
    found = cast("dict[str, Any]", payload) if isinstance(payload, dict) else {}
    state = found.get("state")
    if found.get("format") != FORMAT or not isinstance(state, dict):
        raise StateFileError(f"{source} is no saved state; expected a file of rath.save(...)")
    if found.get("version") != VERSION:
        raise StateFileError(
            f"{source} has version {found.get('version')!r}, and this rath reads {VERSION}; "
            "upgrade openrath"
        )
    try:
        digest = _digest(cast("StateDict", state))
    except ValueError as exc:
        raise StateFileError(f"{source} is no saved state: {exc}") from None
    if found.get("digest") != digest:
        raise StateFileError(
            f"{source} was changed since it was saved: its digest is of another state; load it "
            "with json.load(...)['state'] if the change is yours"
        )
    return cast("StateDict", state)


def _digest(state: StateDict) -> str:
    text = json.dumps(
        state, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _mismatch(owner: str, found: IncompatibleKeys) -> str:
    """Return the message of PyTorch for a state that does not fit."""
    lines = [f"Error(s) in loading state_dict for {owner}:"]
    for title, names in (("Missing", found.missing_keys), ("Unexpected", found.unexpected_keys)):
        if names:
            listed = ", ".join(f'"{name}"' for name in names)
            lines.append(f"{title} key(s) in state_dict: {listed}.")
    return "\n\t".join([*lines, *found.errors])


# ---------------------------------------------------------------- what a workflow has


@dataclass(frozen=True, slots=True)
class _Part:
    """A workflow inside of another one, also inside of its tools."""

    path: str
    module: Workflow
    tools: tuple[FlowToolCall, ...]


def _parts_of(root: Workflow) -> Iterator[_Part]:
    """Yield a workflow and all that it reaches, each once, tools after those that hold them."""
    todo: list[tuple[str, Workflow]] = [("", root)]
    seen: set[int] = set()
    while todo:
        prefix, workflow = todo.pop(0)
        for path, module in workflow.named_modules():
            if id(module) in seen:
                continue
            seen.add(id(module))
            place = ".".join(filter(None, (prefix, path)))
            tools = _tools_of(module)
            yield _Part(place, module, tools)
            todo += [
                (f"{_joined(place, 'tools')}.{tool.name}", held)
                for tool in tools
                if isinstance(tool, AgentTool) and _is_workflow(held := tool.workflow)
            ]


def _members(root: Workflow) -> list[_Member]:
    """Return all values of the state of a workflow, each name once."""
    found: dict[str, _Member] = {}
    for part in _parts_of(root):
        for member in (*_own(part.path, part.module), *_of_tools(part)):
            found.setdefault(member.name, member)
    return list(found.values())


def _contents(root: Workflow) -> Iterator[object]:
    """Yield what the state of a workflow follows from: texts, and values that never change.

    Others are held weakly, since a tool may hold the workflow.
    """
    for part in _parts_of(root):
        yield part.path
        yield part.module.description
        for name, value in vars(part.module).items():
            if isinstance(value, Prompt | BackendSandbox):
                yield from (name, value if isinstance(value, str) else ref(value))
        for name, agent in part.module.named_agents():
            memory = None if agent.memory is None else ref(agent.memory)
            yield from (name, agent.agent_session, agent.provider, memory)
        for tool in part.tools:
            yield from (ref(tool), tool.description)


def _are_same(before: tuple[object, ...], now: tuple[object, ...]) -> bool:
    return len(before) == len(now) and all(
        one is other or (isinstance(one, str) and one == other)
        for one, other in zip(before, now, strict=True)
    )


def _is_workflow(value: object) -> TypeGuard[Workflow]:
    return callable(getattr(value, "named_modules", None))


def _joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _own(place: str, module: Workflow) -> Iterator[_Member]:
    """Yield what a module has itself, beside its tools."""
    if module.description:
        yield _attribute(_joined(place, "description"), module, "description")
    for name, value in tuple(vars(module).items()):
        if isinstance(value, Prompt) and name != "description":
            yield _attribute(_joined(place, name), module, name)
        elif isinstance(value, BackendSandbox):
            yield _binding(_joined(place, name), partial(_backend_name, value))
    for name, part in module.named_agents():
        yield from _of_agent(_joined(place, name), part)


def _attribute(name: str, owner: object, attribute: str) -> _Member:
    return _Member(
        name,
        lambda: str(getattr(owner, attribute)),
        _no_text,
        lambda text: setattr(owner, attribute, text),
        lambda: _is_trainable(getattr(owner, attribute)),
    )


def _binding(name: str, read: Callable[[], Any]) -> _Member:
    return _Member(name, read, lambda value: f"the state is of {value!r}, and here is {read()!r}")


def _is_trainable(text: object) -> bool:
    return isinstance(text, Prompt) and text.requires_grad


def _of_agent(place: str, part: AgentParam) -> Iterator[_Member]:
    """Yield prompt, few-shot rows, provider, sampling and memory of an agent."""
    if part.system_prompt is not None:
        yield _Member(
            f"{place}.system_prompt",
            lambda: part.system_prompt,
            _no_text,
            lambda text: setattr(part, "system_prompt", text),
            lambda: part.requires_grad,
        )
    yield _Member(
        f"{place}.examples",
        lambda: [_row_json(row) for row in part.examples],
        _no_rows,
        lambda rows: setattr(part, "examples", tuple(map(_row_of, rows))),
    )
    yield _Member(
        f"{place}.provider",
        lambda: _provider_json(part.provider),
        lambda value: _no_provider(value, part.provider),
        lambda value: setattr(part, "provider", _provider_of(value, part.provider)),
    )
    yield _Member(
        f"{place}.sampling",
        lambda: _sampling_json(part.provider),
        lambda value: _no_sampling(value, part.provider),
        lambda value: setattr(part, "provider", _with_sampling(value, part.provider)),
    )
    if part.memory is not None:
        yield _binding(f"{place}.memory", lambda: _memory_name(part.memory))


def _tools_of(module: Workflow) -> tuple[FlowToolCall, ...]:
    tools: object = vars(module).get("tools")
    listed = cast("Iterable[object]", tools) if isinstance(tools, list | tuple) else ()
    return tuple(tool for tool in listed if isinstance(tool, FlowToolCall))


def _of_tools(part: _Part) -> Iterator[_Member]:
    for tool in part.tools:
        name = f"{_joined(part.path, 'tools')}.{tool.name}"
        if tool.description is not None:
            yield _description(f"{name}.description", part.module, tool.name)
        yield _binding(f"{name}.schema", partial(_schema_digest, tool))


def _description(name: str, module: Workflow, tool_name: str) -> _Member:
    """Return the description of a tool of a module, which has a copy of it once it is changed."""

    def find() -> FlowToolCall:
        return next(tool for tool in _tools_of(module) if tool.name == tool_name)

    def write(text: str) -> None:
        old = find()
        new = old.with_description(text)
        listed = cast("Any", module).tools
        cast("Any", module).tools = [new if tool is old else tool for tool in listed]

    def check(value: object) -> str | None:
        problem = _no_text(value)
        if problem is None and not find().has_own_description:
            kind = type(find()).__name__
            problem = f"the class {kind} decides the text; give it a method with_description"
        return problem

    return _Member(
        name,
        lambda: str(find().description),
        check,
        write,
        lambda: _is_trainable(find().description),
    )


# ---------------------------------------------------------------- values


def _no_text(value: object) -> str | None:
    return None if isinstance(value, str) else f"expected a text, got {type(value).__name__}"


def _backend_name(sandbox: BackendSandbox) -> str:
    return sandbox.backend.name


def _schema_digest(tool: FlowToolCall) -> str:
    return json_digest(dict(tool.parameters))


def _memory_name(memory: MemoryStore | None) -> str | None:
    """Return the config entry of a memory, else its backend."""
    if memory is None:
        return None
    entry = None if memory.spec is None else memory.spec.config_entry
    return memory.backend.name if entry is None else str(entry)


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {str(name): _plain(item) for name, item in items}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("Iterable[object]", value)]
    return value


def _mapping(value: object) -> Mapping[str, object]:
    """Return a mapping as it is, and an empty one for anything else."""
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def _row_json(row: ChunkRow) -> dict[str, Any]:
    return {"kind": row.kind, "payload": _plain(row.payload)}


def _row_of(value: Mapping[str, Any]) -> ChunkRow:
    return ChunkRow(value["kind"], dict(value["payload"]))


def _no_rows(value: object) -> str | None:
    rows = cast("list[object]", value) if isinstance(value, list) else [None]
    known = [kind.value for kind in ChunkKind]
    for row in rows:
        fields = _mapping(row)
        is_row = isinstance(fields.get("kind"), str) and isinstance(fields.get("payload"), Mapping)
        if not is_row or set(fields) != {"kind", "payload"}:
            return 'expected a list of rows such as {"kind": "user", "payload": {...}}'
        if fields["kind"] not in known:
            return f"no row is of the kind {fields['kind']!r}; known: {', '.join(known)}"
    return None


def _provider_json(provider: Provider) -> dict[str, Any]:
    entry = provider.config_entry
    return {
        "name": None if entry is None else entry.name,
        "kind": provider.provider_kind,
        "model": provider.model,
    }


def _no_provider(value: object, now: Provider) -> str | None:
    fields = _mapping(value)
    are_texts = all(isinstance(each, str | None) for each in fields.values())
    if set(fields) != {"name", "kind", "model"} or not are_texts:
        return "expected the texts or nulls name, kind and model"
    name, kind = fields["name"], fields["kind"]
    # That of now may be of a client that the program gave.
    if kind not in (None, now.provider_kind) and kind not in (known := registered_kinds()):
        return f"unknown provider_kind {kind!r}; known: {', '.join(known)}"
    try:
        if name is not None:
            Provider.from_config(str(name))
    except (KeyError, ValueError) as exc:
        return str(exc.args[0]) if exc.args else str(exc)
    return None


def _provider_of(value: Mapping[str, Any], now: Provider) -> Provider:
    """Return the provider of a state; the endpoint and key of now stay where the entry does."""
    name = None if now.config_entry is None else now.config_entry.name
    base = now
    if value["name"] is not None and value["name"] != name:
        base = Provider.from_config(value["name"])
    return replace(base, provider_kind=value["kind"], model=value["model"])


def _sampling_json(provider: Provider) -> dict[str, Any]:
    values = ((name, getattr(provider, name)) for name in SAMPLING_FIELDS if name not in _LEFT_OUT)
    return {name: _plain(value) for name, value in values if value is not None}


def _no_sampling(value: object, provider: Provider) -> str | None:
    if not isinstance(value, Mapping):
        return f"expected a mapping of sampling parameters, got {type(value).__name__}"
    fields = cast("Mapping[str, Any]", value)
    unknown = [name for name in fields if name not in SAMPLING_FIELDS or name in _LEFT_OUT]
    if unknown:
        return f"unknown sampling parameters {', '.join(map(str, unknown))}"
    try:
        _with_sampling(fields, provider)
    except (TypeError, ValueError) as exc:
        return str(exc)
    return None


def _with_sampling(value: Mapping[str, Any], now: Provider) -> Provider:
    names = [name for name in SAMPLING_FIELDS if name not in _LEFT_OUT]
    sampling: dict[str, Any] = {name: value.get(name) for name in names}
    return replace(now, **sampling)
