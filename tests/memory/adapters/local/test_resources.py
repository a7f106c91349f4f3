"""Taking files and web pages into a local store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rath import memory
from tests.memory.adapters.local.conftest import Find
from tests.support.memories import failed

BODY = b"# Guide\nHerons wait.\n"
NAME = sha256(BODY).hexdigest()[:16]


class _Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        match self.path:
            case "/guide.md":
                self._answer(200, BODY)
            case "/moved":
                self._answer(302, b"", Location="/guide.md")
            case "/to-ftp":
                self._answer(302, b"", Location="ftp://127.0.0.1/guide.md")
            case "/slow":
                self.send_response(200)
                self.end_headers()
                self.server.released.wait(50)  # type: ignore[attr-defined]  # set by the fixture
            case _:
                self._answer(404, b"no")

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    """Address of a server with a page, redirects and one that never ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Pages)
    released = threading.Event()
    server.released = released  # type: ignore[attr-defined]  # read by the handler
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    released.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def guide(tmp_path: Path) -> Path:
    """A file to take in."""
    path = tmp_path / "gui de.md"
    path.write_bytes(BODY)
    return path


def test_a_file_is_preserved_with_what_is_known_of_it(
    store: memory.MemoryStore, root: Path, guide: Path, find: Find
) -> None:
    op = memory.MemoryOpResource(str(guide), reason="to know birds", instruction="be brief")
    assert store.dispatch(op) == memory.MemoryWriteResult(f"memory://resources/{NAME}", len(BODY))
    place = root / "resources" / NAME
    assert (place / "source.md").read_bytes() == BODY
    about = (place / "meta.md").read_text("utf-8")
    assert about.splitlines() == [
        f"- source: {guide}",
        "- original_name: gui de.md",
        f"- bytes: {len(BODY)}",
        "",
        "## Reason",
        "",
        "to know birds",
        "",
        "## Instruction",
        "",
        "be brief",
    ]
    assert find("herons") == [f"memory://resources/{NAME}/source"]
    assert find("birds") == [f"memory://resources/{NAME}/meta"]


def test_the_same_content_is_preserved_once(
    store: memory.MemoryStore, root: Path, guide: Path
) -> None:
    first = store.dispatch(memory.MemoryOpResource(str(guide), reason="first"))
    copy = guide.with_name("copy.md")
    copy.write_bytes(BODY)
    assert store.dispatch(memory.MemoryOpResource(str(copy), reason="second")) == first
    assert "first" in (root / "resources" / NAME / "meta.md").read_text("utf-8")


def test_a_target_is_another_directory(store: memory.MemoryStore, root: Path, guide: Path) -> None:
    result = store.dispatch(memory.MemoryOpResource(guide.as_uri(), "viking://agent/books"))
    assert result == memory.MemoryWriteResult(f"memory://agent/books/{NAME}", len(BODY))
    assert (root / "agent/books" / NAME / "source.md").is_file()


@pytest.mark.parametrize(
    ("name", "kept"), [("data", "source.bin"), ("a.tar.gz", "source.gz"), (".env", "source.bin")]
)
def test_the_suffix_is_that_of_the_file(
    store: memory.MemoryStore, root: Path, tmp_path: Path, name: str, kept: str
) -> None:
    (tmp_path / name).write_bytes(BODY)
    store.dispatch(memory.MemoryOpResource(str(tmp_path / name)))
    assert (root / "resources" / NAME / kept).is_file()


@pytest.mark.parametrize("name", ["notes.xyz", "notes", "page.html", "data.json"])
def test_text_is_found_and_read_whatever_its_suffix(
    store: memory.MemoryStore, tmp_path: Path, find: Find, name: str
) -> None:
    (tmp_path / name).write_bytes(BODY)
    taken = store.dispatch(memory.MemoryOpResource(str(tmp_path / name)))
    assert isinstance(taken, memory.MemoryWriteResult)
    [uri] = find("herons")
    assert uri.startswith(f"{taken.uri}/source.")
    assert store.dispatch(memory.MemoryOpRead(uri)) == memory.MemoryReadResult(
        uri, BODY.decode(), "detail"
    )


def test_binary_data_is_preserved_and_its_description_found(
    store: memory.MemoryStore, tmp_path: Path, find: Find, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "herons.xyz"
    source.write_bytes(b"\x00\x01egrets" + BODY)
    taken = store.dispatch(memory.MemoryOpResource(str(source), reason="to know storks"))
    assert isinstance(taken, memory.MemoryWriteResult)
    assert find("egrets") == []
    assert find("storks") == [f"{taken.uri}/meta"]
    assert "is binary" in caplog.text
    assert f"{taken.uri}/source.xyz" in caplog.text


def test_what_is_no_file_is_refused(store: memory.MemoryStore, tmp_path: Path) -> None:
    assert failed(store, memory.MemoryOpResource(str(tmp_path / "none"))) == "not_found"
    assert failed(store, memory.MemoryOpResource("file:///no/such/file")) == "not_found"
    assert failed(store, memory.MemoryOpResource("a\0b")) == "not_found"
    assert failed(store, memory.MemoryOpResource(str(tmp_path))) == "unsupported"
    assert failed(store, memory.MemoryOpResource("s3://bucket/key")) == "transport"


def test_a_page_is_fetched_also_through_a_redirect(
    store: memory.MemoryStore, root: Path, site: str
) -> None:
    for page in ("guide.md", "moved"):
        result = store.dispatch(memory.MemoryOpResource(f"{site}/{page}"))
        assert result == memory.MemoryWriteResult(f"memory://resources/{NAME}", len(BODY))
    assert (root / "resources" / NAME / "source.md").read_bytes() == BODY


def test_a_page_that_cannot_be_had_is_a_failure(store: memory.MemoryStore, site: str) -> None:
    assert failed(store, memory.MemoryOpResource(f"{site}/none")) == "transport"
    assert failed(store, memory.MemoryOpResource(f"{site}/to-ftp")) == "transport"
    assert failed(store, memory.MemoryOpResource("http://127.0.0.1:1/")) == "transport"
    assert failed(store, memory.MemoryOpResource("http://[bad/")) == "transport"
    assert failed(store, memory.MemoryOpResource(f"{site}/slow", timeout_seconds=0.05)) == "timeout"
