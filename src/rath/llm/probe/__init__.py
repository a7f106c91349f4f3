"""What an endpoint really supports, found out by asking it for very little."""

from __future__ import annotations

from rath.llm.probe.findings import ProbeFinding, ProbeReport, ProbeStep, ProbeVerdict
from rath.llm.probe.portal import DEFAULT_PROBE_TIMEOUT, Probed, find_obstacle, probe_providers

__all__ = [
    "DEFAULT_PROBE_TIMEOUT",
    "ProbeFinding",
    "ProbeReport",
    "ProbeStep",
    "ProbeVerdict",
    "Probed",
    "find_obstacle",
    "probe_providers",
]
