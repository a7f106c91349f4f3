"""The notebook of the tutorial: stored without outputs, and its cells show what they promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

PAGE = Path(__file__).parents[2] / "docs" / "source" / "tutorial" / "notebook.ipynb"


def stored() -> Any:
    """The notebook, as it is stored."""
    return nbformat.read(PAGE, as_version=4)  # type: ignore[no-untyped-call]  # has no types


def cells(notebook: Any) -> list[Any]:
    """The cells of code."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell: Any) -> str:
    """What a cell shows at its end: HTML where there is some, else text."""
    output = cell.outputs[-1]
    return str(output.text if output.output_type == "stream" else output.data["text/html"])


def test_the_notebook_is_valid_and_has_no_outputs() -> None:
    notebook = stored()
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert [(cell.outputs, cell.execution_count) for cell in cells(notebook)] == [
        ([], None) for _ in cells(notebook)
    ]


@pytest.mark.full
@pytest.mark.timeout(240)
def test_the_cells_of_the_notebook_show_their_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "OPENRATH_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    notebook = stored()
    NotebookClient(notebook, timeout=200, kernel_name="python3").execute(cwd=tmp_path)

    loaded, tree, session, answer, job, profile, report = cells(notebook)
    assert loaded.outputs == []
    assert "<summary><b>Team</b>" in shown(tree)
    assert "counter" in shown(tree)
    assert "Completed" in shown(session)
    assert "word_count" in shown(session)
    assert 'download="session-' in shown(session)
    assert shown(answer) == "4 of them are distinct.\n"
    assert "<b>Job counting</b> · 3 items · 3 done" in shown(job)
    assert ">Agent</td>" in shown(profile)
    assert "<b>Evaluation sums</b>" in shown(report)
    assert "0.500" in shown(report)
