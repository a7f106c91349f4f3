"""Stores as crashes, power failures and damage leave them, made of the files of whole ones.

Nothing here knows how a line is written but that it is one JSON object, whose `record_type` and
`entry` say of what kind it is, and that the lines of a log stand in `<id>.jsonl`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping

from tests.golden.corpus import PARTIAL, Files

CUTS: dict[str, tuple[tuple[str, str, int], ...]] = {
    "cut-calls": (
        ("resumed", "in-tool", 1),
        ("contents", "odd-tools", 2),
        ("contents", "big", 1),
        ("files", "tools", 1),
    ),
    "cut-waiting": (
        ("approvals", "approvals", 2),
        ("approvals", "questions", 1),
        ("approvals", "inside", 2),
    ),
    "cut-resumed": (("resumed", "three-times", 1), ("resumed", "in-tool-retry", 1)),
    "cut-answers": (
        ("typed", "tool", 1),
        ("hooks", "changes", 1),
        ("providers", "streams", 2),
        ("providers", "fallbacks", 1),
        ("outcomes", "failed", 1),
    ),
    "cut-derived": (
        ("derived", "compress", 1),
        ("derived", "recall", 1),
        ("derived", "late", 1),
        ("helpers", "nested", 1),
        ("files", "merged", 1),
    ),
    "cut-programs": (("programs-large", "crash-program", 3), ("programs-large", "told-program", 1)),
}
"""By group: from which stores how many logs are cut, those with the most kinds of lines."""

_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_DIGEST = re.compile(rb"[0-9a-f]{64}")


def log_id(path: str) -> str | None:
    """Return the id of the session whose log stands at a path, None for anything else."""
    name, suffix, _ = path.partition(".jsonl")
    return name if suffix and _ID.fullmatch(name.encode()) else None


def line_kind(line: bytes) -> str:
    """Return of what kind a line of a log is."""
    reports = json.loads(line)
    entry = reports.get("entry")
    return (
        f"{reports['record_type']}-{entry}"
        if isinstance(entry, str)
        else str(reports["record_type"])
    )


def kinds_in(log: bytes) -> list[str]:
    return [line_kind(line) for line in log.splitlines()]


def targets_in(files: Mapping[str, bytes]) -> list[str]:
    """Return the sessions in which something happened; one that only says something has none."""
    found: list[str] = []
    for path, data in sorted(files.items()):
        kinds = kinds_in(data) if ".jsonl" in path else []
        if set(kinds) - {"header", "chunk", "trailer"}:
            found.append(log_id(path) or path)
    return found


def richest(files: Mapping[str, bytes], count: int) -> list[str]:
    """Return the paths of the logs with the most kinds of lines, of each set of kinds one."""
    by_kinds: dict[frozenset[str], str] = {}
    for path, data in sorted(files.items()):
        if log_id(path) is not None:
            by_kinds.setdefault(frozenset(kinds_in(data)), path)
    ranked = sorted(by_kinds.items(), key=lambda item: (-len(item[0]), item[1]))
    return [path for _, path in ranked[:count]]


def needed_by(files: Mapping[str, bytes], path: str, data: bytes) -> Files:
    """Return what stands in a store when the log at `path` holds `data` and nothing came later."""
    session = (log_id(path) or path).encode()
    by_id = {log_id(each): each for each in files if log_id(each) is not None}
    found: Files = {}
    waiting = [data]
    while waiting:
        text = waiting.pop()
        for id in set(_ID.findall(text)):
            there = by_id.get(id.decode())
            if there is None or there in found or there == path or session in files[there]:
                continue
            found[there] = files[there]
            waiting.append(files[there])
        for digest in set(_DIGEST.findall(text)):
            blob = f"blobs/{digest.decode()}"
            if blob in files:
                found[blob] = files[blob]
    return found


def cut_stores(
    files: Files, *, count: int, seen: set[object]
) -> Iterator[tuple[str, Files, list[str]]]:
    """Yield a store for each point at which a log may have been cut off, with its name and targets.

    After the first and the last line of each kind, and in the middle of the line that comes next
    to every third of these.

    Args:
        files: The store that is whole.
        count: How many of its logs are cut, those with the most kinds of lines.
        seen: Which points there were in other logs; such ones are left out, and new ones added.
    """
    for number, path in enumerate(richest(files, count)):
        session = log_id(path)
        assert session is not None
        lines = files[path].splitlines(keepends=True)
        kinds = [line_kind(line) for line in lines]
        last = {kind: at for at, kind in enumerate(kinds)}
        points = sorted({*(kinds.index(kind) for kind in last), *last.values()} - {len(lines) - 1})
        for nth, at in enumerate(points):
            data = b"".join(lines[: at + 1])
            torn = nth % 3 == 2
            point = (kinds[at], torn, frozenset(kinds[: at + 1]))
            if point in seen:
                continue
            seen.add(point)
            if torn:
                data += lines[at + 1][: len(lines[at + 1]) // 2]
            made = needed_by(files, path, data)
            made[f"{session}.jsonl{PARTIAL}"] = data
            yield f"{number}-{at:02}-{kinds[at]}{'-torn' * torn}", made, [session]


def damaged_stores(stores: Mapping[str, Files]) -> Iterator[tuple[str, Files, list[str]]]:
    """Yield stores that are not what was written, each with its name and targets."""
    complete = stores["approvals/approvals"]
    (path,) = richest(complete, 1)
    session = log_id(path)
    assert session is not None
    for name, change in _CHANGES.items():
        lines = complete[path].splitlines(keepends=True)
        yield name, {**complete, path: b"".join(change(lines))}, [session]
    for kind in dict.fromkeys(kinds_in(complete[path])):
        lines = complete[path].splitlines(keepends=True)
        at = [line_kind(line) for line in lines].index(kind)
        lines[at] = _flipped(lines[at])
        yield f"changed-{kind}", {**complete, path: b"".join(lines)}, [session]
    yield from _misplaced(complete, path, session)
    yield from _without_parents(stores["derived/branches"])
    yield from _without_blobs(stores["contents/images"])
    yield from _without_blobs(stores["files/tools"])


def _flipped(line: bytes) -> bytes:
    """Change one letter of the longest text of a line."""
    at = max(re.finditer(rb"[a-z]{3,}", line), key=lambda found: len(found[0])).start()
    return line[:at] + (b"X" if line[at : at + 1] != b"X" else b"Y") + line[at + 1 :]


_CHANGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "no-end": lambda lines: lines[:-1],
    "torn-end": lambda lines: [*lines[:-1], lines[-1][:-9]],
    "no-line-feed": lambda lines: [*lines[:-1], lines[-1].rstrip()],
    "half": lambda lines: lines[: len(lines) // 2],
    "header-alone": lambda lines: lines[:1],
    "no-header": lambda lines: lines[1:],
    "removed": lambda lines: [*lines[:4], *lines[5:]],
    "repeated": lambda lines: [*lines[:5], lines[4], *lines[5:]],
    "swapped": lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]],
    "two-ends": lambda lines: [*lines, lines[-1]],
    "empty": lambda lines: [],
    "empty-line": lambda lines: [*lines[:4], b"\n", *lines[4:]],
    "zeros": lambda lines: [*lines, b"\0" * 40],
    "zeros-within": lambda lines: [*lines[:4], b"\0" * len(lines[4]), *lines[5:]],
    "no-json": lambda lines: [*lines[:4], b"hello\n", *lines[4:]],
    "no-object": lambda lines: [*lines[:4], b"[1, 2]\n", *lines[4:]],
    "no-utf8": lambda lines: [*lines[:4], b'{"a": "\xff"}\n', *lines[4:]],
    "unknown-line": lambda lines: [*lines, b'{"record_type": "from_the_future"}\n'],
    "later-version": lambda lines: [
        lines[0].replace(b'"schema_version": 2', b'"schema_version": 99'),
        *lines[1:],
    ],
    "no-version": lambda lines: [
        lines[0].replace(b'"schema_version": 2', b'"schema_version": "two"'),
        *lines[1:],
    ],
    "carriage-returns": lambda lines: [line.replace(b"\n", b"\r\n") for line in lines],
}
"""What is made of the lines of a finished log."""


def _misplaced(complete: Files, path: str, session: str) -> Iterator[tuple[str, Files, list[str]]]:
    data, rest = complete[path], {name: each for name, each in complete.items() if name != path}
    half = b"".join(data.splitlines(keepends=True)[:6])
    other = next(each for each in sorted(rest) if log_id(each) is not None)
    yield "finished-and-partial", {**complete, f"{path}{PARTIAL}": half}, [session]
    yield "aside", {**complete, f"{path}{PARTIAL}.1": half, f"{path}.1": data}, [session]
    yield "ended-but-partial", {**rest, f"{path}{PARTIAL}": data}, [session]
    yield "of-another-session", {**rest, path: complete[other]}, [session]
    yield "not-there", rest, [session]
    yield "empty-partial", {**rest, f"{path}{PARTIAL}": b""}, [session]


def _without_parents(complete: Files) -> Iterator[tuple[str, Files, list[str]]]:
    merges = [
        log_id(path)
        for path, data in sorted(complete.items())
        if json.loads(data.splitlines()[0]).get("lineage_kind") == "op_merge"
    ]
    session = merges[-1]
    assert session is not None
    above = json.loads(complete[f"{session}.jsonl"].splitlines()[0])["parent_session_ids"]
    for number, parent in enumerate(above):
        path = f"{parent}.jsonl"
        rest = {name: data for name, data in complete.items() if name != path}
        lines = complete[path].splitlines(keepends=True)
        yield f"parent-{number}-missing", rest, [session]
        yield f"parent-{number}-half", {**rest, f"{path}{PARTIAL}": lines[0]}, [session, parent]
        changed = b"".join([*lines[:-1], _flipped(lines[-1])])
        yield f"parent-{number}-changed", {**complete, path: changed}, [session, parent]
    alone = {f"{session}.jsonl": complete[f"{session}.jsonl"]}
    yield "all-parents-missing", alone, [session]


def _without_blobs(complete: Files) -> Iterator[tuple[str, Files, list[str]]]:
    blobs = sorted(path for path in complete if path.startswith("blobs/"))
    rest = {path: data for path, data in complete.items() if path not in blobs}
    targets = targets_in(complete)
    yield f"no-blobs-of-{len(blobs)}", rest, targets
    changed = {path: complete[path][:-1] + b"!" for path in blobs}
    yield f"other-blobs-of-{len(blobs)}", {**complete, **changed}, targets
