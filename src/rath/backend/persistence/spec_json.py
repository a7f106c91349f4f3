"""Sandbox specs as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeVar, cast

from rath.backend.abc import BackendSandboxSpec, SandboxLimits
from rath.backend.manifest import EffectPolicy

__all__ = ["SCHEMA_VERSION", "spec_from_jsonable", "spec_to_jsonable"]

SCHEMA_VERSION = 1

D = TypeVar("D", SandboxLimits, EffectPolicy)


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
        record["limits"] = dataclasses.asdict(spec.limits)
    if spec.effects is not None:
        effects = dataclasses.asdict(spec.effects)
        record["effects"] = {**effects, "ignore": sorted(spec.effects.ignore)}
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
    if effects is not None and "ignore" in effects:
        effects = {**effects, "ignore": frozenset(effects["ignore"])}
    return BackendSandboxSpec(
        image=raw.get("image"),
        entrypoint=None if entrypoint is None else tuple(entrypoint),
        env=known or None,
        timeout=None if seconds is None else timedelta(seconds=seconds),
        working_dir=raw.get("working_dir"),
        network=raw.get("network") is True,
        limits=None if limits is None else _from_fields(SandboxLimits, limits),
        effects=None if effects is None else _from_fields(EffectPolicy, effects),
    )


def _from_fields(cls: type[D], raw: Mapping[str, Any]) -> D:
    """Return a dataclass with the values of its fields in `raw`."""
    names = [field.name for field in dataclasses.fields(cls)]
    return cls(**{name: raw[name] for name in names if name in raw})
