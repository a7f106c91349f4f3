"""Files and directories: `/files` and `/directories`."""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn
from urllib.parse import quote

from tests.support.opensandbox_server.execd.wire import (
    Answering,
    DroppedError,
    RefusedError,
    Request,
    reason,
    stamp,
)

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_NAME = re.compile(rb'name="([^"]*)"')


def upload(request: Request, answering: Answering) -> None:
    """Write files; directories above them are made."""
    parts = list(_parts(request))
    wanted: list[Any] = [json.loads(data) for name, data in parts if name == "metadata"]
    contents = [data for name, data in parts if name == "file"]
    if not wanted or len(wanted) != len(contents):
        raise RefusedError(400, "INVALID_FILE_METADATA", "metadata and file count mismatch")
    for each, data in zip(wanted, contents, strict=True):
        path = os.path.abspath(each["path"])
        try:
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)
            _set_mode(path, each)
        except OSError as exc:
            text = f"error writing file {path}. open {path}: {reason(exc)}"
            raise RefusedError(500, "RUNTIME_ERROR", text) from exc
    answering.send()


def _parts(request: Request) -> Iterator[tuple[str, bytes]]:
    """The names and contents of the parts of a multipart body."""
    kind, _, rest = request.headers.get("content-type", "").partition("boundary=")
    if not kind.startswith("multipart/form-data") or not rest:
        raise RefusedError(400, "INVALID_FILE", "request Content-Type isn't multipart/form-data")
    boundary = b"--" + rest.strip('"').encode()
    for part in (b"\r\n" + request.body).split(b"\r\n" + boundary)[1:-1]:
        head, _, data = part.partition(b"\r\n\r\n")
        found = _NAME.search(head)
        if found is not None:
            yield found[1].decode(), data


def _set_mode(path: str, wanted: dict[str, Any]) -> None:
    """Give a path its mode, a number that reads in decimal as it is in octal."""
    if wanted.get("mode"):
        os.chmod(path, int(str(wanted["mode"]), 8))


def download(request: Request, answering: Answering) -> None:
    """Send a file, or one range of its bytes."""
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
    span = _RANGE.match(request.headers.get("range", ""))
    if span is None:
        headers["accept-ranges"] = "bytes"
        date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(modified))
        answering.send(data, headers={**headers, "last-modified": date})
        return
    first, last = span.groups()
    start = int(first) if first else max(0, len(data) - int(last or 0))
    stop = min(int(last) + 1, len(data)) if first and last else len(data)
    if start >= len(data) or stop <= start:
        raise RefusedError(416, "UNKNOWN", "invalid range")
    headers["content-range"] = f"bytes {start}-{stop - 1}/{len(data)}"
    answering.send(data[start:stop], 206, headers)


def info(request: Request, answering: Answering) -> None:
    """Describe paths; all or none."""
    found: dict[str, Any] = {}
    for path in request.all("path"):
        try:
            found[path] = {**_entry(_expanded(path)), "path": path}
        except OSError as exc:
            text = f"file not found: {path}: lstat {path}: {reason(exc)}"
            raise _refusal(exc, text) from exc
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


def remove_files(request: Request, answering: Answering) -> None:
    """Delete files; what is not there is no error."""
    for path in request.all("path"):
        real = _expanded(path)
        try:
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
            _set_mode(real, wanted or {})
        except OSError as exc:
            _refuse("mkdir", path, exc)
    answering.send()


def _below(top: str, depth: int) -> Iterator[dict[str, Any]]:
    """Entries under a directory, each followed by those in it."""
    try:
        names = sorted(os.listdir(top)) if depth else []
    except OSError as exc:
        raise _refusal(exc, f"open {top}: {reason(exc)}") from exc
    for name in names:
        path = os.path.join(top, name)
        try:
            found = _entry(path)
        except FileNotFoundError:
            continue  # gone since the names were read
        yield found
        if found["type"] == "directory":
            yield from _below(path, depth - 1)


def _entry(path: str) -> dict[str, Any]:
    """Describe a path itself; a link is not followed."""
    found = os.lstat(path)
    kinds = {stat.S_IFLNK: "symlink", stat.S_IFDIR: "directory"}
    return {
        "path": path,
        "type": kinds.get(stat.S_IFMT(found.st_mode), "file"),
        "size": found.st_size,
        "modified_at": stamp(found.st_mtime_ns),
        "created_at": stamp(found.st_ctime_ns),
        "owner": _name(lambda: pwd.getpwuid(found.st_uid).pw_name, found.st_uid),
        "group": _name(lambda: grp.getgrgid(found.st_gid).gr_name, found.st_gid),
        "mode": int(f"{found.st_mode & 0o777:o}"),
    }


def _name(look_up: Callable[[], str], number: int) -> str:
    try:
        return look_up()
    except KeyError:
        return str(number)


def _expanded(path: str) -> str:
    """A path as the daemon takes it: relative ones stand at its own directory, the root."""
    return os.path.join("/", os.path.expandvars(os.path.expanduser(path)))


def _refuse(verb: str, path: str, error: OSError) -> NoReturn:
    raise _refusal(error, f"{verb} {path}: {reason(error)}") from error


def _refusal(error: OSError, text: str) -> RefusedError:
    if isinstance(error, FileNotFoundError):
        return RefusedError(404, "FILE_NOT_FOUND", f"file not found. {text}")
    return RefusedError(500, "RUNTIME_ERROR", f"error accessing file: {text}")
