"""Taking files and web pages in."""

from __future__ import annotations

import re
from functools import partial
from hashlib import file_digest, sha256
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from rath._async.runtime import runtime
from rath.memory.adapters.openviking.asking import Asking
from rath.memory.adapters.openviking.encode import resource_options
from rath.memory.adapters.openviking.faults import Fault
from rath.memory.op_types import MemoryOpResource
from rath.memory.results import MemoryResult, MemoryWriteResult

__all__ = ["ingest"]

_DEFAULT_TARGET = "memory://resources"
_NAME_CHARS = 40
_UNKEPT = re.compile(r"[^\w.-]+")


async def ingest(asking: Asking, op: MemoryOpResource) -> MemoryResult:
    """Let the server take a file of this machine, or a page that it fetches itself.

    Each gets a directory of its own below the target: the server makes the place that it is told
    equal to the source, and so removes what else stands there.
    """
    target = asking.addresses.place(op.target_uri or _DEFAULT_TARGET)
    source, name = await _source(op.source)
    place = f"{target}/{name}"
    options = resource_options(op)
    answer = await asking.ask(
        lambda sdk: sdk.add_resource(source, to=place, wait=op.wait, options=options)
    )
    if answer.get("status", "success") != "success":
        raise Fault(
            "extraction_failed",
            f"{op.source!r} was not taken in: {answer.get('errors') or answer['status']}",
            str(answer["status"]),
        )
    root = str(answer.get("root_uri") or answer.get("uri") or place)
    # How many bytes the server made of it, it does not tell.
    return MemoryWriteResult(asking.addresses.public(root, is_dir=True) or root, 0)


async def _source(source: str) -> tuple[str, str]:
    """Return what the SDK is given, and the name that the copy gets: the same one again."""
    scheme, separator, rest = source.partition("://")
    match scheme.lower() if separator else "":
        case "":
            return await runtime().call_in_worker(partial(_file, source, source))
        case "file":
            # What stands before the path is the host, which is this one.
            path = url2pathname("/" + rest.partition("/")[2])
            return await runtime().call_in_worker(partial(_file, source, path))
        case "http" | "https":
            last = PurePosixPath(unquote(urlsplit(source).path)).stem
            return source, _name(last, sha256(source.encode(errors="replace")).hexdigest())
        case _:
            message = f"the scheme of {source!r} is not known; use a path, file or http"
            raise Fault("transport", message)


def _file(source: str, place: str) -> tuple[str, str]:
    path = Path(place).expanduser()
    if "\0" in source or not path.exists():
        raise Fault("not_found", f"there is no file {source!r}")
    if not path.is_file():
        raise Fault("unsupported", f"{source!r} is no regular file; give one file at a time")
    try:
        with path.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
    except PermissionError as exc:
        raise Fault("unauthorized", str(exc), type(exc).__name__) from exc
    return str(path.absolute()), _name(path.stem, digest)


def _name(stem: str, digest: str) -> str:
    kept = _UNKEPT.sub("_", stem).strip("._-")[:_NAME_CHARS]
    return f"{kept or 'resource'}-{digest[:8]}"
