"""Executable contracts: what a backend or a memory of anybody's must do, run against it."""

from __future__ import annotations

from rath.conformance.backend import check_backend
from rath.conformance.memory import check_memory
from rath.conformance.report import Finding, Report

__all__ = ["Finding", "Report", "check_backend", "check_memory"]
