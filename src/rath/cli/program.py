"""The workflow of a program that a command line names, such as `agents:team`."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from rath._core.text import did_you_mean
from rath.cli.terminal import Misuse, Problem
from rath.errors import RathError
from rath.flow import Workflow

__all__ = ["load_workflow", "telling"]


def load_workflow(name: str) -> Workflow:
    """Import `module:attribute`, looked for in the working directory first, and return it.

    A module may be named by its file, as in `path/agents.py:team`.

    The attribute is a workflow, or a class of one or a function that makes one without arguments.

    Raises:
        Misuse: There is no such module or attribute, it is no workflow, or it raises something.
    """
    module_name, _, path = name.rpartition(":")
    if not module_name or not path:
        raise Misuse(f"{name!r} names no workflow; expected MODULE:ATTRIBUTE, such as agents:team")
    found: object = _module(module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            raise Misuse(f"{name!r}: no attribute {part!r}.{did_you_mean(part, dir(found))}")
        found = getattr(found, part)
    if callable(found) and not isinstance(found, Workflow):
        with telling(name):
            found = found()
    if not isinstance(found, Workflow):
        raise Misuse(f"{name!r} is a {type(found).__name__}; expected a workflow or an agent")
    return found


def _module(name: str) -> ModuleType:
    file = Path(name).resolve() if name.endswith(".py") else None
    if file is not None and not file.is_file():
        raise Misuse(f"no file {name!r}")
    here, module_name = str(file.parent if file else Path.cwd()), file.stem if file else name
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with telling(name):
            found = importlib.import_module(module_name)
    except Misuse as exc:
        lacks = exc.__cause__
        if not isinstance(lacks, ModuleNotFoundError) or lacks.name is None:
            raise
        if not f"{module_name}.".startswith(f"{lacks.name}."):
            raise  # something that the module itself needs
        raise Misuse(f"no module {module_name!r} in {here!r} or among the packages") from lacks
    if file is not None and Path(found.__file__ or "").resolve() != file:
        sys.path.remove(here)
        raise Misuse(f"{name!r} has the name of another module, {found.__file__}; rename the file")
    return found


@contextmanager
def telling(name: str) -> Generator[None]:
    """Tell in one line what a program raises, and where.

    Raises:
        Misuse: It raised something that does not say itself what to do, or ended.
    """
    try:
        yield
    except (RathError, OSError, Problem):
        raise
    except (Exception, SystemExit) as exc:  # programs of others raise anything; it is told
        raise Misuse(f"{name!r} raised {type(exc).__name__}: {exc}{_place(exc)}") from exc


def _place(exc: BaseException) -> str:
    frames = traceback.extract_tb(exc.__traceback__)
    own = [each for each in frames if each.filename != __file__ and "<frozen" not in each.filename]
    its = [each for each in own if "/importlib/" not in each.filename]
    return f" ({its[-1].filename}:{its[-1].lineno})" if its else ""
