"""Tools as a loop sees them, their arguments, and the call that a tool is in."""

from __future__ import annotations

import contextvars
import functools
import inspect
import json
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, cast, runtime_checkable
from uuid import UUID

from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_function, lazy_modules
from rath._core.options import ValueScope, origin_of
from rath._core.registry import Registry
from rath._core.text import valid_unicode
from rath.backend.tool_types import BackendTool
from rath.errors import ToolNameConflictError
from rath.llm.chat_request import RathLLMFunctionTool
from rath.llm.tool_args import parse_tool_arguments
from rath.session.content import json_digest

if TYPE_CHECKING:
    from rath._async import bridge
else:
    (bridge,) = lazy_modules(__name__, "rath._async.bridge")


ToolEffects = Literal["read_only", "idempotent", "non_idempotent"]
SystemTools = bool | Sequence[str]
"""True for all built-in tools, False for none, or the names of those to offer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequest:
    """A tool call that a model asks for, as rules of approval and hooks see it."""

    session: Any
    """A snapshot of the calling session; its id is that of the run."""

    call_id: str
    tool: str
    arguments: Mapping[str, Any]
    """Parsed, and checked against the tool's schema."""


ApprovalRule = Literal["never", "always"] | Callable[[CallRequest], bool | Awaitable[bool]]
"""Whether somebody must allow a call before it is made: never, always, or where a function says
True, which may be `def` or `async def`."""

DEFAULT_TOOL_TIMEOUT = 300.0
"""Seconds a tool call may take when the tool does not say."""


