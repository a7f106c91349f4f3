"""Single changes of source text, each at one place, and their choice by a seed."""

from __future__ import annotations

import ast
import random
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from pathlib import Path
from types import CodeType

_COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Eq: (r"==", ("!=",)),
    ast.NotEq: (r"!=", ("==",)),
    ast.Lt: (r"<", ("<=", ">=")),
    ast.LtE: (r"<=", ("<", ">")),
    ast.Gt: (r">", (">=", "<=")),
    ast.GtE: (r">=", (">", "<")),
    ast.Is: (r"\bis\b", ("is not",)),
    ast.IsNot: (r"\bis\s+not\b", ("is",)),
    ast.In: (r"\bin\b", ("not in",)),
    ast.NotIn: (r"\bnot\s+in\b", ("in",)),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: (r"-", "+"),
    ast.Mult: (r"\*", "//"),
    ast.Div: (r"/", "*"),
    ast.FloorDiv: (r"//", "*"),
    ast.Mod: (r"%", "*"),
    ast.Pow: (r"\*\*", "*"),
    ast.BitAnd: (r"&", "|"),
    ast.BitOr: (r"\|", "&"),
    ast.LShift: (r"<<", ">>"),
    ast.RShift: (r">>", "<<"),
}
_LOGGERS = {"_log", "_logger", "log", "logger", "logging", "warnings"}
_WITHOUT_BEHAVIOUR = {"NewType", "ParamSpec", "TypeVar", "TypeVarTuple", "assert_never", "warn"}
_LISTS_OF_NAMES = {"__all__", "__match_args__", "__slots__"}

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Scope = ast.Module | ast.ClassDef | _Function


