"""What a fresh process pays: the import, and the way to its first answer."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from benchmarks.endpoint import Endpoint
from benchmarks.measure import interleave, measure_child
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, AtMostTimes, Line, Reference, Unit

_IMPORT = """
import sys, time
start = time.perf_counter()
import {module}
seconds = time.perf_counter() - start
import json, pathlib, resource
try:  # the peak of this program alone; ru_maxrss starts with the peak of its parent on Linux
    status = pathlib.Path("/proc/self/status").read_text()
    peak_kb = int(status.split("VmHWM:")[1].split()[0])
except OSError:
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
vendors = sorted({{"openai", "anthropic", "httpx", "httpx2", "mcp", "litellm"}} & set(sys.modules))
print(json.dumps({{"seconds": seconds, "peak_mb": peak_kb / 1024, "vendors": len(vendors)}}))
"""

_FIRST_ANSWER_OURS = """
import sys
from rath.flow import Agent, Provider
from rath.session import Session
provider = Provider(base_url=sys.argv[1], api_key="x", model="fake")
agent = Agent("You answer.", provider, system_tools=False)
assert agent(Session.from_user_message("Say it.")).text()
"""

_FIRST_ANSWER_SDK = """
import sys
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1], api_key="x")
messages = [{"role": "system", "content": "You answer."}, {"role": "user", "content": "Say it."}]
completion = client.chat.completions.create(model="fake", messages=messages)
assert completion.choices[0].message.content
"""

_FIRST_ANSWER_HTTPX = """
import sys
import httpx
messages = [{"role": "system", "content": "You answer."}, {"role": "user", "content": "Say it."}]
with httpx.Client(headers={"authorization": "Bearer x"}) as client:
    url = sys.argv[1] + "/chat/completions"
    answer = client.post(url, json={"model": "fake", "messages": messages})
assert answer.json()["choices"][0]["message"]["content"]
"""


def import_lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """Time, memory and loaded vendor SDKs; the server is not asked.

    `import rath` loads its planes late; `import rath.flow`, which needs them all, stands beside it.
    """
    del endpoint
    modules = ("rath", "rath.flow", "openai")
    for module in modules:
        _import_once(module)  # compiles what is not compiled yet
    runs: dict[str, list[dict[str, float]]] = {module: [] for module in modules}
    for _ in range(sizes.repeats):
        for module in modules:
            runs[module].append(_import_once(module))

    def line(module: str, what: str, key: str, unit: Unit, limit: float) -> Line:
        value, other = (statistics.median(run[key] for run in runs[m]) for m in (module, "openai"))
        reference = Reference("import openai", other)
        return Line(f"import {module}, {what}", value, unit, reference, AtMost(limit))

    return [
        entry
        for module in ("rath", "rath.flow")
        for entry in (
            line(module, "wall", "seconds", "s", 0.15),
            line(module, "peak memory", "peak_mb", "MB", 60),
            line(module, "vendor SDKs loaded", "vendors", "count", 0),
        )
    ]


def first_answer_lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """Start of the interpreter, imports, one model call, exit."""
    url = endpoint.url("reply")

    def command(code: str) -> list[str]:
        return [sys.executable, "-c", code, url]

    cost = interleave(
        {
            "ours": lambda: measure_child(command(_FIRST_ANSWER_OURS)),
            "openai SDK": lambda: measure_child(command(_FIRST_ANSWER_SDK)),
            "httpx": lambda: measure_child(command(_FIRST_ANSWER_HTTPX)),
        },
        repeats=sizes.repeats,
    )
    sdk, httpx = cost["openai SDK"], cost["httpx"]
    wall, cpu = cost["ours"].wall, cost["ours"].cpu
    return [
        Line("first answer, wall", wall, "ms", Reference("openai SDK", sdk.wall), AtMostTimes(1.2)),
        Line("first answer, CPU", cpu, "ms", Reference("openai SDK", sdk.cpu), AtMostTimes(1.2)),
        Line("first answer, wall", wall, "ms", Reference("httpx", httpx.wall)),
    ]


def _import_once(module: str) -> dict[str, float]:
    command = [sys.executable, "-c", _IMPORT.format(module=module)]
    output = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    found: dict[str, float] = json.loads(output)
    return found