@runtime_checkable
class Tool(Protocol):
    """A callable that a model may call; `rath.flow.tool.FlowToolCall` is the base to subclass."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str | None: ...
    @property
    def parameters(self) -> Mapping[str, Any]: ...
    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]: ...
    def __call__(self, session: Any, arguments: Mapping[str, Any]) -> Any: ...


class SandboxOperator(Tool, Protocol):
    """A tool whose whole work is one sandbox operation, which the loop awaits itself."""

    def to_payload(self, arguments: Mapping[str, Any]) -> BackendTool: ...


# By path and not by import: the tools are written against sessions, a layer above this one.
_BUILT_IN = {
    "run_shell_command": "rath.flow.tool.system_tool:RUN_SHELL_COMMAND",
    "read_workspace_file": "rath.flow.tool.system_tool:READ_WORKSPACE_FILE",
    "write_workspace_file": "rath.flow.tool.system_tool:WRITE_WORKSPACE_FILE",
    "edit_workspace_file": "rath.flow.tool.system_tool:EDIT_WORKSPACE_FILE",
    "list_workspace_files": "rath.flow.tool.system_tool:LIST_WORKSPACE_FILES",
    "workspace_path_exists": "rath.flow.tool.system_tool:WORKSPACE_PATH_EXISTS",
    "run_code": "rath.flow.tool.system_tool:RUN_CODE",
}

BUILT_IN_NAMES = frozenset(_BUILT_IN)

_YIELDING = frozenset({"edit_workspace_file"})
"""Built-in tools that 1.3 did not have, so that programs may have a tool of that name already."""

tool_registry: Registry[Tool] = Registry("tool", group="rath.tools", builtins=_BUILT_IN)
"""Tools by name: the built-in ones, imported when they are first needed, and plug-ins."""


def builtin_tools() -> Mapping[str, Tool]:
    """Return the seven built-in tools by name."""
    return {name: tool_registry.get(name) for name in _BUILT_IN}


# Typed functions become tools by what stands in a layer above, loaded where one is given.
_tool_of: Callable[[object], Tool] = lazy_function("rath.flow.tool.function", "tool")


def as_tool(value: object) -> Tool:
    """Return a tool as it is, and the tool that `rath.tool` makes of a typed function.

    Raises:
        TypeError: It is neither, or the function cannot be a tool: a parameter has no type.
        ValueError: No model could call the function by its name.
    """
    if _is_function(value) and not isinstance(value, Tool):
        try:
            return _tool_of(value)
        except TypeError as exc:
            raise TypeError(f"no tool, as @rath.tool makes one of a typed function: {exc}") from exc
    _check_tool(value)
    return cast("Tool", value)


def _is_function(value: object) -> bool:
    return inspect.isroutine(value) or isinstance(value, functools.partial)


def as_tools(values: object, *, known: type | tuple[type, ...] = ()) -> list[Tool]:
    """Return the tools that a list of tools and typed functions means.

    Args:
        values: The list, None for an empty one.
        known: Objects of these classes are tools, and not asked anything here.

    Raises:
        TypeError: It is no list, or something in it is no tool and cannot be made one.
    """
    if values is None:
        return []
    if isinstance(values, (str, known)) or not isinstance(values, Iterable):
        raise TypeError(
            f"tools must be a list of tools and typed functions, not {values!r:.80}; for one tool "
            "give a list with one, tools=[my_tool]. Built-in tools are chosen by name with "
            'system_tools=["run_shell_command"]'
        )
    listed = cast("Iterable[object]", values)
    return [cast("Tool", each) if isinstance(each, known) else as_tool(each) for each in listed]


def check_system_tools(wanted: object) -> None:
    """Refuse what chooses no built-in tools; loads none of them.

    Raises:
        TypeError: It is neither True, False nor a list of names.
        LookupError: A name is not known; the text names the nearest one.
    """
    if isinstance(wanted, bool):
        return
    if isinstance(wanted, str) or not isinstance(wanted, Iterable):
        raise TypeError(
            f"system_tools must be True, False or a list of names, not {wanted!r:.80}; for one "
            'tool give a list with one name, system_tools=["run_shell_command"]'
        )
    for name in cast("Iterable[object]", wanted):
        if not isinstance(name, str):
            raise TypeError(
                f"system_tools lists the names of built-in tools, not {name!r:.80}; tools of your "
                "own are given with tools=[...]"
            )
        tool_registry.check(name)


def tool_table(
    tools: Sequence[Tool | Callable[..., Any]] | None, *, system_tools: SystemTools = True
) -> dict[str, Tool]:
    """Return the tools of a run by name, built-in ones first.

    A tool of the user named `edit_workspace_file` takes the place of the built-in one, which is
    newer than that name may be in the program, unless `system_tools` lists that name.

    Raises:
        TypeError: Something in `tools` is no tool, or `system_tools` is no list of names.
        ToolNameConflictError: Two tools have the same name otherwise.
        LookupError: `system_tools` names a tool that is not known.
    """
    table = dict(_system_tools(system_tools))
    yielding = set(_YIELDING if system_tools is True else ())
    for tool in as_tools(tools):
        if tool.name in yielding:
            yielding.remove(tool.name)
            del table[tool.name]
        if tool.name in table:
            raise ToolNameConflictError(
                f"two tools are named {tool.name!r} ({_where(table[tool.name])} and "
                f"{_where(tool)}); rename one, or leave the built-in one out with system_tools="
            )
        table[tool.name] = tool
    return table


def without_sandbox_tools(
    table: Mapping[str, Tool], *, recorded: Collection[str] = ()
) -> dict[str, Tool]:
    """Return the tools of a run whose session has no sandbox: the built-in ones could only fail.

    Args:
        table: All of them, by name.
        recorded: Those that stay: a run that goes on, or is served from its record, offers what it
            did.
    """
    return {
        name: tool for name, tool in table.items() if name in recorded or not _is_built_in(tool)
    }


def _is_built_in(tool: Tool) -> bool:
    """Tell whether a tool is one of the seven, or made of one, that work on a sandbox."""
    # Whatever a tool says of itself: where its class stands decides.
    is_ours = type(tool).__module__.partition(".")[0] == "rath"
    on_sandbox = bool(getattr(tool, "runs_on_sandbox", False))
    return on_sandbox and is_ours and str(getattr(tool, "origin", "")) == "built-in"


def tool_schemas(table: Mapping[str, Tool]) -> tuple[RathLLMFunctionTool, ...]:
    """Return the schemas of the tools for the model, sorted by name."""
    return tuple(_function(table[name], dict(table[name].parameters)) for name in sorted(table))


def offered_schemas(offers: Mapping[str, ToolOffer]) -> tuple[RathLLMFunctionTool, ...]:
    """Return the same of tools that were asked for their schemas already."""
    listed = [offers[name] for name in sorted(offers)]
    return tuple(_function(each.tool, dict(each.schema)) for each in listed)


def _function(tool: Tool, parameters: dict[str, Any]) -> RathLLMFunctionTool:
    return RathLLMFunctionTool(tool.name, parameters, tool.description)


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """A tool as one run offers it: what it says of itself, asked once in the caller's thread."""

    tool: Tool
    schema: Mapping[str, Any]
    schema_digest: str
    parallel_safe: bool
    limit: float
    """Seconds that a call may take."""

    origin: str
    """`built-in`, or `module:qualname` of its class."""

    effects: ToolEffects
    operator: SandboxOperator | None
    """The tool again, if a call of it is one sandbox operation and nothing else."""

    is_plain: bool
    """Whether a call is one plain function call, which blocks a worker thread."""

    is_built_in: bool
    """Whether it is one of the seven, which never block where their calls are checked."""

    approval: ApprovalRule = "never"
    """Whether somebody must allow a call of it first."""

    shows_traceback: bool = False
    """Whether the model reads the traceback where it raises."""


