"""Changes of the workspace of a sandbox: scans before and after commands, and exact writes between.

One command lists the files, others digest those that are new; small contents are fetched.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import stat
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rath._async.lanes import gather
from rath._core.blobs import MAX_BLOB_BYTES, Blob
from rath.backend.changes import (
    MAX_HASHED_BYTES,
    EffectPolicy,
    FileState,
    Manifest,
    ScanCache,
    ScannedFile,
    StatKey,
    TreeState,
    diff,
    manifest_digest,
)
from rath.backend.effects import (
    OFF,
    FileEffect,
    is_observed,
    note_effect,
    note_gap,
    paused_deadlines,
)
from rath.backend.opensandbox.connection import ROOT, Broken, RemoteError, SandboxGone
from rath.backend.opensandbox.processes import CommandLine, path_batches, run_line
from rath.errors import BackendError

if TYPE_CHECKING:
    from rath.backend.opensandbox.client import Client
    from rath.backend.opensandbox.sandbox import RemoteSandbox

SCAN_SECONDS = 60.0
"""How long one command of a scan may take; a guess."""

MAX_LIST_BYTES = 64 << 20
"""How long a list of files may be: 100,000 of them with paths of 600 bytes."""

MAX_FETCHED_BYTES = 8 << 20
"""How much content one scan fetches; a guess between effects and traffic."""

MAX_FETCHED_FILES = 256
"""How many files one scan fetches; each is a request of its own."""

MAX_CACHE_BYTES = 32 << 20
"""How much content is held for one sandbox; a guess."""

CUT_SHORT = "the operation was cancelled, and what it had changed was not looked for"
NOT_FETCHED = (
    "some contents were not kept, only their digests: one look fetches no more, or they could not "
    "be read"
)

_N_FETCHERS = 8
"""How many files are fetched side by side; a guess that spares small servers."""

_NO_FIND = 65
_KINDS = {"f": stat.S_IFREG, "l": stat.S_IFLNK}
_OTHERS = {"p": "a named pipe", "s": "a socket", "c": "a device", "b": "a device"}
_GLOB = re.compile(r"([*?\[\]\\])")

T = TypeVar("T")


class ScanFailed(Exception):
    """The files of a workspace cannot be listed; the text says why, as the record will."""


class RemoteContents:
    """The latest contents by digest, up to `MAX_CACHE_BYTES`."""

    def __init__(self) -> None:
        self._by_digest: OrderedDict[str, bytes] = OrderedDict()
        self._n_bytes = 0

    def add(self, blob: Blob) -> None:
        """Hold the content of a blob, if it has any."""
        if blob.data is None or blob.size > MAX_BLOB_BYTES or blob.digest in self._by_digest:
            return
        self._by_digest[blob.digest] = blob.data
        self._n_bytes += blob.size
        while self._n_bytes > MAX_CACHE_BYTES:
            _, dropped = self._by_digest.popitem(last=False)
            self._n_bytes -= len(dropped)

    def blob_of(self, state: FileState) -> Blob:
        """Return the blob of a file, with its content if that is here."""
        data = self._by_digest.get(state.digest)
        if data is not None:
            self._by_digest.move_to_end(state.digest)
        return Blob(state.digest, state.size, data)


class WriteMonitor:
    """Separates scans of a workspace from writes of file tools, and records the writes between.

    A write never overlaps a scan, so it lies on one side of it and is taken off exactly. Writes
    may overlap each other. To be used on the runtime loop.
    """

    def __init__(self) -> None:
        self._door = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()
        self._n_writers = 0
        self._effects: dict[str, list[FileEffect]] | None = None

    @property
    def is_recording(self) -> bool:
        """Whether somebody wants to know of writes; it begins during no write."""
        return self._effects is not None

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[None]:
        """Surround a write and its record; waits while a scan runs."""
        async with self._door:
            self._n_writers += 1
            self._idle.clear()
        try:
            yield
        finally:
            self._n_writers -= 1
            if not self._n_writers:
                self._idle.set()

    @asynccontextmanager
    async def scanning(self) -> AsyncGenerator[None]:
        """Surround a scan; waits for the writes that have begun, and others wait for it."""
        async with self._door:
            await self._idle.wait()
            yield

    def start(self) -> None:
        """Record writes from the scan on that is going on."""
        self._effects = {}

    def record(self, effect: FileEffect) -> None:
        """Record a write, if anybody wants to know."""
        if self._effects is not None:
            self._effects.setdefault(effect.path, []).append(effect)

    def stop(self) -> Mapping[str, Sequence[FileEffect]]:
        """Stop recording and return the effects since the start, by path, in order."""
        effects, self._effects = self._effects, None
        return effects or {}


async def observed(sandbox: RemoteSandbox, run: Callable[[], Awaitable[T]]) -> T:
    """Run a command or code and note what changed meanwhile, for whoever observes.

    Called with the lock of the sandbox held. Changes are known by scans before and after, so they
    are attributed to the time and not to the operation.
    """
    if not is_observed():
        return await run()
    policy = sandbox.spec.effects or EffectPolicy()
    if not policy.is_on:
        note_gap(OFF)
        return await run()
    async with sandbox.writes.scanning():
        before = await _scan_or_note(sandbox, policy)
        sandbox.writes.start()
    try:
        result = await run()
    except asyncio.CancelledError:
        note_gap(CUT_SHORT)
        raise
    except Exception:
        # Its own end may not be known, but its changes are there to be seen.
        await _note_changes(sandbox, policy, before)
        raise
    else:
        await _note_changes(sandbox, policy, before)
        return result
    finally:
        sandbox.writes.stop()


async def workspace_digest(sandbox: RemoteSandbox) -> str | None:
    """Return one digest over the files of the workspace, None if one of them is not known."""
    async with sandbox.writes.scanning():
        client = await sandbox.client()
        policy = sandbox.spec.effects or EffectPolicy()
        state = await scan(client, policy, cache=sandbox.scan_cache, contents=sandbox.contents)
    manifest = state.manifest()
    return None if manifest is None else manifest_digest(manifest)


async def read_manifest(client: Client) -> Manifest:
    """Return the files of the workspace, without ignored directories.

    Raises:
        BackendError: A file cannot be read, or there are too many.
    """
    policy = EffectPolicy(keep_contents=False)
    try:
        state = await scan(client, policy, cache={}, contents=RemoteContents())
    except ScanFailed as exc:
        raise BackendError(f"the files of a workspace cannot be told apart: {exc}") from exc
    return state.required_manifest(policy)


async def _note_changes(
    sandbox: RemoteSandbox, policy: EffectPolicy, before: TreeState | None
) -> None:
    if before is None:
        return
    async with sandbox.writes.scanning():
        after = await _scan_or_note(sandbox, policy)
        writes = sandbox.writes.stop()
    if after is None:
        return
    exact = {
        path: effects
        for path, effects in writes.items()
        if policy.ignore.isdisjoint(path.split("/")[:-1])
    }
    if before.is_too_large or after.is_too_large:
        note_gap(f"the workspace has more than {policy.max_files} files: nothing was looked for")
    to_blob = sandbox.contents.blob_of
    changes = diff(before, after, exact, to_blob=to_blob, attribution="window")
    for effect in changes.effects:
        note_effect(effect)
    blobs = [each for effect in changes.effects for each in (effect.before, effect.after)]
    lacks_content = any(
        each is not None and each.data is None and each.size <= MAX_BLOB_BYTES for each in blobs
    )
    if policy.keep_contents and lacks_content:
        note_gap(NOT_FETCHED)
    for gap in changes.gaps:
        note_gap(gap)


async def _scan_or_note(sandbox: RemoteSandbox, policy: EffectPolicy) -> TreeState | None:
    try:
        with paused_deadlines():
            client = await sandbox.client()
            return await scan(client, policy, cache=sandbox.scan_cache, contents=sandbox.contents)
    except (ScanFailed, RemoteError) as exc:
        note_gap(str(exc))
    except SandboxGone:
        note_gap(f"the sandbox {sandbox.handle} ended, and what had changed in it went with it")
    return None


# ---------------------------------------------------------------- scans


class ListedFile(NamedTuple):
    """A file as the list of a sandbox describes it."""

    path: str
    kind: str
    key: StatKey
    target: bytes

    def scanned(self, digest: str) -> ScannedFile:
        """Return it with the digest of its content."""
        return ScannedFile(self.key, FileState(digest, self.key[3], self.key[0]), True)


async def scan(
    client: Client, policy: EffectPolicy, *, cache: ScanCache, contents: RemoteContents
) -> TreeState:
    """Return the state of the workspace.

    Args:
        client: Of the sandbox.
        policy: Which directories are passed over, and when to give up.
        cache: The files of the last scan, which are not read again; becomes those of this one.
        contents: Gets small contents that are new, where the policy wants them.

    Raises:
        ScanFailed: It is not possible in this sandbox, or not now.
    """
    state = TreeState()
    try:
        entries = await _list(client, policy)
        files = [each for each in entries if each.kind in _KINDS]
        if len(files) > policy.max_files:
            state.is_too_large = True
            return state
        for each in entries:
            if each.kind not in _KINDS:
                state.others[each.path] = _OTHERS.get(each.kind, "of an unknown kind")
        unread = [each for each in files if each.key not in cache]
        await _read(client, unread, cache, contents, fetches=policy.keep_contents)
    except RemoteError as exc:
        raise ScanFailed(f"the files of the sandbox could not be looked at: {exc}") from exc
    state.files.update((each.path, cache[each.key]) for each in files)
    cache.clear()
    cache.update((each.key, each) for each in state.files.values() if each.is_settled)
    return state


async def _list(client: Client, policy: EffectPolicy) -> list[ListedFile]:
    line = CommandLine(list_command(policy), SCAN_SECONDS, "/", max_output=MAX_LIST_BYTES)
    ran = await run_line(client, line)
    if ran.exit_code == _NO_FIND:
        raise ScanFailed(
            "effects of commands and code are not known: the image has no GNU find, xargs, "
            "sha256sum and head, which list its files"
        )
    output = ran.streams
    if ran.exit_code != 0 or ran.loss or output.stderr or len(output.stdout) > MAX_LIST_BYTES:
        raise ScanFailed(f"the files of the sandbox could not be listed: {ran.reason()}")
    return list(parse_list(output.stdout))


def list_command(policy: EffectPolicy) -> str:
    """Return the command line that lists the workspace: for each file two fields that end in NUL.

    The first is kind, mode, inode, device, size, times of content and of change, and path; the
    second is the target of a link.
    """
    names = [shlex.quote(_GLOB.sub(r"\\\1", name)) for name in sorted(policy.ignore)]
    ignored = " -o ".join(f"-name {name}" for name in names)
    prune = f"-type d \\( {ignored} \\) -prune -o " if names else ""
    # Twice one more than the limit, so that it is seen to be passed.
    limit = 2 * (policy.max_files + 1)
    return (
        "find --version >/dev/null 2>&1 && sha256sum --version >/dev/null 2>&1 && "
        "xargs --version >/dev/null 2>&1 && "
        f"head -z -n 1 </dev/null >/dev/null 2>&1 || exit {_NO_FIND}\n"
        f"cd {ROOT} && find . -mindepth 1 {prune}! -type d "
        rf"-printf '%y %m %i %D %s %T@ %C@ %P\0%l\0' | head -z -n {limit}"
    )


def parse_list(data: bytes) -> Iterable[ListedFile]:
    """Return the files of a list.

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
        yield ListedFile(parts[7].decode(errors="surrogateescape"), kind, key, target)


