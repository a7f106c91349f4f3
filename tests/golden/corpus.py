"""The archives of the golden corpus, and the outputs that are expected of each.

A group is `tests/data/golden/GROUP.tar.xz` with a folder for each store: `sessions/` as the store
of files has it, `targets`, which lists the sessions to tell about, and for some `bundle`, a file of
`rath export` that is imported first. `GROUP.outputs.xz` is one JSON object of texts by name.
"""

from __future__ import annotations

import contextlib
import io
import json
import lzma
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import UUID

from rath._core.blobs import Blob
from rath.session.persistence.store import SessionStore, open_store
from tests.golden.outputs import command, outputs_of

DATA = Path(__file__).parents[1] / "data" / "golden"
POSTGRES = "postgres"
"""The group whose sessions were written by a server, and are read from one."""

PARTIAL = ".__partial__"
_ARCHIVE, _OUTPUTS = ".tar.xz", ".outputs.xz"
_BUNDLE, _SESSIONS, _TARGETS = "bundle", "sessions", "targets"
_N_ID = 36
_XZ = lzma.PRESET_EXTREME | 9

Files = dict[str, bytes]
"""Content by path below the directory of a store."""

Group = dict[str, tuple[Files, list[str]]]
"""By the name of a store: its files, and the sessions to tell about."""


def groups() -> list[str]:
    """Return the names of the groups that are read from files."""
    names = (path.name.removesuffix(_ARCHIVE) for path in DATA.glob(f"*{_ARCHIVE}"))
    return sorted(name for name in names if name != POSTGRES)


def is_packed(group: str) -> bool:
    """Tell whether there is an archive of a group."""
    return (DATA / f"{group}{_ARCHIVE}").exists()


def pack(group: str, stores: Group) -> None:
    """Write the archive of a group; the same files make the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, (files, targets) in sorted(stores.items()):
            packed = {f"{_SESSIONS}/{path}": data for path, data in files.items()}
            if bundle := packed.pop(f"{_SESSIONS}/{_BUNDLE}", None):
                packed[_BUNDLE] = bundle
            packed[_TARGETS] = "\n".join(targets).encode()
            for path, data in sorted(packed.items()):
                member = tarfile.TarInfo(f"{name}/{path}")
                member.size, member.mode = len(data), 0o600
                tar.addfile(member, io.BytesIO(data))
    DATA.mkdir(parents=True, exist_ok=True)
    (DATA / f"{group}{_ARCHIVE}").write_bytes(lzma.compress(buffer.getvalue(), preset=_XZ))


def unpack(group: str, folder: Path) -> dict[str, tuple[Path, list[str]]]:
    """Unpack a group, and return the directory and the targets of each of its stores by name."""
    with tarfile.open(DATA / f"{group}{_ARCHIVE}") as tar:
        # Python 3.11.4 and later have the filter, which is the default since 3.14.
        if hasattr(tarfile, "data_filter"):
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(folder)
    return {
        path.name: (path / _SESSIONS, (path / _TARGETS).read_text().split())
        for path in sorted(folder.iterdir())
    }


def content(directory: Path) -> Files:
    """Return the files of a store, but for what is derived from them."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.startswith("index.sqlite3")
    }


def import_bundles(stores: Mapping[str, tuple[Path, list[str]]]) -> dict[str, str]:
    """Put the sessions of bundles into the stores beside which they stand."""
    return {
        f"{name}: import": command("import", str(bundle), store=str(directory))
        for name, (directory, _) in stores.items()
        if (bundle := directory.with_name(_BUNDLE)).exists()
    }


def group_outputs(stores: Mapping[str, tuple[Path, list[str]]], *, full: bool) -> dict[str, str]:
    """Return all that is told of stores of files.

    Args:
        stores: As `unpack` gives them.
        full: Whether the stores are told about as well, and not only their targets.
    """
    made: dict[str, str] = {}
    for name, (directory, targets) in stores.items():
        for what, text in outputs_of(str(directory), targets, full=full).items():
            made[f"{name}: {what}"] = text
    return made


def log_id(path: str) -> str | None:
    """Return the id of the session whose log stands at a path, None for anything else."""
    name, suffix, _ = path.partition(".jsonl")
    return name if suffix and len(name) == _N_ID else None


def kinds_in(log: bytes) -> list[str]:
    """Return the kind of each line of a log, in the words of the format that it has."""
    records = map(json.loads, log.splitlines())
    return [str(each.get("event") or each.get("entry") or each["record_type"]) for each in records]


def targets_in(files: Mapping[str, bytes]) -> list[str]:
    """Return the sessions in which something happened; one that only says something has none."""
    logs = [(path, data) for path, data in sorted(files.items()) if ".jsonl" in path]
    said = {"header", "row", "finished"}
    return [log_id(path) or path for path, data in logs if set(kinds_in(data)) - said]


def is_told_fully(group: str) -> bool:
    """Tell whether the stores of a group are told about, and not only sessions of them."""
    return not group.startswith("cut-")


def postgres_outputs(
    stores: Mapping[str, tuple[Path, list[str]]], url: Callable[[], str]
) -> dict[str, str]:
    """Put sessions into schemas of a server, and return what is told of them there.

    Args:
        stores: As `unpack` gives them.
        url: Gives the URL of a new schema.
    """
    made: dict[str, str] = {}
    for name, (directory, targets) in stores.items():
        where = url()
        with contextlib.closing(open_store(where)) as store:
            _put(store, directory)
        for what, text in outputs_of(where, targets).items():
            made[f"{name}: {what}"] = text
    return made


def _put(store: SessionStore, directory: Path) -> None:
    """Put the logs of a directory into a store, with all content there is."""
    blobs = [Blob.from_bytes(path.read_bytes()) for path in (directory / "blobs").glob("*")]
    for path in sorted(directory.glob("*.jsonl*")):
        log = store.create(UUID(path.name[:_N_ID]))
        log.append(path.read_bytes(), blobs=blobs)
        if path.name.endswith(PARTIAL):
            log.abandon()
        else:
            log.finish()


def write_expected(group: str, outputs: Mapping[str, str]) -> None:
    text = json.dumps(outputs, indent=0, sort_keys=True, ensure_ascii=True)
    (DATA / f"{group}{_OUTPUTS}").write_bytes(lzma.compress(text.encode(), preset=_XZ))


def read_expected(group: str) -> dict[str, str]:
    made: dict[str, str] = json.loads(lzma.decompress((DATA / f"{group}{_OUTPUTS}").read_bytes()))
    return made
