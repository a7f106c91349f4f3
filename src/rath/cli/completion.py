"""Completion of the command line: `rath completion`, and what a shell asks for.

A shell runs `_RATH_COMPLETE=1 rath WORD... INCOMPLETE`, by which the words are completed and not
carried out, and gets a line for each candidate, with its description after a tab.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from rath.cli.terminal import Misuse, note, say

Shell = Literal["bash", "zsh", "fish"]
Candidate = tuple[str, str]
"""A value and its description."""

_MOST_CANDIDATES = 200

_SCRIPTS: Mapping[Shell, str] = {
    "bash": """\
_rath_completion() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("${line%%$'\\t'*}")
    done < <(_RATH_COMPLETE=1 "${COMP_WORDS[0]}" "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -o nosort -F _rath_completion rath
""",
    "zsh": """\
#compdef rath
_rath() {
    local line
    local -a candidates
    while IFS= read -r line; do
        candidates+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}")
    done < <(_RATH_COMPLETE=1 "${words[1]}" "${(@)words[2,CURRENT]}" 2>/dev/null)
    if (( ${#candidates} )); then
        _describe -V rath candidates
    else
        _files
    fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _rath "$@"
else
    compdef _rath rath
fi
""",
    "fish": """\
function __rath_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l found (_RATH_COMPLETE=1 $words[1] $words[2..-1] 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c rath -f -k -a '(__rath_complete)'
""",
}

ShellName = Annotated[
    str | None,
    typer.Argument(metavar="[SHELL]", help="bash, zsh or fish; by default that of $SHELL."),
]


def install(shell: ShellName = None) -> None:
    """Install completion for a shell: bash, zsh or fish.

    The script is written below your home, and for bash and zsh one line of ~/.bashrc or ~/.zshrc
    loads it. A second call changes nothing.
    """
    chosen = _shell(shell)
    home = Path.home()
    if chosen == "fish":
        config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        script, rc = config / "fish" / "completions" / "rath.fish", None
    else:
        data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
        script = data / "rath" / f"completion.{chosen}"
        rc = Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
        rc = home / ".bashrc" if chosen == "bash" else rc
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_SCRIPTS[chosen], "utf-8")
    say(f"Wrote {script}")
    if rc is not None:
        text = rc.read_text("utf-8", "surrogateescape") if rc.is_file() else ""
        loading = f'source "{script}"'
        if loading not in text:
            gap = "" if not text or text.endswith("\n") else "\n"
            begin = "" if chosen == "bash" else "autoload -Uz compinit && compinit; "
            with rc.open("a", encoding="utf-8") as file:
                file.write(f"{gap}{begin}{loading}  # rath completion\n")
            say(f"Added one line to {rc}")
    note(f"it works in new shells; for this one: source {script}")


def show(shell: ShellName = None) -> None:
    """Print the completion script of a shell."""
    say(_SCRIPTS[_shell(shell)].removesuffix("\n"))


def _shell(name: str | None) -> Shell:
    """Return a shell by its name, or that of the user.

    Raises:
        Misuse: It is none of those that are known.
    """
    wanted = name or Path(os.environ.get("SHELL", "")).name
    if wanted in _SCRIPTS:
        return cast("Shell", wanted)
    problem = f"no completion for the shell {wanted!r}" if wanted else "$SHELL names no shell"
    raise Misuse(f"{problem}; expected one of {', '.join(_SCRIPTS)}")


def write_candidates(command: Any, words: Sequence[str]) -> None:
    """Write the candidates for the last of some words; nothing that fails reaches the shell."""
    try:
        for value, description in islice(candidates_of(command, words), _MOST_CANDIDATES):
            about = "".join(char if char.isprintable() else " " for char in description)
            sys.stdout.write(f"{value}\t{' '.join(about.split())}\n")
        sys.stdout.flush()
    except (Exception, typer.Exit):  # noqa: BLE001  # a broken config, a store that is locked ...
        return


def candidates_of(command: Any, words: Sequence[str]) -> Iterator[Candidate]:
    """Yield what the last of some words may become.

    Args:
        command: That of the command line.
        words: Those after its name, the incomplete one included, which may be empty.
    """
    *before, incomplete = words or [""]
    context = command.make_context("rath", [], resilient_parsing=True)
    names = [""]
    while before and hasattr(command, "list_commands"):
        word = before.pop(0)
        if word.startswith("-"):
            continue
        command = command.get_command(context, word)
        names.append(word)
    options = [each for each in command.get_params(context) if each.param_type_name == "option"]
    by_name = {name: each for each in options for name in (*each.opts, *each.secondary_opts)}
    arguments, is_over = 0, False
    waiting: Any = None  # an option whose value comes next
    for word in before:
        if waiting is not None:
            waiting = None
        elif word == "--":
            is_over = True
        elif word.startswith("-") and not is_over:
            option = by_name.get(word)
            waiting = None if option is None or option.is_flag else option
        else:
            arguments += 1
    yield from _fitting(command, context, options, (waiting, arguments), incomplete)


def _fitting(
    command: Any,
    context: Any,
    options: Sequence[Any],
    place: tuple[Any, int],
    incomplete: str,
) -> Iterator[Candidate]:
    waiting, arguments = place
    if waiting is None and incomplete.startswith("-"):
        named, _, value = incomplete.partition("=")
        if "=" in incomplete:
            option = next((each for each in options if named in each.opts), None)
            found = () if option is None else _values(option, value)
            yield from ((f"{named}={each}", about) for each, about in found)
            return
        for each in options:
            for name in (*each.opts, *each.secondary_opts):
                if name.startswith(incomplete) and (name.startswith("--") or incomplete == name):
                    yield name, each.help or ""
        return
    if waiting is not None:
        yield from _values(waiting, incomplete)
        return
    if hasattr(command, "list_commands"):
        for name, summary in command.summaries(context):
            if name.startswith(incomplete) and ":" not in name:
                yield name, summary
        return
    parameters = [
        each for each in command.get_params(context) if each.param_type_name == "argument"
    ]
    if parameters:
        at = min(arguments, len(parameters) - 1)
        if arguments <= at or parameters[at].nargs == -1:
            yield from _values(parameters[at], incomplete)


def _values(parameter: Any, incomplete: str) -> Iterator[Candidate]:
    """Yield the values of a parameter that begin as the incomplete one does."""
    metavar = str(parameter.metavar or "").strip("[].")
    for word in metavar.split("|"):
        ask = _SOURCES.get(word)
        if ask is not None:
            yield from (each for each in ask(incomplete) if each[0].startswith(incomplete))
        elif "|" in metavar and word.startswith(incomplete):
            yield word, ""


def _sessions(incomplete: str) -> Iterator[Candidate]:
    """Yield sessions by their ids, the newest first, as short as tells one from the others."""
    from rath._core.text import short_id  # noqa: PLC0415
    from rath.session.log.index import SessionFilter, StoreIndex  # noqa: PLC0415
    from rath.session.log.store import open_store  # noqa: PLC0415

    store = open_store(None)
    try:
        with StoreIndex(store) as index:
            for each in index.summaries(SessionFilter(is_said=True)):
                whole = str(each.id)
                if whole.startswith(incomplete):
                    about = f"{each.state}  {each.path or each.operator}  {each.title[:60]}"
                    yield (
                        whole if len(incomplete) > len(short_id(each.id)) else short_id(each.id),
                        about,
                    )
    finally:
        store.close()


def _jobs(incomplete: str) -> Iterator[Candidate]:
    from rath.cli.stores import iter_jobs, use_index, use_store  # noqa: PLC0415

    with use_store(None) as store, use_index(store) as index:
        for state, report in iter_jobs(store, index):
            if report.name.startswith(incomplete):
                yield report.name, f"{state}, {report.counts.get('done', 0)} of {report.n_items}"


def _states(_: str) -> Iterable[Candidate]:
    listing = importlib.import_module("rath.cli.listing")
    return ((state, "") for state in listing.STATES)


def _servers(_: str) -> Iterable[Candidate]:
    layers = importlib.import_module("rath.config.layers")
    return ((name, "") for store in layers.config_layers() for name in store.config.mcp.servers)


def _providers(_: str) -> Iterable[Candidate]:
    layers = importlib.import_module("rath.config.layers")
    return ((name, "") for store in layers.config_layers() for name in store.config.llm.providers)


def _shells(_: str) -> Iterable[Candidate]:
    return ((shell, "") for shell in _SCRIPTS)


_SOURCES: Mapping[str, Callable[[str], Iterable[Candidate]]] = {
    "SESSION": _sessions, "A": _sessions, "B": _sessions, "JOB": _jobs, "STATE": _states,
    "SERVER": _servers, "PROVIDER": _providers, "SHELL": _shells,
}  # fmt: skip
"""Where the values for a word of the help come from."""
