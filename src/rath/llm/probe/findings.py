"""What a probe found out, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, TypeAlias

from rath.llm.chat_response import RathLLMTokenUsage, add_usage
from rath.llm.evidence import CallEvidence

__all__ = ["ProbeFinding", "ProbeReport", "ProbeStep", "ProbeVerdict"]

ProbeStep: TypeAlias = Literal[
    "setup", "models", "answer", "tool_call", "stream", "schema", "embedding", "picture"
]
"""What was tried: to make a client, the list of models, a whole answer, a tool call, a stream, an
answer by a JSON Schema, the vector of a word, a question about a picture."""

ProbeVerdict: TypeAlias = Literal["works", "lacking", "failed", "skipped"]
"""What came of it. "lacking": the endpoint does not support it, or not all of it, and programs that
do not need it run. "skipped": nobody was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFinding:
    """What one step of a probe found."""

    step: ProbeStep
    verdict: ProbeVerdict
    text: str
    """What was seen, in one or two sentences; the endpoint's own words where it refused."""

    elapsed_ms: float = 0.0
    calls: tuple[CallEvidence, ...] = ()
    """The model calls that were made for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """What a probe found out about one provider."""

    provider_kind: str
    endpoint: str | None
    """Scheme, host and path; None where no client could be made, or it does not say."""

    model: str | None
    """The model that was asked for; None where nobody names one."""

    model_origin: str | None = None
    """Where its name came from: "call", "env NAME", "config FILE" or "default"."""

    offered: tuple[str, ...] = ()
    """The models that the endpoint lists; empty where it does not tell."""

    findings: tuple[ProbeFinding, ...]

    @property
    def is_usable(self) -> bool:
        """Whether nothing failed; something may be lacking all the same."""
        return all(finding.verdict != "failed" for finding in self.findings)

    @property
    def calls(self) -> tuple[CallEvidence, ...]:
        """Every model call of the probe."""
        return tuple(call for finding in self.findings for call in finding.calls)

    @property
    def served_models(self) -> tuple[str, ...]:
        """The models that say they answered, each once."""
        served = (call.served_model for call in self.calls if call.status == "done")
        return tuple(dict.fromkeys(model for model in served if model))

    @property
    def usage(self) -> RathLLMTokenUsage | None:
        """Tokens of all calls, as far as the endpoint counted them; None where it never did."""
        total: RathLLMTokenUsage | None = None
        for call in self.calls:
            total = add_usage(total, call.usage)
        return total

    @property
    def cost_usd(self) -> Decimal | None:
        """What the calls cost as far as prices are known, None where none is.

        The first question of a process for a cost takes 0.5 s; see `CallEvidence.cost`.
        """
        costs = [call.cost.usd for call in self.calls if call.cost is not None]
        return sum(costs, start=Decimal(0)) if costs else None
