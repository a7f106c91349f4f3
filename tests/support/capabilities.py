"""The page of what backends and engines can do; `python -m tests.support.capabilities` makes it."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path

from rath import backend
from rath.backend import Backend, Capabilities
from rath.conformance import Report, capability_table, check_backend
from rath.testing import FakeBackend
from tests.support.opensandbox_server import OpenSandboxServer

__all__ = ["PAGE", "column", "page", "table_of_claims"]

PAGE = Path(__file__).parents[2] / "docs" / "source" / "reference" / "capabilities.md"

_TEXT = """\
# What backends can do

```python
from rath.conformance import capability_table, check_backend
from rath.testing import FakeBackend

print(capability_table({{"fake": check_backend(FakeBackend())}}))
```

This page is written by `python -m tests.support.capabilities`, from what the \
[contract](conformance.md) found on Linux.
The tests run the contract again, for each backend that works on the machine, and compare.
`opensandbox` was asked on a server of the tests that speaks its protocol; `fake` is \
`rath.testing.FakeBackend`.
[The page of sandboxes](../developer_notes/sandbox.md) says what they do not promise.

## What was found

`yes`: each check of the feature passed; `partly`: some passed and the others could not be asked; \
`no`: none could be asked.

{found}
## What could not be asked

{skipped}
## What they say

The fields of [`Capabilities`](backend.md), from `capabilities()`.

{claims}"""

_ENGINES = """\
## Engines of jobs

Where the items of a [job](../tutorial/beyond_one_machine.md) are carried out; [`check_engine`]\
(conformance.md) tries what stands here of deliveries and kills.

| | this process | `procs:4` | `ray://auto` | `postgres://host/db` |
| --- | --- | --- | --- | --- |
| Needs | nothing | nothing | `openrath[ray]`, a cluster | `openrath[queue]`, PostgreSQL, \
`rath worker` |
| Delivery of an item | once | at least once | at least once | at least once |
| Workflow | any object | importable, or declared by the program | importable, or declared by the \
program | `"module:name"` that the worker allows |
| Store | any | files or PostgreSQL | PostgreSQL, or files that all nodes share with locks | \
PostgreSQL |
| A worker is killed | the job ends; start it again | its items go to another worker | its items \
go to another worker | another worker takes its items |
| A node is lost | the job ends; start it again | the job ends; start it again | its items go to \
another node | workers of other nodes take its items |
| The driver is killed | start it again | the workers end; start it again | the workers end; start \
it again | the workers finish what they have; start it again |
| Keys of models | of the program | environment and config of this machine | environment and \
config of the nodes | environment and config of the worker |
| Limits and budget | of this process | leases from the driver | leases from the driver | \
leases from a table of the database |
| Cancel | ends the runs | ends the runs | ends the runs | ends the runs, and empties the queue |
| Drivers of one job | one, as it writes its log | one | one | one |
| Jobs on the same workers | one | one | one, each job has its own actors | many |
| Platforms | Linux, macOS | Linux, macOS | where Ray has wheels | Linux, macOS |
"""


def page(reports: Mapping[str, Report]) -> str:
    """Return the whole page."""
    text = _TEXT.format(
        found=capability_table(reports), skipped=_skipped(reports), claims=table_of_claims()
    )
    return f"{text}\n{_ENGINES}"


def column(text: str, name: str) -> dict[str, str]:
    """Return a column of the first table in `text`, by feature."""
    lines = text[text.index("| Feature |") :].split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    position = rows[0].index(f"`{name}`")
    return {row[0]: row[position] for row in rows[2:]}


def table_of_claims() -> str:
    """Return a table of what each backend says of itself."""
    claims = {name: subject.capabilities() for name, subject in _subjects().items()}
    lines = ["| Field | " + " | ".join(f"`{name}`" for name in claims) + " |"]
    lines.append("| --- |" + " --- |" * len(claims))
    for each in fields(Capabilities):
        cells = [_cell(getattr(claim, each.name)) for claim in claims.values()]
        lines.append(f"| `{each.name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _subjects() -> dict[str, Backend]:
    named = {name: backend.get(name) for name in ("local", "bubblewrap", "opensandbox")}
    return {**named, "fake": FakeBackend()}


def _cell(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case Enum():
            return str(value.value)
        case None:
            return ""
        case _:
            return str(value)


def _skipped(reports: Mapping[str, Report]) -> str:
    lines = ["| Backend | Why | Checks |", "| --- | --- | --- |"]
    for name, report in reports.items():
        reasons: defaultdict[str, list[str]] = defaultdict(list)
        for finding in report.findings:
            if finding.status == "skipped":
                reasons[finding.detail].append(finding.check.replace("_", " "))
        lines += [f"| `{name}` | {why} | {'; '.join(what)} |" for why, what in reasons.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the contract against every backend, and write the page."""
    with OpenSandboxServer() as server:
        os.environ.update(server.variables)
        subjects = _subjects()
        for name, subject in subjects.items():
            reason = subject.unavailable_reason()
            if reason is not None:
                sys.exit(f"the page needs all backends, and {name} does not work here: {reason}")
        reports = {name: check_backend(subject) for name, subject in subjects.items()}
    PAGE.write_text(page(reports), "utf-8")


if __name__ == "__main__":
    main()
