"""Notebooks as pages: each is run when the pages are built, so that its outputs are true.

`python docs/notebooks.py PAGE.ipynb OUT.ipynb` writes one with its outputs.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from nbclient import NotebookClient
from sphinx.application import Sphinx

SECONDS = 300
FENCE = "`" * 6


def run(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Run all cells in a kernel of this Python, in an empty home; the first error is raised."""
    with tempfile.TemporaryDirectory(prefix="rath-notebook-") as folder:
        places = ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "OPENRATH_HOME")
        client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3")
        before = {name: os.environ.get(name) for name in places}
        os.environ.update({name: f"{folder}/{name[0]}" for name in places})
        try:
            return client.execute(cwd=folder)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def as_markdown(notebook: nbformat.NotebookNode) -> Iterator[str]:
    """The cells as a page of Markdown: text, code, and what came of it."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            yield cell.source
            continue
        yield f"{FENCE}ipython\n{cell.source}\n{FENCE}"
        for output in cell.outputs:
            if output.output_type == "display_data":
                continue  # runs that went on; how many are shown depends on the machine
            if output.output_type == "stream":
                yield f"{FENCE}text\n{output.text}{FENCE}"
            elif html := output.data.get("text/html"):
                yield f'{FENCE}{{raw}} html\n<div style="overflow-x:auto">{html}</div>\n{FENCE}'
            else:
                yield f"{FENCE}text\n{output.data['text/plain']}\n{FENCE}"


class NotebookParser(MystParser):
    """Reads a notebook as the Markdown of its cells and outputs."""

    supported = ("ipynb",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        notebook = run(nbformat.reads(inputstring, as_version=4))
        super().parse("\n\n".join(as_markdown(notebook)), document)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_source_suffix(".ipynb", "ipynb")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    page, target = map(Path, sys.argv[1:])
    nbformat.write(run(nbformat.read(page, as_version=4)), target)
