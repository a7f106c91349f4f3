"""Rules of this project that hold for its files, whatever they contain."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.lanes import FULL_LANE
from tests.support.public_names import public_names

ROOT = Path(__file__).parents[2]
MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 80
INNER_NAMES = "tests/support/api.py"
BANNED_MODULES = {"common", "helper", "helpers", "misc", "util", "utils"}

# Written so that no pattern matches its own text: this file is checked too.
REGISTRY_HOST = re.compile(
    r"pypi\.org|pythonhosted\.org|npmjs\.(org|com)|crates\.io|golang\.org|debian\.org|ubuntu\.com"
    r"|conda\.(io|anaconda\.org)|huggingface\.co|docker\.(io|com)|ghcr\.io|quay\.io"
)
DOWNLOAD_ADDRESS = re.compile(
    r"githubusercontent\.com|/releases/[d]ownload/|astral\.sh|\b(curl|wget) [^\n]*https?://"
    r"|https?://\S+\.(gguf|whl|tar\.gz|tgz|zip|deb)\b"
)
MACHINE_PATH = re.compile(r"(?<![\w.~])/(work|root|opt/rathdev|home/\w+|Users/\w+)/|bash_[j]obs")
SESSION_PATH = re.compile(r"\brath\.session(?:\.\w+)*")
NO_FIRST_WORDS = {
    "As", "Do", "Does", "Has", "Here", "How", "If", "Is", "It", "So", "That", "There", "These",
    "They", "This", "What", "Whatever", "When", "Where", "Which", "Who", "Whoever", "Why",
}  # fmt: skip
"""A docstring begins with a noun phrase or an imperative, and not with these."""
LOOSE_END = re.compile(r"\b(TO[D]O|FIX[M]E|X{3})\b(?!\(#\d+\))")


def committed_files() -> list[Path]:
    """Files that are tracked or about to be, without what .gitignore names."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    paths = (ROOT / name for name in listing.stdout.split("\0") if name)
    return sorted(path for path in paths if path.is_file())


def texts() -> Iterator[tuple[str, str]]:
    """Path from the root, and text, of every committed file that is text."""
    for path in committed_files():
        content = path.read_bytes()
        if b"\0" not in content:
            yield str(path.relative_to(ROOT)), content.decode("utf-8", "replace")


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    """`path:line` of every line in the committed files that holds `pattern`."""
    return [
        f"{path}:{number}"
        for path, text in texts()
        for number, line in enumerate(text.split("\n"), start=1)
        if pattern.search(line)
    ]


def library_files() -> list[Path]:
    """The Python files of the library."""
    return sorted((ROOT / "src").rglob("*.py"))


def bound_files() -> Iterator[tuple[str, str]]:
    """Path and text of every Python file of the tests that may not reach inner names itself."""
    for path, text in texts():
        if path.startswith("tests/") and path.endswith(".py") and path != INNER_NAMES:
            yield path, text


def subject(path: str) -> str | None:
    """The module, or package, that a test of `rath.session`, or its folder, is named after."""
    found = re.fullmatch(r"tests/(session(?:/\w+)*)/test_(\w+)\.py", path)
    if found is None:
        return None
    folder = f"rath/{found[1]}"
    # A module whose tests are several files has a folder for them.
    is_module = (ROOT / "src" / f"{folder}.py").exists()
    return (folder if is_module else f"{folder}/{found[2]}").replace("/", ".")