@dataclass(frozen=True, slots=True)
class Mutant:
    """One replacement of bytes in one file."""

    path: str
    """Relative to the root of the project, with slashes."""
    line: int
    kind: str
    start: int
    """Offset of the first replaced byte."""
    end: int
    before: str
    after: str
    lines: tuple[int, ...]
    """A test that runs one of these lines meets the change."""
    at_import: bool
    """The change takes place once, when the module is imported."""

    def apply(self, source: bytes) -> bytes:
        """The source of the file with the change."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    def __str__(self) -> str:
        texts = (" ".join(text.split()) for text in (self.before, self.after))
        before, after = (text if len(text) <= 60 else text[:57] + "..." for text in texts)
        return f"{self.path}:{self.line}: {self.kind}: {before} -> {after or '(nothing)'}"


def choose(root: Path, files: Iterable[Path], *, seed: int, count: int) -> list[Mutant]:
    """Draw lines uniformly among those that can be changed; of each one kind, and of that a change.

    Raises:
        ValueError: The files have fewer such lines than `count`.
    """
    places = [
        (file, mutants)
        for file in sorted(files)
        for mutants in _by_line(find(file.read_bytes(), file.relative_to(root).as_posix()))
    ]
    # Not the generator of the module: what else draws from it must not change the choice.
    generator = random.Random(seed)
    generator.shuffle(places)
    drawn = (_draw(file.read_bytes(), mutants, generator) for file, mutants in places)
    chosen = list(islice((mutant for mutant in drawn if mutant is not None), count))
    if len(chosen) < count:
        raise ValueError(
            f"{count} mutants were asked for, but only {len(chosen)} lines can be changed: "
            "lower --count, or name a larger package"
        )
    return chosen


def _draw(source: bytes, mutants: Sequence[Mutant], generator: random.Random) -> Mutant | None:
    """One of the changes of a line, every kind of them as likely as another."""
    kinds = sorted({mutant.kind for mutant in mutants})
    for kind in generator.sample(kinds, len(kinds)):
        same = [mutant for mutant in mutants if mutant.kind == kind]
        for mutant in generator.sample(same, len(same)):
            if is_valid(source, mutant):
                return mutant
    return None


def is_valid(source: bytes, mutant: Mutant) -> bool:
    """Whether the changed file compiles, and means something else to the compiler."""
    changed = mutant.apply(source)
    try:
        compile(changed, mutant.path, "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))


def find(source: bytes, path: str) -> list[Mutant]:
    """Every change that is known for a file, in the order of its text."""
    finder = _Finder(source, path)
    finder.visit(ast.parse(source))
    return sorted(finder.mutants, key=lambda mutant: (mutant.start, mutant.end, mutant.after))


def _by_line(mutants: Iterable[Mutant]) -> Iterator[list[Mutant]]:
    lines: defaultdict[int, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        lines[mutant.line].append(mutant)
    yield from lines.values()


class _Finder(ast.NodeVisitor):
    """Walks over what runs; annotations, docstrings and texts for people are left out."""

    def __init__(self, source: bytes, path: str) -> None:
        self.mutants: list[Mutant] = []
        self._source = source
        self._path = path
        self._starts = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]
        code = compile(source, path, "exec", dont_inherit=True)
        self._code_lines = frozenset(_lines_of(code))
        self._bodies: dict[_Scope, tuple[int, ...]] = {}
        self._statement: ast.stmt | None = None
        self._scopes: list[_Scope] = []
        self._default_of: _Function | None = None
        self._kind: str | None = None
        self._is_message = False

    # ------------------------------------------------------------ walking

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            outer, self._statement = self._statement, node
            super().visit(node)
            self._statement = outer
        else:
            super().visit(node)

    def visit_Module(self, node: ast.Module) -> None:
        self._in_scope(node, node.body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._in_scope(node, node.body)

    def visit_FunctionDef(self, node: _Function) -> None:
        decorators = {_last_name(decorator) for decorator in node.decorator_list}
        if node.name == "__repr__" or "overload" in decorators:
            return
        outer = self._kind, self._default_of
        self._kind, self._default_of = "default", node
        self._visit_all([*node.args.defaults, *(d for d in node.args.kw_defaults if d)])
        self._kind, self._default_of = outer
        self._in_scope(node, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_all([*node.args.defaults, node.body])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._assignment([node.target], node)
        if node.value is not None and _last_name(node.annotation) != "TypeAlias":
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        names = {target.id for target in node.targets if isinstance(target, ast.Name)}
        if not names & _LISTS_OF_NAMES:
            self._assignment(node.targets, node)
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._assignment([node.target], node)
        pattern, replacement = _ARITHMETIC.get(type(node.op), ("", ""))
        if pattern and not _is_text(node.value):
            self._between(node.target, node.value, pattern + "(?==)", [replacement], "arithmetic")
        self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if _last_name(node.test) == "TYPE_CHECKING":
            self._visit_all(node.orelse)
            return
        self._condition(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._replace(node.test, "False", "condition")
            self.generic_visit(node)
            return
        self._visit_all([*node.body, *node.orelse])

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._condition(test)
        self.generic_visit(node)

    def visit_match_case(self, node: ast.match_case) -> None:
        if node.guard is not None:
            self._condition(node.guard)
        self.generic_visit(node)

    # ------------------------------------------------------------ statements

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            return
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._replace(node.value, "None", "return value")
        self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring, or `...`
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call) and not _is_silent(call):
            self._replace(node, "pass", "statement")
        self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._replace(node, "pass", "statement")
        outer, self._is_message = self._is_message, True
        self.generic_visit(node)
        self._is_message = outer

    def visit_Break(self, node: ast.Break) -> None:
        self._replace(node, "continue", "jump")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace(node, "break", "jump")

    # ------------------------------------------------------------ expressions

    def visit_Call(self, node: ast.Call) -> None:
        name = _last_name(node.func)
        if _is_silent(node):
            return
        if name in {"cast", "isinstance", "issubclass"}:  # one of the arguments is a type
            self._visit_all(node.args[1:] if name == "cast" else node.args[:1])
            return
        outer = self._is_message
        self._is_message = outer or name.endswith(("Error", "Exception", "Warning"))
        self.generic_visit(node)
        self._is_message = outer

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if _last_name(node.value) != "Literal":
            self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for (left, right), operator in zip(pairwise(operands), node.ops, strict=True):
            pattern, replacements = _COMPARISONS[type(operator)]
            self._between(left, right, pattern, replacements, "comparison")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        pattern, other = (r"\band\b", "or") if isinstance(node.op, ast.And) else (r"\bor\b", "and")
        for left, right in pairwise(node.values):
            self._between(left, right, pattern, [other], "boolean operator")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start = self._offset(node.lineno, node.col_offset)
            self._add(start, start + len("not "), "", "not")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        pattern, replacement = _ARITHMETIC.get(type(node.op), ("", ""))
        is_type = isinstance(node.op, ast.BitOr) and not self._in_function()
        if pattern and not is_type and not _is_text(node.left) and not _is_text(node.right):
            self._between(node.left, node.right, pattern, [replacement], "arithmetic")
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        # Before Python 3.12 what stands inside has no position in the text.
        if not self._is_message:
            self._replace(node, '""', self._kind or "string")

    def visit_Constant(self, node: ast.Constant) -> None:
        match node.value:
            case bool():
                self._replace(node, str(not node.value), self._kind or "truth value")
            case int() | float():
                for value in (node.value + 1, node.value - 1):
                    # In brackets, for one like the `1` of `-1`.
                    text = str(value) if value >= 0 else f"({value})"
                    self._replace(node, text, self._kind or "number")
            case str() if node.value and not self._is_message:
                self._replace(node, '""', self._kind or "string")
            case bytes() if node.value:
                self._replace(node, 'b""', self._kind or "string")
            case _:
                pass

    # ------------------------------------------------------------ parts

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _in_scope(self, scope: _Scope, body: Sequence[ast.stmt]) -> None:
        self._scopes.append(scope)
        self._visit_all(body)
        self._scopes.pop()

    def _in_function(self) -> bool:
        return any(isinstance(scope, _Function) for scope in self._scopes)

    def _condition(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Constant):
            for value in ("True", "False"):
                self._replace(test, value, "condition")

    def _assignment(self, targets: Sequence[ast.expr], node: ast.stmt) -> None:
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
            self._replace(node, "pass", "statement")

    def _between(
        self,
        left: ast.expr,
        right: ast.expr,
        pattern: str,
        replacements: Sequence[str],
        kind: str,
    ) -> None:
        """Replace the operator that stands between two operands."""
        end = self._offset(left.end_lineno or 0, left.end_col_offset or 0)
        gap = self._source[end : self._offset(right.lineno, right.col_offset)]
        found = re.search(pattern.encode(), gap)
        if found is None or b"#" in gap:  # an operator in a comment is none
            return
        for replacement in replacements:
            self._add(end + found.start(), end + found.end(), replacement, kind)

    def _replace(self, node: ast.expr | ast.stmt, text: str, kind: str) -> None:
        start = self._offset(node.lineno, node.col_offset)
        self._add(start, self._offset(node.end_lineno or 0, node.end_col_offset or 0), text, kind)

    def _add(self, start: int, end: int, text: str, kind: str) -> None:
        line = bisect_right(self._starts, start)
        lines, at_import = self._lines_that_meet(line)
        before = self._source[start:end].decode()
        self.mutants.append(
            Mutant(self._path, line, kind, start, end, before, text, lines, at_import)
        )

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _lines_that_meet(self, line: int) -> tuple[tuple[int, ...], bool]:
        """The lines that a test must run to meet a change here; whether it acts at import."""
        if self._default_of is not None:
            return self._bodies_in(self._default_of), not self._in_function()
        if self._in_function():
            return ((line,) if line in self._code_lines else self._header()), False
        for scope in reversed(self._scopes):
            if bodies := self._bodies_in(scope):
                return bodies, True
        return (), True

    def _bodies_in(self, scope: _Scope) -> tuple[int, ...]:
        """The lines of all functions of a scope, itself included."""
        if scope not in self._bodies:
            functions = [node for node in ast.walk(scope) if isinstance(node, _Function)]
            inside = {
                line
                for node in functions
                for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)
            }
            self._bodies[scope] = tuple(sorted(inside & self._code_lines))
        return self._bodies[scope]

    def _header(self) -> tuple[int, ...]:
        """The lines of the statement around, without those of its body."""
        statement = self._statement
        if statement is None:
            return ()
        body: list[ast.stmt] = getattr(statement, "body", [])
        end = body[0].lineno if body else (statement.end_lineno or 0) + 1
        return tuple(sorted(self._code_lines & set(range(statement.lineno, end))))


def _lines_of(code: CodeType) -> Iterator[int]:
    yield from (line for _, _, line in code.co_lines() if line)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _lines_of(constant)


def _last_name(node: ast.expr) -> str:
    """The name at the end of `a.b.name` or `a.b.name(...)`; empty for anything else."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function):
            return _last_name(function)
        case _:
            return ""


def _is_silent(call: ast.Call) -> bool:
    """Whether a call only writes a log, warns or speaks to the type checker."""
    function = call.func
    owner = _last_name(function.value) if isinstance(function, ast.Attribute) else ""
    return owner in _LOGGERS or _last_name(function) in _WITHOUT_BEHAVIOUR


def _is_text(node: ast.expr) -> bool:
    """Whether arithmetic on it would only be a `TypeError` with any other operator."""
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )
