"""What the workspace of a sandbox holds at one moment: one command lists it, others digest it."""

from __future__ import annotations

import re
import shlex
import stat
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rath._async.lanes import gather
from rath._core.blobs import MAX_BLOB_BYTES, Blob
from rath.backend.host.scan import Known, Seen, Snapshot, StatKey
from rath.backend.manifest import EffectPolicy, FileState
from rath.backend.opensandbox.contents import Contents
from rath.backend.opensandbox.defaults import ROOT
from rath.backend.opensandbox.faults import Broken, RemoteFault
from rath.backend.opensandbox.processes import Line, run_line

if TYPE_CHECKING:
    from rath.backend.opensandbox.client import Client

LOOK_SECONDS = 60.0
"""How long one command of a look may take; a guess."""

MAX_LIST_BYTES = 64 << 20
"""How long a list of files may be: 100,000 of them with paths of 600 bytes."""

MAX_DIGESTED_BYTES = 256 << 20
"""Larger files are known by their size and times only."""

MAX_FETCHED_BYTES = 8 << 20
"""How much content one look fetches to be kept; a guess between effects and traffic."""

MAX_FETCHED_FILES = 256
"""How many files one look fetches; each is a request of its own."""

_FETCHERS = 8
"""How many files are fetched side by side; a guess that spares small servers."""

_BATCH_BYTES = 256 << 10
"""How long the list of paths is that one command digests; a guess."""

_NO_FIND = 65
_KINDS = {"f": stat.S_IFREG, "l": stat.S_IFLNK}
_OTHERS = {"p": "a named pipe", "s": "a socket", "c": "a device", "b": "a device"}
_GLOB = re.compile(r"([*?\[\]\\])")


class CannotLook(Exception):
    """The files of a workspace cannot be listed; the text says why, as the record will."""


@dataclass(frozen=True, slots=True)
class _Listed:
    path: str
    kind: str
    key: StatKey
    target: bytes


async def look(
    client: Client, policy: EffectPolicy, *, known: Known, contents: Contents
) -> Snapshot:
    """Return what the workspace holds.

    Args:
        client: Of the sandbox.
        policy: Which directories are passed over, and when to give up.
        known: What the last look saw, which is not read again; becomes what this one sees.
        contents: Gets small contents that are new, where the policy wants them.

    Raises:
        CannotLook: It is not possible in this sandbox, or not now.
    """
    found = Snapshot()
    try:
        listed = [each async for each in _list(client, policy)]
        files = [each for each in listed if each.kind in _KINDS]
        if len(files) > policy.max_files:
            found.is_too_large = True
            return found
        found.others.update((each.path, _OTHERS.get(each.kind, "of an unknown kind"))
                            for each in listed if each.kind not in _KINDS)  # fmt: skip
        unread = [each for each in files if each.key not in known]
        await _read(client, unread, known, contents, keeps=policy.keep_contents)
    except RemoteFault as exc:
        raise CannotLook(f"the files of the sandbox could not be looked at: {exc}") from exc
    found.files.update((each.path, known[each.key]) for each in files)
    known.clear()
    known.update((each.key, each) for each in found.files.values() if each.is_settled)
    return found


async def _list(client: Client, policy: EffectPolicy) -> AsyncIterator[_Listed]:
    ran = await run_line(client, Line(list_command(policy), LOOK_SECONDS, "/",
                                      max_output=MAX_LIST_BYTES))  # fmt: skip
    code = ran.answer.exit_code if ran.answer is not None else None
    if code == _NO_FIND:
        raise CannotLook(
            "effects of commands and code are not known: the image has no GNU find, xargs, "
            "sha256sum and head, which list its files"
        )
    if code != 0 or ran.lost or ran.stderr or len(ran.stdout) > MAX_LIST_BYTES:
        said = ran.lost or ran.stderr.decode(errors="replace").strip()[:200] or f"exit code {code}"
        raise CannotLook(f"the files of the sandbox could not be listed: {said}")
    for each in parsed(ran.stdout):
        yield each


def list_command(policy: EffectPolicy) -> str:
    """Return the command line that lists the workspace: for each file two fields that end in NUL.

    The first is kind, mode, inode, device, size, times of content and of change, and path; the
    second is the target of a link.
    """
    names = [shlex.quote(_GLOB.sub(r"\\\1", name)) for name in sorted(policy.ignore)]
    passed_over = " -o ".join(f"-name {name}" for name in names)
    prune = f"-type d \\( {passed_over} \\) -prune -o " if names else ""
    # Twice one more than the limit, so that it is seen to be passed.
    limit = 2 * (policy.max_files + 1)
    return (
        "find --version >/dev/null 2>&1 && sha256sum --version >/dev/null 2>&1 && "
        "xargs --version >/dev/null 2>&1 && "
        f"head -z -n 1 </dev/null >/dev/null 2>&1 || exit {_NO_FIND}\n"
        f"cd {ROOT} && find . -mindepth 1 {prune}! -type d "
        rf"-printf '%y %m %i %D %s %T@ %C@ %P\0%l\0' | head -z -n {limit}"
    )