def session_paths(tree: ast.AST) -> Iterator[str]:
    """The dotted paths within `rath.session` that a file imports, or names in a text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            dotted = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            dotted = SESSION_PATH.findall(node.value)
        else:
            continue
        yield from (path for path in dotted if path.startswith("rath.session."))


def is_public(dotted: str) -> bool:
    """Whether a dotted path is a public module, or a public name of one, or no name of ours."""
    owner, _, name = dotted.rpartition(".")
    if name in public_names().get(owner, ()):
        return True
    if dotted in library_modules():
        return dotted in public_names()
    if owner in library_modules():
        return not hasattr(importlib.import_module(owner), name)
    return is_public(owner)


def inner_paths(path: str, text: str) -> list[str]:
    """What a file reaches of `rath.session` that is neither public nor its subject."""
    own = subject(path)
    return [
        dotted
        for dotted in session_paths(ast.parse(text))
        if not is_public(dotted) and not (own and f"{dotted}.".startswith(f"{own}."))
    ]


@cache
def library_modules() -> set[str]:
    """The dotted names of the modules and packages of the library."""
    paths = (path.relative_to(ROOT / "src").with_suffix("") for path in library_files())
    return {".".join(path.parts).removesuffix(".__init__") for path in paths}


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and length of every function in a file: its body in lines, without the docstring."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1 if ast.get_docstring(node) and len(node.body) > 1 else 0]
            yield f"{path.relative_to(ROOT)}:{node.name}", (node.end_lineno or 0) - first.lineno + 1


def test_a_source_file_stays_short() -> None:
    lengths = {str(path): path.read_text("utf-8").count("\n") for path in library_files()}
    assert {path: n for path, n in lengths.items() if n > MAX_FILE_LINES} == {}


def test_every_file_of_the_full_lane_exists() -> None:
    assert [path for path in FULL_LANE if not (ROOT / "tests" / path).exists()] == []


def test_a_function_stays_short() -> None:
    lengths = dict(each for path in library_files() for each in functions(path))
    assert {name: n for name, n in lengths.items() if n > MAX_FUNCTION_LINES} == {}


def test_a_module_is_named_for_its_concept() -> None:
    parts = {
        str(path): {part.strip("_") for part in path.with_suffix("").parts}
        for path in library_files()
    }
    assert [path for path, names in parts.items() if names & BANNED_MODULES] == []


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(REGISTRY_HOST, id="registry host"),
        pytest.param(DOWNLOAD_ADDRESS, id="download address"),
        pytest.param(MACHINE_PATH, id="path of one machine"),
        pytest.param(LOOSE_END, id="loose end without an issue"),
    ],
)
def test_no_committed_file_holds(pattern: re.Pattern[str]) -> None:
    assert lines_with(pattern) == []


@pytest.mark.parametrize(
    ("pattern", "pieces"),
    [
        pytest.param(REGISTRY_HOST, ("files.python", "hosted.org"), id="registry host"),
        pytest.param(DOWNLOAD_ADDRESS, ("cu", "rl -L https://host/model"), id="download command"),
        pytest.param(DOWNLOAD_ADDRESS, ("https://host/", "model.gguf"), id="download address"),
        pytest.param(MACHINE_PATH, ("see /home/", "someone/notes"), id="path of one machine"),
        pytest.param(LOOSE_END, ("# TO", "DO: later"), id="loose end"),
    ],
)
def test_the_pattern_finds_what_it_is_for(
    pattern: re.Pattern[str], pieces: tuple[str, str]
) -> None:
    assert pattern.search("".join(pieces))


def definitions(node: ast.AST, path: str) -> Iterator[tuple[str, str]]:
    """Path and first word of the docstring of what a module or class defines for its users."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            docstring = ast.get_docstring(child)
            if not child.name.startswith("_"):
                if docstring:
                    yield f"{path}.{child.name}", docstring.split()[0].strip(".,:;")
                if isinstance(child, ast.ClassDef):
                    yield from definitions(child, f"{path}.{child.name}")


def test_a_public_docstring_starts_with_a_noun_or_an_imperative() -> None:
    public = {name for names in public_names().values() for name in names}
    found = {
        f"{path.relative_to(ROOT)}{dotted}": first
        for path in library_files()
        for dotted, first in definitions(ast.parse(path.read_text("utf-8")), "")
        if dotted.split(".")[1] in public and first in NO_FIRST_WORDS
    }
    assert found == {}


def test_a_test_reaches_public_names_and_its_subject() -> None:
    inner = {path: inner_paths(path, text) for path, text in bound_files()}
    assert {path: dotted for path, dotted in inner.items() if dotted} == {}


@pytest.mark.parametrize(
    ("path", "code", "n_inner"),
    [
        pytest.param("tests/cli/test_a.py", "from {session} import Session", 0, id="public"),
        pytest.param(
            "tests/session/test_bindings.py", "import {session}.bindings", 0, id="subject"
        ),
        pytest.param("tests/session/test_a.py", "import {session}.bindings", 1, id="module"),
        pytest.param("tests/session/test_a.py", "from {session} import bindings", 1, id="member"),
        pytest.param("tests/a.py", "from {session}.chunk import Vector", 1, id="inner name"),
        pytest.param("tests/a.py", "patch('{session}.body.Body')", 1, id="dotted text"),
    ],
)
def test_inner_names_of_sessions_are_found(path: str, code: str, n_inner: int) -> None:
    assert len(inner_paths(path, code.format(session="rath.session"))) == n_inner
