"""A process that runs Python code piece by piece and keeps its names: one code context.

Started with a descriptor from which it reads requests (a JSON string per line) and one to which it
writes outcomes (a JSON object per line: `count`, `result` or None, `error` or None).
"""

from __future__ import annotations

import ast
import io
import json
import os
import signal
import sys
import traceback
from types import TracebackType
from typing import Any


def main(requests_fd: int, outcomes_fd: int) -> None:
    """Serve until the requests end."""
    os.set_inheritable(requests_fd, False)
    os.set_inheritable(outcomes_fd, False)
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(line_buffering=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    with os.fdopen(requests_fd) as requests, os.fdopen(outcomes_fd, "w") as outcomes:
        for count, line in enumerate(requests, start=1):
            outcome = {"count": count, **_outcome(json.loads(line), names, count)}
            sys.stdout.flush()
            sys.stderr.flush()
            outcomes.write(json.dumps(outcome) + "\n")
            outcomes.flush()


def _outcome(code: str, names: dict[str, Any], count: int) -> dict[str, Any]:
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        value = _run(code, names, f"<ipython-input-{count}>")
        shown = None if value is None else repr(value)
    except BaseException as exc:  # noqa: BLE001  # whatever the code raises is its outcome
        exc.__traceback__ = _own_part(exc.__traceback__, f"<ipython-input-{count}>")
        lines = traceback.format_exception(exc)
        ename, evalue = type(exc).__name__, str(exc)
        error = {"ename": ename, "evalue": evalue, "traceback": [each.rstrip() for each in lines]}
        return {"result": None, "error": error}
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return {"result": shown, "error": None}


def _run(code: str, names: dict[str, Any], filename: str) -> Any:
    """Run statements; the value of an expression at their end is returned."""
    tree = ast.parse(code, filename)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, filename, "exec"), names)
        return None
    tree.body.pop()
    exec(compile(tree, filename, "exec"), names)
    return eval(compile(ast.Expression(last.value), filename, "eval"), names)


def _own_part(trace: TracebackType | None, filename: str) -> TracebackType | None:
    """A traceback without the frames of this module that lead to the code."""
    while trace is not None and trace.tb_frame.f_code.co_filename != filename:
        trace = trace.tb_next
    return trace
