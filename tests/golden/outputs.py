"""What the commands, the page and a load tell of a store of the golden corpus, as texts."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence, Set
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from typer.testing import CliRunner

from rath._core.blobs import Blob
from rath.cli.app import app
from rath.session import ChunkRow, Session, list_persisted_sessions, load_session
from rath.session.persistence.store import open_store
from rath.session.record import Verdict

STORE, ELSEWHERE = "<store>", "<folder>"
"""What stands in outputs for the place of the store, and for that of files that they name."""

_PAGE_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)
_SIZE = re.compile(r"\d+ kB, in one file")
_N_SHOWN = 5


def outputs_of(store: str, targets: Sequence[str], *, full: bool = True) -> dict[str, str]:
    """Return all that is told of a store, by a name such as `ID show --json`.

    Args:
        store: A directory, or the URL of another store.
        targets: Ids of sessions, or names of files in the directory.
        full: Whether the store is told about as well, and not only its sessions.
    """
    made: dict[str, str] = {}
    with _own_environment(store) as folder:

        def add(name: str, *args: str) -> None:
            made[name] = _normalised(_called([*args, "--store", store]), store, folder)

        for target in targets:
            named = target if _is_id(target) else str(Path(store) / target)
            for verb in ("explain", "show", "cost", "verify"):
                add(f"{target} {verb} --json", verb, named, "--json")
            add(f"{target} show", "show", named)
            page = folder / "page.html"
            add(f"{target} view", "view", named, "-o", str(page))
            made[f"{target} page"] = _normalised(_page_data(page), store, folder)
            loaded = _loaded(named, store)
            made[f"{target} load"] = _normalised(loaded, store, folder)
        if full:
            for name in ("ls --all --json", "log --json", "cost --json", "verify --all --json"):
                add(name, *name.split())
            add("log --graph", "log", "--graph")
            add("ls", "ls")
            made["list"] = _normalised(_listed(), store, folder)
            ids = [target for target in targets if _is_id(target)]
            for target in ids[:_N_SHOWN]:
                add(f"{target} tail", "tail", target)
                add(f"{target} blame", "blame", target, "done", "--json")
            if len(ids) > 1:
                add("diff", "diff", ids[0], ids[-1], "--json")
    return made


def command(*args: str, store: str) -> str:
    """Return how a command on a store ends, and what it writes."""
    with _own_environment(store) as folder:
        return _normalised(_called([*args, "--store", store]), store, folder)


def _normalised(text: str, store: str, folder: Path) -> str:
    """Take out of a text what does not follow from the content of the store alone.

    That is where the store and the files of a command are, and how much the style and the code of
    a page take.
    """
    for place in (store, open_store(store).where):
        # A listing tells the address of a server as if it were a path.
        text = text.replace(place, STORE).replace(str(Path(place)), STORE)
    text = text.replace(str(folder), ELSEWHERE)
    return _SIZE.sub("N kB, in one file", text)


def differences(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return the first differences of outputs, in words and with the lines around them."""
    display: list[str] = []
    names = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
    for name in names[:_N_SHOWN]:
        before, after = expected.get(name), found.get(name)
        if before is None or after is None:
            display.append(f"{name}: {'not expected' if before is None else 'not there any more'}")
            continue
        diff = difflib.unified_diff(
            _lines(before), _lines(after), "expected", "found", lineterm="", n=2
        )
        first = [line if len(line) < 300 else f"{line[:297]}..." for line in diff][:40]
        display.append("\n".join([name, *first]))
    if len(names) > _N_SHOWN:
        display.append(f"and {len(names) - _N_SHOWN} more: {', '.join(names[_N_SHOWN:][:20])}")
    return display


def _lines(text: str) -> list[str]:
    """Return the lines of a text; those of JSON on one line as if it were indented."""
    if text[:1] in "{[":
        with contextlib.suppress(ValueError):
            text = json.dumps(json.loads(text), indent=1, ensure_ascii=False)
    return text.splitlines()


