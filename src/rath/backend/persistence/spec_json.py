"""Sandbox specs as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

from rath.backend.abc import BackendSandboxSpec, SandboxLimits
from rath.backend.changes import EffectPolicy

__all__ = ["SCHEMA_VERSION", "spec_from_jsonable", "spec_to_jsonable"]

SCHEMA_VERSION = 1


def spec_to_jsonable(spec: BackendSandboxSpec | None) -> dict[str, Any] | None:
    """Return a sandbox spec as JSON: tuples as lists, the timeout in seconds.

    Values of environment variables may be secrets: their names are kept, with null as value.
    `network`, `limits` and `effects` are there only where they differ from their defaults.
    """
    if spec is None:
        return None
    record: dict[str, Any] = {
        "image": spec.image,
        "entrypoint": None if spec.entrypoint is None else list(spec.entrypoint),
        "env": None if spec.env is None else dict.fromkeys(spec.env),
        "timeout_seconds": None if spec.timeout is None else spec.timeout.total_seconds(),
        "working_dir": spec.working_dir,
    }
    if spec.network:
        record["network"] = True
    if spec.limits is not None:
        limits = spec.limits
        record["limits"] = {"memory_bytes": limits.memory_bytes, "processes": limits.processes}
    if spec.effects is not None:
        record["effects"] = {
            "is_on": spec.effects.is_on,
            "ignore": sorted(spec.effects.ignore),
            "max_files": spec.effects.max_files,
            "keep_contents": spec.effects.keep_contents,
        }
    return record


def spec_from_jsonable(raw: Mapping[str, Any] | None) -> BackendSandboxSpec | None:
    """Return the sandbox spec that `spec_to_jsonable` wrote; keys that are not known are ignored.

    A variable without value is left out. Files of OpenRath 1 hold the values of variables; those
    are kept.

    Raises:
        ValueError: A value has the wrong type.
    """
    if raw is None:
        return None
    try:
        return _spec(raw)
    except (TypeError, AttributeError, OverflowError) as exc:
        raise ValueError(f"malformed sandbox spec: {exc}") from exc


def _spec(raw: Mapping[str, Any]) -> BackendSandboxSpec:
    env = cast("Mapping[str, str | None]", raw.get("env") or {})
    known = {name: value for name, value in env.items() if value is not None}
    entrypoint, seconds = raw.get("entrypoint"), raw.get("timeout_seconds")
    limits, effects = raw.get("limits"), raw.get("effects")
    return BackendSandboxSpec(
        image=raw.get("image"),
        entrypoint=None if entrypoint is None else tuple(entrypoint),
        env=known or None,
        timeout=None if seconds is None else timedelta(seconds=seconds),
        working_dir=raw.get("working_dir"),
        network=raw.get("network") is True,
        limits=None if limits is None else _limits(limits),
        effects=None if effects is None else _effects(effects),
    )


def _limits(raw: Mapping[str, Any]) -> SandboxLimits:
    return SandboxLimits(memory_bytes=raw.get("memory_bytes"), processes=raw.get("processes"))


def _effects(raw: Mapping[str, Any]) -> EffectPolicy:
    default = EffectPolicy()
    return EffectPolicy(
        is_on=raw.get("is_on", default.is_on),
        ignore=frozenset(raw.get("ignore", default.ignore)),
        max_files=raw.get("max_files", default.max_files),
        keep_contents=raw.get("keep_contents", default.keep_contents),
    )
