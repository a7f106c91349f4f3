"""Datasets of evaluations: rows of any kind as examples with input, expected answer and tags."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

from msgspec import to_builtins

from rath._core.dataclasses import dataclass
from rath.data import member_of
from rath.session import Session

__all__ = ["Dataset", "Example", "read_dataset"]


@runtime_checkable
class HasCases(Protocol):
    """A dataset of pydantic-evals."""

    @property
    def cases(self) -> Iterable[Any]: ...  # as the class says


Dataset: TypeAlias = Iterable[Any] | str | os.PathLike[str] | HasCases
"""Rows, a dataset of pydantic-evals, or the path of a `.jsonl` or `.csv` file."""

_INPUT = ("input", "inputs", "question", "prompt")
_EXPECTED = ("expected", "expected_output", "target", "answer")
_KEY = ("key", "id", "name")
_REST = "\0more"
"""Under which a row of CSV has the cells that no name stands above; no file has it as a name."""


@dataclass(frozen=True, slots=True)
class Example:
    """One row of a dataset, as scorers see it."""

    key: str
    """Its name in the evaluation; a later start must give the same rows under the same keys."""

    input: str | Session
    """The text or the session that the workflow is called with."""

    expected: Any
    """The expected answer, None where the row has none."""

    tags: tuple[str, ...]
    """Groups of the report that it belongs to."""

    row: Any
    """The row itself."""

    def digest(self) -> str:
        """Return the sha256 of the expected answer: a score is of that one alone."""
        text = json.dumps(_plain(self.expected), sort_keys=True, default=str)
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def read_dataset(dataset: Dataset) -> list[Example]:
    """Return the examples of a dataset.

    A row is a mapping, a pydantic model, an example of Hugging Face `datasets`, a case of
    pydantic-evals, a sample of Inspect, a session, or a text. Its input is the member `input`,
    `inputs`, `question` or `prompt`; its expected answer `expected`, `expected_output`, `target` or
    `answer`; its key `key`, `id` or `name`, else its position; `tags` is a list of texts.

    Raises:
        ValueError: It is empty, a row has no input, or two rows have one key.
        TypeError: It is no sequence of rows.
        FileNotFoundError: There is no such file.
    """
    examples = [_example(index, row) for index, row in enumerate(_rows(dataset))]
    if not examples:
        raise ValueError("the dataset is empty; an evaluation needs at least one row")
    seen: set[str] = set()
    for each in examples:
        if each.key in seen:
            raise ValueError(f"two rows have the key {each.key!r}; each needs one of its own")
        seen.add(each.key)
    return examples


def _rows(dataset: Dataset) -> Iterable[Any]:
    if isinstance(dataset, str | os.PathLike):
        return _file_rows(Path(dataset))
    if isinstance(dataset, HasCases):
        return dataset.cases
    if not _is_iterable(dataset):
        raise TypeError(
            f"a dataset is a sequence of rows or the path of a file, not {type(dataset).__name__}"
        )
    return dataset


def _is_iterable(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, Mapping)


def _file_rows(path: Path) -> list[Any]:
    """Return the rows of a JSONL or CSV file.

    Raises:
        ValueError: It is of another kind, no UTF-8, a line of JSONL is no JSON object, or a CSV
            file has a quote that does not end, or a row with more cells than its first line.
    """
    if path.suffix not in (".csv", ".jsonl"):
        raise ValueError(f"{path} is no dataset: expected a file that ends in .jsonl or .csv")
    try:
        # Spreadsheets put a mark of the byte order in front.
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise ValueError(f"{path} is no UTF-8: {exc}; save it with that encoding") from None
    return _csv_rows(path, text) if path.suffix == ".csv" else _json_rows(path, text)


def _csv_rows(path: Path, text: str) -> list[Any]:
    reader = csv.DictReader(StringIO(text, newline=""), restkey=_REST, strict=True)
    rows: list[Any] = []
    try:
        for row in reader:
            if _REST in row:
                raise ValueError(
                    f"{path}, line {reader.line_num}: more cells than the first line has names; "
                    "quote a cell that has a comma in it"
                )
            rows.append(row)
    except csv.Error as exc:
        raise ValueError(f"{path}, after line {reader.line_num}: no CSV: {exc}") from None
    return rows


def _json_rows(path: Path, text: str) -> list[Any]:
    rows: list[Any] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as exc:
            raise ValueError(f"{path}, line {number}: no JSON: {exc}") from None
        if not isinstance(row, dict):
            raise ValueError(  # noqa: TRY004  # of the file
                f"{path}, line {number}: expected an object, got {row!r:.80}"
            )
        rows.append(row)
    return rows


def _example(index: int, row: Any) -> Example:
    if isinstance(row, Example):
        return row
    is_bare = isinstance(row, str | Session)
    given: Any = cast("object", row) if is_bare else _first(row, _INPUT)
    if given is None:
        raise ValueError(
            f"row {index} has no input; expected a member {' or '.join(_INPUT)}: {row!r:.80}"
        )
    if not isinstance(given, str | Session):
        given = json.dumps(_plain(given), ensure_ascii=False, default=str)
    key = None if is_bare else _first(row, _KEY)
    tags: object = None if is_bare else member_of(row, "tags")
    if not isinstance(tags, str | Iterable | None):
        raise TypeError(f"tags of row {index} must be texts, not {tags!r:.80}")
    listed = [tags] if isinstance(tags, str) else cast("Iterable[object]", tags or ())
    return Example(
        key=str(index if key in (None, "") else key),
        input=cast("str | Session", given),
        expected=None if is_bare else _first(row, _EXPECTED),
        tags=tuple(map(str, listed)),
        row=row,
    )


def _first(row: object, names: Iterable[str]) -> Any:
    found = (member_of(row, name) for name in names)
    return next((value for value in found if value is not None), None)


def _plain(value: object) -> Any:
    dump: object = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else to_builtins(value, enc_hook=str)