def _ns(seconds: bytes) -> int:
    """Return a time as `find` prints it, with ten decimals, in ns; a float has not enough."""
    number, _, decimals = seconds.decode().partition(".")
    return int(number) * 10**9 + int(decimals[:9].ljust(9, "0"))


async def _read(
    client: Client,
    unread: Sequence[ListedFile],
    cache: ScanCache,
    contents: RemoteContents,
    *,
    fetches: bool,
) -> None:
    """Add the contents of files to the cache."""
    plain: list[ListedFile] = []
    for each in unread:
        if each.kind == "l":
            blob = Blob.from_bytes(each.target)
            contents.add(blob)
            cache[each.key] = each.scanned(blob.digest)
        elif each.key[3] > MAX_HASHED_BYTES:
            cache[each.key] = ScannedFile(each.key, None, True)
        else:
            plain.append(each)
    if fetches:
        small = iter(_small(plain))

        async def fetch() -> None:
            for each in small:
                blob = await _content(client, each)
                if blob is not None:
                    contents.add(blob)
                    cache[each.key] = each.scanned(blob.digest)

        await gather([fetch] * min(_N_FETCHERS, len(plain)))
        plain = [each for each in plain if each.key not in cache]
    digests: dict[str, str] = {}
    for batch in path_batches(each.path for each in plain):
        digests |= await _digests(client, batch)
    for each in plain:
        digest = digests.get(each.path)
        unknown = ScannedFile(each.key, None, False)
        cache[each.key] = unknown if digest is None else each.scanned(digest)


