"""A table of what each page of the reference describes, made from its entries."""

import re
from collections.abc import Iterator

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

REFERENCE = "reference/"
KINDS = {"data": "value", "type": "value"}
SENTENCE = re.compile(r"(?<=[.!?])\s")


def signature_of(entry: addnodes.desc) -> nodes.Element:
    signature = entry[0]
    assert isinstance(signature, nodes.Element)
    return signature


def first_sentence(entry: addnodes.desc) -> list[nodes.Node]:
    """The first sentence of the docstring of an entry, with the code in it."""
    content = entry[-1]
    assert isinstance(content, nodes.Element)
    for paragraph in content.children:
        if isinstance(paragraph, nodes.paragraph) and not paragraph.astext().startswith("Bases:"):
            sentence: list[nodes.Node] = []
            for part in paragraph.children:
                if not isinstance(part, nodes.Text):
                    sentence.append(part.deepcopy())
                    continue
                begin, *rest = SENTENCE.split(f"{part} ".replace("\n", " "), maxsplit=1)
                sentence.append(nodes.Text(f"{begin[:-1]}." if begin.endswith(":") else begin))
                if rest:
                    break
            return sentence
    return []


def entries(document: nodes.document) -> Iterator[tuple[str, addnodes.desc]]:
    """The entries of a page that stand by themselves, each with the title of its section."""
    for entry in document.findall(addnodes.desc):
        is_member = any(isinstance(above, addnodes.desc) for above in ancestors(entry))
        if entry.get("domain") == "py" and not is_member and signature_of(entry)["ids"]:
            sections = [each for each in ancestors(entry) if isinstance(each, nodes.section)]
            yield (sections[0][0].astext() if len(sections) > 1 else ""), entry


def ancestors(node: nodes.Node) -> Iterator[nodes.Node]:
    while (node := node.parent) is not None:
        yield node


def cell(*content: nodes.Node) -> nodes.entry:
    return nodes.entry("", nodes.paragraph("", "", *content))


def table_of(rows: list[tuple[str, addnodes.desc]]) -> nodes.table:
    """A row for each entry: its name, which leads to it, what it is, and its first sentence."""
    body = nodes.tbody()
    before = ""
    for subject, entry in rows:
        if subject != before:
            heading = nodes.entry("", nodes.paragraph("", "", nodes.strong("", subject)))
            heading["morecols"] = 2
            body += nodes.row("", heading)
            before = subject
        signature = signature_of(entry)
        name = str(signature.get("fullname") or signature["ids"][0].rpartition(".")[2])
        link = nodes.reference("", "", nodes.literal("", name), internal=True)
        link["refid"] = signature["ids"][0]
        kind = KINDS.get(entry["objtype"], str(entry["objtype"]))
        body += nodes.row(
            "",
            cell(link),
            cell(nodes.Text(kind)),
            cell(*first_sentence(entry)),
        )
    head = nodes.thead(
        "", nodes.row("", *(cell(nodes.Text(word)) for word in ("Name", "Kind", "Gives")))
    )
    columns = (nodes.colspec(colwidth=width) for width in (30, 10, 60))
    group = nodes.tgroup("", *columns, head, body, cols=3)
    return nodes.table("", group, classes=["summary"])


class SummaryTable(SphinxTransform):
    """Puts the table after the first lines of a page of the reference."""

    default_priority = 820

    def apply(self, **_kwargs: object) -> None:
        rows = list(entries(self.document))
        if not self.env.docname.startswith(REFERENCE) or not rows:
            return
        page = next(self.document.findall(nodes.section))
        at = next(
            at for at, child in enumerate(page.children)
            if isinstance(child, nodes.section | addnodes.desc | addnodes.index)
        )  # fmt: skip
        page.insert(at, table_of(rows))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(SummaryTable)
    return {"parallel_read_safe": True}
