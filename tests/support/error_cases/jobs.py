"""Errors around many runs: data, jobs, evaluations, searches and serving."""

from __future__ import annotations

import rath
from rath import eval as evaluation
from rath import flow
from rath.data import SessionLoader, session_of
from rath.jobs.engine import Rate
from rath.optim import GEPA
from rath.serving import Principal, TokenFile, asgi
from rath.testing import ScriptedClient
from tests.support.error_cases import ErrorCase, Machine, odd


def _job(machine: Machine, items: object, **options: object) -> object:
    agent = machine.scripted(*["Done."] * 5, system_tools=False)
    return flow.map(agent, odd(items), **odd({"progress": False, **options}))


def _rows(machine: Machine, name: str, content: str) -> object:
    return evaluation.read_dataset(machine.file(name, content))


def _evaluated(machine: Machine, rows: object, *scorers: object) -> object:
    agent = machine.scripted(*["Done."] * 5, system_tools=False)
    return evaluation.evaluate(agent, odd(rows), odd(scorers), progress=False)


def _search(*, prompt: bool, **options: object) -> object:
    agent = flow.Agent(rath.Prompt("Answer.") if prompt else "Answer.", ScriptedClient([]).provider)
    given = {"metric": len, "budget_usd": 1.0, **options}
    return GEPA(agent.parameters(), **odd(given))


CASES = [
    ErrorCase(
        cause="No session can be made of an item.",
        cure="Give texts, sessions, or mappings with `input`.",
        meet=lambda m: session_of({"question": "Why?"}),
    ),
    ErrorCase(
        cause="A batch of a loader is empty.",
        cure="Give 1 or more, or None.",
        meet=lambda m: odd(SessionLoader)(["a"], batch_size=0),
    ),
    ErrorCase(
        cause="A dataset without a length cannot be shuffled.",
        cure="Make a list of it first.",
        meet=lambda m: odd(SessionLoader)(iter(["a"]), shuffle=True),
    ),
    ErrorCase(
        cause="`flow.map` was given something else than a workflow.",
        cure='Give a workflow, an agent, or "module:name".',
        meet=lambda m: flow.map(odd(7), ["a"]),
    ),
    ErrorCase(
        cause="The workflow of a job was named, and its module cannot be imported.",
        cure="Correct the name, or start Python where the module is.",
        meet=lambda m: flow.map("no_such_module:team", ["a"]),
    ),
    ErrorCase(
        cause="Two items have the same key.",
        cure="Give each a key of its own: `key=...`.",
        meet=lambda m: _job(m, [{"id": 1, "input": "a"}, {"id": 1, "input": "b"}], key="id"),
    ),
    ErrorCase(
        cause="An item lacks the member that is to be its key.",
        cure="Correct `key=`, or the item.",
        meet=lambda m: _job(m, [{"input": "a"}], key="id"),
    ),
    ErrorCase(
        cause="`on_error` is unknown.",
        cure='Give "keep" or "raise".',
        meet=lambda m: _job(m, ["a"], on_error="stop"),
    ),
    ErrorCase(
        cause="No item may run at a time.",
        cure="Give 1 or more.",
        meet=lambda m: _job(m, ["a"], concurrency=0),
    ),
    ErrorCase(
        cause="A budget that is not above zero.",
        cure="Give US dollars above 0, or None.",
        meet=lambda m: _job(m, ["a"], budget_usd=0),
    ),
    ErrorCase(
        cause="A rate that is not above zero.",
        cure="Give a number above 0, or None.",
        meet=lambda m: Rate(requests_per_minute=0),
    ),
    ErrorCase(
        cause="An engine that does not exist.",
        cure='Take one of those that the text lists, as in "procs:4".',
        meet=lambda m: _job(m, ["a"], engine="threads:4"),
    ),
    ErrorCase(
        cause="An engine with a wrong number of processes.",
        cure='Write `engine="procs:4"`.',
        meet=lambda m: _job(m, ["a"], engine="procs:many"),
    ),
    ErrorCase(
        cause="A dataset in a format that cannot be read.",
        cure="Write it as .jsonl or .csv.",
        meet=lambda m: _rows(m, "rows.txt", "a"),
    ),
    ErrorCase(
        cause="A line of a dataset is no object.",
        cure="Correct the line that the text names.",
        meet=lambda m: _rows(m, "rows.jsonl", '{"input": "a"}\n7\n'),
    ),
    ErrorCase(
        cause="A line of a dataset is no JSON.",
        cure="Correct the line that the text names.",
        meet=lambda m: _rows(m, "rows.jsonl", '{"input": "a"}\n{oops\n'),
    ),
    ErrorCase(
        cause="A dataset is empty.",
        cure="Give at least one row.",
        meet=lambda m: _evaluated(m, [], evaluation.Exact()),
    ),
    ErrorCase(
        cause="An evaluation without a scorer.",
        cure="Give one, such as `rath.eval.Exact()`.",
        meet=lambda m: _evaluated(m, [{"input": "a", "expected": "b"}]),
    ),
    ErrorCase(
        cause="Two scorers have the same name.",
        cure='Give one a name of its own: `name="..."`.',
        meet=lambda m: _evaluated(m, [{"input": "a"}], evaluation.Exact(), evaluation.Exact()),
    ),
    ErrorCase(
        cause="Something that is no scorer.",
        cure="Give one of `rath.eval`, or a function.",
        meet=lambda m: _evaluated(m, [{"input": "a"}], 7),
    ),
    ErrorCase(
        cause="A judge without a rubric.",
        cure="Say when an answer passes.",
        meet=lambda m: evaluation.ModelJudge(" ", m.scripted("x").agent.provider),
    ),
    ErrorCase(
        cause="A search for prompts without an end.",
        cure="Give a budget, or a number of calls of the metric.",
        meet=lambda m: _search(prompt=True, budget_usd=None),
    ),
    ErrorCase(
        cause="A search for prompts, and none may be changed.",
        cure='Write the prompt as `rath.Prompt("...")`.',
        meet=lambda m: _search(prompt=False),
    ),
    ErrorCase(
        cause="A server was given something else than a workflow.",
        cure="Give a workflow or an agent.",
        meet=lambda m: asgi(odd(7)),
    ),
    ErrorCase(
        cause="A name of a served workflow that cannot be in an address.",
        cure="Take letters, digits, `_` and `-`.",
        meet=lambda m: asgi({"a guide": m.scripted("x")}),
    ),
    ErrorCase(
        cause="A server for the whole network, without a token.",
        cure="Make a token: `rath serve token add NAME`.",
        meet=lambda m: m.rath(f"serve {m.team()} --host 0.0.0.0 --port 0"),
    ),
    ErrorCase(
        cause="A second token of the same name.",
        cure="Take another name, or remove the first.",
        meet=lambda m: (
            TokenFile().add(Principal(name="anna")),
            TokenFile().add(Principal(name="anna")),
        ),
    ),
]