def offer(tool: Tool) -> ToolOffer:
    """Return the loop's description of `tool`.

    Raises:
        TypeError: Its schema, its timeout or its approval cannot be what they are.
    """
    origin = str(getattr(tool, "origin", "")) or origin_of(type(tool))
    on_sandbox = bool(getattr(tool, "runs_on_sandbox", False))
    is_built_in = _is_built_in(tool)
    schema = dict(tool.parameters)
    timeout: object = getattr(tool, "timeout", None)
    limit = DEFAULT_TOOL_TIMEOUT if timeout is None else timeout
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
        raise TypeError(f"the timeout of tool {tool.name!r} must be seconds, not {limit!r}")
    return ToolOffer(
        tool=tool,
        schema=schema,
        schema_digest=_built_in_digest(tool.name) if is_built_in else json_digest(schema),
        parallel_safe=bool(getattr(tool, "parallel_safe", False)),
        limit=float(limit),
        origin=origin,
        effects=getattr(tool, "effects", "non_idempotent"),
        operator=cast("SandboxOperator", tool) if on_sandbox else None,
        is_plain=not on_sandbox and not bridge.is_async(in_a_loop(tool)),
        is_built_in=is_built_in,
        approval=check_approval(getattr(tool, "approval", "never"), f"tool {tool.name!r}"),
        shows_traceback=bool(getattr(tool, "show_traceback", False)),
    )


@functools.cache
def _built_in_digest(name: str) -> str:
    """Return the digest of the schema of a built-in tool, which never changes."""
    return json_digest(dict(builtin_tools()[name].parameters))


def in_a_loop(tool: Tool) -> Callable[[Any, Mapping[str, Any]], Any]:
    """Return how a run calls `tool`: by its coroutine `acall`, where it has one beside `__call__`.

    Such a tool is a plain function for who calls it himself, and blocks no thread in a run.
    """
    coroutine: object = getattr(tool, "acall", None)
    return coroutine if bridge.is_async(coroutine) else tool  # type: ignore[arg-type,return-value]  # is_async tells


def tool_digest(offer: ToolOffer) -> str:
    """Return the digest of a tool to which an approval is bound beside the call."""
    return json_digest([offer.schema_digest, offer.tool.description, offer.origin])


def check_approval(rule: object, who: str) -> ApprovalRule:
    """Return a rule of approval, once it is sure that it is one.

    Raises:
        TypeError: It is none; `who` names whose it is.
    """
    if rule not in ("never", "always") and not callable(rule):
        raise TypeError(
            f"the approval of {who} must be 'never', 'always' or a function that "
            f"takes a CallRequest and returns a bool, not {rule!r:.80}"
        )
    return cast("ApprovalRule", rule)


def _system_tools(wanted: SystemTools) -> Mapping[str, Tool]:
    check_system_tools(wanted)
    if isinstance(wanted, bool):
        return builtin_tools() if wanted else {}
    return {name: tool_registry.get(name) for name in wanted}


def _check_tool(tool: object) -> None:
    if isinstance(tool, type):
        raise TypeError(
            f"{tool.__name__} is a class, and a tool is an object: give {tool.__name__}(...), "
            "and make a plain class a tool with @rath.tool above it"
        )
    if not isinstance(tool, Tool) and callable(getattr(tool, "as_tool", None)):
        raise TypeError(
            f"{type(tool).__name__} is no tool by itself; give what its as_tool(name, description) "
            "returns, a tool that hands it a task"
        )
    if not isinstance(tool, Tool):
        raise TypeError(
            f"{tool!r:.80} is no tool; expected a typed function, what @rath.tool makes of one, "
            "or a rath.flow.tool.FlowToolCall (it has name, parameters, resource_key and __call__)"
        )
    name: object = tool.name
    parameters: object = tool.parameters
    if not isinstance(name, str) or not name:
        raise TypeError(f"the name of tool {_where(tool)} must be a non-empty str, not {name!r}")
    if not isinstance(parameters, Mapping):
        raise TypeError(f"the parameters of tool {name!r} must be a JSON Schema mapping")


