"""What a client asks of a new sandbox: read, and refused where the real server refuses."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from tests.support.opensandbox_server.container import Mount
from tests.support.opensandbox_server.http import Reply, error_reply, json_reply

_MIN_TIMEOUT = 60
_LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_RESERVED = "opensandbox.io/"
_UNKNOWN_IMAGES = ("localhost/none:*",)
_RUNTIME_IMAGES = ("*code-interpreter*",)


class WishError(Exception):
    """A request that is refused."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.body)
        self.reply = reply


@dataclass(frozen=True, slots=True)
class Wish:
    """One new sandbox."""

    source: Mapping[str, Any]
    timeout: float | None
    """Seconds; None for a sandbox that lasts until it is deleted."""
    env: Mapping[str, str]
    metadata: Mapping[str, str]
    entrypoint: Sequence[str]
    volumes: Sequence[Mapping[str, Any]]

    @property
    def snapshot_id(self) -> str | None:
        """The snapshot to begin with, if it is one."""
        return self.source.get("snapshotId")


def read_wish(body: Mapping[str, Any]) -> Wish:
    """Read the body of a creation.

    Raises:
        WishError: With the answer of the real server.
    """
    image, snapshot_id = body.get("image"), body.get("snapshotId")
    if (image is None) == (snapshot_id is None):
        raise refusal(
            400, "SANDBOX::INVALID_PARAMETER", "exactly one of image and snapshotId is needed"
        )
    timeout = body.get("timeout")
    if timeout is not None and timeout < _MIN_TIMEOUT:
        raise invalid("timeout", f"Input should be greater than or equal to {_MIN_TIMEOUT}")
    metadata: dict[str, str] = body.get("metadata") or {}
    for name, value in metadata.items():
        check_label(name, value)
    if image is not None:
        _check_image(image["uri"])
    return Wish(
        {"image": image} if image is not None else {"snapshotId": snapshot_id},
        timeout,
        body.get("env") or {},
        metadata,
        body.get("entrypoint") or ["tail", "-f", "/dev/null"],
        body.get("volumes") or [],
    )


def has_runtime(source: Mapping[str, Any]) -> bool:
    """Whether what a sandbox is made of has the runtime for code."""
    image: Mapping[str, str] = source.get("image") or {}
    uri = image.get("uri", "")
    return any(fnmatch.fnmatchcase(uri, pattern) for pattern in _RUNTIME_IMAGES)


def check_label(name: str, value: str) -> None:
    """Refuse metadata that the real server refuses."""
    text = None
    if name.startswith(_RESERVED):
        text = f"Metadata key '{name}' uses the reserved prefix '{_RESERVED}'."
    elif not _LABEL.fullmatch(value):
        text = (
            f"Metadata value '{value}' is invalid: must be 63 characters or less, start/end with "
            "an alphanumeric character, and contain only alphanumeric, '-', '_', or '.' characters."
        )
    if text is not None:
        raise refusal(400, "SANDBOX::INVALID_METADATA_LABEL", text)


def read_mounts(
    volumes: Sequence[Mapping[str, Any]], allowed: Sequence[Path], named: Path, root: Path
) -> list[Mount]:
    """The directories that a sandbox is to see.

    Args:
        allowed: Only directories of the host under these are bound.
        named: Where named volumes stand.
        root: Tree of the sandbox; a target behind a link in it is refused.
    """
    mounts: list[Mount] = []
    for volume in volumes:
        target = PurePosixPath(volume["mountPath"])
        if not target.is_absolute() or ".." in target.parts or target == PurePosixPath("/"):
            text = f"Mount path '{target}' must be an absolute path."
            raise refusal(400, "VOLUME::INVALID_MOUNT_PATH", text)
        if any((root / part.relative_to("/")).is_symlink() for part in (target, *target.parents)):
            text = f"Mount path '{target}' leads through a link."
            raise refusal(400, "VOLUME::INVALID_MOUNT_PATH", text)
        source = _source(volume, allowed, named)
        mounts.append(Mount(source, str(target), bool(volume.get("readOnly"))))
    return mounts


def refusal(status: int, code: str, message: str) -> WishError:
    """An error in the form of the API."""
    return WishError(error_reply(status, code, message))


def invalid(field: str, message: str) -> WishError:
    """An error that the real server's framework gives before the server looks."""
    detail = [{"type": "value_error", "loc": ["body", field], "msg": message}]
    return WishError(json_reply({"detail": detail}, 422))


def _check_image(uri: str) -> None:
    if not any(fnmatch.fnmatchcase(uri, pattern) for pattern in _UNKNOWN_IMAGES):
        return
    name, _, tag = uri.rpartition(":")
    raise refusal(
        500,
        "DOCKER::SANDBOX_IMAGE_PULL_FAILED",
        f"Failed to pull image {uri}: 500 Server Error for http+docker://localhost/v1.41/images/"
        f"create?tag={tag}&fromImage={name.replace('/', '%2F')}: Internal Server Error "
        '("Get "http://localhost/v2/": dial tcp 127.0.0.1:80: connect: connection refused")',
    )


def _source(volume: Mapping[str, Any], allowed: Sequence[Path], named: Path) -> Path:
    below = PurePosixPath(volume.get("subPath") or ".")
    if below.is_absolute() or ".." in below.parts:
        text = f"Sub path '{below}' must be relative and may not contain '..'."
        raise refusal(400, "VOLUME::INVALID_SUB_PATH", text)
    if volume.get("host"):
        return _host_source(Path(volume["host"]["path"]), below, allowed)
    backend: Mapping[str, Any] = volume.get("pvc") or {}
    claim = str(backend.get("claimName", ""))
    if not claim:
        text = f"Volume '{volume['name']}' has no backend that this server has."
        raise refusal(400, "VOLUME::INVALID_BACKEND", text)
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", claim):
        raise invalid("claimName", "String should match pattern")
    source = named / claim
    if not source.is_dir() and not backend.get("createIfNotExists", True):
        raise refusal(400, "VOLUME::PVC_NOT_FOUND", f"Volume '{claim}' does not exist.")
    (source / below).mkdir(parents=True, exist_ok=True)
    return source / below


def _host_source(path: Path, below: PurePosixPath, allowed: Sequence[Path]) -> Path:
    real = (path / below).resolve()
    if not path.is_absolute() or not any(real.is_relative_to(each.resolve()) for each in allowed):
        prefixes = ", ".join(str(each) for each in allowed)
        raise refusal(
            400,
            "VOLUME::HOST_PATH_NOT_ALLOWED",
            f"Host path '{path}' is not under any allowed prefix. Allowed prefixes: [{prefixes}]",
        )
    if not real.is_dir():
        text = f"Host path '{path}' does not exist or is not a directory."
        raise refusal(400, "VOLUME::HOST_PATH_NOT_FOUND", text)
    return real
