"""The words by which pages are found: a search for one shows its page first."""

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

SEARCH_WORDS = {
    "resume": "tutorial/resume",
}
"""For each word or phrase the page, with `#` and the id of a section where it is part of one."""


class SearchWords(SphinxTransform):
    """Puts each word into the index, at the title of its page or section."""

    default_priority = 810

    def apply(self, **_kwargs: object) -> None:
        for word, place in SEARCH_WORDS.items():
            page, _, anchor = place.partition("#")
            if page == self.env.docname:
                section = self.find_section(anchor)
                entry = ("single", word, section["ids"][0], "main", None)
                section.insert(1, addnodes.index(entries=[entry]))

    def find_section(self, anchor: str) -> nodes.section:
        for section in self.document.findall(nodes.section):
            if not anchor or anchor in section["ids"]:
                return section
        raise LookupError(f"{self.env.docname} has no section {anchor!r}; see {__file__}")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(SearchWords)
    return {"parallel_read_safe": True}