def _small(files: Sequence[ListedFile]) -> list[ListedFile]:
    """Return the files of which one scan fetches the content."""
    n_bytes = 0
    small: list[ListedFile] = []
    for each in files:
        size = each.key[3]
        fits = size <= MAX_BLOB_BYTES and n_bytes + size <= MAX_FETCHED_BYTES
        if fits and len(small) < MAX_FETCHED_FILES and each.path.isprintable():
            n_bytes += size
            small.append(each)
    return small


async def _content(client: Client, file: ListedFile) -> Blob | None:
    """Return the content of a file, None where it cannot be read or is another one by now."""
    size = file.key[3]
    try:
        data = await client.read(f"{ROOT}/{file.path}") if size else b""
    except RemoteError:
        return None
    return Blob.from_bytes(data) if len(data) == size else None


async def _digests(client: Client, paths: Sequence[str]) -> dict[str, str]:
    """Return the sha256 of files; those that cannot be read are left out."""
    # As input, since an argument can hold neither a name that is not UTF-8 nor many of them.
    names = b"".join(f"./{path}\0".encode(errors="surrogateescape") for path in paths)
    text = "xargs -0 sha256sum -z --"
    line = CommandLine(text, SCAN_SECONDS, stdin=names, max_output=MAX_LIST_BYTES)
    ran = await run_line(client, line)
    lines = ran.streams.stdout.decode(errors="surrogateescape").split("\0")
    return {each[68:]: each[:64] for each in lines if each[66:68] == "./"}
