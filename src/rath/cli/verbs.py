"""Table of the verbs: function, section of the help, and summary of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Verb(NamedTuple):
    """One row of the table."""

    target: str
    """`module:function` in this package, imported when the verb is called."""

    summary: str
    """Beginning of its help, so that a list of verbs imports none."""


VERBS: Mapping[str, Verb] = {
    "answer": Verb(
        "decisions:answer_question",
        "Answer a question that a tool has asked; the run can be resumed then.",
    ),
    "approve": Verb(
        "decisions:approve_call",
        "Approve a tool call that waits; it is made when the run is resumed.",
    ),
    "blame": Verb(
        "compare:blame_text", "Find where a text first appeared, who wrote it, and from what."
    ),
    "chat": Verb(
        "chat:chat", "Chat with a workflow in the terminal; each turn is a recorded session."
    ),
    "completion install": Verb(
        "completion:install", "Install completion for a shell: bash, zsh or fish."
    ),
    "completion show": Verb("completion:show", "Print the completion script of a shell."),
    "config init": Verb("config_init:init", "Set up a model: who serves it, its name and its key."),
    "config set": Verb(
        "config:set_value", "Set a value; keys of models go to credentials.json, for you alone."
    ),
    "config unset": Verb(
        "config:unset", "Remove a value, or an entry such as llm.providers.main with its key."
    ),
    "config trust": Verb(
        "config:trust", "Trust the endpoints, commands and stores that a project's config names."
    ),
    "config list": Verb(
        "config:list_values",
        "List the values in effect: of the environment, the project and yourself.",
    ),
    "config get": Verb(
        "config:get", "Show a value in effect, or all of a table; secrets are redacted."
    ),
    "config path": Verb(
        "config:path", "List the config files by precedence, and which one is written to."
    ),
    "cost": Verb("cost:cost", "Sum up model calls, tokens and cost, by model, session or day."),
    "deny": Verb(
        "decisions:deny_call", "Deny a tool call that waits; the model reads that, and the reason."
    ),
    "diff": Verb(
        "compare:diff_sessions", "Compare two sessions: rows, files, calls, tokens and cost."
    ),
    "doctor": Verb(
        "doctor:doctor",
        "Check configuration, keys, packages, sandboxes and files; --live also asks the models.",
    ),
    "edit": Verb(
        "decisions:edit_call", "Approve a tool call with other arguments; the model reads which."
    ),
    "eval": Verb(
        "evaluate:run_evaluation",
        "Evaluate a workflow on a dataset, and compare with an earlier result.",
    ),
    "explain": Verb(
        "explain:explain",
        "Explain a session by its evidence: requests, models, tools, changes, origin.",
    ),
    "export": Verb("storage:export_session", "Export a session with its ancestors to one file."),
    "fork": Verb(
        "storage:fork_session", "Fork a session: store a child with all or the first of its rows."
    ),
    "gc": Verb(
        "storage:collect_garbage",
        "Remove what was not used for long: sandboxes, memories, sessions.",
    ),
    "import": Verb(
        "storage:import_sessions", "Import the sessions of an exported file into a store."
    ),
    "init": Verb(
        "project:init", "Make a small project: a workflow, a test with a cassette, and a config."
    ),
    "jobs ls": Verb(
        "jobs:list_jobs", "List jobs, the newest first: items by state, tokens and cost."
    ),
    "jobs show": Verb(
        "jobs:show_job", "Show the results of a job: counts, cost, and items that are not done."
    ),
    "jobs tail": Verb("jobs:tail_job", "Follow a job: show its items as they end."),
    "jobs retry": Verb(
        "jobs:retry_items", "Retry the failed items of a job; no answered call is repeated."
    ),
    "jobs cancel": Verb(
        "jobs:cancel_job", "Cancel a job, wherever its driver runs; a later start resumes it."
    ),
    "log": Verb("listing:log", "Show the history of sessions, newest first; --graph draws it."),
    "ls": Verb("listing:ls", "List sessions, the newest first, as a tree of their lineage."),
    "mcp add": Verb("mcp:add_server", "Add a tool server to the config, by its command or URL."),
    "mcp ls": Verb("mcp:list_servers", "List the tool servers: target, trust and config of each."),
    "mcp test": Verb("mcp:try_server", "Test a server: connection, handshake, and what it offers."),
    "mcp call": Verb("mcp:call_tool", "Call a tool of a server, and show its result."),
    "mcp trust": Verb("mcp:trust", "Trust a server that a project names, after showing its entry."),
    "mcp serve": Verb("runs:serve", "Serve a workflow as an MCP tool, over stdio or HTTP."),
    "memory add": Verb(
        "memory:add", "Add a note; the same words in the same category are one note."
    ),
    "memory forget": Verb(
        "memory:forget", "Erase notes, or all that came from a session, without a trace."
    ),
    "memory rebuild": Verb("memory:rebuild", "Rebuild the index of a local store from its files."),
    "memory ls": Verb(
        "memory:list_notes", "List notes and directories: the whole store, or below a URI."
    ),
    "memory find": Verb(
        "memory:find_notes", "Search notes as an agent does, the closest first, with scores."
    ),
    "memory show": Verb("memory:show_note", "Show a note with its sources and its expiry."),
    "profile": Verb(
        "profile:profile", "Profile a session or a job: time, tokens and cost by module path."
    ),
    "prune": Verb(
        "storage:prune", "Move old sessions to the trash, and remove what was in it before."
    ),
    "replay": Verb(
        "runs:replay_session",
        "Replay a session from its record, offline; --at branches there, live.",
    ),
    "run": Verb(
        "chat:run_workflow",
        "Run a workflow on a message, stream its answer, and record the run.",
    ),
    "resume": Verb(
        "runs:resume_session", "Resume a run that was cut off, failed or waits, in its own log."
    ),
    "rm": Verb("storage:rm", "Move sessions to the trash; their descendants load as before."),
    "serve MODULE:WORKFLOW": Verb(
        "serving:serve_workflow",
        "Serve a workflow over HTTP to clients of OpenAI, A2A, MCP and AG-UI.",
    ),
    "serve token add": Verb(
        "serving:add_token", "Make a token for a client, with its limits, and show it once."
    ),
    "serve token ls": Verb(
        "serving:list_tokens", "List the clients that have a token, and limits."
    ),
    "serve token rm": Verb(
        "serving:remove_token", "Revoke the token of a client, from its next request on."
    ),
    "show": Verb("show:show", "Show a session: origin, state, rows, and the call behind each row."),
    "tail": Verb(
        "show:tail", "Show the last rows of a session; with -f follow the run as it streams."
    ),
    "verify": Verb(
        "storage:verify_sessions",
        "Verify a session and its ancestors: checksums, parents, contents.",
    ),
    "view": Verb(
        "view:view", "Show a session, or the runs of a job, in the explorer, on one page."
    ),
    "worker": Verb("worker:run_worker", "Work on the items of jobs from a queue in PostgreSQL."),
}
"""By the words that call the verb, those of its group included."""

GROUPS: Mapping[str, str] = {
    "completion": "Completion of the command line for bash, zsh and fish.",
    "config": "Show and change the configuration.",
    "jobs": "Jobs: workflows over many items, listed, followed, retried and cancelled.",
    "mcp": "Tool servers of the config: add, list, test, call and trust them.",
    "serve": "Serve a workflow over OpenAI, A2A, MCP and AG-UI: rath serve MODULE:WORKFLOW.",
    "serve token": "Tokens of clients: make, list and revoke them.",
    "memory": "Notes that agents remember: add, find, list and erase them.",
}
"""Help of the groups of verbs."""

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Sessions": ("ls", "log", "show", "tail", "view", "fork", "diff"),
    "Evidence": ("explain", "blame", "cost", "profile", "verify"),
    "Runs": ("run", "chat", "resume", "replay", "jobs", "worker", "eval"),
    "Approvals and questions": ("approve", "deny", "edit", "answer"),
    "Storage": ("export", "import", "rm", "prune", "gc"),
    "Memory and tools": ("memory", "mcp"),
    "Serving": ("serve",),
    "Setup": ("init", "config", "doctor", "completion"),
}
"""The parts of `rath --help`; each verb and group stands in one."""