def _where(tool: object) -> str:
    """Return where a tool comes from: its origin, or its class where it has none."""
    origin = getattr(tool, "origin", None)
    return origin if isinstance(origin, str) and origin else origin_of(type(tool))


MAX_RAW_CHARS = 2000
"""How much of unparsable arguments the model is shown again."""


class BadArguments(Exception):
    """The arguments of a call cannot be used; `detail` shows what the model wrote."""

    def __init__(self, message: str, detail: str | None = None) -> None:
        self.detail = detail
        super().__init__(message)


@runtime_checkable
class ChecksArguments(Protocol):
    """A tool that checks its arguments itself, in place of the check against its schema."""

    def check_arguments(self, arguments: Mapping[str, Any], /) -> None:
        """Check parsed arguments; raises `BadArguments` where they do not fit."""
        ...


def _checks_itself(tool: object) -> bool:
    # Quicker than `isinstance`, which looks at all of a protocol.
    return hasattr(tool, "check_arguments")


MAX_QUICK_CHARS = 10_000
"""Longest arguments that are checked on the runtime thread, in characters: 0.1 ms; a guess."""


class ArgumentChecker:
    """Checks arguments against schemas; each schema is compiled once."""

    def __init__(self) -> None:
        self._validators: dict[str, Any] = {}

    def parse(self, tool: str, text: str) -> dict[str, Any]:
        """Return the arguments that the model wrote; empty text means no arguments.

        Raises:
            BadArguments: The text is no JSON object.
        """
        arguments, is_error = parse_tool_arguments(text)
        if is_error:
            cut = text[:MAX_RAW_CHARS] + ("...(truncated)" if len(text) > MAX_RAW_CHARS else "")
            raise BadArguments(f"non-JSON or unparsable arguments for tool {tool!r}", cut)
        return arguments or {}

    def check_call(
        self, tool: object, name: str, schema: Mapping[str, Any], arguments: Mapping[str, Any]
    ) -> None:
        """Check parsed arguments by the tool's own check where it has one, else by its schema.

        Raises:
            BadArguments: They do not fit.
        """
        if _checks_itself(tool):
            cast("ChecksArguments", tool).check_arguments(arguments)
        else:
            self.check(name, schema, arguments)

    def needs_library(self, tool: object, schema: Mapping[str, Any], text: str) -> bool:
        """Tell whether a call cannot be checked before the schema library is imported; quick."""
        if is_library_loaded() or _checks_itself(tool):
            return False
        if len(text) > MAX_QUICK_CHARS:
            return True
        arguments, is_error = parse_tool_arguments(text)
        return not is_error and not is_surely_valid(schema, arguments or {})

    def check(self, tool: str, schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        """Check parsed arguments.

        Raises:
            BadArguments: They do not fit; the text names the place and what was expected.
        """
        if is_surely_valid(schema, arguments):
            return
        validator = self._validators.get(tool)
        if validator is None:
            validator = self._validators[tool] = load_library()(schema)
        listed = _misfits(validator, dict(arguments))
        if listed:
            raise BadArguments(
                f"the arguments for tool {tool!r} do not fit its schema: {listed}",
                json.dumps(dict(arguments), ensure_ascii=False, default=str)[:MAX_RAW_CHARS],
            )


def check_value(schema: Mapping[str, Any], value: object) -> None:
    """Check any value that is JSON, also by the formats that the library knows, such as dates.

    Raises:
        BadArguments: It does not fit, or the schema is none.
    """
    try:
        validator = load_library()(schema)
        listed = _misfits(validator.evolve(format_checker=validator.FORMAT_CHECKER), value)
    except Exception as exc:  # what the library says of a broken schema has many classes
        raise BadArguments(f"its schema cannot be used: {type(exc).__name__}: {exc}") from exc
    if listed:
        raise BadArguments(listed)


def _misfits(validator: Any, value: object) -> str:
    """Return where a value does not fit, and what was expected; "" where it does."""
    errors = sorted(validator.iter_errors(value), key=lambda error: error.json_path)
    return "; ".join(f"{error.json_path}: {error.message}" for error in errors[:5])


_kind_of: Callable[[object], type[object]] = type
"""By its exact class: to Python True is an int, and a subclass may be anything."""


def is_surely_valid(schema: Any, value: object) -> bool:
    """Tell whether a value fits a JSON Schema of the plain kind that most tools have.

    False says nothing: the schema may have keywords that only the library knows, or be broken.
    Both are taken as JSON has them, dicts and lists; no code of anybody else runs.
    """
    kind = _kind_of(schema)
    if kind is not dict:
        return schema is True
    for keyword in schema:
        check = _PLAIN_KEYWORDS.get(keyword)
        if check is None:
            if keyword not in _ANNOTATIONS:
                return False
        elif not check(schema, value):
            return False
    return True


_TYPES: Mapping[object, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}

_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "format", "readOnly", "writeOnly"}
)
"""Keywords that the library does not look at either."""


