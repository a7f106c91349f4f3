"""What the record says of a run, by the names of OpenTelemetry's conventions for generative AI.

Names: semantic conventions 1.41, https://opentelemetry.io/docs/specs/semconv/gen-ai/
Texts of prompts, answers, arguments and results are left out: they may hold secrets of users, and
stand in the session, which every span names.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from rath.llm.endpoint import is_azure
from rath.llm.exchange import CallEvidence
from rath.session.record import ModelCall, Operation, ToolRun
from rath.session.traces.span import Attribute

Attributes = dict[str, Attribute]

_PARAMETERS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "temperature": ("gen_ai.request.temperature", (int, float)),
    "top_p": ("gen_ai.request.top_p", (int, float)),
    "max_tokens": ("gen_ai.request.max_tokens", (int,)),
    "max_completion_tokens": ("gen_ai.request.max_tokens", (int,)),
    "frequency_penalty": ("gen_ai.request.frequency_penalty", (int, float)),
    "presence_penalty": ("gen_ai.request.presence_penalty", (int, float)),
    "seed": ("gen_ai.request.seed", (int,)),
    "n": ("gen_ai.request.choice.count", (int,)),
    "stream": ("gen_ai.request.stream", (bool,)),
}


def encode_operation(operation: Operation) -> Attributes:
    """Return what is said of a run as a whole."""
    said: Attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.conversation.id": str(operation.session),
        "rath.operation": operation.kind,
        "rath.session.id": str(operation.session),
    }
    if operation.place.path:
        said["gen_ai.agent.name"] = operation.place.path.rpartition(".")[2]
        said["rath.place"] = f"{operation.place.path}#{operation.place.ordinal}"
    return said


def encode_call(call: ModelCall, operation: Operation) -> Attributes:
    """Return what is said of a model call."""
    evidence = call.evidence
    said: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider_name(evidence),
        "gen_ai.conversation.id": str(operation.session),
        "rath.call.purpose": call.purpose,
        "rath.call.attempts": len(evidence.attempts),
        "rath.session.id": str(operation.session),
    }
    counts = evidence.usage
    _put(said, "gen_ai.request.model", evidence.requested_model)
    _put(said, "gen_ai.response.model", evidence.served_model)
    _put(said, "gen_ai.response.id", evidence.response_id)
    _put(said, "gen_ai.usage.input_tokens", None if counts is None else counts.prompt_tokens)
    _put(said, "gen_ai.usage.output_tokens", None if counts is None else counts.completion_tokens)
    _put(said, "gen_ai.usage.cache_read.input_tokens", evidence.cached_tokens)
    _put(said, "gen_ai.usage.cache_creation.input_tokens", evidence.cache_write_tokens)
    _put(said, "rath.fallback_from", evidence.fallback_from)
    if evidence.finish_reason is not None:
        said["gen_ai.response.finish_reasons"] = (evidence.finish_reason,)
    if evidence.first_token_ms is not None:
        said["gen_ai.response.time_to_first_chunk"] = evidence.first_token_ms / 1000
    return {**said, **_parameters(evidence), **_server(evidence.endpoint), **_error(call)}


def encode_tool(run: ToolRun, operation: Operation) -> Attributes:
    """Return what is said of a tool call."""
    said: Attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": run.tool,
        "gen_ai.tool.call.id": run.call_id,
        "gen_ai.tool.type": "function",
        "gen_ai.conversation.id": str(operation.session),
        "rath.tool.origin": run.origin,
        "rath.tool.status": run.status,
        "rath.session.id": str(operation.session),
    }
    if run.sandbox is not None:
        said["rath.sandbox.backend"] = run.sandbox.backend
        said["rath.sandbox.isolation"] = run.sandbox.isolation
    _put(said, "process.exit.code", run.exit_code)
    if run.status != "done":
        said["error.type"] = run.error_kind or run.status
    return said


def provider_name(evidence: CallEvidence) -> str:
    """Return the conventions' name of the provider, else that of its kind here."""
    if evidence.provider_kind == "openai" and is_azure(evidence.endpoint):
        return "azure.ai.openai"
    return evidence.provider_kind


def _parameters(evidence: CallEvidence) -> Attributes:
    said: Attributes = {}
    for name, (attribute, kinds) in _PARAMETERS.items():
        value = evidence.parameters.get(name)
        if type(value) in kinds and isinstance(value, bool | int | float):
            said[attribute] = value
    return said


def _server(endpoint: str | None) -> Attributes:
    parts = urlsplit(endpoint or "")
    said: Attributes = {}
    if parts.hostname:
        said["server.address"] = parts.hostname
        said["server.port"] = parts.port or (443 if parts.scheme == "https" else 80)
    return said


def _error(call: ModelCall) -> Attributes:
    if call.status == "done":
        return {}
    tries = [attempt for attempt in call.evidence.attempts if attempt.status is not None]
    return {"error.type": str(tries[-1].status) if tries else call.status}


def _put(said: Attributes, name: str, value: Attribute | None) -> None:
    if value is not None:
        said[name] = value
