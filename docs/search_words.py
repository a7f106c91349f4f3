"""The words by which pages are found: a search for one shows its page first."""

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

SEARCH_WORDS = {
    "approval": "tutorial/approvals",
    "async": "tutorial/lazy_sessions",
    "azure": "tutorial/providers#azure",
    "branch": "tutorial/sessions_and_lineage",
    "budget": "tutorial/limits_and_cost",
    "cassette": "tutorial/replay#cassettes-for-tests",
    "checkpoint": "tutorial/resume",
    "cost": "tutorial/limits_and_cost#what-a-session-cost",
    "crash": "tutorial/resume",
    "deployment": "deploy",
    "docker": "deploy#a-container",
    "evaluation": "tutorial/evaluate",
    "faq": "faq",
    "fastapi": "deploy#in-an-application-of-yours",
    "gemini": "tutorial/endpoints#gemini",
    "guardrail": "tutorial/hooks",
    "handoff": "tutorial/agents_as_tools",
    "human in the loop": "tutorial/approvals",
    "json": "tutorial/typed_output",
    "kubernetes": "tutorial/beyond_one_machine#on-kubernetes-and-slurm",
    "langgraph": "coming_from/langgraph",
    "mcp": "tutorial/mcp",
    "multi-agent": "tutorial/agents_as_tools",
    "notebook": "tutorial/notebook",
    "observability": "tutorial/traces",
    "ollama": "tutorial/endpoints#ollama",
    "opentelemetry": "tutorial/traces",
    "postgres": "tutorial/stores#postgresql",
    "production": "deploy",
    "prompt injection": "security#prompt-injection",
    "rag": "tutorial/memory_search",
    "resume": "tutorial/resume",
    "retry": "tutorial/errors#retries",
    "security": "security",
    "streaming": "tutorial/streaming",
    "structured output": "tutorial/typed_output",
    "testing": "tutorial/testing",
    "tracing": "tutorial/traces",
    "vision": "tutorial/images",
    "vllm": "tutorial/endpoints#vllm",
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
