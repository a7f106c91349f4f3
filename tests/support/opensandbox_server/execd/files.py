"""Files and directories: `/files` and `/directories`."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from typing import Any, NoReturn
from urllib.parse import quote

from tests.support.opensandbox_server.execd.entries import entry
from tests.support.opensandbox_server.execd.uploads import set_permissions
from tests.support.opensandbox_server.execd.wire import (
    Answering,
    DroppedError,
    RefusedError,
    Request,
    reason,
)

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def download(request: Request, answering: Answering) -> None:
    """Send a file, or one range of its bytes. `offset` and `limit` have no effect, as recorded."""
    path = _expanded(request.first("path"))
    try:
        with open(path, "rb") as file:
            data, modified = file.read(), os.fstat(file.fileno()).st_mtime
    except IsADirectoryError as exc:
        raise DroppedError from exc  # what the daemon does when asked for a directory
    except OSError as exc:
        _refuse("open", path, exc)
    name = quote(os.path.basename(path))
    suffix = "" if name == os.path.basename(path) else f"; filename*=UTF-8''{name}"
    headers = {
        "content-type": "application/octet-stream",
        "content-disposition": f'attachment; filename="{name}"{suffix}',
    }
    asked = _RANGE.match(request.headers.get("range", ""))
    if asked is None:
        headers["accept-ranges"] = "bytes"
        date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(modified))
        answering.send(data, headers={**headers, "last-modified": date})
        return
    start, stop = _bounds(asked[1], asked[2], len(data))
    headers["content-range"] = f"bytes {start}-{stop - 1}/{len(data)}"
    answering.send(data[start:stop], 206, headers)


def info(request: Request, answering: Answering) -> None:
    """Describe paths; all or none."""
    found: dict[str, Any] = {}
    for path in request.all("path"):
        try:
            found[path] = {**entry(_expanded(path)), "path": path}
        except OSError as exc:
            text = f"file not found: {path}: lstat {path}: {reason(exc)}"
            raise _refusal(exc, text) from exc
    answering.send_json(found)


def search(request: Request, answering: Answering) -> None:
    """Find files by their names, at any depth; directories are not found."""
    top = os.path.abspath(_expanded(request.first("path")))
    if not os.path.exists(top):
        _refuse("stat", top, FileNotFoundError(2, "No such file or directory"))
    pattern = (request.all("pattern") or ["**"])[0] or "**"
    name_pattern = pattern.rpartition("/")[2].replace("**", "*")
    found = [
        each
        for each in _below(top, None)
        if each["type"] != "directory"
        and fnmatch.fnmatchcase(os.path.basename(each["path"]), name_pattern)
    ]
    answering.send_json(found)


def list_directory(request: Request, answering: Answering) -> None:
    """Describe what stands in a directory, in order of names, down to `depth` levels."""
    top = os.path.abspath(_expanded(request.first("path")))
    try:
        mode = os.lstat(top).st_mode
    except OSError as exc:
        _refuse("lstat", top, exc)
    if not stat.S_ISDIR(mode):
        kind = "is a symbolic link" if stat.S_ISLNK(mode) else "is not a directory"
        raise RefusedError(400, "INVALID_REQUEST_BODY", f"path {kind}: {top}")
    depth = int((request.all("depth") or ["1"])[0])
    answering.send_json(list(_below(top, depth)))


def move(request: Request, answering: Answering) -> None:
    """Rename; what is there already is never replaced."""
    for item in request.json():
        source, target = _expanded(item["src"]), _expanded(item["dest"])
        if not os.path.lexists(source):
            text = f"source path not found: {source}: stat {source}: no such file or directory"
            raise RefusedError(404, "FILE_NOT_FOUND", f"file not found. {text}")
        if os.path.lexists(target):
            text = f"error accessing file: destination path already exists: {target}"
            raise RefusedError(500, "RUNTIME_ERROR", text)
        try:
            os.makedirs(os.path.dirname(os.path.abspath(target)), mode=0o755, exist_ok=True)
            os.rename(source, target)
        except OSError as exc:
            _refuse("rename", source, exc)
    answering.send()


def permissions(request: Request, answering: Answering) -> None:
    """Change modes and owners."""
    for path, wanted in request.json().items():
        try:
            set_permissions(_expanded(path), wanted)
        except OSError as exc:
            text = f"error changing permissions for {path}. chmod {path}: {reason(exc)}"
            raise RefusedError(500, "RUNTIME_ERROR", text) from exc
    answering.send()


def replace(request: Request, answering: Answering) -> None:
    """Replace a text wherever it occurs in files."""
    counts: dict[str, Any] = {}
    for path, item in request.json().items():
        real = os.path.abspath(_expanded(path))
        try:
            with open(real, "rb") as file:
                content = file.read()
        except OSError as exc:
            _refuse("stat", real, exc)
        old, new = str(item["old"]).encode(), str(item["new"]).encode()
        if not old:
            text = "old content must not be empty"
            raise RefusedError(400, "INVALID_REQUEST_BODY", text)
        counts[path] = {"replacedCount": content.count(old)}
        try:
            with open(real, "wb") as file:
                file.write(content.replace(old, new))
        except OSError as exc:
            _refuse("open", real, exc)
    if request.all("verbose") == ["true"]:
        answering.send_json(counts)
    else:
        answering.send()


def remove_files(request: Request, answering: Answering) -> None:
    """Delete files; what is not there is no error."""
    for path in request.all("path"):
        real = _expanded(path)
        try:
            if os.path.isdir(real) and not os.path.islink(real):
                raise RefusedError(
                    500, "RUNTIME_ERROR", f"error removing file {path}. path is a directory"
                )
            os.unlink(real)
        except FileNotFoundError:
            continue
        except OSError as exc:
            text = f"error removing file {path}. remove {path}: {reason(exc)}"
            raise RefusedError(500, "RUNTIME_ERROR", text) from exc
    answering.send()


def make_directories(request: Request, answering: Answering) -> None:
    """Make directories, with those above them."""
    for path, wanted in request.json().items():
        real = _expanded(path)
        try:
            os.makedirs(real, mode=0o755, exist_ok=True)
            set_permissions(real, wanted or {})
        except OSError as exc:
            _refuse("mkdir", path, exc)
    answering.send()


def remove_directories(request: Request, answering: Answering) -> None:
    """Delete trees; links in them are deleted, not followed."""
    for path in request.all("path"):
        real = _expanded(path)
        try:
            if os.path.islink(real) or os.path.isfile(real):
                os.unlink(real)
            elif os.path.exists(real):
                shutil.rmtree(real)
        except OSError as exc:
            text = f"error removing directory {path}. unlinkat {path}: {reason(exc)}"
            raise RefusedError(500, "RUNTIME_ERROR", text) from exc
    answering.send()


def _below(top: str, depth: int | None) -> Iterator[dict[str, Any]]:
    """Entries under a directory, each followed by those in it; None for any depth."""
    if depth == 0:
        return
    if not os.path.isdir(top):
        yield entry(top)
        return
    try:
        names = sorted(os.listdir(top))
    except OSError as exc:
        raise _refusal(exc, f"open {top}: {reason(exc)}") from exc
    for name in names:
        path = os.path.join(top, name)
        try:
            found = entry(path)
        except FileNotFoundError:
            continue  # gone since the names were read
        yield found
        if found["type"] == "directory":
            yield from _below(path, None if depth is None else depth - 1)


def _bounds(first: str, last: str, size: int) -> tuple[int, int]:
    """Where a range begins and where it ends (exclusive)."""
    start = int(first) if first else max(0, size - int(last or 0))
    stop = min(int(last) + 1, size) if first and last else size
    if start >= size or stop <= start:
        raise RefusedError(416, "UNKNOWN", "invalid range")
    return start, stop


def _expanded(path: str) -> str:
    """A path as the daemon takes it: relative ones stand at its own directory, the root."""
    return os.path.join("/", os.path.expandvars(os.path.expanduser(path)))


def _refuse(verb: str, path: str, error: OSError) -> NoReturn:
    raise _refusal(error, f"{verb} {path}: {reason(error)}") from error


def _refusal(error: OSError, text: str) -> RefusedError:
    if isinstance(error, FileNotFoundError):
        return RefusedError(404, "FILE_NOT_FOUND", f"file not found. {text}")
    return RefusedError(500, "RUNTIME_ERROR", f"error accessing file: {text}")