def parsed(data: bytes) -> Iterable[_Listed]:
    """Return what a list says.

    Raises:
        Broken: It is not a list.
    """
    fields = data.split(b"\0")[:-1]
    if len(fields) % 2:
        raise Broken("the list of files is cut off")
    for head, target in zip(fields[::2], fields[1::2], strict=True):
        parts = head.split(b" ", 7)
        if len(parts) != 8:
            raise Broken(f"the list of files has a line that cannot be read: {head[:80]!r}")
        kind = parts[0].decode(errors="replace")
        mode = int(parts[1], 8) | _KINDS.get(kind, 0)
        inode, device, size = (int(part) for part in parts[2:5])
        key = (mode, inode, device, size, _ns(parts[5]), _ns(parts[6]))
        yield _Listed(parts[7].decode(errors="surrogateescape"), kind, key, target)


def _ns(seconds: bytes) -> int:
    """Return a time as `find` prints it, with ten decimals, in ns; a float has not enough."""
    whole, _, rest = seconds.decode().partition(".")
    return int(whole) * 10**9 + int(rest[:9].ljust(9, "0"))


async def _read(
    client: Client, unread: Sequence[_Listed], known: Known, contents: Contents, *, keeps: bool
) -> None:
    """Add what the files hold to what is known."""
    plain: list[_Listed] = []
    for each in unread:
        if each.kind == "l":
            blob = Blob.from_bytes(each.target)
            contents.keep(blob)
            known[each.key] = _seen(each, blob.digest)
        elif each.key[3] > MAX_DIGESTED_BYTES:
            known[each.key] = Seen(each.key, None, True)
        else:
            plain.append(each)
    if keeps:
        plain = await _fetch(client, plain, known, contents)
    for some in _batches(plain):
        digests = await _digests(client, [each.path for each in some])
        for each in some:
            digest = digests.get(each.path)
            known[each.key] = Seen(each.key, None, False) if digest is None else _seen(each, digest)


async def _fetch(
    client: Client, plain: Sequence[_Listed], known: Known, contents: Contents
) -> list[_Listed]:
    """Read what is small, up to a limit, and return what is left."""
    wanted = _small(plain)
    waiting = iter(wanted)

    async def fetch() -> None:
        for each in waiting:
            blob = await _content(client, each)
            if blob is not None:
                contents.keep(blob)
                known[each.key] = _seen(each, blob.digest)

    await gather([fetch] * min(_FETCHERS, len(wanted)))
    return [each for each in plain if each.key not in known]


def _small(plain: Sequence[_Listed]) -> list[_Listed]:
    """Return those of which one look fetches the content."""
    n_bytes = 0
    wanted: list[_Listed] = []
    for each in plain:
        size = each.key[3]
        is_small = size <= MAX_BLOB_BYTES and n_bytes + size <= MAX_FETCHED_BYTES
        if is_small and len(wanted) < MAX_FETCHED_FILES and each.path.isprintable():
            n_bytes += size
            wanted.append(each)
    return wanted


async def _content(client: Client, listed: _Listed) -> Blob | None:
    """Return what a file holds, None where it cannot be read or is another one by now."""
    size = listed.key[3]
    try:
        data = await client.read(f"{ROOT}/{listed.path}") if size else b""
    except RemoteFault:
        return None
    return Blob.from_bytes(data) if len(data) == size else None


def _batches(files: Sequence[_Listed]) -> Iterable[list[_Listed]]:
    batch: list[_Listed] = []
    n_bytes = 0
    for each in files:
        n_bytes += len(each.path) + 8
        if batch and n_bytes > _BATCH_BYTES:
            yield batch
            batch, n_bytes = [], len(each.path) + 8
        batch.append(each)
    if batch:
        yield batch


async def _digests(client: Client, paths: Sequence[str]) -> dict[str, str]:
    """Return the sha256 of files; those that cannot be read are left out."""
    # As input, since an argument can hold neither a name that is not UTF-8 nor many of them.
    names = b"".join(f"./{path}\0".encode(errors="surrogateescape") for path in paths)
    line = Line("xargs -0 sha256sum -z --", LOOK_SECONDS, stdin=names, max_output=MAX_LIST_BYTES)
    ran = await run_line(client, line)
    lines = ran.stdout.decode(errors="surrogateescape").split("\0")
    return {each[68:]: each[:64] for each in lines if each[66:68] == "./"}


def _seen(listed: _Listed, digest: str) -> Seen:
    return Seen(listed.key, FileState(digest, listed.key[3], listed.key[0]), True)
