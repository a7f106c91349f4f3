"""What a fresh process pays: the import, the way to its first answer, and a command."""

from __future__ import annotations

import sys
import tempfile
from functools import partial

from benchmarks.by_hand import add_tool
from benchmarks.endpoint import Endpoint
from benchmarks.measure import interleave, interleave_figures, measure_child, run_fresh
from benchmarks.ours import AddTool, open_agent
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, AtMostTimes, Line, Reference
from rath.session import Session

OUR_IMPORT = "import rath; from rath import flow; from rath.session import Session"

IMPORT = """
import sys, time
cpu, wall = time.process_time(), time.perf_counter()
{program}
cpu, wall, modules = time.process_time() - cpu, time.perf_counter() - wall, len(sys.modules)
vendors = {{"openai", "anthropic", "httpx", "httpx2", "mcp", "litellm"}} & set(sys.modules)
try:  # the peak of this program alone; ru_maxrss starts with the peak of its parent on Linux
    with open("/proc/self/status") as status:
        peak = int(status.read().split("VmHWM:")[1].split()[0]) / 1024
except OSError:
    import resource
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
import json
print(json.dumps({{
    "cpu": cpu, "wall": wall, "peak": peak, "modules": modules, "vendors": len(vendors)
}}))
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
    """CPU, wall, memory and modules of what programs import first; the server is not asked."""
    del endpoint
    programs = {"ours": OUR_IMPORT, "rath": "import rath", "openai": "import openai", "bare": ""}
    cost = interleave_figures(
        {
            name: partial(run_fresh, "-c", IMPORT.format(program=program))
            for name, program in programs.items()
        },
        repeats=sizes.repeats,
    )
    ours, rath, openai, bare = (cost[name] for name in programs)
    what, sdk = "import of rath, flow and Session", "import openai"
    own = ours["peak"] - bare["peak"]
    return [
        Line(f"{what}, CPU", ours["cpu"], "ms", Reference(sdk, openai["cpu"]), AtMostTimes(0.15)),
        Line(f"{what}, wall", ours["wall"], "ms", Reference(sdk, openai["wall"])),
        Line(
            f"{what}, memory over the bare interpreter",
            own,
            "MB",
            Reference(sdk, openai["peak"] - bare["peak"]),
            AtMost(25),
        ),
        Line(
            f"{what}, modules",
            ours["modules"],
            "count",
            Reference(sdk, openai["modules"]),
            AtMost(180),
        ),
        Line(f"{what}, vendor SDKs loaded", ours["vendors"], "count", target=AtMost(0)),
        Line("import rath alone, CPU", rath["cpu"], "ms", Reference(sdk, openai["cpu"])),
    ]


def first_answer_lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """Start of the interpreter, imports, one model call, exit."""
    url = endpoint.url("reply")
    programs = {
        "ours": _FIRST_ANSWER_OURS,
        "openai SDK": _FIRST_ANSWER_SDK,
        "httpx": _FIRST_ANSWER_HTTPX,
    }
    cost = interleave(
        {
            name: partial(measure_child, [sys.executable, "-c", program, url])
            for name, program in programs.items()
        },
        repeats=sizes.repeats,
    )
    ours = cost.pop("ours")
    target = {"openai SDK": AtMostTimes(0.5)}
    return [
        line
        for name, theirs in cost.items()
        for line in (
            Line("first answer, wall", ours.wall, "ms", Reference(name, theirs.wall),
                 target.get(name)),
            Line("first answer, CPU", ours.cpu, "ms", Reference(name, theirs.cpu),
                 target.get(name)),
        )
    ]  # fmt: skip


def command_line_lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """Two commands that do next to nothing, beside an interpreter that does nothing."""
    url = endpoint.url("tools-1")
    with tempfile.TemporaryDirectory(prefix="rath-store-") as store:
        with open_agent(url, AddTool(), max_tool_rounds=2) as agent:
            agent(Session.from_user_message(add_tool.QUESTION)).save(store=store)
        cost = interleave(
            {
                name: partial(measure_child, [sys.executable, *arguments])
                for name, arguments in {
                    "rath --help": ["-m", "rath", "--help"],
                    "rath ls": ["-m", "rath", "ls", "--store", store],
                    "bare Python": ["-c", ""],
                }.items()
            },
            repeats=sizes.repeats,
        )
    bare = Reference("bare Python", cost.pop("bare Python").cpu)
    return [
        Line(f"{name}, CPU", theirs.cpu, "ms", bare, AtMost(300)) for name, theirs in cost.items()
    ]
