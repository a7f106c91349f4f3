"""Files and web pages that are taken into a local store."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from urllib import request as web
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit

from rath._core.files import atomic_write_bytes
from rath._core.text import valid_unicode
from rath.memory.adapters.local.files import is_binary
from rath.memory.adapters.local.layout import locate, logger, relative_path
from rath.memory.adapters.local.store import LocalStore
from rath.memory.driver import OperationFailed, file_of
from rath.memory.op_types import MemoryOpResource
from rath.memory.results import FailureKind, MemoryResult, MemoryWriteResult
from rath.memory.uri import to_public_uri

MAX_RESOURCE_BYTES = 104_857_600
"""Larger files and pages are refused."""

FETCH_SECONDS = 30.0
"""How long fetching a page may take unless the operation says otherwise."""

_DEFAULT_TARGET = "memory://resources"
_DEFAULT_SUFFIX = ".bin"
_SUFFIX = re.compile(r"\.\w{1,16}")
_DESCRIPTION_NAME = "meta.md"
_CHUNK_BYTES = 65_536


def ingest(store: LocalStore, op: MemoryOpResource) -> MemoryResult:
    """Keep a copy of a file or web page under a name made of its content.

    Text is found by its words, whatever its suffix; of binary data only the description is.
    """
    target = to_public_uri(op.target_uri or _DEFAULT_TARGET)
    relative_path(target)
    path = file_of(op.source)
    name, data = _fetch(op) if path is None else (path.name, _read(path))
    if len(data) > MAX_RESOURCE_BYTES:
        raise OperationFailed(
            "unsupported",
            f"{op.source!r} has more than {MAX_RESOURCE_BYTES} bytes; give a part of it",
        )
    uri = f"{target}/{sha256(data).hexdigest()[:16]}"
    directory = relative_path(uri)
    place = locate(store.root, directory)
    suffix = PurePosixPath(name).suffix
    if not _SUFFIX.fullmatch(suffix):
        suffix = _DEFAULT_SUFFIX
    source = locate(store.root, f"{directory}/source{suffix}")
    is_there = False
    with suppress(OSError):
        is_there = source.stat().st_size == len(data)
    if not (is_there and (place / _DESCRIPTION_NAME).is_file()):
        description = _description(op, name, len(data)).encode()

        def put() -> None:
            place.mkdir(parents=True, exist_ok=True)
            atomic_write_bytes(source, data)
            atomic_write_bytes(place / _DESCRIPTION_NAME, description)

        store.catalog.change(directory, _DESCRIPTION_NAME, put)
        store.catalog.recheck(directory, source.name)
        if is_binary(data):
            logger.warning(
                "%r is binary: it is kept as %s/%s, but only its description %s/meta can be "
                "found; write what it says into a note to find it by that",
                op.source, uri, source.name, uri,
            )  # fmt: skip
    return MemoryWriteResult(uri, len(data))


def _description(op: MemoryOpResource, name: str, n_bytes: int) -> str:
    lines = [
        f"- source: {op.source}",
        f"- original_name: {name}",
        f"- bytes: {n_bytes}",
    ]
    for title, text in (("Reason", op.reason), ("Instruction", op.instruction)):
        if text:
            lines += ["", f"## {title}", "", text]
    return valid_unicode("\n".join(lines) + "\n")


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_RESOURCE_BYTES + 1)


def _fetch(op: MemoryOpResource) -> tuple[str, bytes]:
    seconds = FETCH_SECONDS if op.timeout_seconds is None else op.timeout_seconds
    deadline = time.monotonic() + seconds
    data = bytearray()
    # Only http and https, also after a redirect: the default opener would follow to ftp.
    opener = web.OpenerDirector()
    handlers = (web.HTTPHandler, web.HTTPSHandler, web.HTTPDefaultErrorHandler)
    for handler in (web.ProxyHandler, *handlers, web.HTTPRedirectHandler, web.HTTPErrorProcessor):
        opener.add_handler(handler())
    try:
        with opener.open(web.Request(op.source), timeout=seconds) as response:
            while len(data) <= MAX_RESOURCE_BYTES and (chunk := response.read1(_CHUNK_BYTES)):
                data += chunk
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not complete after {seconds:g} s")
    except TimeoutError as exc:
        raise OperationFailed("timeout", f"{op.source!r} did not answer in time: {exc}") from exc
    except HTTPError as exc:
        exc.close()
        raise OperationFailed(
            "transport", f"{op.source!r} answered {exc.code} {exc.reason}"
        ) from exc
    except URLError as exc:
        kind: FailureKind = "timeout" if isinstance(exc.reason, TimeoutError) else "transport"
        raise OperationFailed(kind, f"{op.source!r} cannot be fetched: {exc.reason}") from exc
    except (OSError, HTTPException, ValueError) as exc:
        raise OperationFailed("transport", f"{op.source!r} cannot be fetched: {exc}") from exc
    return PurePosixPath(unquote(urlsplit(op.source).path)).name, bytes(data)