def _has_type(schema: dict[str, Any], value: object) -> bool:
    wanted = schema["type"]
    kind = _kind_of(wanted)
    for name in wanted if kind is list else (wanted,):
        if isinstance(name, str) and type(value) in _TYPES.get(name, ()):
            return True
    return False


def _has_properties(schema: dict[str, Any], value: Any) -> bool:
    properties = schema["properties"]
    kinds = _kind_of(properties), _kind_of(value)
    if kinds != (dict, dict):
        return kinds[0] is dict
    for name in properties:
        if name in value and not is_surely_valid(properties[name], value[name]):
            return False
    return True


def _has_no_others(schema: dict[str, Any], value: Any) -> bool:
    properties, rest = schema.get("properties", {}), schema["additionalProperties"]
    kinds = _kind_of(properties), _kind_of(value)
    if kinds != (dict, dict):
        return kinds[0] is dict
    for name in value:
        if name not in properties and not is_surely_valid(rest, value[name]):
            return False
    return True


def _has_required(schema: dict[str, Any], value: Any) -> bool:
    required = schema["required"]
    kinds = _kind_of(required), _kind_of(value)
    if kinds != (list, dict):
        return kinds[0] is list
    return all(isinstance(name, str) and name in value for name in required)


def _has_items(schema: dict[str, Any], value: Any) -> bool:
    items = schema["items"]
    kind = _kind_of(value)
    return kind is not list or all(is_surely_valid(items, item) for item in value)


def _is_listed(schema: dict[str, Any], value: object) -> bool:
    # Of numbers the library knows better which ones are equal.
    choices = schema["enum"]
    kind = _kind_of(choices)
    return isinstance(value, str) and kind is list and value in choices


def _is_at_least(schema: dict[str, Any], value: Any) -> bool:
    minimum = schema["minimum"]
    numbers = _TYPES["number"]
    return type(minimum) in numbers and (type(value) not in numbers or value >= minimum)


def _fits_any(schema: dict[str, Any], value: object) -> bool:
    choices = schema["anyOf"]
    kind = _kind_of(choices)
    return kind is list and any(is_surely_valid(each, value) for each in choices)


_PLAIN_KEYWORDS: Mapping[str, Callable[[dict[str, Any], Any], bool]] = {
    "type": _has_type,
    "properties": _has_properties,
    "additionalProperties": _has_no_others,
    "required": _has_required,
    "items": _has_items,
    "enum": _is_listed,
    "anyOf": _fits_any,
    "minimum": _is_at_least,
}


@functools.cache
def load_library() -> Callable[[Mapping[str, Any]], Any]:
    """Import the schema library, which takes tens of milliseconds, and return its compiler.

    Blocks, so it is called on a worker before the first check.
    """
    # On first use: many runs call no tool.
    from jsonschema import Draft202012Validator  # noqa: PLC0415
    from jsonschema.validators import validator_for  # noqa: PLC0415
    from referencing.jsonschema import EMPTY_REGISTRY  # noqa: PLC0415

    def compile_schema(schema: Mapping[str, Any]) -> Any:
        kind: Any = validator_for(dict(schema), default=Draft202012Validator)
        # With a registry of its own the library never fetches a remote reference.
        return kind(dict(schema), registry=EMPTY_REGISTRY)

    return compile_schema


def is_library_loaded() -> bool:
    """Tell whether the schema library was imported."""
    return load_library.cache_info().currsize > 0


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a tool."""

    text: str
    schema: Mapping[str, Any] | None = None
    """JSON Schema of the answer, None where any will do."""

    @property
    def digest(self) -> str:
        """The digest that binds an answer: a tool that asks something else has no answer yet."""
        return json_digest([self.text, None if self.schema is None else dict(self.schema)])


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a question."""

    question: Question
    text: str
    """JSON."""


@dataclass(frozen=True, slots=True)
class InnerRun:
    """A run inside a call that waits for somebody."""

    child: UUID
    outcome: Any
    """How it stands: a `Suspended`."""

    session: Any
    """The session itself, so that one in memory is found again."""


