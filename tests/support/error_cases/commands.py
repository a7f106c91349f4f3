"""Errors of the `rath` command."""

from __future__ import annotations

from tests.support.error_cases import ErrorCase, Machine


def _damaged(machine: Machine) -> str:
    session = machine.stored("The answer is 42.")
    log = machine.log_of(session)
    log.write_text(log.read_text().replace("is 42", "is 43"))
    return machine.rath(f"show {session.id}")


def _ids(machine: Machine, words: str) -> str:
    """Run a command on a stored session: `ID` in it is its id."""
    return machine.rath(words.replace("ID", str(machine.stored("The answer is 42.").id)))


CASES = [
    ErrorCase(
        cause="A verb was mistyped.",
        cure="Take the one that the text proposes; `rath --help` lists all.",
        meet=lambda m: m.rath("explian"),
    ),
    ErrorCase(
        cause="An option that a verb does not have.",
        cure="`rath VERB --help` lists them.",
        meet=lambda m: m.rath("ls --colour"),
    ),
    ErrorCase(
        cause="A verb without what it works on.",
        cure="Name it.",
        meet=lambda m: m.rath("show"),
    ),
    ErrorCase(
        cause="A session was named by too few digits.",
        cure="Give at least four; `rath ls` shows them.",
        meet=lambda m: m.rath("show 0f"),
    ),
    ErrorCase(
        cause="No session begins with these digits.",
        cure="`rath ls` lists what is there; `--store` names another place.",
        meet=lambda m: m.rath("show 0f8fad5b"),
    ),
    ErrorCase(
        cause="A session was named by a text.",
        cure="Give its id, or its first digits.",
        meet=lambda m: m.rath("show latest-run"),
    ),
    ErrorCase(
        cause="A stored session is damaged.",
        cure="`rath verify ID` says where; take it from a backup or an export.",
        meet=_damaged,
    ),
    ErrorCase(
        cause="A text that no model and nobody else has written.",
        cure="Copy it from the answer.",
        meet=lambda m: _ids(m, "blame ID nowhere"),
    ),
    ErrorCase(
        cause="A call that does not wait for anything.",
        cure="`rath show ID` says what waits.",
        meet=lambda m: _ids(m, "approve ID call_1"),
    ),
    ErrorCase(
        cause="New arguments of a call that are no JSON.",
        cure="""Write an object, as in `'{"path": "a.txt"}'`.""",
        meet=lambda m: _ids(m, "edit ID call_1 path"),
    ),
    ErrorCase(
        cause="A run was to go on with another program: its prompt is not the recorded one.",
        cure="Name the workflow that made it; or call this one on the session, for a new run.",
        meet=lambda m: _ids(m, f"resume ID {m.team()}"),
    ),
    ErrorCase(
        cause="A state that does not exist.",
        cure="Take one of those that the text lists.",
        meet=lambda m: m.rath("ls --state broken"),
    ),
    ErrorCase(
        cause="An age that cannot be read.",
        cure="Write a number and a unit, as in 30d.",
        meet=lambda m: m.rath("ls --since yesterday"),
    ),
    ErrorCase(
        cause="An age of `prune` that cannot be read.",
        cure="Write a number and a unit, as in 30d.",
        meet=lambda m: m.rath("prune --older-than month"),
    ),
    ErrorCase(
        cause="The URL of a store is of an unknown kind.",
        cure="Take one of those that the text lists.",
        meet=lambda m: m.rath("ls --store redis://localhost"),
    ),
    ErrorCase(
        cause="A file of an export is there already.",
        cure="Name another one, or replace it with `--force`.",
        meet=lambda m: (m.file("a.rath"), _ids(m, "export ID a.rath"))[1],
    ),
    ErrorCase(
        cause="A file that is no export was imported.",
        cure="Name a file that `rath export` has written.",
        meet=lambda m: (m.file("a.rath", "a text\n"), m.rath("import a.rath"))[1],
    ),
    ErrorCase(
        cause="A file was imported that is not there.",
        cure="Correct the path.",
        meet=lambda m: m.rath("import none.rath"),
    ),
    ErrorCase(
        cause="A session was brought back that is not in the trash.",
        cure="`rath ls` lists what is not in the trash; what lay there long was removed.",
        meet=lambda m: m.rath("rm --restore 0f8fad5b-d9cb-469f-a165-70867728950e"),
    ),
    ErrorCase(
        cause="A key of the config that does not exist.",
        cure="Correct it, or set it all the same: `--force`.",
        meet=lambda m: m.rath("config set llm.default_povider main"),
    ),
    ErrorCase(
        cause="A value of the config that does not fit.",
        cure="Give what the text names.",
        meet=lambda m: m.rath("config set mcp.servers.files.timeout long"),
    ),
    ErrorCase(
        cause="A setting that was never made.",
        cure="`rath config list` lists what is set.",
        meet=lambda m: m.rath("config get llm.default_provider"),
    ),
    ErrorCase(
        cause="A kind of provider that does not exist.",
        cure="Take one of those that the text lists.",
        meet=lambda m: m.rath("config set llm.providers.main.provider_kind opneai"),
    ),
    ErrorCase(
        cause="The config is damaged.",
        cure="Correct the line that the text names, or write it anew: `rath config init`.",
        meet=lambda m: (m.config("{"), m.rath("config list"))[1],
    ),
    ErrorCase(
        cause="`--provider` of the doctor without `--live`.",
        cure="Give `--live` too.",
        meet=lambda m: m.rath("doctor --provider main"),
    ),
    ErrorCase(
        cause="A provider that the doctor does not know.",
        cure="Take one of those that the text lists.",
        meet=lambda m: m.rath("doctor --live --provider main"),
    ),
    ErrorCase(
        cause="An MCP server that the config does not have.",
        cure="Correct the name; `rath mcp ls` lists them.",
        meet=lambda m: m.rath("mcp test files"),
    ),
    ErrorCase(
        cause="There is no memory yet.",
        cure="Let an agent remember something first, or name another one: `--path`.",
        meet=lambda m: m.rath("memory ls"),
    ),
    ErrorCase(
        cause="A job that the store does not have.",
        cure="`rath jobs` lists them.",
        meet=lambda m: m.rath("jobs show nightly"),
    ),
    ErrorCase(
        cause="The module of a workflow is not there.",
        cure="Start the command in the folder of the module, or correct the name.",
        meet=lambda m: m.rath("serve no_such_module:team"),
    ),
    ErrorCase(
        cause="The module of a workflow has no such name.",
        cure="Take the one that the text proposes.",
        meet=lambda m: (m.file("crew.py", "teem = 1\n"), m.rath("serve crew:team"))[1],
    ),
    ErrorCase(
        cause="The name in a module is no workflow.",
        cure="Name a workflow, an agent, or a function that makes one.",
        meet=lambda m: (m.file("crew2.py", "team = 1\n"), m.rath("serve crew2:team"))[1],
    ),
    ErrorCase(
        cause="The module of a workflow raised when it was imported.",
        cure="Correct the line that the text names.",
        meet=lambda m: (m.file("crew3.py", "1 / 0\n"), m.rath("serve crew3:team"))[1],
    ),
    ErrorCase(
        cause="The port of a server is taken.",
        cure="Choose another one with `--port`, or stop what listens there.",
        meet=lambda m: m.rath(f"serve {m.team()} --port {m.taken_port()}"),
    ),
    ErrorCase(
        cause="A token was removed that is not there.",
        cure="`rath serve token ls` lists them.",
        meet=lambda m: m.rath("serve token rm anna"),
    ),
    ErrorCase(
        cause="An evaluation was asked for without a file or a job.",
        cure="Name one of them.",
        meet=lambda m: m.rath("eval"),
    ),
    ErrorCase(
        cause="A gate of an evaluation that cannot be read.",
        cure="Write `min_score=0.9` or `max_regression=0.02`.",
        meet=lambda m: (m.file("suite.py", ""), m.rath("eval suite.py --gate good"))[1],
    ),
    ErrorCase(
        cause="A worker that may carry out nothing.",
        cure="Say what it may: `--allow MODULE:WORKFLOW`.",
        meet=lambda m: m.rath("worker"),
    ),
]