def _is_id(target: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(UUID(target))
    return False


@contextlib.contextmanager
def _own_environment(store: str) -> Generator[Path]:
    """Give the commands a home and a terminal that do not depend on who calls them."""
    home = Path(store).parent if "://" not in store else None
    with tempfile.TemporaryDirectory(prefix="golden-") as made:
        folder = Path(made)
        changed = {
            "HOME": str(folder / "home"),
            "USERPROFILE": str(folder / "home"),
            "OPENRATH_HOME": str(home or folder / "home"),
            "NO_COLOR": "1",
            **({} if home else {"OPENRATH_STORE": store}),
        }
        before = dict(os.environ)
        for name in list(os.environ):
            if name in ("COLUMNS", "FORCE_COLOR") or name.startswith("OPENRATH_"):
                del os.environ[name]
        os.environ.update(changed)
        try:
            yield folder
        finally:
            os.environ.clear()
            os.environ.update(before)


class _Heard(logging.Handler):
    """Keeps what the library logs, without its time and place."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        # The collector may just end a sandbox or a snapshot of an earlier test of this process.
        if record.name == "rath.backend" and "nobody needs any more" in record.getMessage():
            return
        self.lines.append(f"{record.levelname} {record.name}: {record.getMessage()}")


@contextlib.contextmanager
def _logged() -> Generator[list[str]]:
    handler, logger = _Heard(), logging.getLogger("rath")
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield handler.lines
    finally:
        logger.propagate = before
        logger.removeHandler(handler)


def _called(args: Sequence[str]) -> str:
    with _logged() as lines:
        result = CliRunner().invoke(app, list(args))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    heard = "".join(f"--- logged\n{line}\n" for line in lines)
    return f"exit {result.exit_code}\n{result.stdout}--- stderr\n{result.stderr}{heard}"


def _page_data(page: Path) -> str:
    if not page.exists():
        return "no page\n"
    found = _PAGE_DATA.search(page.read_text("utf-8"))
    page.unlink()
    return "no data\n" if found is None else found[1]


def _listed() -> str:
    with _logged() as lines:
        found = [_plain(each) for each in list_persisted_sessions()]
    return _dumped({"sessions": found, "logged": lines})


def _loaded(named: str, store: str) -> str:
    """Return what `Session.load` and `load_session` give, or how they fail."""
    reports: dict[str, Any] = {}
    with _logged() as lines:
        where = None if os.sep in named and "://" not in store else open_store(store)
        reports["load"] = _told(lambda: _session(Session.load(named, store=where)))
        if isinstance(reports["load"], str):
            reports["recovered"] = _told(
                lambda: _session(Session.load(named, store=where, recover=True))
            )
        if "://" not in store and _is_id(named):
            reports["load_session"] = _told(lambda: _persisted(named))
        reports["logged"] = lines
    return _dumped(reports)


def _told(read: Callable[[], object]) -> object:
    """Return what is read, or the error as a text."""
    try:
        return _plain(read())
    except Exception as error:  # noqa: BLE001  # how a read fails is an output too
        return f"{type(error).__name__}: {error}"


def _persisted(id: str) -> Mapping[str, object]:
    persisted = load_session(id)
    pair = _told(lambda: [len(each.chunk_table) for each in persisted.to_resumable_pair()])
    return {
        "path": persisted.path,
        "closed": persisted.closed,
        "header": persisted.header,
        "rows": len(persisted.chunk_table),
        "entries": len(persisted.record),
        "usage": persisted.cumulative_usage,
        "pair": pair,
    }


def _session(session: Session) -> Mapping[str, object]:
    """Return what the public attributes of a session are."""
    return {
        "repr": repr(session),
        "id": session.id,
        "operator": session.lineage_operator,
        "kind": session.lineage_kind,
        "extras": session.lineage_extras,
        "parents": session.parent_session_ids,
        "sandbox": (session.sandbox_backend, session.sandbox_spec),
        "outcome": session.outcome,
        "text": session.text(),
        "usage": session.cumulative_usage,
        "cost": session.cumulative_cost,
        "rows": list(session.chunk_table),
        "record": list(session.record),
        "open": [
            (str(call), call.state, call.waits_for, call.effects) for call in session.open_calls
        ],
        "questions": [
            (each.call_id, each.tool, each.question, each.schema) for each in session.questions
        ],
        "verdicts": [(each.verdict.id, each.is_stale, each.why) for each in session.verdicts],
        "diff": _told(session.files.diff),
        "changes": _told(session.files.changes),
        "gaps": _told(session.files.gaps),
        "conflicts": _told(lambda: session.files.conflicts),
    }


def _dumped(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=True)


def _plain(value: object) -> Any:
    """Return a value as JSON can hold it: objects by the name of their class and their fields."""
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return value if len(value) <= 500 else [value[:250], len(value), value[-250:]]
        case UUID() | datetime() | Decimal() | Path() | bytes():
            return str(value)
        case Blob():
            return [value.digest, value.size, None if value.data is None else len(value.data)]
        case ChunkRow():
            name = None if value.id is None else f"{value.id.session}:{value.id.index}"
            return [name, value.kind_name, _plain(value.payload)]
        case Mapping():
            by_name = cast("Mapping[object, object]", value)
            return {str(name): _plain(each) for name, each in by_name.items()}
        case Set():
            return sorted(map(str, cast("Set[object]", value)))
        case _ if _fields(value) or not isinstance(value, Iterable):
            return _object(value)
        case _:
            return [_plain(each) for each in cast("Iterable[object]", value)]


def _object(value: object) -> dict[str, Any]:
    fields = {name: getattr(value, name) for name in _fields(value)}
    for name in ("theirs", "tools"):
        # Of whole records and lists of tools the names alone, since the commands show them.
        if isinstance(fields.get(name), Sequence):
            fields[name] = [getattr(each, "name", None) or each.id for each in fields[name]]
    if isinstance(value, Verdict) and value.usd is None:
        del fields["usd"], fields["sessions"]
    for name in ("start", "state", "caller"):
        if fields.get(name, ...) is None:
            del fields[name]  # what stored it knew of none
    return {"is": type(value).__name__, **{name: _plain(each) for name, each in fields.items()}}


def _fields(value: object) -> list[str]:
    """Return the names of the public fields of a dataclass or a struct."""
    if dataclasses.is_dataclass(value):
        names: Iterable[str] = (field.name for field in dataclasses.fields(value))
    else:
        names = getattr(value, "__struct_fields__", ())
    return [name for name in names if name[:1] != "_"]
