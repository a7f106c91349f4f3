"""A directory of the server's host as the workspace of a sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rath.backend.abc import BackendSandboxSpec
from rath.errors import MissingExtra

VOLUME = "rath-workspace"


def bind_workspace_volumes_from_spec(
    spec: BackendSandboxSpec | None, sandbox_root: str
) -> list[Any] | None:
    """Return the volume that mounts `spec.working_dir`, None where none is asked for.

    Makes the directory on this host, which is right where the server runs here too.

    Args:
        spec: What is opened.
        sandbox_root: Where it is mounted.

    Raises:
        MissingExtra: The SDK is not installed.
        OSError: The directory cannot be made.
    """
    if spec is None or not spec.working_dir:
        return None
    try:
        from opensandbox.models.sandboxes import Volume
    except ImportError as exc:
        raise MissingExtra("opensandbox", "the opensandbox backend") from exc
    path = Path(spec.working_dir).expanduser().resolve()
    path.mkdir(parents=True, exist_ok=True)
    volume = Volume.model_validate(
        {"name": VOLUME, "host": {"path": str(path)}, "mountPath": sandbox_root}
    )
    return [volume]
