"""A store of files of which one kind of entry was left out, its checksums and counts right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args
from uuid import UUID

from rath.session.questions import EvidenceKind
from tests.support.api import Entry, chained
from tests.support.told import KINDS

Json = dict[str, Any]
_ENTRIES = {each.__struct_config__.tag for each in get_args(Entry)}
_KEPT = ("row", "agent_rows", "tool_schemas", "call_setup", "intent", "placement")


def leave_out(kind: EvidenceKind, source: Path, target: Path) -> None:
    """Copy a store, without the entries of a kind; what counts or hashes entries does so anew.

    Args:
        kind: What is left out.
        source: Directory of the store.
        target: Directory that is made.
    """
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.sqlite3*"))
    name = KINDS[kind].__struct_config__.tag
    logs = {
        path.stem: [json.loads(line) for line in path.read_bytes().splitlines()]
        for path in target.glob("*.jsonl")
    }
    store = _Store(logs, lambda record: record["event"] != name)
    for session in logs:
        data, _ = chained(map(_bytes, store.rewritten(session)), "", is_compact=True)
        (target / f"{session}.jsonl").write_bytes(data)


class _Store:
    """The logs of a store, and which of their entries stay."""

    def __init__(self, logs: dict[str, list[Json]], keep: Callable[[Json], bool]) -> None:
        self._logs = logs
        self._keep = keep
        self._entries: dict[str, list[tuple[str, bool]]] = {}

    def rewritten(self, session: str) -> Iterator[Json]:
        """Yield the lines of a log without what is left out."""
        header = self._logs[session][0]
        for line in self._logs[session]:
            record = {name: value for name, value in line.items() if name not in ("sum", "more")}
            match record.get("event", "header"):
                case "header":
                    record["entries"] = [self._part(*part) for part in header.get("entries") or ()]
                case "finished":
                    count = record["final_entry_count"]
                    record["final_entry_count"] = self._n_kept(session, count)
                case kind if kind in _ENTRIES:
                    if not self._keep(record):
                        continue
                    self._count_anew(record, header)
                case other:
                    # Results of rounds of several calls would have to be split into rows.
                    assert other in _KEPT, other
            yield record

    def entries(self, session: str) -> list[tuple[str, bool]]:
        """Return the ids of the entries of a session, and which of them stay."""
        if session not in self._entries:
            lines = self._logs[session]
            begun = [
                entry
                for source, start, stop, _ in lines[0].get("entries") or ()
                for entry in self.entries(source)[start:stop]
            ]
            own = [
                (line["id"], self._keep(line)) for line in lines if line.get("event") in _ENTRIES
            ]
            self._entries[session] = [*begun, *own]
        return self._entries[session]

    def _part(self, source: str, start: int, stop: int, _: str) -> list[Any]:
        kept = [id for id, stays in self.entries(source)[start:stop] if stays]
        digest = sha256(b"".join(UUID(id).bytes for id in kept)).hexdigest()
        return [source, self._n_kept(source, start), self._n_kept(source, stop), digest]

    def _count_anew(self, record: Json, header: Json) -> None:
        if record.get("n_ours") is not None:
            record["n_ours"] = self._n_kept(header["id"], record["n_ours"])
        if "n_theirs" in record:
            other = header["parent_session_ids"][1]
            record["n_theirs"] = self._n_kept(other, record["n_theirs"])

    def _n_kept(self, session: str, count: int) -> int:
        return sum(stays for _, stays in self.entries(session)[:count])


def _bytes(record: Json) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