class Suspension(BaseException):
    """Leaves a tool whose call waits; no `Exception`, so that `except Exception` lets it pass."""


class CurrentCall:
    """One making of a call: what it asks, and what it was given for that.

    Args:
        answers: What was said to its questions, in their order.
        is_edited: Whether it is made with other arguments than the model gave.
    """

    __slots__ = ("_answers", "_lock", "is_edited", "waits")

    def __init__(self, answers: Sequence[Answer] = (), *, is_edited: bool = False) -> None:
        self._answers = list(answers)
        # Tasks and threads of a tool may ask side by side.
        self._lock = threading.Lock()
        self.is_edited: bool = is_edited
        self.waits: Question | InnerRun | None = None
        """What it waits for, once it does."""

    def answer(self, question: Question) -> str:
        """Return the next answer to a question, as JSON.

        Raises:
            Suspension: There is none yet.
        """
        with self._lock:
            fitting = (one for one in self._answers if one.question.digest == question.digest)
            matching = next(fitting, None) if self.waits is None else None
            if matching is not None:
                self._answers.remove(matching)
                return matching.text
        self.wait_for(question)

    def wait_for(self, what: Question | InnerRun) -> NoReturn:
        """Leave the tool, for what it waits for first.

        Raises:
            Suspension: Always.
        """
        self.waits = self.waits or what
        raise Suspension("the call waits, and will be made again; let this exception pass")


_current: contextvars.ContextVar[CurrentCall | None] = contextvars.ContextVar(
    "rath_current_call", default=None
)


def in_call(call: CurrentCall | None) -> ValueScope[CurrentCall | None]:
    """Say that what runs inside is `call`; None for what belongs to no call of its own."""
    return ValueScope(_current, call)


def call_here() -> CurrentCall | None:
    """Return the call inside which the current code runs, None where it runs inside none."""
    return _current.get()


def current_call(caller: str) -> CurrentCall:
    """Return the call inside which the current code runs.

    Raises:
        RuntimeError: It runs inside none.
    """
    call = _current.get()
    if call is None:
        raise RuntimeError(
            f"{caller} was called outside of a tool call: only a tool that a model has called "
            "can wait for somebody. Call it in the tool itself; a thread that the tool started "
            "needs its context, contextvars.copy_context().run(...)"
        )
    return call


def ask(question: str, schema: Any = None) -> Any:
    """Ask whoever runs the program, from inside a tool, and return the answer.

    Where there is no answer yet the run ends with the outcome `NeedsInput`. `session.answer(...)`
    gives it, and when the run goes on the tool is called again from its start: the questions that
    were answered return their answers at once; one that is asked several times, in order. So
    everything a tool does before `ask` must be idempotent, and it must ask the same again; an
    answer to another question is not used.

    Args:
        question: What somebody shall read.
        schema: What the answer shall be: a JSON Schema, or a type that pydantic knows. Any JSON
            value by default.

    Returns:
        The answer; an object of the type where `schema` is one.

    Raises:
        RuntimeError: It is called outside of a tool call.
        TypeError: `question` is no text, or `schema` is neither a JSON Schema nor a type.
        ValueError: The answer is no value of the type, by a check that no JSON Schema can say.
    """
    call = current_call("rath.ask")
    if not isinstance(question, str):
        raise TypeError(f"a question is a str, not {type(question).__name__}")
    text = valid_unicode(question)
    if schema is None or isinstance(schema, Mapping):
        plain_schema = None if schema is None else _as_json(cast("Mapping[str, Any]", schema))
        return json.loads(call.answer(Question(text, plain_schema)))
    # On first use: few tools ask, and `import rath` must not load pydantic.
    from rath.session.output_types import answer_type  # noqa: PLC0415

    wanted = answer_type(schema)
    return wanted.read(call.answer(Question(text, wanted.schema)))


def _as_json(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a JSON Schema as the record holds it: an answer is bound to what it says.

    Raises:
        TypeError: It has no JSON form.
    """
    try:
        written = json.dumps(dict(schema), ensure_ascii=False, allow_nan=False)
        return cast("Mapping[str, Any]", json.loads(valid_unicode(written)))
    except (TypeError, ValueError, RecursionError) as exc:
        raise TypeError(
            f"the schema of a question cannot be written as JSON ({exc}); use None, bool, int, "
            "float, str, list and dict in it"
        ) from exc
