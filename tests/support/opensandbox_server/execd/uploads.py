"""Files that a client sends: pairs of parts, what a file is to be and what it holds."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from typing import Any

from tests.support.opensandbox_server.execd.entries import from_digits
from tests.support.opensandbox_server.execd.wire import Answering, RefusedError, Request, reason

_NAME = re.compile(rb'name="([^"]*)"')


def upload(request: Request, answering: Answering) -> None:
    """Write files; directories above them are made."""
    wanted: list[Any] = []
    contents: list[bytes] = []
    for name, data in _parts(request):
        if name == "metadata":
            wanted.append(json.loads(data))
        elif name == "file":
            contents.append(data)
    if not wanted:
        raise RefusedError(400, "INVALID_FILE_METADATA", "metadata file is missing")
    if len(wanted) != len(contents):
        text = "metadata and file count mismatch"
        raise RefusedError(400, "INVALID_FILE_METADATA", text)
    for each, data in zip(wanted, contents, strict=True):
        _write(each, data)
    answering.send()


def set_permissions(path: str, wanted: dict[str, Any]) -> None:
    """Give a path the mode, owner and group that are named.

    Raises:
        OSError: It cannot be done.
    """
    if wanted.get("mode"):
        os.chmod(path, from_digits(wanted["mode"]))
    owner, group = wanted.get("owner") or None, wanted.get("group") or None
    if owner is not None or group is not None:
        try:
            shutil.chown(path, owner, group)  # type: ignore[arg-type]  # one of them is given
        except LookupError as exc:
            raise OSError(str(exc)) from exc


def _write(wanted: dict[str, Any], data: bytes) -> None:
    path = os.path.abspath(wanted["path"])
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
        set_permissions(path, wanted)
    except OSError as exc:
        text = f"error writing file {path}. open {path}: {reason(exc)}"
        raise RefusedError(500, "RUNTIME_ERROR", text) from exc


def _parts(request: Request) -> Iterator[tuple[str, bytes]]:
    """The names and contents of the parts of a multipart body."""
    kind, _, rest = request.headers.get("content-type", "").partition("boundary=")
    if not kind.startswith("multipart/form-data") or not rest:
        raise RefusedError(400, "INVALID_FILE", "request Content-Type isn't multipart/form-data")
    boundary = b"--" + rest.strip('"').encode()
    body = b"\r\n" + request.body
    for part in body.split(b"\r\n" + boundary)[1:]:
        if part.startswith(b"--"):
            return
        head, _, data = part.partition(b"\r\n\r\n")
        found = _NAME.search(head)
        if found is not None:
            yield found[1].decode(), data
    raise RefusedError(400, "INVALID_FILE", "multipart: NextPart: EOF")
