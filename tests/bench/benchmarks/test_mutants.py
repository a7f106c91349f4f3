"""Mutants change one place each, by a seed, and leave alone what has no behaviour."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from benchmarks.mutants import mutations
from benchmarks.mutants.mutations import choose, find, is_valid

_ROOT = Path(__file__).parents[3]
_MODULES = sorted((_ROOT / "benchmarks/mutants").glob("*.py"))


def variants(text: str) -> set[tuple[str, str]]:
    """The kinds of the changes of a text, each with what becomes of the text."""
    source = dedent(text).encode()
    return {
        (mutant.kind, mutant.apply(source).decode().strip())
        for mutant in find(source, "module.py")
        if is_valid(source, mutant)
    }


@pytest.mark.parametrize(
    ("text", "kind", "after"),
    [
        pytest.param("a < b", "comparison", {"a <= b", "a >= b"}, id="less"),
        pytest.param("a is  not b", "comparison", {"a is b"}, id="is not"),
        pytest.param("(a) in (b)", "comparison", {"(a) not in (b)"}, id="brackets"),
        pytest.param(
            "a and b and c", "boolean operator", {"a or b and c", "a and b or c"}, id="and"
        ),
        pytest.param("x = not a", "not", {"x = a"}, id="not"),
        pytest.param("x = -1", "number", {"x = -2", "x = -0"}, id="number"),
        pytest.param("x = 'ä', 'b'", "string", {"x = \"\", 'b'", "x = 'ä', \"\""}, id="string"),
        pytest.param("x = f'{a}'", "string", {'x = ""'}, id="formatted string"),
        pytest.param("x = True", "truth value", {"x = False"}, id="truth value"),
        pytest.param("x **= a + b", "arithmetic", {"x *= a + b", "x **= a - b"}, id="arithmetic"),
        pytest.param("await_(a(\n1))", "statement", {"pass"}, id="call"),
        pytest.param("a.b = c", "statement", {"pass"}, id="assignment"),
        pytest.param("for a in b: break", "jump", {"for a in b: continue"}, id="break"),
        pytest.param(
            "a if b else c", "condition", {"a if True else c", "a if False else c"}, id="if"
        ),
        pytest.param(
            "def f(*, a=1): a", "default", {"def f(*, a=2): a", "def f(*, a=0): a"}, id="default"
        ),
        pytest.param("lambda: a(1).b", "number", {"lambda: a(2).b", "lambda: a(0).b"}, id="lambda"),
        pytest.param(
            "def f(): return (a)", "return value", {"def f(): return (None)"}, id="return"
        ),
    ],
)
def test_a_change_replaces_one_operator_value_or_statement(
    text: str, kind: str, after: set[str]
) -> None:
    assert {new for known, new in variants(text) if known == kind} == after


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('"""A module."""\nclass A:\n    a: "B"\n    """A field."""', id="docstrings"),
        pytest.param("def f(a: Literal['x'], *, b: 'int | None') -> A[1]: ...", id="annotations"),
        pytest.param("Kind = Literal['a', 'b']\nEither = A | B", id="aliases of types"),
        pytest.param("if TYPE_CHECKING:\n    a = 1 < 2", id="for the type checker"),
        pytest.param("class A:\n    def __repr__(self):\n        return f'A({1})'", id="repr"),
        pytest.param("_log.warning('it failed %d times', 2)", id="log"),
        pytest.param("assert_never(a[1])", id="never"),
        pytest.param("x = ValueError('not a' f'number: {a}')", id="text of an error"),
        pytest.param("__all__ = ['a']", id="list of names"),
        pytest.param("a  # 1 < 2", id="comment"),
    ],
)
def test_what_has_no_behaviour_is_left_alone(text: str) -> None:
    assert variants(text) == set()


def test_every_change_of_a_real_module_compiles_and_stands_where_it_says() -> None:
    file = Path(mutations.__file__)
    source = file.read_bytes()
    for mutant in find(source, file.name)[::40]:
        assert source[mutant.start : mutant.end].decode() == mutant.before
        assert source.count(b"\n", 0, mutant.start) + 1 == mutant.line
        assert is_valid(source, mutant), mutant


def test_a_seed_gives_the_same_mutants_of_different_lines() -> None:
    first, again, other = (choose(_ROOT, _MODULES, seed=seed, count=12) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len({(mutant.path, mutant.line) for mutant in first}) == 12


def test_more_mutants_than_lines_are_refused() -> None:
    with pytest.raises(ValueError, match="100000 mutants were asked for, but only"):
        choose(_ROOT, _MODULES[:1], seed=1, count=100_000)


def test_a_change_is_met_by_the_lines_that_depend_on_it() -> None:
    source = b"LIMIT = 3\ndef f(a=1):\n    b = 2\n    return a\n"
    met = {
        (mutant.line, mutant.kind): (mutant.lines, mutant.at_import)
        for mutant in find(source, "module.py")
    }
    assert met == {
        (1, "number"): ((3, 4), True),
        (2, "default"): ((3, 4), True),
        (3, "number"): ((3,), False),
        (4, "return value"): ((4,), False),
    }


@pytest.mark.timeout(300)  # it starts pytest some ten times; the machine may be busy
@pytest.mark.skipif(sys.platform != "linux", reason="workers find processes by means of Linux")
def test_the_command_tells_what_the_tests_of_a_project_find(tmp_path: Path) -> None:
    project = tmp_path / "project"
    files = {
        "pyproject.toml": "[tool.pytest.ini_options]\nfilterwarnings = ['error']\n",
        "src/shop/__init__.py": "",
        "src/shop/prices.py": """
            def total(prices):
                amount = 0
                while prices:
                    amount += prices.pop()
                return amount

            def label(amount):
                return amount > 1000 and "dear"

            def forgotten():
                return 1
        """,
        "tests/test_prices.py": """
            import os
            from shop.prices import label, total

            def test_total():
                os.posix_spawnp("sleep", ["sleep", "1000"], os.environ)
                assert total([1, 2]) == 3

            def test_label():
                label(5)
        """,
    }
    for path, text in files.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(dedent(text))
    subprocess.run(["git", "init", "--quiet"], cwd=project, check=True)
    command = [sys.executable, "-m", "benchmarks.mutants", "--package", "src/shop"]
    command += ["--count", "6", "--tests", "tests", "--json", str(tmp_path / "verdicts.json")]
    done = subprocess.run(
        command,
        cwd=project,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(_ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    verdicts = json.loads((tmp_path / "verdicts.json").read_text())["mutants"]
    assert {verdict["line"]: verdict["outcome"] for verdict in verdicts} == {
        3: "killed",
        4: "killed",
        5: "killed",
        6: "killed",
        9: "survived",
        12: "not covered",
    }
    killers = {tuple(verdict["failed"]) for verdict in verdicts}
    assert killers == {(), ("tests/test_prices.py::test_total",)}
    assert "\nsurvived:\n  src/shop/prices.py:9: " in done.stdout
    assert not list(tmp_path.glob("rath-mutants-*"))
