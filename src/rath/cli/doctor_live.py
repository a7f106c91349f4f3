"""What `rath doctor --live` learns by asking the models."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

from rath._core.text import did_you_mean
from rath.cli.findings import Finding, Level
from rath.cli.model_targets import Target, configured_targets, environment_targets
from rath.cli.terminal import Misuse, Problem, note
from rath.llm.local.weights import BUNDLED
from rath.llm.probe import ProbeFinding, ProbeReport, ProbeVerdict, probe_providers
from rath.llm.provider import Provider
from rath.llm.registry import registered_kinds

__all__ = ["ask_models"]

_LEVELS: dict[ProbeVerdict, Level] = {
    "works": "ok", "lacking": "warning", "failed": "problem", "skipped": "note",
}  # fmt: skip
_LOCAL = "local"


def ask_models(names: Sequence[str], *, timeout: float) -> list[Finding]:
    """Ask models what they support, all at the same time; whatever fails is a finding.

    Args:
        names: Names of the config or kinds; without any, every model that is configured or of
            which the environment holds a key. The embedded model is asked where it is named, or
            is the only one.
        timeout: Seconds for each step.

    Raises:
        Misuse: There is no model of such a name.
        Problem: An entry of such a name cannot be used, or may not.
    """
    targets, spared = (_chosen(names), []) if names else _all()
    if not targets:
        text = "there is no model to ask"
        return [Finding("Live", "models", "problem", text, "set one up: rath config init")]
    if sys.stderr.isatty():
        called = ", ".join(target.name for target in targets)
        note(f"asking {called}; each step takes at most {timeout:g} s")
    reports = probe_providers([target.provider for target in targets], timeout=timeout)
    told: list[Finding] = []
    for target, report in zip(targets, reports, strict=True):
        told += _findings(target, report)
    return told + [_spared(target) for target in spared]


def _all() -> tuple[list[Target], list[Target]]:
    """Return the models to ask, and those that would have to be loaded for it."""
    configured, _ = configured_targets()
    # A kind without a key has nothing to be asked with.
    offered = [each for each in environment_targets() if each.account.api_key.value]
    found = [*configured, *_new(offered, configured)]
    others = [target for target in found if target.kind != _LOCAL]
    if others:
        return others, [target for target in found if target.kind == _LOCAL]
    if found:
        return found, []
    is_there = find_spec("xllamacpp") and find_spec(BUNDLED.parts[0].package)
    return ([_bare(_LOCAL)] if is_there else []), []


def _new(targets: Iterable[Target], known: Sequence[Target]) -> list[Target]:
    return [each for each in targets if not any(each.is_same_as(other) for other in known)]


def _chosen(names: Sequence[str]) -> list[Target]:
    configured, findings = configured_targets()
    chosen: list[Target] = []
    for name in names:
        meant = [target for target in configured if target.name == name]
        meant = meant or [target for target in configured if target.kind == name]
        if not meant and name in registered_kinds():
            meant = [_bare(name)]
        for finding in findings:
            if not meant and finding.subject == name:
                raise Problem(finding.text)
        if not meant:
            known = [*dict.fromkeys(target.name for target in configured), *registered_kinds()]
            raise Misuse(
                f"no provider {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}"
            )
        chosen += _new(meant, chosen)
    return chosen


def _bare(kind: str) -> Target:
    return Target(kind, Provider(provider_kind=kind), is_configured=False)


def _spared(target: Target) -> Finding:
    text = "not asked, since it would be loaded for that"
    advice = f"to ask it: rath doctor --live --provider {target.name}"
    return Finding(f"Live: {target.name}", "asked", "note", text, advice)


def _findings(target: Target, report: ProbeReport) -> list[Finding]:
    group = f"Live: {target.name}"
    about = [report.provider_kind, *([repr(report.model)] if report.model else [])]
    where = f" at {report.endpoint}" if report.endpoint else ""
    head = Finding(group, "asked", "note", f"{' '.join(about)}{where}", details=_details(report))
    steps = [_step(group, finding) for finding in report.findings]
    return [head, *steps, *_sum(group, report)]


def _step(group: str, finding: ProbeFinding) -> Finding:
    seconds = finding.elapsed_ms / 1000
    took = f" ({seconds:.1f} s)" if finding.verdict != "skipped" else ""
    details = {
        "step": finding.step,
        "verdict": finding.verdict,
        "elapsed_ms": round(finding.elapsed_ms, 1),
        "n_calls": len(finding.calls),
    }
    subject = finding.step.replace("_", " ")
    text = f"{finding.text}{took}"
    return Finding(group, subject, _LEVELS[finding.verdict], text, details=details)


def _sum(group: str, report: ProbeReport) -> list[Finding]:
    usage, cost = report.usage, report.cost_usd
    if usage is None:
        return []
    text = f"{usage.total_tokens} tokens"
    if cost is not None:
        text += f", ${cost:.6f}"
    elif report.provider_kind != _LOCAL:
        text += ", and no price is known"
    details = {"total_tokens": usage.total_tokens, "cost_usd": None if cost is None else str(cost)}
    return [Finding(group, "cost", "note", text, details=details)]


def _details(report: ProbeReport) -> dict[str, object]:
    return {
        "provider_kind": report.provider_kind,
        "endpoint": report.endpoint,
        "model": report.model,
        "model_origin": report.model_origin,
        "served_models": list(report.served_models),
        "offered": list(report.offered),
    }
